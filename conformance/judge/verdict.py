"""Compares an outcome with the contract: the verdict, the faults and the figures behind it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal

import ml_dtypes
import numpy as np
import onnx
from onnx import numpy_helper

from conformance.base.array_types import WORD_OF_ONNX, Array
from conformance.base.text import exact_line, one_line
from conformance.base.words import listed, plural
from conformance.bundle.expected import Expected
from conformance.bundle.prepare import Prepared
from conformance.bundle.variants import Outputs, comparisons
from conformance.case.case import Case
from conformance.case.contract import Contract
from conformance.case.relations import RELATIONS, RelationName
from conformance.harness.outcomes import Crashed, Outcome, Ran, Rejected, TimedOut, Unavailable
from conformance.judge.error_map import SequenceLimits, error_map
from conformance.judge.hazards import Watch, hazard_of
from conformance.operator.call import Call
from conformance.operator.readings import ReadingName
from conformance.oracle.tolerance import CONSTANTS, TargetClass, shares
from conformance.results.faults import difference_text, faults_text
from conformance.results.records import (
    BeyondBudget,
    Fault,
    OutputErrorRecord,
    RelationBroken,
    RelationRecord,
    RunsDiffer,
    WrongDtype,
    WrongShape,
)
from conformance.results.verdicts import Verdict
from conformance.results.wrong_outputs import is_beyond

#: The fields of a tensor file.
_FIELDS: Final = frozenset({"dims", "data_type", "name", "raw_data"})

#: The shape of an output that a runtime left without a value, as runners write it. It is wrong only
#: where the oracle defines an element.
NO_VALUE: Final = (0,)


@dataclass(frozen=True)
class Judgement:
    """A verdict, the sentence with its reason, the faults and the figures.

    ``faults`` are in the order of steps and outputs; then comes the worst error beyond its budget.
    ``values_right`` is for a call that ran although it must be rejected: whether its values are
    correct; None if there is nothing to compare them with. ``bits`` is a digest of all defined
    elements of the outputs: two targets with the same digest return the same bits. ``reading`` is
    the reading of the documentation that fits best; the faults and figures are computed by it.
    None: the usual reading. ``hazard`` is for a call that passes: it describes wrong values in
    elements that the operator leaves undefined. ``of_variant``: the judgement is that of the case's
    variant; the case itself passes. ``other_kernel`` is for a fallback: the call ran on the right
    execution provider, but not, or not provably, with the kernel that the target names.
    """

    verdict: Verdict
    reason: str
    faults: tuple[Fault, ...] = ()
    of_variant: bool = False
    errors: tuple[OutputErrorRecord, ...] = ()
    vague: bool = False
    values_right: bool | None = None
    bits: str | None = None
    reading: ReadingName | None = None
    hazard: str | None = None
    other_kernel: bool = False

    @property
    def share(self) -> float | None:
        """The worst share of the budget over all outputs."""
        return max((e.share or 0.0 for e in self.errors), default=None)


class Unjudgeable(Exception):
    """The suite cannot judge this answer and must not blame the runtime.

    The message gives the reason.
    """


@np.errstate(invalid="ignore")  # memory that nobody wrote may hold a signalling NaN
def judge(
    case: Case,
    prepared: Prepared,
    outcome: Outcome,
    *,
    execution_provider: str | None,
    target_class: TargetClass,
    kernel: str | None = None,
) -> Judgement:
    """The verdict on ``outcome``. Expected values are computed only if the call ran.

    ``execution_provider`` is the requested one, None for a runtime that has no execution providers;
    ``kernel`` is the one that the target names, None for a target that leaves it to the runtime.
    Raises :class:`Unjudgeable` for output files that are not tensors, for outputs that the model
    does not have, and for a call that must compute but has no values in the oracle.
    """
    contract = case.contract.on(execution_provider)
    demands = contract.demands
    if isinstance(outcome, Crashed):
        return Judgement("crash", outcome.message)
    if isinstance(outcome, TimedOut):
        reason = f"No answer within {outcome.seconds:g} s; the process was killed."
        return Judgement("timeout", reason)
    if isinstance(outcome, Unavailable):
        return Judgement("skip", outcome.reason)
    if isinstance(outcome, Rejected):
        return _judge_rejection(contract, outcome)
    if not isinstance(outcome, Ran):
        raise Unjudgeable(f"There is no verdict for {outcome!r}.")
    if execution_provider is not None and outcome.placement != execution_provider:
        where = exact_line(outcome.placement or "None")
        reason = f"It ran, but on {where}; {execution_provider} was requested."
        return Judgement("fallback", reason)
    if kernel is not None and outcome.kernels != (kernel,):
        return Judgement("fallback", _other_kernel(kernel, outcome.kernels), other_kernel=True)
    if prepared.unjudged is not None and not prepared.readings:
        nothing = f"there are no values to compare with ({prepared.unjudged})."
        if demands == "rejects":
            return Judgement("accepted", f"Ran instead of failing; {nothing}")
        if demands == "either":
            reason = "Ran, as it may; its values cannot be compared."
            return Judgement("pass", reason, hazard=f"The call has no meaning; {nothing}")
        raise Unjudgeable(f"The case demands values, but the oracle has none: {prepared.unjudged}.")
    found = _best(prepared, outcome, target_class, case.call.num_heads)
    faults = found.faults
    if demands == "rejects":
        how = "right"
        if faults:
            how = f"wrong: {faults_text(faults, found.errors)}"
        reason = f"Ran instead of failing; values {how}."
        return replace(
            found, verdict="accepted", reason=reason, values_right=not faults, hazard=None
        )
    by = f", by the reading {found.reading}" if found.reading else ""
    if faults:
        reason = f"It ran, but {faults_text(faults, found.errors)}{by}."
        if prepared.readings:
            reason += " It is right by no reading of the contract; this one fits best."
        return replace(found, verdict="wrong", reason=reason, hazard=None)
    largest = f"{found.share or 0.0:.2g} of the error budget"
    reason = f"Computed correctly{by}; the largest error is {largest}."
    steps = zip(prepared.script.steps, outcome.runs[0], strict=True)
    if ran := sum(step.refused and bool(files) for step, files in steps):
        reason += f" {plural(ran, 'illegal call')} before it ran instead of failing."
    return replace(found, reason=reason)


def _other_kernel(kernel: str, ran: tuple[str, ...] | None) -> str:
    """Why a call did not run with the kernel that the target names."""
    if ran is None:
        return f"It ran, but the runtime reports no kernel, so nothing proves that {kernel} ran."
    others = [name for name in ran if name != kernel]
    what = f"the kernel {others[0]}" if len(others) == 1 else f"the kernels {listed(others)}"
    if kernel in ran:
        return f"It ran with {kernel}, but in part with {what}."
    return f"It ran, but with {what}; {kernel} was requested."


def _best(prepared: Prepared, outcome: Ran, target_class: TargetClass, num_heads: int) -> Judgement:
    """The comparison by the reading that fits best: the first without faults, if there is one.

    All outputs of all steps are compared by the same reading; the usual one is tried first.
    """
    usual = [] if prepared.unjudged is not None else [prepared]
    found: list[Judgement] = []
    for one in (*usual, *map(prepared.by, prepared.readings)):
        found.append(_compare(one, outcome, target_class, num_heads))
        if not found[-1].faults:
            break
    return min(found, key=lambda by_one: (bool(by_one.faults), by_one.share or 0.0))


def _judge_rejection(contract: Contract, outcome: Rejected) -> Judgement:
    message = outcome.message.lower().strip()
    if contract.demands == "computes":
        how = "with a message" if message else "without a message"
        rather = "" if contract.basis == "specified" else ", not specified"
        reason = f"Refused at {outcome.stage} {how}; the call is {contract.basis}{rather}."
        return Judgement("unsupported", reason, vague=not message)
    may = "must" if contract.demands == "rejects" else "may"
    reason = f"Refused at {outcome.stage}, as it {may} be"
    names_one = any(word.lower() in message for word in contract.mentions)
    vague = not message or (bool(contract.mentions) and not names_one)
    if not message:
        reason += ", but without a message"
    elif vague:
        reason += f", but the message names none of: {', '.join(contract.mentions)}"
    hazard = None
    if outcome.changed:
        inputs = exact_line(listed(outcome.changed), 300)
        hazard = f"It refused the call, but had changed its input {inputs}."
    return Judgement("pass", reason + ".", vague=vague, hazard=hazard)


def _compare(
    prepared: Prepared, outcome: Ran, target_class: TargetClass, num_heads: int
) -> Judgement:
    """The figures of every output of every step, the faults, the bits and the hazard.

    The verdict is not decided yet. The bits are a digest of the first run: of the defined elements
    if the shape is right.
    """
    found: list[OutputErrorRecord] = []
    bits = hashlib.blake2b(digest_size=8)
    faults: list[Fault] = []
    watched: list[Watch] = []
    loop = len(prepared.expected) > 1
    call = prepared.call
    has_limits = prepared.relation is None and not (call.graph or call.sliding_window_cache)
    for step, expected in enumerate(prepared.expected):
        at = step if loop else None
        limits = partial(SequenceLimits, call, prepared.call_steps[step]) if has_limits else None
        first, *others = (run[step] for run in outcome.runs)
        for files in (first, *others):
            if expected and set(files) != set(expected):
                raise Unjudgeable(
                    f"The runner returned {exact_line(', '.join(sorted(files)), 300)},"
                    f" the model has {', '.join(sorted(expected))}."
                )
        for name, want in expected.items():
            raw = first[name]
            dtype, got = _tensor(raw, name)
            for other in others:
                again = other[name]
                if again != raw and _differ(got, _tensor(again, name)[1], want):
                    faults.append(RunsDiffer(output=name, step=at))
            if got.shape == NO_VALUE and not want.defined_count:
                continue
            if dtype != want.dtype:
                faults.append(WrongDtype(output=name, step=at, got=dtype, want=want.dtype))
                bits.update(raw)
                continue
            if got.shape != want.shape:
                shape = want.shape
                faults.append(WrongShape(output=name, step=at, got=got.shape, want=shape))
                bits.update(raw)
                continue
            bits.update(want.defined_of(got).view(np.uint8).data)
            watched.append(Watch(name, at, got, want))
            figures = compare(name, step, got, want, target_class, num_heads, limits)
            if figures is not None:
                found.append(figures)
    worst = max(found, key=lambda e: e.share or 0.0, default=None)
    if worst is not None and is_beyond(worst):
        element = worst.model_dump(include={"output", "index", "got", "want", "budget", "share"})
        faults.append(BeyondBudget(**element, step=worst.step if loop else None))
    return Judgement(
        "pass",
        "",
        tuple(faults),
        errors=tuple(found),
        bits=bits.hexdigest(),
        reading=prepared.reading,
        hazard=hazard_of(watched, target_class),
    )


def _differ(one: Array, other: Array, want: Expected) -> bool:
    """Whether two runs differ in any bit of a defined element.

    If a shape is wrong, all elements are compared. A difference in shape or dtype counts, too.
    """
    if one.shape != other.shape or one.dtype != other.dtype or one.shape != want.shape:
        return True
    return bool(want.defined_of(one).tobytes() != want.defined_of(other).tobytes())


def compare(
    output: str,
    step: int,
    got: Array,
    want: Expected,
    target_class: TargetClass,
    num_heads: int = 1,
    limits: Callable[[], SequenceLimits] | None = None,
) -> OutputErrorRecord | None:
    """The figures of one output of the right shape and dtype; None if it has no defined element.

    ``num_heads`` is that of the query, ``limits`` makes those for the map of errors. NaN equals
    nothing, not even NaN. An infinity is right only where the oracle has the same infinity.
    """
    if not want.defined_count:
        return None
    # All other elements are copies, which are usually exact and need no figures.
    found = want.worst(got)
    each = shares(found.got, found.value, found.unit, target_class)
    if not each.max(initial=0.0) <= 1:  # a map needs the shares of all elements
        found = want.unlike(got)
        each = shares(found.got, found.value, found.unit, target_class)
    share = absolute = relative = 0.0
    if found.at.size:
        with np.errstate(all="ignore"):
            errors = np.abs(found.got - found.value)
            errors[np.isnan(errors)] = math.inf
            errors[found.got == found.value] = 0.0
            ratios = errors / np.abs(found.value)
        ratios[np.isnan(ratios)] = math.inf
        ratios[errors == 0.0] = 0.0
        share, absolute, relative = (float(of.max()) for of in (each, errors, ratios))
    place = int(found.at[np.argmax(each)]) if share else int(np.argmax(want.defined))
    where = None
    if not share <= 1:
        everywhere = np.zeros(got.size)
        everywhere[found.at] = each
        shaped = everywhere.reshape(got.shape)
        where = error_map(output, shaped, got, want.defined, num_heads, limits and limits())
    index = np.unravel_index(place, got.shape)
    return OutputErrorRecord(
        output=output,
        step=step,
        index=tuple(int(i) for i in index),
        got=float(got[index]),
        want=float(want.value.flat[place]),
        absolute=absolute,
        relative=relative,
        budget=CONSTANTS[target_class] * want.unit_at(place),
        share=share,
        needed=share * CONSTANTS[target_class],
        compared=want.defined_count,
        undefined=got.size - want.defined_count,
        where=where,
    )


def read_outputs(outcome: Ran) -> Outputs:
    """The outputs of the first repeat, for each step. Raises :class:`Unjudgeable`."""
    return [{name: _tensor(raw, name)[1] for name, raw in step.items()} for step in outcome.runs[0]]


@np.errstate(invalid="ignore")
def relate(
    call: Call,
    relation: RelationName,
    own: tuple[Outputs, Sequence[Mapping[str, Expected]]],
    other: tuple[Outputs, Sequence[Mapping[str, Expected]]],
    target_class: TargetClass,
) -> tuple[RelationRecord, tuple[RelationBroken, ...]]:
    """The distance between the results of a call and of its variant, which are both correct.

    The faults are the largest difference of each output that differs by more than is allowed, the
    worst first.

    ``own`` and ``other`` (the variant) are the outputs and the oracle's values, for each step.
    Elements that are defined in both are compared. If the relation is exact, every bit must agree.
    Otherwise each result may differ by the budget of its own arithmetic, and on a GPU, where the
    two run on kernels that round differently, by its whole budget (docs/tolerance.md).
    """
    closeness = RELATIONS[relation].closeness
    whole = closeness == "storage" or target_class != "cpu"
    found: dict[str, RelationBroken] = {}  # the largest difference of each output
    for pair in comparisons(call, relation):
        mine = pair.own(own[0])
        mine = mine * mine.dtype.type(pair.factor)
        theirs = pair.other(other[0])
        units = pair.other(_arrays(other[1], "unit")) + pair.own(_arrays(own[1], "unit"))
        defined = ~np.isnan(units)
        if pair.factor != 1.0:  # rounding of subnormal numbers is not linear
            info = ml_dtypes.finfo(theirs.dtype)  # type: ignore[no-untyped-call]
            smallest_normal = float(info.smallest_normal)
            defined &= np.abs(theirs.astype(np.float64)) >= 2 * smallest_normal
        if mine[defined].tobytes() == theirs[defined].tobytes():
            continue
        if not whole:
            units = 2 * pair.other(_arrays(other[1], "arithmetic"))
        # Sums kept in float16, as some GPUs have them, are not linear near 0.
        exact = closeness == "exact" and (pair.factor == 1.0 or target_class == "cpu")
        constant = 0.0 if exact else CONSTANTS[target_class]
        x, y = mine.astype(np.float64), theirs.astype(np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):
            share = np.abs(x - y) / (constant * units)
        share[np.isnan(share)] = np.inf
        share[(x == y) | ~defined] = 0.0
        index = np.unravel_index(int(np.argmax(share)), share.shape)
        worst = float(share[index])
        if pair.output not in found or worst > found[pair.output].share:
            found[pair.output] = RelationBroken(
                output=pair.output,
                name=relation,
                index=tuple(int(i) for i in index),
                got=float(x[index]),
                other=float(y[index]),
                budget=0.0 if exact else float(constant * units[index]),
                share=worst,
            )
    differences = sorted(found.values(), key=lambda difference: -difference.share)
    record = RelationRecord(
        name=relation,
        what=RELATIONS[relation].what,
        share=differences[0].share if differences else 0.0,
        identical=not differences,
        sentence=difference_text(differences[0]) if differences else "no bit differs",
    )
    return record, tuple(each for each in differences if is_beyond(each))


def _arrays(
    expected: Sequence[Mapping[str, Expected]], name: Literal["unit", "arithmetic"]
) -> Outputs:
    """The named array of each output, arranged like the outputs."""
    return [{output: getattr(one, name) for output, one in step.items()} for step in expected]


def _tensor(raw: bytes, name: str) -> tuple[str, Array]:
    """The dtype word and the values of a tensor file, as runners/README.md describes it."""
    tensor = onnx.TensorProto()
    try:
        tensor.ParseFromString(raw)
        found = {field.name for field, _ in tensor.ListFields()}
        if other := sorted(found - _FIELDS):
            raise ValueError(f"it has the field {', '.join(other)}; the values belong in raw_data")
        if tensor.name != name:
            raise ValueError(f"it has the name {exact_line(tensor.name)!r}")
        if tensor.data_type == onnx.TensorProto.STRING:
            raise ValueError("it has text, not numbers")
        if negative := [size for size in tensor.dims if size < 0]:
            raise ValueError(f"it has a dimension of {negative[0]}")
        values = numpy_helper.to_array(tensor)
    except Exception as error:  # any exception may come of arbitrary bytes
        what = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise Unjudgeable(
            f"The file of {exact_line(name)} is not a valid tensor: {one_line(what, 300)}."
        ) from None
    return WORD_OF_ONNX.get(tensor.data_type, f"ONNX type {tensor.data_type}"), values
