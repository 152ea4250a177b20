"""Finds the release in which a result changed, in as few runs as possible."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from conformance.results.differences import same_result
from conformance.results.records import ResultRecord


@dataclass(frozen=True)
class Tried:
    """The result of a case in one release, or ``why`` the case could not be run there."""

    release: str
    result: ResultRecord | None
    why: str = ""


@dataclass(frozen=True)
class ReleaseChange:
    """Two releases whose results differ; those ``between`` them could not be tried."""

    before: Tried
    after: Tried
    between: tuple[Tried, ...] = ()


class CannotBisect(Exception):
    """Fewer than two releases could be tried; the message says why."""


#: Runs the case in a release.
Try = Callable[[str], Tried]


def first_change(releases: Sequence[str], try_: Try) -> ReleaseChange | None:
    """The first release whose result differs from that of the oldest, with the release before it.

    ``releases`` are in order, the oldest first; each is tried at most once, and those that cannot
    be tried are passed over. If the verdicts of the oldest and the newest release differ, only
    verdicts are compared, else whole results (`same_result`). If the result changes several times,
    any of the releases that leave the result of the oldest may be returned. None if the oldest and
    the newest have the same result. Raises :class:`CannotBisect`.
    """
    at = functools.cache(lambda place: try_(releases[place]))

    def first_of(places: Iterable[int]) -> int | None:
        """The first of these indices at whose release the case can be tried."""
        return next((place for place in places if at(place).result is not None), None)

    every = range(len(releases))
    low = first_of(every)
    high = None if low is None else first_of(reversed(every[low + 1 :]))
    if low is None or high is None:
        *_, last = (at(place) for place in every if at(place).result is None)
        raise CannotBisect(
            f"There are not two releases in which the case can be tried: {last.release}: {last.why}"
        )
    oldest = at(low)
    if _same(oldest, at(high)):
        return None
    same = _same if _same_verdict(oldest, at(high)) else _same_verdict
    while (middle := first_of(_middle_first(low, high))) is not None:
        if same(at(middle), oldest):
            low = middle
        else:
            high = middle
    return ReleaseChange(at(low), at(high), tuple(at(place) for place in range(low + 1, high)))


def _middle_first(low: int, high: int) -> list[int]:
    """The indices between two, those nearest to the middle first."""
    return sorted(range(low + 1, high), key=lambda place: abs(2 * place - low - high))


def _same(one: Tried, other: Tried) -> bool:
    return bool(one.result and other.result and same_result(one.result, other.result))


def _same_verdict(one: Tried, other: Tried) -> bool:
    return bool(one.result and other.result and one.result.verdict == other.result.verdict)
