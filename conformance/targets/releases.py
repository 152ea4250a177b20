"""The releases that a word after ``@`` selects, as in ``cpu@1.25.1``.

======================  ===========================================================================
``cpu@1.25.1``          this release
``cpu@1.25``            the last release of this series
``cpu@1.20..``          the last release of each series from this one on; ``..1.27``, ``1.20..1.27``
``cpu@all``             every release, from the oldest that the runner supports
``cpu@latest``          the newest release
``cpu@nightly``         the newest pre-release, where the registry has one
======================  ===========================================================================

A series of ONNX Runtime is a minor version. tract gets features in patch releases, so each of them
is its own series. A range includes its ends if they are releases.

:func:`is_in_range` decides whether a version is in a range such as ``>=1.27,<1.31``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Final

from packaging.specifiers import Specifier, SpecifierSet
from packaging.version import Version

from conformance.base.explain import did_you_mean
from conformance.base.versions import ordered_version
from conformance.targets.catalogue import Package, TargetError

LATEST: Final = "latest"
NIGHTLY: Final = "nightly"
ALL: Final = "all"
#: The words that stand for releases.
WORDS: Final = (LATEST, NIGHTLY, ALL)

_SERIES: Final = re.compile(r"\d+(\.\d+)?")
_RELEASE: Final = re.compile(r"\d+\.\d+\.\d+[0-9A-Za-z.+-]*")
_RANGE: Final = re.compile(r"(\d+(?:\.\d+){0,2})?\.\.(\d+(?:\.\d+){0,2})?")

#: All versions of a package in its registry, in any order. Raises :class:`TargetError`.
Published = Callable[[Package], Sequence[str]]


@lru_cache(maxsize=4096)
def is_in_range(version: str, versions: str) -> bool:
    """Whether a version is in a range such as ``>=1.27,<1.31``; False if it is not a version.

    A pre-release is older than its release: ``1.31.0-dev.20261101`` is in ``<1.31``, where PEP 440
    would exclude it, and not in ``>=1.31``. A local part (``+cu13``) is ignored. Raises
    :class:`ValueError` if ``versions`` is not a range.
    """
    bounds = SpecifierSet(versions)
    ordered = ordered_version(version)
    if ordered is None:
        return False
    # Check every bound, because a number with thousands of digits raises ValueError only here.
    within = [_is_within(ordered, bound) for bound in bounds]
    return all(within)


def _is_within(version: Version, bound: Specifier) -> bool:
    if bound.operator == "<":
        return version < Version(bound.version)
    return bound.contains(version, prereleases=True)


def releases(word: str, package: Package, published: Published) -> list[str]:
    """The releases that ``word`` selects, the oldest first.

    ``published`` is called only if ``word`` is not itself a release. Raises :class:`TargetError`.
    """
    span = _RANGE.fullmatch(word)
    if span is None and _RELEASE.fullmatch(word):
        key = ordered_version(word)
        if key is None or key < Version(package.oldest):
            what = "no version" if key is None else f"older than {package.oldest}"
            raise TargetError(
                f"'@{word}' is {what}; the oldest release of {package.name} that the runner "
                f"supports is {package.oldest}."
            )
        return [word]
    if span is None and word not in WORDS and not _SERIES.fullmatch(word):
        raise TargetError(
            f"'@{word}' is not a release of {package.name}. Expected a release such as "
            f"@{package.oldest}, a range such as @{package.oldest}.., or "
            f"{', '.join(f'@{each}' for each in WORDS)}{did_you_mean(word, WORDS) or '.'}"
        )
    known = sorted((key, text) for text in published(package) if (key := ordered_version(text)))
    final = [(key, text) for key, text in known if not key.is_prerelease]
    tested = [(key, text) for key, text in final if key >= Version(package.oldest)]
    if word == NIGHTLY:
        chosen = [text for key, text in known if key.is_prerelease and key > final[-1][0]][-1:]
    elif word == LATEST:
        chosen = [text for _, text in final[-1:]]
    elif word == ALL:
        chosen = [text for _, text in tested]
    elif span is None:
        chosen = [text for key, text in final if _begins(key, word)][-1:]
    else:
        chosen = _in_range(tested, span[1], span[2], package.series)
    if not chosen:
        raise TargetError(_why_none(word, package, [text for _, text in tested]))
    return chosen


def _begins(version: Version, with_: str) -> bool:
    wanted = tuple(map(int, with_.split(".")))
    return version.release[: len(wanted)] == wanted


def _in_range(
    known: Sequence[tuple[Version, str]], first: str | None, last: str | None, series: int
) -> list[str]:
    """The last release of each series in the range, and the ends of the range."""
    inside = [
        (key, text)
        for key, text in known
        if (first is None or key >= Version(first))
        and (last is None or key <= Version(last) or _begins(key, last))
    ]
    of_series = groupby(inside, key=lambda each: each[0].release[:series])
    newest = {[text for _, text in members][-1] for _, members in of_series}
    return [text for _, text in inside if text in newest or text in (first, last)]


def _why_none(word: str, package: Package, tested: Sequence[str]) -> str:
    if word == NIGHTLY:
        return f"The registry has no pre-release of {package.name} after its newest release."
    there = f"has {tested[0]} to {tested[-1]}" if tested else "has none"
    first, dots, last = word.partition("..")
    older, newer = ordered_version(first), ordered_version(last)
    if dots and older and newer and newer < older:
        return f"'@{word}' begins with its newer end; write @{last}..{first}."
    return (
        f"'@{word}' is no release of {package.name} that this suite can test (from "
        f"{package.oldest} on); the registry {there}."
    )
