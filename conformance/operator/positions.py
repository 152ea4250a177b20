"""The positions of a call's query tokens: the implied ones, and those drawn for position_ids.

A kernel that ignores position_ids computes the implied positions, so drawn ones differ from them:

* In a first prompt every sequence begins at :data:`FIRST` and counts on, because "the kernel uses
  only the first element".
* In any other call each sequence has a different start, alternately above and below the implied
  one, and some positions between its tokens are skipped.
* In a loop that begins with a prompt the later positions are above those before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from conformance.operator.call import Call, InputOverride

#: The position of the first token of a drawn first prompt.
FIRST: Final = 3
#: In other drawn positions one is left out after the first token, and then after this many tokens
#: each.
GAP: Final = 4
#: The smallest distance from the implied position of a sequence's first token.
_DISTANCE: Final = 2
#: The number of sequences whose drawn positions have different starts.
_DISTINCT: Final = 64


@dataclass(frozen=True)
class Positions:
    """Positions of query tokens. Token t of sequence b has ``starts[b] + t``, and more with gaps.

    With ``gaps``, (t + GAP - 1) // GAP positions are skipped before token t.
    """

    starts: tuple[int, ...]
    gaps: bool = False

    def steps(self, tokens: int) -> list[int]:
        """The distance of each of ``tokens`` tokens from the first of its sequence."""
        return [token + _left_out(token) * self.gaps for token in range(tokens)]

    def numbers(self, tokens: int) -> list[int]:
        """The positions of ``tokens`` tokens of each sequence, one sequence after the other."""
        steps = self.steps(tokens)
        return [start + step for start in self.starts for step in steps]

    def end(self, tokens: int) -> int:
        """One more than the largest position of ``tokens`` tokens."""
        last = tokens - 1
        return max(self.starts) + last + _left_out(last) * self.gaps + 1 if tokens else 0


def _left_out(token: int) -> int:
    return (token + GAP - 1) // GAP


def implied(
    sequence_length: int, total_lengths: Sequence[int], query_lengths: Sequence[int] | None = None
) -> Positions:
    """The positions without position_ids.

    In a right-padded first prompt they count from 0 in every sequence; later tokens follow the past
    of the same sequence. In a padded chunk, ``query_lengths`` tokens of each sequence are new.
    """
    if query_lengths is not None:
        return Positions(tuple(map(int.__sub__, total_lengths, query_lengths)))
    if _is_first_prompt(sequence_length, total_lengths):
        return Positions((0,) * len(total_lengths))
    return Positions(tuple(total - sequence_length for total in total_lengths))


def are_drawn(call: Call) -> bool:
    """Whether position_ids are connected with positions that differ from the implied ones."""
    override = call.inputs.get("position_ids")
    if isinstance(override, InputOverride):
        written = override.data is not None or override.values is not None
        connected = override.state == "connected" and not written
    else:
        connected = bool(call.position_ids) if override is None else override == "connected"
    return connected and call.position_ids != "implied"


def drawn(
    call: Call,
    sequence_length: int,
    total_lengths: Sequence[int],
    query_lengths: Sequence[int] | None = None,
) -> Positions:
    """Positions that differ from the implied ones, for a call of a loop or a single call."""
    is_prompt = query_lengths is None and _is_first_prompt(sequence_length, total_lengths)
    if not sequence_length or is_prompt:
        return Positions((FIRST,) * len(total_lengths))
    after_a_prompt = call.loop is not None and not call.past_sequence_length
    left_out = _left_out(sequence_length - 1)
    rows = call.rotary_cache_length
    starts: list[int] = []
    for b, place in enumerate(implied(sequence_length, total_lengths, query_lengths).starts):
        distance = _DISTANCE + b % _DISTINCT + (FIRST if after_a_prompt else 0)
        above, below = max(place, 0) + distance, place - distance - left_out
        fits = rows is None or above + sequence_length + left_out <= rows
        down = not after_a_prompt and ((b + call.past_sequence_length) % 2 or not fits)
        start = below if down and below >= 0 else above
        while (b < _DISTINCT and start in starts) or 0 <= place - start <= left_out:
            start += 1
        starts.append(start)
    return Positions(tuple(starts), gaps=True)


def _is_first_prompt(sequence_length: int, total_lengths: Sequence[int]) -> bool:
    return max(total_lengths, default=0) == sequence_length
