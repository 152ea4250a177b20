"""The parts of a call: where sequences, heads, rows, keys and channels lie in an array."""

from __future__ import annotations

import numpy as np
from kernel import Kernel

Array = np.ndarray

#: The axis of each output along which a part of a call lies. An output has four axes if its heads
#: have one of their own: see `with_heads`.
AXES: dict[str, dict[str, int]] = {
    "output": {"sequence": 0, "query": 1, "query_head": 2, "channel": 3},
    "present_key": {"sequence": 0, "kv_head": 1, "present_row": 2, "channel": 3},
    "present_value": {"sequence": 0, "kv_head": 1, "present_row": 2, "channel": 3},
    "output_qk": {"sequence": 0, "query_head": 1, "query": 2},
}

#: Steps that make something for each key: the axis of the keys in it.
OF_KEYS = {
    **dict.fromkeys(("logits", "products", "scale", "cap", "add_bias", "bias"), -1),
    **dict.fromkeys(("visible", "softmax", "exp"), -1),
    **dict.fromkeys(("past_rows", "kept", "load"), 1),
}
#: The same for the new keys of each sequence, which come after its past.
OF_NEW_KEYS = ("positions", "key_positions", "turn_key", "store", "split", "unpack", "normalise")
#: Steps that are given the positions of tokens, as their last argument.
OF_POSITIONS = ("tables", "turn")
#: Steps that write to one of their arguments: its index, and its axis of keys.
WRITING = {"put": (0, 1), "show": (2, 3)}


def with_heads(name: str, array: Array, heads: int) -> Array:
    """The output ``name`` with an axis for the heads."""
    if name != "output" or array.ndim != 3 or array.shape[2] % heads:
        return array
    return array.reshape(*array.shape[:2], heads, array.shape[2] // heads)


def of_keys(kernel: type[Kernel]) -> bool:
    """Whether all steps that the mutant replaces can be at fault for some keys only."""
    known = {*OF_KEYS, *OF_NEW_KEYS, *OF_POSITIONS, *WRITING}
    return replaced(kernel) <= known


def replaced(kernel: type[Kernel]) -> set[str]:
    """The names of the steps that a mutant replaces."""
    own = (name for name in vars(kernel) if not name.startswith("__"))
    return {name for name in own if callable(getattr(Kernel, name, None))}
