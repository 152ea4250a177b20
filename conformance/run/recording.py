"""Makes the records of a results file: the header, cases and results."""

from __future__ import annotations

import base64
import hashlib
import os
import platform
import shlex
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np

from conformance import __version__
from conformance.base.paths import shown
from conformance.case.case import Case
from conformance.case.corpus import is_shipped
from conformance.case.given import GivenError, given_inputs
from conformance.case.relations import RELATIONS
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
from conformance.operator.call import Call, GivenCall, GraphCall
from conformance.operator.features import INPUT_RULES
from conformance.operator.tensors import Step, Tensor, attributes_of
from conformance.results.records import (
    FROM_FILE,
    CaseRecord,
    Header,
    Milliseconds,
    RelationRecord,
    ResultRecord,
    Selection,
    ShardRecord,
)
from conformance.results.verdicts import is_red, was_tried
from conformance.run.recipes import later_inputs, numbers_of, recipe_of
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


def case_record(case: Case) -> CaseRecord:
    """The case for the results file and for ``gqa show``. Raises InputError."""
    try:
        first = case.steps[0]
        given: dict[str, np.ndarray] = {}
        if isinstance(case.call, GivenCall):
            with suppress(GivenError):  # then the record does not have the numbers
                given = given_inputs(case.call, first)
        tensors = (*first.inputs, *first.buffers)
        inputs = [_input(case.call, first, each, given.get(each.name)) for each in tensors]
        keep = [step.keep for step in case.steps[1:]]
        return CaseRecord.model_validate(
            {
                "id": case.id,
                "file": f"cases/{case.file.name}" if is_shipped(case) else shown(case.file),
                "theme": case.theme,
                "question": case.question,
                "name": case.name,
                "title": case.title,
                "axes": case.axes,
                "why": case.why,
                "tags": case.tags,
                "links": case.links,
                "contract": case.contract,
                "relation": RELATIONS[case.relation].sentence if case.relation else None,
                "call": {
                    "inputs": inputs,
                    "outputs": [_place(tensor) for tensor in first.outputs],
                    "attributes": attributes_of(case.call),
                    "steps": len(case.steps),
                    "later": [later_inputs(case.call, step, first) for step in case.steps[1:]],
                    "keep": keep if {*keep} - {None} else (),
                    "shared_buffer": case.call.shared_buffer,
                    "graph": _graph(case.call, first),
                },
            }
        )
    except Exception as error:
        raise case.unprepared(error) from error


def _input(
    call: Call, step: Step, tensor: Tensor, given: np.ndarray | None = None
) -> dict[str, object]:
    """An input of ``step``, or a drawn constant of a graph, for the record.

    ``given`` are its values from a file.
    """
    values, recipe = None, None
    if isinstance(call, GivenCall) and tensor.shape is not None and 0 not in tensor.shape:
        values = f"{FROM_FILE}{call.values_from} (SHA-256 {call.digest[:16]}…)"
        recipe = None if given is None else numbers_of(given)
    elif tensor.same_as:
        values = f"the tensor of {tensor.same_as}"
    elif tensor.holds:
        values, recipe = f"the memory of {tensor.holds}", recipe_of(call, step, tensor)
    elif tensor.connected:
        values, recipe = _values_text(tensor), recipe_of(call, step, tensor)
    return {
        **_place(tensor),
        "constant": tensor.constant,
        "same_as": tensor.same_as or None,
        "holds": tensor.holds or None,
        "values": f"constant: {values}" if tensor.constant else values,
        "dims": tensor.dims if any(tensor.dims) else (),
        "recipe": recipe,
    }


#: The longest content of a graph in a record, in characters.
MOST_CONTENT: Final = 1 << 16


def _graph(call: Call, step: Step) -> dict[str, object] | None:
    """The record of a graph; None for a call of a single node."""
    if not isinstance(call, GraphCall):
        return None
    from conformance.case.graph import parsed  # imports onnx

    content = base64.b64encode(zlib.compress(call.content, 9)).decode()
    return {
        "file": call.graph,
        "digest": hashlib.sha256(call.content).hexdigest(),
        "nodes": Counter(node.op_type for node in parsed(call.content).nodes),
        "weights": [_input(call, step, tensor) for tensor in step.weights],
        "content": content if len(content) <= MOST_CONTENT else "",
    }


def _place(tensor: Tensor) -> dict[str, object]:
    """A tensor's name, state, shape and dtype, for the record."""
    dtype = tensor.dtype if tensor.connected else None
    return {"name": tensor.name, "state": tensor.state, "shape": tensor.shape, "dtype": dtype}


def _values_text(tensor: Tensor) -> str:
    """How an input's values are made, in words."""
    if tensor.node is not None:
        tensor = replace(tensor, name=tensor.role, node=None)
    if tensor.shape is not None and 0 in tensor.shape:
        return "no elements"
    if tensor.elements:
        rest = _values_text(replace(tensor, elements=()))
        changes = (
            f"{value:g} at {list(at)}" + (f" and the next {count - 1}" if count > 1 else "")
            for at, count, value in tensor.elements
        )
        return f"{rest}, but {', '.join(changes)}"
    if tensor.data is not None:
        return f"{tensor.data}"
    if tensor.values is None:
        rule = INPUT_RULES.get(tensor.name)
        return rule.meaning if rule else "1 for each token, 0 for padding"  # of an attention mask
    if tensor.values.kind == "constant":
        return f"all {tensor.values.value:g}"
    if tensor.values.kind == "marked":
        return "one element of each token in ±[0.5, 1), the rest in [-0.125, 0.125)"
    text = f"uniform in [{tensor.values.low:g}, {tensor.values.high:g})"
    factor = tensor.values.odd_heads
    return text if factor == 1.0 else f"{text}, times {factor:g} in every other head"


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
