"""The values that a faulty kernel uses in place of an input, or of the value of an attribute.

A case tests an input only if its result changes when the input is replaced by the values that a
kernel uses if it ignores the input, or a part of it: the positions that follow from the lengths,
the row of the first sequence, one scale for all channels.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final

#: The threshold for changed inputs that only count as coverage, for a window that is one token
#: longer or shorter, and for mixed-up channels. One key among hundreds contributes no more to the
#: output, and a correct kernel's error cannot reach two budgets.
EDGE_THRESHOLD: Final = 2.0
#: The effect, in error budgets, that a part of a call must have by default.
THRESHOLD: Final = 20.0
#: The threshold for doubled quantisation scales and for epsilons. They only sharpen the softmax,
#: and float16 and bfloat16 can barely resolve the difference.
SCALE_THRESHOLD: Final = 5.0

#: Fields of the call, as the oracle reads it, with other values.
CallChanges = dict[str, Any]


@dataclass(frozen=True)
class ConnectedCall:
    """A call as the oracle reads it, and the names of its connected inputs and outputs."""

    call: Any
    inputs: Collection[str]
    outputs: Collection[str]


#: Returns the changed fields of a call; None if the call does not have the input, or if nothing in
#: it can be replaced in this way.
Replace = Callable[[ConnectedCall], CallChanges | None]


@dataclass(frozen=True)
class Replacement:
    """One value that a kernel can use in place of an input, or of the value of an attribute.

    ``of`` names the input or the feature, and ``words`` say what is used instead.

    A replacement with an ``effect`` is required: the case must show it, with an effect of at least
    ``threshold``, or name it in ``insensitive_to``. Any other replacement only counts as coverage,
    and does not apply to an input that is equal to its replacement. ``outputs`` are the outputs
    that are compared.
    """

    of: str
    name: str
    words: str
    changes: Replace
    effect: str | None = None
    threshold: float = THRESHOLD
    outputs: tuple[str, ...] = ("output",)

    @property
    def key(self) -> str:
        """The name of the replacement: ``position_ids/implied``, ``window``."""
        return f"{self.of}/{self.name}" if self.name else self.of

    @property
    def sentence(self) -> str:
        """The input, its replacement, and the effect that a case must show or that is coverage."""
        must = "must move" if self.effect else "counts as looked at if it moves"
        outputs = " or ".join(self.outputs)
        return f"{self.of} replaced by {self.words}: {must} {outputs} by {self.enough:g} budgets."

    @property
    def enough(self) -> float:
        """The smallest effect, in error budgets, with which a case shows this replacement."""
        return self.threshold if self.effect else EDGE_THRESHOLD


def first(field: str, axis: int) -> Replace:
    """The first slice of a field along an axis, used for all slices."""

    def changes(given: ConnectedCall) -> CallChanges | None:
        import numpy as np  # takes as long as a command that lists cases

        array = getattr(given.call, field)
        if array is None or array.shape[axis] < 2:
            return None
        return {field: np.broadcast_to(np.take(array, [0], axis=axis), array.shape)}

    return changes


def filled(field: str, value: float) -> Replace:
    """The same number everywhere in a field."""

    def changes(given: ConnectedCall) -> CallChanges | None:
        import numpy as np

        array = getattr(given.call, field)
        return None if array is None else {field: np.full_like(array, value)}

    return changes


def of_tokens(name: str, heads: str) -> Iterator[Replacement]:
    """Replacements of query, key or value: (batch_size, tokens, heads, head_size)."""
    yield Replacement(name, "first_sequence", "the first sequence's for all", first(name, 0))
    yield Replacement(name, "first_token", "the first token's for all tokens", first(name, 1))
    yield Replacement(name, "first_head", f"the first {heads} head's for all", first(name, 2))


def has_the_rows(call: Any) -> bool:
    """Whether the past has as many rows as a chunk's lengths say; a window cache may lack some."""
    if call.query_lengths is None or call.window_cache:
        return True
    return bool(
        call.past_lengths.min() >= 0 and call.past_lengths.max() <= call.past_sequence_length
    )
