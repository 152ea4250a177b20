"""The sentence about parts of a runtime's operator that no case calls, for every report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from conformance.base.text import exact_line
from conformance.base.words import listed
from conformance.results.records import TargetRecord, UncalledParts

#: A sentence lists at most this many names of a kind.
_NAMES: Final = 8


def uncalled_sentences(targets: Iterable[TargetRecord]) -> list[str]:
    """A sentence for each runtime of ``targets`` whose operator has parts that no case calls.

    The names come from the runtime. They are shortened to one line without invisible characters.
    """
    described = (target.describe for target in targets)
    uncalled = (about.uncalled for about in described if about and about.uncalled)
    return list(dict.fromkeys(map(_sentence, uncalled)))


def _sentence(uncalled: UncalledParts) -> str:
    return f"{_shown(uncalled.declared_by)} has {listed([*_parts(uncalled)])}, which no case calls."


def _parts(uncalled: UncalledParts) -> Iterator[str]:
    for noun, names in (
        ("input", uncalled.inputs),
        ("output", uncalled.outputs),
        ("attribute", uncalled.attributes),
    ):
        if names:
            yield f"the {_named(noun, names)}"
    if uncalled.types:
        words = list(dict.fromkeys(word for some in uncalled.types.values() for word in some))
        yield f"the {_named('type', words)} of {_listed([*uncalled.types])}"


def _named(noun: str, names: Sequence[str]) -> str:
    return f"{noun}{'' if len(names) == 1 else 's'} {_listed(names)}"


def _listed(names: Sequence[str]) -> str:
    left = len(names) - _NAMES
    others = [f"{left:,} more"] if left > 0 else []
    return listed([*map(_shown, names[:_NAMES]), *others])


def _shown(name: str) -> str:
    return exact_line(name, 80)
