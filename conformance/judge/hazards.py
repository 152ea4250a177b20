"""Wrong values in elements that the operator leaves undefined but that the suite watches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from conformance.bundle.expected import Expected
from conformance.oracle.attention import Watched
from conformance.oracle.tolerance import TargetClass, shares


class Watch(NamedTuple):
    """One output of the right shape: ``step`` is the call of a loop, else None."""

    output: str
    step: int | None
    got: np.ndarray
    want: Expected


#: The fault of the first of several elements, after its value, by the reason for watching it.
_WORDS: Final[dict[Watched, str]] = {
    "masked": "a NaN, infinity or overflow that a mask hides reaches",
    "nothing": "there is nothing to attend to for",
}


def hazard_of(watched: Sequence[Watch], target_class: TargetClass) -> str | None:
    """One sentence on the watched elements that have a wrong value; None if there are none.

    It names the first such element of each kind. In a row that masked numbers reach, the right
    value is known. A row with no key to attend to should be 0, as with a sink.
    """
    told = []
    for why, words in _WORDS.items():
        count, first = 0, ""
        for one in watched:
            if (unit := one.want.watched.get(why)) is None:
                continue
            each = shares(one.got.astype(np.float64), one.want.value, unit, target_class)
            bad = np.argwhere(each > 1)
            if len(bad) and not count:
                index = tuple(map(int, bad[0]))
                at = "" if one.step is None else f" of step {one.step}"
                place = f"{one.output}[{', '.join(map(str, index))}]{at}"
                got, want = float(one.got[index]), one.want.value[index]
                first = f"{place} is {got:.6g}, not {want:.6g}: {words} it"
            count += len(bad)
        if count:
            others = {1: "", 2: " and another element"}.get(count, f" and {count - 1} others")
            told.append(first + others)
    return f"{'; '.join(told)}." if told else None
