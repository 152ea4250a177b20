"""Calls that must be computed but are rejected."""

from registry import declare


def _refuses(name, sentence, when):
    """A mutant that rejects the calls for which ``when(call)`` holds."""

    def check_extras(kernel, call):
        if when(kernel, call):
            kernel.refuse(f"not implemented: {sentence}")

    check_extras.__name__, check_extras.__doc__ = name, sentence
    declare(check_extras, "behaviour", check_extras=check_extras)


def _batched_on_past(kernel, call):
    return call.batch > 1 and call.past > 0 and not call.first_prompt


for refusal in (
    ("refuses_float16", "Rejects float16.", lambda k, c: c.dtype.name == "float16"),
    ("refuses_bfloat16", "Rejects bfloat16.", lambda k, c: c.dtype.name == "bfloat16"),
    ("refuses_float32", "Rejects float32.", lambda k, c: c.dtype.name == "float32"),
    (
        "refuses_several_tokens_on_a_past",
        "Rejects several tokens on a past.",
        lambda k, c: c.queries > 1 and not c.first_prompt,
    ),
    ("refuses_batches", "Rejects more than one sequence.", lambda k, c: c.batch > 1),
    ("refuses_batches_on_a_past", "Rejects more than one sequence on a past.", _batched_on_past),
    (
        "refuses_zero_length_key",
        "Rejects key and value of length zero.",
        lambda k, c: c.borrowed and c.has("key"),
    ),
    ("refuses_head_size_8", "Rejects a head_size of 8.", lambda k, c: c.size == 8),
    (
        "refuses_head_size_above_128",
        "Rejects a head_size above 128.",
        lambda k, c: c.size > 128,
    ),
    (
        "refuses_head_size_no_power_of_two",
        "Rejects a head_size that is no power of two.",
        lambda k, c: bool(c.size & (c.size - 1)),
    ),
    ("refuses_packed", "Rejects packed QKV.", lambda k, c: c.packed),
    (
        "refuses_omitted_presents",
        "Rejects a call without present outputs.",
        lambda k, c: "present_key" not in c.outputs or "present_value" not in c.outputs,
    ),
    (
        "refuses_groups",
        "Rejects fewer key/value heads than query heads.",
        lambda k, c: c.heads != c.kv_heads,
    ),
    (
        "refuses_groups_of_three",
        "Rejects groups whose size is no power of two, and three groups.",
        lambda k, c: (c.heads // c.kv_heads).bit_count() > 1 or c.heads > c.kv_heads == 3,
    ),
    (
        "refuses_ragged_batches",
        "Rejects sequences of different lengths.",
        lambda k, c: len(set(c.lengths.tolist())) > 1,
    ),
    (
        "refuses_static_caches",
        "Rejects a past buffer that is longer than needed.",
        lambda k, c: c.past > 0 and c.total <= c.past and not c.borrowed,
    ),
    (
        "refuses_an_empty_past",
        "Rejects a past of length zero.",
        lambda k, c: c.has("past_key") and c.past == 0,
    ),
    ("refuses_windows", "Rejects local_window_size.", lambda k, c: k.window(c) != -1),
    (
        "refuses_windows_on_a_past",
        "Rejects local_window_size on a past.",
        lambda k, c: k.window(c) != -1 and c.past > 0,
    ),
    (
        "refuses_partial_rotary",
        "Rejects a rotary_dim below head_size.",
        lambda k, c: bool(c.get("do_rotary", 0)) and 2 * c.inputs["cos_cache"].shape[1] < c.size,
    ),
    (
        "refuses_interleaved_rotary",
        "Rejects interleaved rotary.",
        lambda k, c: bool(c.get("rotary_interleaved", 0)),
    ),
    ("refuses_position_ids", "Rejects position_ids.", lambda k, c: c.has("position_ids")),
    (
        "refuses_broadcast_bias",
        "Rejects an attention_bias that broadcasts.",
        lambda k, c: (
            c.has("attention_bias") and c.inputs["attention_bias"].shape[:2] != (c.batch, c.heads)
        ),
    ),
    (
        "refuses_softcap_with_bias",
        "Rejects softcap beside attention_bias.",
        lambda k, c: bool(c.get("softcap", 0.0)) and c.has("attention_bias"),
    ),
    ("refuses_sinks", "Rejects head_sink.", lambda k, c: c.has("head_sink")),
    ("refuses_causal_0", "Rejects causal = 0.", lambda k, c: c.get("causal", 1) == 0),
    (
        "refuses_seqlens_of_rank_two",
        "Rejects seqlens_k of rank two.",
        lambda k, c: c.inputs["seqlens_k"].ndim == 2,
    ),
    (
        "refuses_long_prompts",
        "Rejects a prompt of more than 64 tokens.",
        lambda k, c: c.queries > 64,
    ),
    (
        "refuses_one_token_prompts",
        "Rejects a first prompt of a single token.",
        lambda k, c: c.first_prompt and c.queries == 1,
    ),
):
    _refuses(*refusal)
