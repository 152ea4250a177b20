"""The calls of a program: the tokens, padding and positions of each, and what it does to the cache.

A cache has a column for each token and each padding of a call. The mask says which columns have
tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

import numpy as np

from conformance.base.array_types import Array
from conformance.base.words import listed

#: The number of different tokens that are drawn; the values of a token may be stored in a table.
DIFFERENT: Final = 48
#: The tokens of one sequence, each with its type.
TokenHistory = tuple[tuple[int, int], ...]


@dataclass(frozen=True, eq=False)
class ProgramCall:
    """One call.

    ``ids`` are the new tokens, [batch, new], those of padding included, and ``types`` their types.
    ``columns``, [batch, total], says which columns of the cache have tokens after the call.
    ``histories`` are the tokens of each sequence after the call, each with its type, without
    padding. Before the call, the program keeps only so many columns of the caches (``kept``), or
    takes the sequences in another ``order``.
    """

    words: str
    ids: Array
    types: Array
    columns: Array
    histories: tuple[TokenHistory, ...]
    kept: int | None = None
    order: tuple[int, ...] | None = None

    @property
    def batch(self) -> int:
        """The number of sequences."""
        return int(self.ids.shape[0])

    @property
    def new(self) -> int:
        """The most new tokens of a sequence."""
        return int(self.ids.shape[1])

    @property
    def total(self) -> int:
        """Columns of the cache after the call."""
        return int(self.columns.shape[1])

    @property
    def past(self) -> int:
        """Columns of the cache before the call."""
        return self.total - self.new

    @property
    def lengths(self) -> Array:
        """Tokens of each sequence after the call, [batch]."""
        return np.asarray(self.columns.sum(1))

    @property
    def padding(self) -> Array:
        """Which new tokens are padding, [batch, new]."""
        return np.asarray(~self.columns[:, self.past :])

    @property
    def positions(self) -> Array:
        """The position of each new token, [batch, new]; padding has 1, as in Transformers."""
        places = self.columns.cumsum(1) - 1
        return np.where(self.columns, places, 1)[:, self.past :]

    @property
    def places(self) -> Array:
        """The place of each new token in its sequence, [batch, new]; wrong for padding."""
        return np.asarray(self.columns.cumsum(1) - 1)[:, self.past :]


@dataclass(frozen=True)
class CallSequence:
    """Consecutive calls: the cache of each call is the one that the call before returned.

    ``buffers`` has the rows of caches that the program keeps in buffers, by the name of the past.
    ``share``: past and present are one buffer.
    """

    calls: tuple[ProgramCall, ...]
    buffers: Mapping[str, int] = field(default_factory=dict)
    share: bool = False

    @cached_property
    def longest(self) -> dict[TokenHistory, TokenHistory]:
        """For each history of a sequence, the longest one that continues it."""
        every = {history for call in self.calls for history in call.histories}
        ordered = sorted(every, key=len, reverse=True)
        return {one: next(other for other in ordered if other[: len(one)] == one) for one in every}


@dataclass(frozen=True)
class TokenSource:
    """The tokens that are drawn, from ``first`` on, and the token of padding."""

    first: int = 3
    different: int = DIFFERENT
    padding: int = 0
    prompt: tuple[int, ...] = ()

    def draw(self, row: int, start: int, number: int) -> list[int]:
        """The tokens of a sequence from one place on, none of which is the token of padding.

        The first sequence begins with the user's prompt, if there is one.
        """
        numbers = np.random.default_rng(row).integers(0, self.different, start + number)
        drawn = [int(each) + self.first for each in numbers]
        other = self.first + (self.padding == self.first)
        drawn = [other if each == self.padding else each for each in drawn]
        own = [] if row else [*self.prompt[: len(drawn)]]
        return [*own, *drawn[len(own) :]][start:]


class Conversation:
    """Builds the calls of a program that has ``batch`` sequences."""

    def __init__(self, source: TokenSource, batch: int = 1, *, left: bool = False) -> None:
        self._source, self._left = source, left
        self._columns: list[list[tuple[int, int] | None]] = [[] for _ in range(batch)]
        self._drawn = 0
        self.calls: list[ProgramCall] = []

    def call(
        self,
        *news: int,
        words: str = "",
        back: int = 0,
        order: Sequence[int] | None = None,
        hole: bool = False,
        token: int | None = None,
        of_type: Sequence[int] = (),
    ) -> None:
        """Add a call with a number of new tokens for each sequence.

        ``words`` describe it in place of the usual ones. Before it, ``back`` columns are taken
        back, or the sequences put into another ``order``.
        ``hole``: the third column is padding. ``token``: the third token is this one. The tokens
        ``of_type`` have the type 1.
        """
        if order is not None:
            self._columns = [[*self._columns[each]] for each in order]
        kept = None
        if back:
            self._columns = [columns[:-back] for columns in self._columns]
            kept = len(self._columns[0])
        self._drawn += bool(back)
        past, width = len(self._columns[0]), max(news) + hole
        for row, (columns, number) in enumerate(zip(self._columns, news, strict=True)):
            # After tokens were taken back, others follow.
            ids = self._source.draw(row + 17 * self._drawn, past, number)
            if token is not None:
                ids[2] = token
            fresh: list[tuple[int, int] | None] = [
                (each, int(at in of_type)) for at, each in enumerate(ids)
            ]
            if hole:
                fresh.insert(2, None)
            padding: list[tuple[int, int] | None] = [None] * (width - len(fresh))
            columns += [*padding, *fresh] if self._left else [*fresh, *padding]
        self.calls.append(self._made(words or told(news, past), past, kept, order))

    def _made(
        self, words: str, past: int, kept: int | None, order: Sequence[int] | None
    ) -> ProgramCall:
        nothing = self._source.padding, 0
        new = np.array([[each or nothing for each in row[past:]] for row in self._columns])
        return ProgramCall(
            words,
            new[..., 0],
            new[..., 1],
            np.array([[each is not None for each in row] for row in self._columns]),
            tuple(tuple(filter(None, row)) for row in self._columns),
            kept,
            None if order is None else tuple(order),
        )

    def done(self, words: str = "") -> CallSequence:
        """The calls so far, each described with the ``words`` after it."""
        return CallSequence(tuple(replace(c, words=f"{c.words}{words}") for c in self.calls))


def prompt_of(history: TokenHistory) -> ProgramCall:
    """The tokens of one sequence as one prompt without padding."""
    new = np.array([history])
    columns = np.ones(new.shape[:2], bool)
    words = told([len(history)], 0)
    return ProgramCall(words, new[..., 0], new[..., 1], columns, (history,))


def told(news: Sequence[int], past: int) -> str:
    """``one token on a past of 6``, ``prompts of 4 and 6 tokens``."""
    if len({*news}) == 1 and len(news) > 1:
        each = f"{tokens(news[0])} for each of {len(news)} sequences"
        return each + (f" on a past of {past}" if past else "")
    if len(news) > 1:
        what = f"{listed([str(new) for new in news])} tokens"
        return f"{what} on a past of {past}" if past else f"prompts of {what}"
    what = tokens(news[0])
    return f"{what} on a past of {past}" if past else f"a prompt of {what}"


def tokens(number: int) -> str:
    """``one token``, ``6 tokens``."""
    return "one token" if number == 1 else f"{number} tokens"
