"""Combinations: a branch for one property of a call lacks a part that another property needs.

A fault is declared once for each property that it can be combined with. If a call has only one of
the two properties, the kernel is correct.
"""

import numpy as np
from kernel import FLOAT8, Kernel
from registry import declare, mutant

RARE = "Few calls have both properties, and the theme of the rarer one has all of them."

#: Properties that a fault can meet, by the end of the mutant's name, and as its sentence begins.
PROPERTIES = {
    "with_a_window": ("With a window", lambda k, c: k.window(c) != -1),
    "with_a_softcap": ("With a softcap", lambda k, c: c.get("softcap", 0.0) > 0),
    "with_a_sink": ("With a sink", lambda k, c: k.sink(c) is not None),
    "with_a_bias": ("With a bias", lambda k, c: c.has("attention_bias")),
    "with_codes": ("With a quantised cache", lambda k, c: k.quantised(c, "key")),
    "with_int8": ("With int8 codes", lambda k, c: k.cache_dtype(c, "key") == np.int8),
    "with_float8": ("With float8 codes", lambda k, c: k.cache_dtype(c, "key") == FLOAT8),
    "with_packed_heads": ("With packed QKV", lambda k, c: c.packed),
    "with_a_norm": ("With QK norm", lambda k, c: c.has("q_norm_weight")),
    "with_position_ids": ("With position_ids", lambda k, c: c.has("position_ids")),
    "with_bfloat16": ("With bfloat16", lambda k, c: c.dtype.name == "bfloat16"),
    "with_output_qk": ("With output_qk", lambda k, c: "output_qk" in c.outputs),
    "with_partial_rotary": (
        "With partial rotary",
        lambda k, c: c.has("cos_cache") and 2 * c.inputs["cos_cache"].shape[1] < c.size,
    ),
    "with_ragged_lengths": ("With ragged lengths", lambda k, c: len({*c.lengths.tolist()}) > 1),
    "with_over_16_keys": ("With more than 16 keys", lambda k, c: c.total > 16),
    "in_a_buffer": ("In a static buffer", lambda k, c: 0 < c.past >= c.total),
    "in_a_chunk": ("In a chunk", lambda k, c: c.past > 0 and 1 < c.queries < c.total),
    "in_prompts_of_a_batch": ("In prompts of a batch", lambda k, c: c.batch > 1 and c.first_prompt),
    "in_a_batch": ("In a batch", lambda k, c: c.batch > 1),
    "in_a_window_cache": ("In a sliding-window cache", lambda k, c: c.sliding),
    "in_padded_chunks": ("In padded chunks", lambda k, c: c.chunks),
    "with_heads_of_64": ("With heads of 64 elements or more", lambda k, c: c.size >= 64),
    "with_over_16_queries": ("With more than 16 queries", lambda k, c: c.queries > 16),
    "without_presents": ("Without presents", lambda k, c: "present_key" not in c.outputs),
    "in_groups_of_3": ("In groups of 3", lambda k, c: c.heads == 3 * c.kv_heads),
    "in_groups_of_5": ("In groups of 5", lambda k, c: c.heads == 5 * c.kv_heads > 5),
    "in_groups_of_8": ("In groups of 8", lambda k, c: c.heads == 8 * c.kv_heads > 8),
    "in_a_step": ("In a step of one token", lambda k, c: 1 == c.queries < c.total),
}


def met_by(step, applies, *names):
    """Declares a mutant for each property: the decorated fault replaces ``step`` if it holds."""

    def decorate(fault):
        for name in names:
            begin, holds = PROPERTIES[name]

            def replacement(kernel, call, *arguments, holds=holds):
                on = applies(call) and holds(kernel, call)
                return (fault if on else step)(kernel, call, *arguments)

            replacement.__name__ = f"{fault.__name__}_{name}"
            replacement.__doc__ = f"{begin}, {fault.__doc__}"
            replacement.__module__ = __name__
            declare(replacement, only=RARE, **{step.__name__: replacement})
        return fault

    return decorate


# Heads and groups


@met_by(Kernel.bias, lambda call: True, "in_groups_of_5", "in_groups_of_8")
def bias_of_the_first_four(kernel, call, b):
    """the heads of a group after the fourth use the bias of the heads before."""
    bias = Kernel.bias(kernel, call, b)
    group, n = call.heads // call.kv_heads, np.arange(len(bias))
    return bias[n // group * group + n % group % 4] if len(bias) > 1 else bias


@met_by(Kernel.show, lambda call: True, "in_groups_of_5", "in_groups_of_8")
def output_qk_of_the_first_four(kernel, call, b, shown, logits, weights):
    """output_qk of the heads of a group after the fourth is not written."""
    Kernel.show(kernel, call, b, shown, logits, weights)
    shown[b, np.arange(call.heads) % (call.heads // call.kv_heads) >= 4] = 0


@mutant(Kernel.kv_head, only=RARE)
def heads_after_the_last_whole_32(kernel, call):
    """With 28 heads or more, the heads after the last whole 32 read the first key/value head."""
    heads = Kernel.kv_head(kernel, call)
    if call.heads >= 28:
        heads[call.heads // 32 * 32 :] = 0
    return heads


@mutant(Kernel.kv_head, only=RARE)
def heads_on_four_interleaved(kernel, call):
    """With 32 heads on 4, neighbouring heads read different key/value heads."""
    heads = Kernel.kv_head(kernel, call)
    return np.arange(32) % 4 if (call.heads, call.kv_heads) == (32, 4) else heads


# Codes


@mutant(Kernel.load, only=RARE)
def codes_of_the_first_four_heads(kernel, call, side, rows):
    """With 32 heads or more on 8, the codes of the second four are those of the first four."""
    if call.heads >= 32 and call.kv_heads == 8 and kernel.quantised(call, side):
        rows = np.concatenate([rows[:4], rows[:4]])
    return Kernel.load(kernel, call, side, rows)


def _wide_in_bfloat16(call):
    return call.dtype.name == "bfloat16" and call.size >= 16


@met_by(Kernel.load, _wide_in_bfloat16, "in_a_step", "in_a_chunk")
def bfloat16_nibbles_swapped(kernel, call, side, rows):
    """vectors of bfloat16 take the high half of a byte of int4 codes first."""
    if kernel.quantised(call, side) and kernel.bits(call) == 4:
        rows = rows >> 4 | rows << 4
    return Kernel.load(kernel, call, side, rows)


# A full buffer, head sizes, negative scales


def _full(call):
    """Whether the new tokens fill a static buffer to its last row."""
    own = call.new > 0 and not call.sliding and not call.chunks
    return own and 0 < call.past == call.lengths.max()


@met_by(
    Kernel.visible, _full, "with_a_window", "with_codes", "with_packed_heads", "with_a_norm",
    "with_position_ids", "with_bfloat16", "with_output_qk", "with_partial_rotary",
)  # fmt: skip
def last_row_of_a_full_buffer_unread(kernel, call, b, tokens):
    """the last row of a buffer without free rows is not read."""
    seen = Kernel.visible(kernel, call, b, tokens)
    seen[:, call.past - 1 :] = False
    return seen


@met_by(
    Kernel.products, lambda call: call.size > 8 and call.size % 8, "with_packed_heads",
    "with_a_window", "with_a_bias", "with_ragged_lengths", "with_bfloat16", "with_int8",
    "with_float8", "with_a_norm", "with_over_16_keys",
)  # fmt: skip
def elements_after_the_last_whole_8(kernel, call, query, key):
    """the elements of a head after the last whole 8 are left out of its scores."""
    whole = call.size // 8 * 8
    return Kernel.products(kernel, call, query[..., :whole], key[..., :whole])


@met_by(
    Kernel.factor, lambda call: call.get("scale", 0.0) < 0, "with_a_window", "with_a_softcap",
    "with_a_sink", "with_a_bias", "with_codes", "with_packed_heads", "with_bfloat16", "in_a_chunk",
)  # fmt: skip
def scale_without_its_sign(kernel, call):
    """the root of scale is multiplied into query and key: its sign is lost."""
    return abs(Kernel.factor(kernel, call))


# QK norm, softcap


def _norm_of_the_first(count, kernel, call, heads, weight, side):
    """The RMS norm by the mean square of the first ``count`` elements of each head."""
    x = heads.astype(np.float32)
    mean = np.mean(np.square(x[..., :count]), axis=-1, keepdims=True)
    return x / np.sqrt(mean + kernel.epsilon(call, side)) * weight.astype(np.float32)


@mutant(Kernel.rms_norm, only=RARE)
def norm_of_a_step_over_256(kernel, call, heads, weight, side):
    """In a step of one token, the mean of squares is that of the first 256 elements."""
    if call.queries == 1 < call.total and call.size > 256:
        return _norm_of_the_first(256, kernel, call, heads, weight, side)
    return Kernel.rms_norm(kernel, call, heads, weight, side)


@mutant(Kernel.rms_norm, only=RARE)
def norm_over_whole_8(kernel, call, heads, weight, side):
    """The mean of squares includes only the elements in whole vectors of 8."""
    if call.size > 8 and call.size % 8:
        return _norm_of_the_first(call.size // 8 * 8, kernel, call, heads, weight, side)
    return Kernel.rms_norm(kernel, call, heads, weight, side)


@mutant(Kernel.cap, only=RARE)
def high_softcap_without_effect_in_a_window(kernel, call, scores):
    """With a window, a softcap of 30 or more is ignored."""
    high = call.get("softcap", 0.0) >= 30 and kernel.window(call) != -1
    return scores if high else Kernel.cap(kernel, call, scores)


# Lengths


@met_by(
    Kernel.read_lengths, lambda call: call.inputs["seqlens_k"].ndim == 2 and not call.chunks,
    "in_a_buffer", "in_a_chunk", "in_prompts_of_a_batch",
)  # fmt: skip
def lengths_of_rank_two_are_counts(kernel, call):
    """seqlens_k of rank two is read as the number of tokens, not the last index."""
    Kernel.read_lengths(kernel, call)
    call.lengths = np.maximum(call.lengths - 1, 1)


def _bounded(call):
    """Whether total_sequence_length is the capacity of a buffer with free rows."""
    return not call.chunks and not call.sliding and call.total == call.past > call.lengths.max()


@mutant(Kernel.start, only=RARE)
def prompt_placed_by_the_capacity(kernel, call, b):
    """A prompt whose total is the buffer's capacity is placed at the end of the buffer."""
    if _bounded(call) and 1 < call.queries == call.lengths[b]:
        return call.total - call.queries
    return Kernel.start(kernel, call, b)


@mutant(Kernel.start, only=RARE)
def chunk_placed_by_the_capacity(kernel, call, b):
    """A chunk whose total is the buffer's capacity is placed at the end of the buffer."""
    if _bounded(call) and 1 < call.queries < call.lengths[b]:
        return call.total - call.queries
    return Kernel.start(kernel, call, b)


# Sizes and values that are rare


@met_by(
    Kernel.epsilon, lambda call: True, "in_a_step", "in_a_batch", "in_a_window_cache", "with_codes",
    "in_padded_chunks", "with_heads_of_64", "with_packed_heads", "with_bfloat16",
)  # fmt: skip
def one_epsilon_for_both_sides(kernel, call, side):
    """q_norm_epsilon and k_norm_epsilon are not read."""
    return np.float32(call.get("qk_norm_epsilon", 1e-6))


@met_by(
    Kernel.load, lambda call: call.size % 8, "with_bfloat16", "in_groups_of_3",
    "with_over_16_queries",
)  # fmt: skip
def last_byte_of_int4_heads_unread(kernel, call, side, rows):
    """the last byte of a head of int4 codes that 8 does not divide is not read."""
    if kernel.quantised(call, side) and kernel.bits(call) == 4:
        rows = np.concatenate([rows[..., :-1], np.full_like(rows[..., :1], 0x88)], axis=-1)
    return Kernel.load(kernel, call, side, rows)


def _odd_pairs(call):
    """Whether an odd number of interleaved pairs rotates."""
    rotates = call.get("rotary_interleaved", 0) and call.get("do_rotary", 0)
    return rotates and call.inputs["cos_cache"].shape[1] % 2


@met_by(Kernel.turn, _odd_pairs, "in_a_step", "with_codes")
def last_odd_pair_unturned(kernel, call, heads, positions):
    """the last of an odd number of interleaved pairs is not rotated."""
    turned = Kernel.turn(kernel, call, heads, positions)
    last = slice(2 * call.inputs["cos_cache"].shape[1] - 2, 2 * call.inputs["cos_cache"].shape[1])
    turned[..., last] = heads[..., last].astype(np.float32)
    return turned


@met_by(Kernel.cap, lambda call: call.get("softcap", 0.0) >= 30, "with_codes")
def high_softcap_ignored(kernel, call, scores):
    """a softcap of 30 or more is ignored."""
    return scores


@met_by(Kernel.sink, lambda call: True, "in_groups_of_5")
def sinks_of_the_first_four(kernel, call):
    """the heads of a group after the fourth have no sink."""
    sink, group = Kernel.sink(kernel, call), call.heads // call.kv_heads
    return sink if sink is None else np.where(np.arange(call.heads) % group < 4, sink, -np.inf)


@met_by(Kernel.visible, lambda call: call.total > 8192, "with_a_window", "with_codes")
def keys_before_the_last_8192_unseen(kernel, call, b, tokens):
    """only the last 8,192 keys are read."""
    seen = Kernel.visible(kernel, call, b, tokens)
    seen[:, : max(tokens - 8192, 0)] = False
    return seen


@met_by(Kernel.normalise, lambda call: call.has("q_norm_weight"), "without_presents")
def keys_unnormed(kernel, call, query, key):
    """keys are not normalised."""
    return Kernel.normalise(kernel, call, query, key)[0], key


@mutant(Kernel.unpack, only=RARE)
def packed_rows_up_to_the_last_whole_8(kernel, call, heads):
    """The elements of a packed row after its last whole 8 are not read."""
    query, key, value = Kernel.unpack(kernel, call, heads)
    if rest := heads.shape[2] * call.size % 8:
        value = value.copy()
        value[:, :, -1, -rest:] = 0
    return query, key, value


@mutant(Kernel.finish, only=RARE)
def bfloat16_through_float16(kernel, call, output):
    """bfloat16 outputs beyond the range of float16 are infinite."""
    if call.dtype.name == "bfloat16":
        output = np.where(abs(output) > 65504, np.float32(np.inf) * np.sign(output), output)
    return Kernel.finish(kernel, call, output)


# Padded chunks


@mutant(Kernel.check_counts, kind="behaviour", only=RARE)
def negative_counts_accepted(kernel, call):
    """A negative number in query_seqlens is accepted where the cache has room."""
    if np.any(call.counts > np.minimum(call.queries, call.lengths)):
        kernel.refuse("query_seqlens must be at most the tokens of query and sequence")


@met_by(
    Kernel.visible, lambda call: call.chunks and call.queries > 64, "with_a_window", "with_a_sink",
    "with_a_bias", "with_output_qk", "with_codes", "with_packed_heads", "with_a_softcap",
)  # fmt: skip
def second_tile_of_a_chunk_unseen(kernel, call, b, tokens):
    """the rows of a padded chunk after the 64th do not see the 64 keys before their own."""
    seen = Kernel.visible(kernel, call, b, tokens)
    own = int(call.lengths[b] - call.counts[b]) + 64 - kernel.first_place(call, b)
    seen[64:, max(own - 64, 0) : max(own, 0)] = False
    return seen


@met_by(
    Kernel.visible, lambda call: call.chunks and call.sliding, "with_position_ids", "with_a_bias",
    "with_a_sink", "with_a_softcap", "with_a_norm", "with_codes", "with_packed_heads",
)  # fmt: skip
def newest_key_of_a_window_cache_unseen(kernel, call, b, tokens):
    """the last token of a padded chunk on a sliding-window cache is not seen."""
    seen = Kernel.visible(kernel, call, b, tokens)
    seen[:, tokens - 1 :] = False
    return seen


def _behind_an_idle_entry(call, b):
    return call.chunks and not call.counts[:b].all()


@mutant(Kernel.softmax, only=RARE)
def sinks_behind_an_idle_entry_ignored(kernel, call, b, logits):
    """The entries of a batch after an idle one have no sinks."""
    weights = Kernel.softmax(kernel, call, b, logits)
    if _behind_an_idle_entry(call, b) and kernel.sink(call) is not None:
        weights = weights / np.maximum(weights.sum(axis=2, keepdims=True), np.float32(1e-30))
    return weights


@mutant(Kernel.show, only=RARE)
def output_qk_behind_an_idle_entry_unwritten(kernel, call, b, shown, logits, weights):
    """output_qk of the entries of a batch after an idle one is not written."""
    if not _behind_an_idle_entry(call, b):
        Kernel.show(kernel, call, b, shown, logits, weights)
