"""Calls that must be rejected but are computed as if they were other calls."""

import numpy as np
from kernel import Kernel
from registry import mutant


@mutant(kind="behaviour")
class accepts_heads_that_do_not_fit(Kernel):
    """num_heads need not be a multiple of kv_num_heads; the last group is larger."""

    def check_heads(self, call):
        """Nothing is checked."""

    def kv_head(self, call):
        group = max(call.heads // call.kv_heads, 1)
        return np.minimum(np.arange(call.heads) // group, call.kv_heads - 1)


@mutant(Kernel.check_equal_lengths, kind="behaviour")
def accepts_key_longer_than_value(kernel, call):
    """If key is longer than value, its last tokens are dropped."""
    if call.has("key"):
        key, value = call.inputs["key"], call.inputs["value"]
        length = min(key.shape[1], value.shape[1])
        call.inputs = {**call.inputs, "key": key[:, :length], "value": value[:, :length]}
        call.new = length


@mutant(Kernel.check_both_pasts, kind="behaviour")
def accepts_past_key_alone(kernel, call):
    """A past_key without past_value is used as both."""
    for one, other in (("past_key", "past_value"), ("past_value", "past_key")):
        if call.has(one) and not call.has(other):
            call.inputs = {**call.inputs, other: call.inputs[one]}
            call.past = call.inputs[one].shape[2]


@mutant(Kernel.check_seqlens, kind="behaviour")
def accepts_lengths_out_of_range(kernel, call):
    """Invalid lengths are replaced by the nearest valid ones."""
    call.lengths = np.clip(call.lengths, 1, max(call.total, 1))


@mutant(Kernel.check_room, kind="behaviour")
def accepts_a_past_too_short(kernel, call):
    """Missing rows of the past are read as zeros."""


@mutant(Kernel.check_bias_width, kind="behaviour")
def accepts_a_narrow_bias(kernel, call):
    """Missing columns of attention_bias are read as zeros, and surplus ones are dropped."""
    bias = call.inputs["attention_bias"]
    wide = np.zeros((*bias.shape[:3], call.total), bias.dtype)
    width = min(call.total, bias.shape[3])
    wide[..., :width] = bias[..., :width]
    call.inputs = {**call.inputs, "attention_bias": wide}


@mutant(Kernel.check_window_causal, kind="behaviour")
def accepts_a_window_without_causal(kernel, call):
    """local_window_size is accepted together with causal = 0."""


@mutant(Kernel.check_tables, kind="behaviour")
def accepts_rotary_without_tables(kernel, call):
    """Without cos_cache and sin_cache nothing is rotated, though do_rotary is 1."""
    if not call.has("cos_cache") or not call.has("sin_cache"):
        half = np.zeros((call.total, call.size // 2), call.dtype)
        call.inputs = {**call.inputs, "cos_cache": half + half.dtype.type(1), "sin_cache": half}


@mutant(Kernel.check_positions, kind="behaviour")
def accepts_positions_beyond_the_tables(kernel, call):
    """A position beyond cos_cache uses its last row."""


@mutant(
    Kernel.check_presents,
    kind="behaviour",
    only="Only the theme of omitted presents leaves them out beside a past and new tokens.",
)
def accepts_a_past_without_presents(kernel, call):
    """A call with a past and new tokens is computed without presents."""


@mutant(kind="behaviour", only="Only the bounds of lengths bind a present to other memory.")
class accepts_a_present_bound_for_the_tokens(Kernel):
    """A present as long as the past buffer is cut to a bound buffer that holds all tokens."""

    def check_presents(self, call):
        self.memory["total"] = call.total
        Kernel.check_presents(self, call)

    def bind(self, buffer, present):
        if buffer.shape[2] >= self.memory["total"]:
            present = present[:, :, : buffer.shape[2]]
        Kernel.bind(self, buffer, present)


@mutant(Kernel.check_position_ids, kind="behaviour")
def accepts_position_ids_of_rank_one(kernel, call):
    """position_ids of rank one are read as the first position of each sequence."""
    ids = call.inputs.get("position_ids")
    if ids is not None and ids.ndim == 1:
        wide = np.broadcast_to(ids[:1, None] + np.arange(call.queries), (call.batch, call.queries))
        call.inputs = {**call.inputs, "position_ids": wide}


@mutant(Kernel.read_sizes, kind="behaviour")
def accepts_a_query_of_another_width(kernel, call):
    """The head_size is that of key, and missing elements of query are read as zeros."""
    query, key = call.inputs["query"], call.inputs.get("key")
    if key is not None and query.ndim == key.ndim == 3 and call.attributes["kv_num_heads"] > 0:
        size = key.shape[2] // call.attributes["kv_num_heads"]
        width = size * call.attributes["num_heads"]
        wide = np.zeros((*query.shape[:2], width), query.dtype)
        wide[..., : query.shape[2]] = query[..., :width]
        call.inputs = {**call.inputs, "query": wide}
    Kernel.read_sizes(kernel, call)


@mutant(Kernel.check_key_value, kind="behaviour")
def accepts_key_without_value(kernel, call):
    """If only one of key and value is connected, it is used as both."""
    for one, other in (("key", "value"), ("value", "key")):
        if call.has(one) and not call.has(other):
            call.inputs = {**call.inputs, other: call.inputs[one]}
            call.new = call.inputs[one].shape[1]
    Kernel.check_key_value(kernel, call)


@mutant(Kernel.refuse, kind="behaviour")
def accepts_whatever_can_be_computed(kernel, message):
    """Every call that can be computed in some way is accepted."""
