"""A greedy covering array: few rows in which each wanted set of levels meets.

A *factor* is a property with a few *levels*; a row has one level of each factor. Levels are words.
The sets are pairs or triples, of levels in the order of the factors.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

Level = tuple[str, str]  # (factor, level)
#: Levels in the order of the factors.
Set = tuple[Level, ...]
Pair = Set
Row = dict[str, str]
Factors = Mapping[str, Sequence[str]]

#: The number of candidates for each row, and of levels tried for a candidate before it is given up.
TRIES: Final = 24
PATIENCE: Final = 300


def sets_of(row: Mapping[str, str], factors: Factors, strength: int) -> Iterator[Set]:
    """The sets of ``strength`` levels of a row, in the order of the factors."""
    levels = [(name, row[name]) for name in factors if name in row]
    yield from itertools.combinations(levels, strength)


def pairs_of(row: Mapping[str, str], factors: Factors) -> Iterator[Set]:
    """The pairs of levels of a row, in the order of the factors."""
    yield from sets_of(row, factors, 2)


class Covering:
    """Makes rows until every set that is needed is in one.

    Args:
        factors: the levels of each factor.
        allowed: whether a row, perhaps without some of its factors, is possible so far. It must
            not become possible by more levels.
        price: what a row costs; of candidates the one with the most new sets for its price counts.
        seed: of the random choices; the same arguments give the same rows.
        strength: the number of levels in a set.
    """

    def __init__(
        self,
        factors: Factors,
        allowed: Callable[[Row], bool],
        price: Callable[[Row], float],
        seed: int = 0,
        strength: int = 2,
    ) -> None:
        self.factors = factors
        self.allowed = allowed
        self.price = price
        self.random = random.Random(seed)
        self.strength = strength
        self.place = {name: place for place, name in enumerate(factors)}

    def rows(
        self, needed: Iterable[Set], wanted: dict[Set, None]
    ) -> Iterator[tuple[Row, list[Set]]]:
        """Rows until each of the ``needed`` sets is in one, if there is a row that can have it.

        Each comes with the ``wanted`` sets that it is the first to have; they are removed from
        ``wanted``. The needed sets are wanted, too; a row takes others on the way.
        """
        for one in needed:
            if one not in wanted:
                continue
            made = [row for _ in range(TRIES) if (row := self._row(one, wanted)) is not None]
            if not made:
                continue
            best = max(made, key=lambda row: len(self._new(row, wanted)) / self.price(row))
            new = self._new(best, wanted)
            for found in new:
                del wanted[found]
            yield best, new

    def _new(self, row: Row, wanted: Mapping[Set, None]) -> list[Set]:
        return [found for found in sets_of(row, self.factors, self.strength) if found in wanted]

    def _row(self, one: Set, wanted: Mapping[Set, None]) -> Row | None:
        """A row with the set ``one``, and otherwise the levels with the most wanted sets."""
        row = dict(one)
        order = [name for name in self.factors if name not in row]
        self.random.shuffle(order)
        steps = itertools.count()

        def worth(level: Level) -> tuple[int, float]:
            gained = sum(
                tuple(sorted((level, *others), key=self._place)) in wanted
                for others in itertools.combinations(row.items(), self.strength - 1)
            )
            return gained, self.random.random()

        def fill(index: int) -> bool:
            if index == len(order):
                return True
            name = order[index]
            levels = [(name, level) for level in self.factors[name]]
            for _, level in sorted(levels, key=worth, reverse=True):
                if next(steps) > PATIENCE:
                    return False
                row[name] = level
                if self.allowed(row) and fill(index + 1):
                    return True
                row.pop(name)
            return False

        if not self.allowed(row) or not fill(0):
            return None
        return {name: row[name] for name in self.factors}

    def _place(self, level: Level) -> int:
        return self.place[level[0]]
