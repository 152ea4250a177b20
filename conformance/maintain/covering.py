"""A greedy covering array: few rows in which each wanted pair of levels meets.

A *factor* is a property with a few *levels*; a row has one level of each factor. Levels are words.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

Level = tuple[str, str]  # (factor, level)
Pair = tuple[Level, Level]
Row = dict[str, str]
Factors = Mapping[str, Sequence[str]]

#: The number of candidates for each row, and of levels tried for a candidate before it is given up.
TRIES: Final = 24
PATIENCE: Final = 300


def pairs_of(row: Mapping[str, str], factors: Factors) -> Iterator[Pair]:
    """The pairs of levels of a row, in the order of the factors."""
    yield from itertools.combinations([(name, row[name]) for name in factors if name in row], 2)


class Covering:
    """Makes rows until every pair that is needed is in one.

    Args:
        factors: the levels of each factor.
        allowed: whether a row, perhaps without some of its factors, is possible so far. It must
            not become possible by more levels.
        price: what a row costs; of candidates the one with the most new pairs for its price counts.
        seed: of the random choices; the same arguments give the same rows.
    """

    def __init__(
        self,
        factors: Factors,
        allowed: Callable[[Row], bool],
        price: Callable[[Row], float],
        seed: int = 0,
    ) -> None:
        self.factors = factors
        self.allowed = allowed
        self.price = price
        self.random = random.Random(seed)

    def rows(
        self, needed: Iterable[Pair], wanted: dict[Pair, None]
    ) -> Iterator[tuple[Row, list[Pair]]]:
        """Rows until each of the ``needed`` pairs is in one, if there is a row that can have it.

        Each comes with the ``wanted`` pairs that it is the first to have; they are removed from
        ``wanted``. The needed pairs are wanted, too; a row takes others on the way.
        """
        for pair in needed:
            if pair not in wanted:
                continue
            made = [row for _ in range(TRIES) if (row := self._row(pair, wanted)) is not None]
            if not made:
                continue
            best = max(made, key=lambda row: self._gain(row, wanted) / self.price(row))
            new = [found for found in pairs_of(best, self.factors) if found in wanted]
            for found in new:
                del wanted[found]
            yield best, new

    def _gain(self, row: Row, wanted: Mapping[Pair, None]) -> int:
        return sum(pair in wanted for pair in pairs_of(row, self.factors))

    def _row(self, pair: Pair, wanted: Mapping[Pair, None]) -> Row | None:
        """A row with ``pair``, and otherwise the levels with the most wanted pairs."""
        row = dict(pair)
        order = [name for name in self.factors if name not in row]
        self.random.shuffle(order)
        steps = itertools.count()

        def worth(level: Level) -> tuple[int, float]:
            gained = sum(
                (level, other) in wanted or (other, level) in wanted for other in row.items()
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
