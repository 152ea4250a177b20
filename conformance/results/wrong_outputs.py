"""Which outputs of a result are wrong: `output`, the presents or `output_qk`.

A model reads the output of every call. The presents it may leave unread, as a layer that borrows
another layer's cache does. So a result whose presents alone are wrong is told apart.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal, Protocol, get_args

from conformance.base.words import listed

WrongOutput = Literal["output", "presents", "output_qk"]
#: In the order of the operator's outputs.
WRONG_OUTPUTS: Final[tuple[WrongOutput, ...]] = get_args(WrongOutput)

_PLACE: Final[dict[str, WrongOutput]] = {
    "present_key": "presents",
    "present_value": "presents",
    "output_qk": "output_qk",
}


class _Named(Protocol):
    """A fault."""

    @property
    def output(self) -> str: ...


class Figures(_Named, Protocol):
    """The figures of one output."""

    @property
    def share(self) -> float | None: ...


class HasWrongOutputs(Protocol):
    """A judgement or a record."""

    @property
    def wrong_outputs(self) -> tuple[WrongOutput, ...]: ...


def is_beyond(error: Figures) -> bool:
    """Whether an output is beyond its error budget. NaN is; so is one without a share, which could
    not be compared."""
    return error.share is None or not error.share <= 1


def wrong_outputs(faults: Iterable[_Named], errors: Iterable[Figures]) -> tuple[WrongOutput, ...]:
    """Which outputs of any step have a fault or an error beyond its budget.

    An output that the operator does not have counts as ``output``.
    """
    names = {fault.output for fault in faults} | {e.output for e in errors if is_beyond(e)}
    found = {_PLACE.get(name, "output") for name in names}
    return tuple(each for each in WRONG_OUTPUTS if each in found)


def only_presents(result: HasWrongOutputs) -> bool:
    """Whether the presents are wrong, and nothing else: the output is right."""
    return result.wrong_outputs == ("presents",)


def where_wrong(result: HasWrongOutputs) -> str:
    """What follows "wrong": `in output and presents`, `only in presents`; empty if unknown."""
    wrong = result.wrong_outputs
    if not wrong:
        return ""
    return f"{'' if 'output' in wrong else 'only '}in {listed(wrong)}"
