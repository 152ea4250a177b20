"""The length of each sequence."""

import numpy as np
from kernel import Kernel
from registry import declare, mutant


def _lengths(change):
    def read_lengths(kernel, call):
        Kernel.read_lengths(kernel, call)
        if np.all(call.lengths >= 1) and np.all(call.lengths <= call.total):
            call.lengths = np.maximum(change(call), 1)

    return read_lengths


def _replace(name, sentence, change):
    step = _lengths(change)
    step.__name__, step.__doc__ = name, sentence
    declare(step, read_lengths=step)


_replace(
    "lengths_of_the_longest",
    "Every sequence is as long as the longest.",
    lambda call: np.full_like(call.lengths, call.total),
)
_replace(
    "lengths_of_the_first_sequence",
    "Every sequence is as long as the first.",
    lambda call: np.full_like(call.lengths, call.lengths[0]),
)
_replace(
    "lengths_of_the_last_sequence",
    "Every sequence is as long as the last.",
    lambda call: np.full_like(call.lengths, call.lengths[-1]),
)
_replace(
    "lengths_one_less",
    "seqlens_k is taken for a count of tokens, not for the index of the last.",
    lambda call: np.maximum(call.lengths - 1, 1 if call.first_prompt else call.queries),
)
_replace(
    "lengths_in_reverse",
    "The lengths are read from the end of the batch.",
    lambda call: call.lengths[::-1].copy(),
)
_replace(
    "lengths_of_the_shortest",
    "Every sequence is as long as the shortest.",
    lambda call: np.full_like(call.lengths, call.lengths.min()),
)


@mutant(Kernel.split)
def prompts_padded_on_the_left(kernel, call):
    """The tokens of a shorter prompt are read from the end of its row, not from the beginning."""
    query, key, value = Kernel.split(kernel, call)
    if not call.first_prompt or call.borrowed:
        return query, key, value
    shifts = call.queries - call.lengths
    return tuple(
        np.stack([np.roll(rows, -shift, axis=0) for rows, shift in zip(part, shifts, strict=True)])
        for part in (query, key, value)
    )


@mutant(Kernel.read_sizes)
def total_of_the_buffer(kernel, call):
    """The longest sequence has the length of the past buffer."""
    Kernel.read_sizes(kernel, call)
    if call.past > call.total > call.queries and not call.sliding:
        bias = call.inputs.get("attention_bias")
        if bias is None:
            call.total = call.past
            call.inputs = {
                **call.inputs,
                "seqlens_k": np.full_like(call.inputs["seqlens_k"], call.past - 1),
            }
