"""Makes the records of a results file: the header, cases and results."""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from conformance import __version__
from conformance.base.paths import shown
from conformance.case.case import Case
from conformance.case.corpus import is_shipped
from conformance.expectations.match import Expectation, known_result
from conformance.harness.outcomes import (
    Crashed,
    Outcome,
    Ran,
    Rejected,
    TimedOut,
    Unavailable,
)
from conformance.judge.verdict import Judgement
from conformance.operator.call import GivenCall, GraphCall
from conformance.results.records import (
    Header,
    Milliseconds,
    RelationRecord,
    ResultRecord,
    Selection,
    ShardRecord,
)
from conformance.results.verdicts import is_red, was_tried
from conformance.run.target import DescribedTarget, Plan


def skipped_record(case: Case, ready: DescribedTarget, reason: str) -> ResultRecord:
    """The record of a case that cannot be run on the target."""
    return result_record(case, ready, Judgement("skip", reason), Unavailable(reason=reason), ())


_OUTCOME: Final = {
    "Ran": "ran",
    "Rejected": "rejected",
    "Crashed": "crashed",
    "TimedOut": "timed_out",
    "Unavailable": "unavailable",
}


def result_record(
    case: Case,
    ready: DescribedTarget,
    judgement: Judgement,
    outcome: Outcome,
    expectations: Sequence[Expectation],
    relation: RelationRecord | None = None,
) -> ResultRecord:
    """The record of a judged case, compared with the expectations of its target."""
    seen: dict[str, Any] = {}
    if isinstance(outcome, Rejected):
        seen = {"stage": outcome.stage, "code": outcome.code, "message": outcome.message}
    elif isinstance(outcome, Ran):
        total = round(outcome.total_ms, 3)
        milliseconds = Milliseconds(load=outcome.load_ms, run=outcome.run_ms, total=total)
        seen = {"placement": outcome.placement, "kernels": outcome.kernels, "ms": milliseconds}
    elif isinstance(outcome, Crashed):
        seen = {"message": outcome.message}
    elif isinstance(outcome, TimedOut):
        seen = {"time_limit": outcome.seconds}
    version, adapter = "", None
    if ready.described is not None:
        version, adapter = ready.described.version, ready.described.adapter
    contract = case.contract.on(ready.execution_provider)
    judged = ResultRecord(
        kind="result",
        case=case.id,
        target=ready.name,
        unexpected=False,
        outcome=_OUTCOME[type(outcome).__name__],
        share=judgement.share,
        relation=relation,
        stderr=outcome.stderr,
        contract=None if contract is case.contract else contract,
        reproduce=reproduce(case, ready.arguments),
        **vars(judgement),
        **seen,
    )
    record = compared(case, judged, contract.basis, (version, adapter), expectations)
    if record.unexpected or is_red(record, contract.basis):
        return record
    return record.model_copy(update={"stderr": end_of_stderr(record.stderr)})


#: In the sentence about a result that differs from its expectation, behind the line's place.
ANOTHER_EXPECTATION: Final = " has another expectation for "


def compared(
    case: Case,
    result: ResultRecord,
    basis: str,
    on: tuple[str, str | None],
    expectations: Iterable[Expectation],
) -> ResultRecord:
    """A result after comparison with its target's expectations.

    The reason ends with the difference. ``basis`` is that of its contract, ``on`` has version and
    adapter.
    """
    found = None
    if was_tried(result):  # else no defect can show
        found = known_result(case, result, on, expectations)
    unexpected, record, reason = is_red(result, basis), None, result.reason
    if found is not None:
        line, differs = found
        unexpected = differs is not None
        if unexpected or line.known.verdict != "pass":
            record = line.record
        if record is not None and unexpected:
            reason += (
                f" {record.file}:{line.line}{ANOTHER_EXPECTATION}{line.known.where}: {differs}; end"
                " that range of versions, or change the line."
            )
    update = {"unexpected": unexpected, "expectation": record, "reason": reason}
    return result.model_copy(update=update)


#: The most characters of stderr that a result keeps that is neither unexpected nor red; of others
#: it keeps what the runner's process has kept.
FEW_CHARACTERS: Final = 1 << 11


def end_of_stderr(text: str) -> str:
    """The last `FEW_CHARACTERS` of ``text``, with a note if text was cut off."""
    note = "[what was before this is left out]\n"
    return text if len(text) <= FEW_CHARACTERS else note + text[len(note) - FEW_CHARACTERS :]


def argument_for(case: Case) -> str:
    """The case on the command line: its id, or its location in a user's file."""
    return case.id if is_shipped(case) else f"{shown(case.file)}::{case.label}"


def reproduce(case: Case, arguments: Sequence[str]) -> str:
    """The command that runs this case alone, on the target that ``arguments`` select."""
    return shlex.join(["gqa", "run", argument_for(case), *arguments])


def selection_of(plans: Sequence[Plan], text: str, *, only_failed: bool = False) -> Selection:
    """The selection of the plans, for the header; ``text`` is the selection as it was typed."""
    return Selection(
        text=f"{text} --lf" if only_failed else text,
        cases=len({case.id for plan in plans for case in plan.cases}),
        results=sum(len(plan.cases) for plan in plans),
        only_failed=only_failed,
    )


def header(
    plans: Sequence[Plan],
    targets: Sequence[DescribedTarget],
    selection: Selection,
    shard: ShardRecord | None = None,
) -> Header:
    """The first line of the results file; ``plans`` are those of the run before it was divided."""
    return Header(
        suite=__version__,
        corpus=corpus_digest(case for plan in plans for case in plan.cases),
        selection=selection,
        targets=tuple(ready.record() for ready in targets),
        machine=machine(),
        start=datetime.now(UTC),
        shard=shard,
    )


def corpus_digest(cases: Iterable[Case]) -> str:
    """The digest of a run's case files and the files that they name; targets do not change it."""
    files: set[Path] = set()
    named: set[bytes] = set()
    for case in cases:
        files.add(case.file)
        if isinstance(case.call, GraphCall):
            named.add(hashlib.sha256(case.call.content).digest())
        elif isinstance(case.call, GivenCall):
            named.add(bytes.fromhex(case.call.digest))
    digest = hashlib.sha256()
    for file in sorted(files, key=lambda file: (file.parent.name, file.name)):
        digest.update(f"{file.parent.name}/{file.name}\n".encode() + file.read_bytes())
    for content in sorted(named):
        digest.update(content)
    return digest.hexdigest()[:16]


def machine() -> dict[str, str]:
    """Facts about the machine of the run."""
    return {
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "cores": str(os.cpu_count()),
        "python": platform.python_version(),
    }
