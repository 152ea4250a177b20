"""Which outputs of a result are wrong: `output`, the presents or `output_qk`.

Results whose presents alone are wrong are distinguished: a model uses the output of every call, but
not always the presents, for example not in a layer that uses the cache of another layer. The
outputs of a graph count as one of the three by their names (:data:`PRESENT`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, Literal, Protocol, get_args

from conformance.base.words import listed
from conformance.operator.signature import OUTPUT_NAMES, PRESENT

if TYPE_CHECKING:
    from conformance.results.records import (
        Fault,
        OutputErrorRecord,
        RelationBroken,
        ResultRecord,
    )

WrongOutput = Literal["output", "presents", "output_qk"]
#: In the order of the operator's outputs.
WRONG_OUTPUTS: Final[tuple[WrongOutput, ...]] = get_args(WrongOutput)


def _kind(name: str) -> WrongOutput:
    """The kind of the output with this name; `output` if it is not one of the operator's."""
    if PRESENT.search(name):
        return "presents"
    return "output_qk" if name == "output_qk" else "output"


class HasWrongOutputs(Protocol):
    """A judgement or a record."""

    @property
    def wrong_outputs(self) -> tuple[WrongOutput, ...]: ...


def is_beyond(error: OutputErrorRecord | RelationBroken) -> bool:
    """Whether an output is beyond its error budget, or could not be compared (no share, NaN)."""
    return error.share is None or not error.share <= 1


def wrong_outputs(
    faults: Iterable[Fault], errors: Iterable[OutputErrorRecord]
) -> tuple[WrongOutput, ...]:
    """The kinds of outputs that have, in any step, a fault or an error beyond the budget."""
    kinds = set(map(_kind, wrong_names(faults, errors)))
    return tuple(each for each in WRONG_OUTPUTS if each in kinds)


def wrong_names(faults: Iterable[Fault], errors: Iterable[OutputErrorRecord]) -> tuple[str, ...]:
    """The names of the outputs that have a fault or an error beyond the budget."""
    names = [fault.output for fault in faults]
    return tuple(dict.fromkeys([*names, *(e.output for e in errors if is_beyond(e))]))


def wrong_in(result: ResultRecord, shown: Callable[[str], str] = str) -> str:
    """The wrong outputs of a result in words; outputs of a graph by their own names, which are
    passed through ``shown`` for escaping."""
    names = wrong_names(result.faults, result.errors)
    if all(name in OUTPUT_NAMES for name in names):
        return listed(result.wrong_outputs)
    return listed([shown(name) for name in names])


def only_presents(result: HasWrongOutputs) -> bool:
    """Whether presents are wrong, and no other output."""
    return result.wrong_outputs == ("presents",)


def where_wrong(result: HasWrongOutputs) -> str:
    """Words to follow "wrong": `in output and presents`, `only in presents`; empty if unknown."""
    wrong = result.wrong_outputs
    if not wrong:
        return ""
    return f"{'' if 'output' in wrong else 'only '}in {listed(wrong)}"
