"""The oracle: one GroupQueryAttention call in float64, from its inputs to its outputs."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance.oracle.attention import Attention, attend
from conformance.oracle.cache import Cache, build_cache
from conformance.oracle.call import Attributes, Call, Inputs, read_call
from conformance.oracle.numbers import Bool, Float, Storage
from conformance.oracle.rotary import key_positions, query_positions, turn


@dataclass(frozen=True, eq=False)
class Reference:
    """What one output must hold.

    ``value`` (float64) and ``defined`` have the output's exact shape; undefined elements are 0 in
    ``value`` and are never to be compared. ``dtype`` is what the runtime must return. The last
    two fields are for the error model: ``attention`` is how an output row came about, and
    ``magnitude`` the rotary magnitudes of a present key; both None means that every defined
    element is an exact copy of an input.
    """

    value: Float
    defined: Bool
    dtype: np.dtype[Any]
    attention: Attention | None = None
    magnitude: Float | None = None


def reference(
    inputs: Inputs, attributes: Attributes, outputs: Collection[str]
) -> dict[str, Reference]:
    """Compute the connected outputs of one call, in the operator's order.

    Args:
        inputs: the connected inputs by the operator's names, with the dtypes and bytes that the
            runtime gets. An input that is omitted is not in the mapping; an input of length zero
            is, with that shape.
        attributes: the attributes set on the node; the others have the schema's defaults.
        outputs: the names of the connected outputs.

    Raises:
        OracleError: the call has no defined meaning.
        NotComputed: the call uses a feature that the oracle does not compute yet.
    """
    call = read_call(inputs, attributes, outputs)
    query = turn(call.query, query_positions(call), call.lengths, call)
    key = turn(call.key, key_positions(call), call.lengths - call.past_lengths, call)
    cache = build_cache(call, key)
    attention = attend(call, query, cache)
    makers: dict[str, Callable[[], Reference]] = {
        "output": lambda: _output(call, attention),
        "present_key": lambda: _present_key(call, cache),
        "present_value": lambda: Reference(cache.value, cache.defined, call.dtype),
    }
    return {name: make() for name, make in makers.items() if name in outputs}


def _output(call: Call, attention: Attention) -> Reference:
    """Return output [B, S, N * D]: the heads of a token side by side."""
    shape = (call.batch_size, call.sequence_length, call.num_heads * call.head_size)
    value = attention.output.transpose(0, 3, 1, 2, 4).reshape(shape)
    defined = np.broadcast_to(attention.defined[..., None], attention.output.shape)
    defined = defined.transpose(0, 3, 1, 2, 4).reshape(shape)
    return Reference(np.where(defined, value, 0.0), defined, call.dtype, attention=attention)


def _present_key(call: Call, cache: Cache) -> Reference:
    defined = cache.defined & Storage.of(call.dtype).holds(cache.key)
    value = np.where(defined, cache.key, 0.0)
    magnitude = None if call.cos is None else np.where(defined, cache.key_magnitude, 0.0)
    return Reference(value, defined, call.dtype, magnitude=magnitude)
