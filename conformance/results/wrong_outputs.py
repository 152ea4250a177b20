"""Which outputs of a result are wrong: `output`, the presents or `output_qk`.

The outputs of a graph count as one of these by their names (:data:`PRESENT`).

A model reads the output of every call. The presents it may leave unread, as a layer that borrows
another layer's cache does. So a result whose presents alone are wrong is told apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, Literal, Protocol, get_args

from conformance.base.signature import OUTPUT_NAMES, PRESENT
from conformance.base.words import listed

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


def _place(name: str) -> WrongOutput:
    """Which of the operator's outputs an output is: of a graph, presents are known by their names,
    and all others are what a model reads, as is an output that the operator does not have."""
    if PRESENT.search(name):
        return "presents"
    return "output_qk" if name == "output_qk" else "output"


class HasWrongOutputs(Protocol):
    """A judgement or a record."""

    @property
    def wrong_outputs(self) -> tuple[WrongOutput, ...]: ...


def is_beyond(error: OutputErrorRecord | RelationBroken) -> bool:
    """Whether an output is beyond its error budget. NaN is; so is one without a share, which could
    not be compared."""
    return error.share is None or not error.share <= 1


def wrong_outputs(
    faults: Iterable[Fault], errors: Iterable[OutputErrorRecord]
) -> tuple[WrongOutput, ...]:
    """Which outputs of any step have a fault or an error beyond its budget."""
    found = set(map(_place, wrong_names(faults, errors)))
    return tuple(each for each in WRONG_OUTPUTS if each in found)


def wrong_names(faults: Iterable[Fault], errors: Iterable[OutputErrorRecord]) -> tuple[str, ...]:
    """The names of the outputs that have a fault or an error beyond its budget."""
    found = [fault.output for fault in faults]
    return tuple(dict.fromkeys([*found, *(e.output for e in errors if is_beyond(e))]))


def wrong_in(result: ResultRecord, shown: Callable[[str], str] = str) -> str:
    """In which outputs a result is wrong, in words; those of a graph by their own names, which
    ``shown`` makes harmless."""
    names = wrong_names(result.faults, result.errors)
    if all(name in OUTPUT_NAMES for name in names):
        return listed(result.wrong_outputs)
    return listed([shown(name) for name in names])


def only_presents(result: HasWrongOutputs) -> bool:
    """Whether the presents are wrong, and nothing else: the output is right."""
    return result.wrong_outputs == ("presents",)


def where_wrong(result: HasWrongOutputs) -> str:
    """What follows "wrong": `in output and presents`, `only in presents`; empty if unknown."""
    wrong = result.wrong_outputs
    if not wrong:
        return ""
    return f"{'' if 'output' in wrong else 'only '}in {listed(wrong)}"
