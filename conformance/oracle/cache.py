"""The key and value caches: what a call attends to, and what it hands on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from conformance.oracle.call import Call
from conformance.oracle.numbers import Bool, Float
from conformance.oracle.rotary import Turned


@dataclass(frozen=True, eq=False)
class Cache:
    """Key and value of every sequence after the call, in the shape of the present outputs.

    All tensors are [B, K, present_sequence_length, D]. Row j holds the token at place j of its
    sequence; rows from the sequence's length on hold zeros here and are undefined.
    """

    key: Float
    key_magnitude: Float
    """Magnitudes of the keys turned in this call (see :class:`Turned`); 0 for copies."""
    value: Float
    defined: Bool


def build_cache(call: Call, new_key: Turned) -> Cache:
    """Lay the past and the call's new tokens one after the other, sequence by sequence.

    A concatenated and a static cache differ only in the length of the buffers: the new tokens of
    a sequence follow its own last one. What the past buffer holds beyond a sequence's own tokens
    is never read, and neither is the padding of a prompt.
    """
    batch_size, kv_num_heads, _, head_size = call.past_key.shape
    shape = (batch_size, kv_num_heads, call.present_sequence_length, head_size)
    key, key_magnitude, value = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    for b in range(batch_size):
        old, length = call.past_lengths[b], call.lengths[b]
        new = length - old
        key[b, :, :old] = call.past_key[b, :, :old]
        value[b, :, :old] = call.past_value[b, :, :old]
        key[b, :, old:length] = new_key.value[b, :new].swapaxes(0, 1)
        key_magnitude[b, :, old:length] = new_key.magnitude[b, :new].swapaxes(0, 1)
        value[b, :, old:length] = call.value[b, :new].swapaxes(0, 1)
    rows = np.arange(call.present_sequence_length) < call.lengths[:, None]
    return Cache(key, key_magnitude, value, np.broadcast_to(rows[:, None, :, None], shape))
