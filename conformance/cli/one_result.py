"""One result with its case and target, run now or taken from a results file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from conformance.base.text import clean
from conformance.case.case import Case
from conformance.case.corpus import Corpus
from conformance.cli.common import BadArgument, reading
from conformance.harness.outcomes import Ran
from conformance.harness.runner import RunnerFailed
from conformance.judge.verdict import read_outputs
from conformance.report.repro.one_result import OneResult
from conformance.results.descriptions import case_record
from conformance.results.reader import read
from conformance.results.records import InfrastructureRecord
from conformance.results.results_error import ResultsError
from conformance.results.same import is_same_case
from conformance.run.assessment import Assessed
from conformance.run.engine import PlanRun
from conformance.run.recording import argument_for
from conformance.run.target import target_plans
from conformance.targets.registry import Target
from conformance.targets.setup.programs import with_fix


def run_case(corpus: Corpus, case: Case, target: Target) -> OneResult:
    """Run the case once. Raises `ResultsError` where there is none, outside the runtime."""
    (plan,) = target_plans(corpus.loaded, [target], selected=lambda each, _: each.id == case.id)
    with PlanRun(plan) as run:
        try:
            assessed = run.run_one(case)
        except RunnerFailed as error:
            assessed = Assessed(run.trouble(error))
        described, record = run.ready.record(), assessed.record
    if isinstance(record, InfrastructureRecord):
        raise ResultsError(with_fix(f"{described.name}: {record.message}", record.fix))
    if record.verdict == "skip":
        raise ResultsError(with_fix(f"{described.name}: {record.reason}", described.fix))
    own = assessed.outcomes[0]
    outputs = read_outputs(own) if isinstance(own, Ran) else None
    return OneResult(case_record(case), record, described, outputs)


def the_one(named: Sequence[Case], typed: str) -> Case:
    """The only case that an argument names. Raises `BadArgument` if there are several."""
    if len(named) == 1:
        return named[0]
    most = 10
    listed = "\n".join(f"  {argument_for(case)}" for case in named[:most])
    more = f"\n  and {len(named) - most} more" if len(named) > most else ""
    raise BadArgument(f"'{typed}' means {len(named)} cases; which one?\n{listed}{more}")


def taken(case: Case, ep: str | None, file: Path) -> OneResult:
    """The case, its result and its target from a results file. Raises `BadArgument`."""
    with reading():
        run = read(file)
    another = BadArgument(f"{case.id} is another call in {file} than it is now; run it anew.")
    if case.id in run.changed:
        raise another
    if case.id not in run.cases:
        raise BadArgument(f"{file} does not describe {case.id}.")
    targets = {target.name: target for target in run.header.targets}
    of_case = (result for result in run.results if result.case == case.id)
    there = {result.target: result for result in of_case if result.target in targets}
    known = ", ".join(clean(name, 200) for name in there)
    chosen = {
        name: result
        for name, result in there.items()
        if ep is None or ep in (name, targets[name].base, targets[name].ep)
    }
    if not chosen:
        where = f" on {ep}; it has those on {known}" if ep and there else ""
        raise BadArgument(f"{file} has no result of {case.id}{where}.")
    if len(chosen) > 1:
        raise BadArgument(f"{file} has results of {case.id} on {known}; name one with --ep.")
    ((name, result),) = chosen.items()
    described, here = run.cases[case.id], case_record(case)
    if not is_same_case(described, here):
        raise another
    has_recipes = any(tensor.recipe is not None for tensor in described.call.inputs)
    return OneResult(described if has_recipes else here, result, targets[name])
