"""What a call must be like so that a mutant can differ from the correct kernel.

It follows from the mutant's program, not from the corpus: without a past, a fault in the reading of
the past has no effect. With the rules of the suite's features it tells which faults and regions
exclude each other. See `regions.Needs` for the form; a mutant may have several alternatives.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from math import inf

from regions import BIASES, ROTARIES, SIZES, Needs, joined

QUANTISED = tuple(
    f"{number}_{scales}"
    for number in ("int8", "int4", "float8")
    for scales in ("tensor", "channel")
)
INTEGERS, INT4, FLOAT8 = QUANTISED[:4], QUANTISED[2:4], QUANTISED[4:]

BATCH: Needs = {"batch": ("more",), "batch_size": (2, inf)}
RAGGED: Needs = {**BATCH, "lengths": ("ragged",)}
PREFILL: Needs = {"phase": ("prefill",)}
LATER: Needs = {"phase": ("decode", "chunked_prefill")}
ONE: Needs = {"queries": (1, 1)}
SEVERAL: Needs = {"queries": (2, inf)}
CHUNK: Needs = {"phase": ("chunked_prefill",), "queries": (2, inf)}
TWO_KEYS: Needs = {"keys": (2, inf)}
OWN: Needs = {"key_value": ("new", "packed", "zero_valued")}
OWN_KEYS: Needs = {"key_value": ("new", "packed")}
PACKED: Needs = {"key_value": ("packed",)}
BORROWED: Needs = {"key_value": ("zero_length", "omitted")}
BUFFER: Needs = {"cache": ("static", "shared_buffer")}
GROWING: Needs = {"cache": ("concatenated",)}
NOT_SLIDING: Needs = {"cache": ("none", "concatenated", "static", "shared_buffer")}
SLIDING: Needs = {"cache": ("sliding_window",)}
SLIDING_SHARED: Needs = {**SLIDING, "presents": ("both",), "numbers": ("sliding_shared",)}
SHARED: Needs = {"cache": ("shared_buffer",)}
KV_HEADS: Needs = {"heads": ("gqa", "mha")}
GROUPS: Needs = {"heads": ("gqa", "mqa")}
GQA: Needs = {"heads": ("gqa",)}
CAUSAL: Needs = {"causal": ("causal",)}
BIDIRECTIONAL: Needs = {"causal": ("bidirectional",)}
SHORTER: Needs = {"window": ("shorter",)}
PRESENTS: Needs = {"presents": ("both", "one")}
UNQUANTISED: Needs = {"quantised": ("none",)}
PARTIAL: Needs = {"rotary": ROTARIES[2:]}
IDS: Needs = {"position_ids": ("given",), "rotary": ROTARIES}
NO_IDS: Needs = {"position_ids": ("none",), "rotary": ROTARIES}
BIAS: Needs = {"attention_bias": BIASES}
NO_BIAS: Needs = {"attention_bias": ("none",)}
SOFTCAP: Needs = {"softcap": ("given",)}
SCALE: Needs = {"scale": ("given",)}
DEFAULT_SCALE: Needs = {"scale": ("default",)}
HEAD_SINK: Needs = {"sink": ("head_sink",)}
SMOOTH: Needs = {"sink": ("smooth_softmax",)}
NO_SINK: Needs = {"sink": ("none",)}
BEFORE: Needs = {"output_qk": ("before_softmax",)}
AFTER: Needs = {"output_qk": ("after_softmax",)}
SHORT_FLOATS: Needs = {"dtype": ("float16", "bfloat16")}
FLOAT32: Needs = {"dtype": ("float32",)}
PER_CHANNEL: Needs = {"quantised": QUANTISED[1::2]}
#: Special numbers, which no feature tells of; conformance/maintain/fault_cases.py makes them.
FAR_BELOW: Needs = {"numbers": ("low",)}
FAR_APART: Needs = {"numbers": ("apart",)}
SOME_HIDDEN: Needs = {"numbers": ("hidden",)}
FAR_ON: Needs = {**IDS, "numbers": ("far",)}


def _all(*needs: Needs) -> Needs:
    """What all of ``needs`` ask for."""
    made: Needs = {}
    for one in needs:
        made = joined(made, one)
    return made


#: What all mutants of an area need.
OF_AREA: Mapping[str, Needs] = {
    "batches": BATCH,
    "bias": BIAS,
    "norm": {"qk_norm": ("given",)},
    "positions": {"rotary": ROTARIES},
    "presents": PRESENTS,
    "quantisation": {"quantised": QUANTISED},
    "rotary": {"rotary": ROTARIES},
    "tiles": {"keys": (16, inf)},
    "window_cache": SLIDING,
}

#: A past with tokens is read.
_PAST = (LATER, BORROWED)
#: A query cannot attend to some key that is there.
_MASKED = (_all(CAUSAL, SEVERAL), SHORTER)
#: Rows of a cache lie behind a sequence's last token, which no query attends to.
_SHORT = _all(RAGGED, {"cache": ("concatenated", "static", "shared_buffer")})
#: A score counts: a softmax over a single key is 1 without a sink.
_WEIGHED = (LATER, HEAD_SINK, SMOOTH, BEFORE)
#: Tokens of the call are added to a past.
_APPENDING = _all(LATER, OWN)

#: Numbers are rounded to codes, and an output shows them. A prompt may attend to exact ones.
_ROUNDED = _all(OWN_KEYS, PRESENTS)

#: What a mutant needs besides: one of the alternatives.
OF_MUTANT: Mapping[str, tuple[Needs, ...]] = {
    # batches
    "past_of_the_first_sequence": _PAST,
    "past_of_the_last_sequence": _PAST,
    "past_value_of_the_first_sequence": _PAST,
    "key_of_the_first_sequence": (OWN_KEYS,),
    "value_of_the_first_sequence": (OWN_KEYS,),
    "value_batch_stride_of_query": (_all(OWN_KEYS, GROUPS),),
    # bias
    "bias_ignored_for_one_token": tuple(_all(ONE, one) for one in _WEIGHED),
    "bias_of_the_first_sequence": (_all(BATCH, {"attention_bias": ("full", "one_head")}),),
    "bias_of_the_first_head": ({"attention_bias": ("full", "one_batch")},),
    "bias_by_kv_head": (_all(GROUPS, {"attention_bias": ("full", "one_batch")}),),
    "bias_of_one_head_not_broadcast": ({"attention_bias": ("one_head", "one_batch_one_head")},),
    "bias_of_one_batch_not_broadcast": (
        _all(BATCH, {"attention_bias": ("one_batch", "one_batch_one_head")}),
    ),
    "bias_batch_and_head_mistaken": (_all(BATCH, {"attention_bias": ("full",)}),),
    "bias_of_minus_infinity_is_zero": (SOME_HIDDEN,),
    "bias_transposed": (_all(PREFILL, SEVERAL),),
    "bias_of_the_first_query": (SEVERAL,),
    "bias_one_column_off": (TWO_KEYS,),
    "bias_of_new_tokens_alone": _PAST,
    # cache
    "append_at_the_buffers_end": (
        _all(_APPENDING, BUFFER),
        _all(_APPENDING, GROWING, RAGGED),
    ),
    "append_one_row_late": (OWN,),
    "append_one_row_early": (_APPENDING,),
    "append_behind_the_longest": (_all(_APPENDING, RAGGED, NOT_SLIDING),),
    "append_behind_the_first_sequence": (_all(_APPENDING, RAGGED),),
    "append_at_the_beginning": (_APPENDING,),
    "only_one_token_appended": (_all(CHUNK, OWN),),
    "new_tokens_in_reverse": (_all(CHUNK, OWN),),
    "past_ignored": _PAST,
    "past_one_row_off": _PAST,
    "past_key_and_value_swapped": _PAST,
    "past_value_is_key": _PAST,
    "newest_token_not_read": (TWO_KEYS,),
    "last_value_of_the_cache_twice": (TWO_KEYS,),
    "stale_tail_read": (
        _all(NO_BIAS, BUFFER),
        _all(NO_BIAS, GROWING, RAGGED, LATER),
    ),
    "cache_read_in_whole_tiles": ({"keys": (17, inf)},),
    # dispatch
    "packed_in_a_buffer_half_split": (
        _all(PACKED, BUFFER, {"rotary": ROTARIES[1::2]}),
        _all(PACKED, SLIDING, {"rotary": ROTARIES[1::2]}),
    ),
    "packed_with_codes_half_split": (
        _all(PACKED, BUFFER, {"rotary": ROTARIES[1::2], "quantised": QUANTISED}),
        _all(PACKED, SLIDING, {"rotary": ROTARIES[1::2], "quantised": QUANTISED}),
    ),
    "half_of_the_keys_of_prompts": ({"queries": (32, inf)},),
    "borrowed_tiles_of_the_first_sequence": (_all(BORROWED, RAGGED, {"keys": (65, inf)}),),
    "channels_of_another_tile_without_flash": tuple(
        _all(one, {"queries": (13, inf), "head_size": (49, inf)}) for one in (SHORTER, SMOOTH)
    ),
    # heads
    "heads_modulo": (GQA,),
    "heads_reversed": (KV_HEADS,),
    "heads_all_first": (KV_HEADS,),
    "heads_group_of_kv_num_heads": (KV_HEADS,),
    "heads_one_too_late": (KV_HEADS,),
    "packed_query_value_key": (PACKED,),
    "packed_key_value_query": (PACKED,),
    "packed_by_group": (_all(PACKED, KV_HEADS),),
    "packed_value_one_head_early": (PACKED,),
    "packed_by_planes": (_all(PACKED, SEVERAL),),
    "key_laid_out_by_heads": (_all(OWN_KEYS, KV_HEADS, SEVERAL),),
    "query_laid_out_by_heads": (SEVERAL,),
    "output_laid_out_by_heads": (SEVERAL,),
    "past_laid_out_by_tokens": tuple(_all(one, KV_HEADS) for one in _PAST),
    "head_size_in_vectors_of_sixteen": ({"sixteens": ("rest",), "head_size": (17, inf)},),
    # lengths
    "lengths_of_the_longest": (_all(RAGGED, LATER), _all(RAGGED, SLIDING)),
    "lengths_of_the_first_sequence": (RAGGED,),
    "lengths_of_the_last_sequence": (RAGGED,),
    "lengths_in_reverse": (RAGGED,),
    "lengths_of_the_shortest": (RAGGED,),
    "prompts_padded_on_the_left": (_all(RAGGED, PREFILL, OWN),),
    "total_of_the_buffer": (_all(LATER, BUFFER, NO_BIAS),),
    # masks
    "window_one_longer": (SHORTER,),
    "window_one_shorter": ({"window": ("shorter", "whole")},),
    "window_ignored": (SHORTER,),
    "window_ignored_for_one_token": (_all(SHORTER, ONE, LATER),),
    "window_ignored_for_prompts": (_all(SHORTER, PREFILL),),
    "window_of_the_last_query": (_all(SHORTER, SEVERAL),),
    "causal_one_more": (_all(CAUSAL, SEVERAL),),
    "causal_one_less": (CAUSAL,),
    "causal_ignored": (_all(CAUSAL, SEVERAL),),
    "causal_ignored_on_a_past": (_all(CAUSAL, CHUNK),),
    "causal_always": (_all(BIDIRECTIONAL, SEVERAL),),
    "causal_top_left": (_all(CAUSAL, LATER),),
    "causal_by_the_longest": (
        _all(CAUSAL, CHUNK, RAGGED),
        _all(SHORTER, LATER, RAGGED),
    ),
    "first_key_unseen": (TWO_KEYS,),
    "keys_in_tiles_of_eight": ({"keys": (9, inf)},),
    "mask_before_softcap": tuple(_all(SOFTCAP, one) for one in (*_MASKED, _SHORT)),
    "row_without_a_key_in_the_first_tile": (
        _all(SHORTER, SEVERAL, {"keys": (34, inf), "numbers": ("straddling",)}),
    ),
    # memory
    "position_counted_by_the_session": (LATER,),
    # norm
    "norm_of_queries_alone": (OWN_KEYS,),
    "norm_after_rotary": ({"rotary": ROTARIES},),
    # outputs
    "output_in_float32": (SHORT_FLOATS,),
    "output_of_the_last_token_alone": (SEVERAL,),
    "output_not_written_after_row_64": ({"queries": (65, inf)},),
    "output_is_nan_where_it_is_zero": ({"numbers": ("zero_head",)},),
    "output_qk_stages_swapped": (BEFORE, AFTER),
    "output_qk_without_bias": (_all(BEFORE, BIAS),),
    "output_qk_not_scaled": (BEFORE,),
    "output_qk_before_softcap": (_all(BEFORE, SOFTCAP),),
    "output_qk_without_the_sink": (_all(AFTER, HEAD_SINK), _all(AFTER, SMOOTH)),
    "output_qk_by_kv_head": (_all(BEFORE, GROUPS), _all(AFTER, GROUPS)),
    "output_qk_of_the_first_sequence": (_all(BEFORE, BATCH), _all(AFTER, BATCH)),
    "output_qk_of_masked_keys_too": tuple(_all(AFTER, one) for one in (*_MASKED, _SHORT)),
    # positions: between tokens of one call only the distance counts, unless a present shows the key
    "positions_one_too_far": (_all(PRESENTS, OWN_KEYS), LATER),
    "positions_from_zero": (LATER, _all(IDS, PRESENTS, OWN_KEYS)),
    "positions_of_the_first_sequence": (_all(LATER, RAGGED), _all(LATER, IDS, BATCH)),
    "positions_by_the_longest": (_all(LATER, RAGGED, NO_IDS),),
    "positions_from_the_buffer": (
        _all(LATER, NO_IDS, BUFFER),
        _all(LATER, NO_IDS, SLIDING),
        _all(LATER, NO_IDS),
    ),
    "position_of_the_first_token": (SEVERAL,),
    "key_positions_from_zero": (_all(LATER, OWN_KEYS), _all(IDS, OWN_KEYS)),
    "position_ids_ignored": (_all(LATER, IDS), _all(IDS, PRESENTS, OWN_KEYS)),
    "position_ids_ignored_on_a_past": (_all(LATER, IDS),),
    "position_ids_ignored_for_prompts": (
        _all(PREFILL, IDS, PRESENTS, OWN_KEYS),
        _all(PREFILL, IDS, BORROWED),
    ),
    **dict.fromkeys(
        ("position_ids_all_for_a_prompt", "position_ids_of_the_first_row_for_a_prompt"),
        (_all(PREFILL, IDS, SEVERAL, {"numbers": ("first_alone",)}),),
    ),
    "position_ids_first_alone": (_all(LATER, IDS, BATCH), _all(CHUNK, IDS)),
    "position_ids_of_the_first_sequence": (_all(LATER, IDS, BATCH),),
    "position_ids_move_the_mask": (_all(LATER, IDS, CAUSAL),),
    "positions_modulo_1024": (FAR_ON, {"keys": (1025, inf)}),
    "positions_modulo_2048": (FAR_ON, {"keys": (2049, inf)}),
    "positions_in_8_bits": (FAR_ON, {"keys": (257, inf)}),
    "positions_in_float16": (FAR_ON, {"keys": (2049, inf)}),
    "positions_up_to_the_total": (IDS,),
    "position_ids_from_one": (_all(LATER, IDS), _all(IDS, PRESENTS, OWN_KEYS)),
    "position_ids_added": (_all(LATER, IDS),),
    "position_ids_first_of_each_sequence": (_all(IDS, CHUNK),),
    "position_ids_first_of_each_tile": (_all(IDS, CHUNK),),
    "position_ids_transposed": (_all(IDS, BATCH, SEVERAL),),
    "position_ids_of_the_sequence_before": (_all(LATER, IDS, BATCH),),
    "position_ids_for_keys_alone": (IDS,),
    "position_ids_for_queries_alone": (_all(IDS, OWN_KEYS),),
    # precision
    "query_key_summed_in_storage": (SHORT_FLOATS,),
    "values_summed_in_storage": (SHORT_FLOATS,),
    "query_key_in_ten_bits": (FLOAT32,),
    "values_in_ten_bits": (FLOAT32,),
    "tables_in_bfloat16": ({"rotary": ROTARIES, "dtype": ("float32", "float16")},),
    "output_through_bfloat16": ({"dtype": ("float32", "float16")},),
    "softmax_summed_in_storage": (NO_SINK,),
    "softmax_without_maximum": (FAR_APART,),
    "softmax_with_the_global_minimum": (_all(TWO_KEYS, FAR_APART),),
    "softmax_maximum_of_the_first_row": (_all(SEVERAL, FAR_APART),),
    # presents
    "present_key_not_turned": (_all(OWN_KEYS, {"rotary": ROTARIES}),),
    "present_key_turned_twice": (_all(OWN_KEYS, {"rotary": ROTARIES}, UNQUANTISED, NOT_SLIDING),),
    "present_without_past": (_all(_APPENDING, NOT_SLIDING),),
    "present_of_borrowed_empty": (BORROWED,),
    "present_without_new": (_all(OWN, NOT_SLIDING),),
    "present_begins_with_new": (_all(_APPENDING, NOT_SLIDING),),
    "present_of_the_first_head_alone": (KV_HEADS,),
    "present_grows_the_buffer": (_all(OWN, BUFFER), _all(OWN, SLIDING_SHARED)),
    "present_cut_to_the_tokens": (BUFFER,),
    "present_laid_out_by_tokens": (KV_HEADS,),
    "present_of_the_first_sequence": (BATCH,),
    "present_rounded_to_half": (_all(FLOAT32, UNQUANTISED),),
    "shared_buffer_not_written": (_all(SHARED, OWN), SLIDING_SHARED),
    "shared_buffer_cleared": (SHARED, SLIDING_SHARED),
    # quantisation
    **dict.fromkeys(
        (
            *("quantised_by_truncation", "quantised_downwards", "quantised_ties_away_from_zero"),
            *("quantised_clamp_symmetric", "quantised_wraps_around"),
        ),
        (_all(_ROUNDED, {"quantised": INTEGERS}),),
    ),
    "nibbles_swapped": ({"quantised": INT4},),
    "nibbles_by_halves_of_the_head": ({"quantised": INT4},),
    "nibbles_offset_by_seven": ({"quantised": INT4},),
    "nibbles_in_twos_complement": ({"quantised": INT4},),
    **dict.fromkeys(("channels_read_as_one", "channels_by_head"), (PER_CHANNEL,)),
    **dict.fromkeys(
        ("channels_of_the_first_head", "channels_laid_out_by_channel"),
        (_all(PER_CHANNEL, KV_HEADS),),
    ),
    "new_tokens_not_quantised": (_APPENDING,),
    **dict.fromkeys(
        ("float8_overflows", "float8_by_truncation"), (_all(_ROUNDED, {"quantised": FLOAT8}),)
    ),
    # rotary
    "scale_inverted": (OWN_KEYS,),
    "quantised_before_rotary": (_all(OWN_KEYS, {"presents": ("both",), "rotary": ROTARIES}),),
    "rotary_always_half_split": ({"rotary": ROTARIES[1::2]},),
    "rotary_always_interleaved": ({"rotary": ROTARIES[::2]},),
    "rotary_pairs_across_the_whole_head": ({"rotary": ("partial_half_split",)},),
    "rotary_of_the_tail": (PARTIAL,),
    "rotary_whole_head": (PARTIAL,),
    "rotary_tail_dropped": (PARTIAL,),
    "rotary_rows_of_a_whole_head": (PARTIAL,),
    "rotary_of_queries_alone": (OWN_KEYS,),
    "rotary_of_values_too": (OWN_KEYS,),
    "rotary_of_borrowed_keys_again": (_all(BORROWED, UNQUANTISED),),
    "rotary_of_past_keys_again": tuple(_all(one, UNQUANTISED) for one in _PAST),
    # scores
    "scale_always_default": (SCALE,),
    "scale_default_one_over_head_size": (DEFAULT_SCALE,),
    "scale_default_by_hidden_size": (DEFAULT_SCALE,),
    "scale_default_by_kv_hidden_size": (_all(DEFAULT_SCALE, KV_HEADS),),
    "scale_one_is_default": (_all(SCALE, {"numbers": ("scale_one",)}),),
    "scale_after_softcap": (SOFTCAP,),
    "scale_after_bias": (_all(BIAS, {"softcap": ("none",)}),),
    "softcap_ignored": (SOFTCAP,),
    "softcap_ignored_for_one_token": tuple(_all(SOFTCAP, ONE, one) for one in _WEIGHED),
    "softcap_after_bias": (_all(SOFTCAP, BIAS),),
    "softcap_without_division": (SOFTCAP,),
    "softcap_without_product": (SOFTCAP,),
    "softcap_clips": (SOFTCAP,),
    "softcap_by_a_rough_tanh": (SOFTCAP,),
    "softcap_loses_the_sign": (SOFTCAP,),
    "query_and_key_swapped_heads": (KV_HEADS,),
    # sink
    "sink_ignored": (HEAD_SINK,),
    "smooth_softmax_ignored": (SMOOTH,),
    "smooth_softmax_everywhere": (NO_SINK,),
    "smooth_softmax_before_head_sink": (_all(HEAD_SINK, {"numbers": ("smooth_sink",)}),),
    "smooth_softmax_zero_is_on": (_all(NO_SINK, {"numbers": ("smooth_zero",)}),),
    "sink_scaled": (HEAD_SINK,),
    "sink_capped": (_all(HEAD_SINK, SOFTCAP),),
    "sink_of_the_first_head": (HEAD_SINK,),
    "sink_by_kv_head": (_all(HEAD_SINK, GROUPS),),
    "sink_negative": (HEAD_SINK,),
    "sink_in_the_maximum_alone": (HEAD_SINK, SMOOTH),
    "sink_without_exp": (HEAD_SINK, SMOOTH),
    "sink_not_below_the_maximum": (HEAD_SINK, SMOOTH),
    "sink_once_for_each_key": (_all(HEAD_SINK, TWO_KEYS), _all(SMOOTH, TWO_KEYS)),
    "sink_adds_to_the_output": (HEAD_SINK, SMOOTH),
    # tiles
    **{
        f"{name}_of_16": tuple(_all({"keys": (least, inf)}, one) for one in needs)
        for least, needs, names in (
            (17, ({},), "merged_without_rescaling sums_without_rescaling merged_without_sums"),
            (17, (_all(FAR_BELOW, {"sink": ("none", "head_sink")}),), "maximum_from_zero"),
            (17, ({},), "accumulator_reset last_tile_not_read"),
            (17, ({},), "half_of_the_last_tile_not_read first_key_of_the_second_tile_not_read"),
            (17, ({},), "last_key_of_the_first_tile_twice values_of_the_tile_before"),
            (17, ({},), "values_one_key_late_from_the_second_tile_on"),
            (33, ({},), "second_tile_not_read"),
            (17, (HEAD_SINK, SMOOTH), "sink_in_each_tile"),
            (17, (_all(BIAS, {"numbers": ("hidden_tile",)}),), "masked_tile_is_nan"),
            (17, (BIAS,), "bias_of_the_first_tile"),
            (18, (SHORTER,), "window_begins_with_a_tile"),
            (17, (RAGGED,), "as_many_as_the_first_sequence"),
        )
        for name in names.split()
    },
    # window cache
    "window_cache_positions_in_the_buffer": (LATER,),
    "window_cache_keys_placed_from_zero": (LATER,),
    "window_cache_bias_by_row": (_all(BIAS, LATER),),
    "window_cache_evicts_first": (PREFILL, CHUNK),
    "window_cache_evicts_by_step": (PREFILL, CHUNK),
    # refusals
    "refuses_float16": ({"dtype": ("float16",)},),
    "refuses_bfloat16": ({"dtype": ("bfloat16",)},),
    "refuses_float32": (FLOAT32,),
    "refuses_several_tokens_on_a_past": (CHUNK,),
    "refuses_batches": (BATCH,),
    "refuses_batches_on_a_past": (_all(BATCH, LATER),),
    "refuses_zero_length_key": ({"key_value": ("zero_length",)},),
    "refuses_head_size_no_power_of_two": ({"power_of_two": ("no",)},),
    "refuses_windows_on_a_past": tuple(
        _all(one, {"window": ("shorter", "whole", "longer")}) for one in (LATER, BUFFER, SLIDING)
    ),
    "refuses_head_size_8": ({"head_size": (8, 8)},),
    "refuses_head_size_above_128": ({"head_size": (129, inf)},),
    "refuses_packed": (PACKED,),
    "refuses_omitted_presents": ({"presents": ("none", "one")},),
    **dict.fromkeys(("refuses_groups", "refuses_groups_of_three"), (GROUPS,)),
    "refuses_ragged_batches": (RAGGED,),
    "refuses_static_caches": (_all(OWN, BUFFER), _all(OWN, SLIDING)),
    "refuses_an_empty_past": (_all(OWN, PREFILL, GROWING),),
    "refuses_windows": ({"window": ("shorter", "whole", "longer")},),
    "refuses_partial_rotary": (PARTIAL,),
    "refuses_interleaved_rotary": ({"rotary": ROTARIES[1::2]},),
    "refuses_position_ids": (IDS,),
    "refuses_broadcast_bias": ({"attention_bias": BIASES[1:]},),
    "refuses_softcap_with_bias": (_all(SOFTCAP, BIAS),),
    "refuses_sinks": (HEAD_SINK,),
    "refuses_causal_0": (BIDIRECTIONAL,),
    "refuses_long_prompts": ({"queries": (65, inf)},),
    "refuses_one_token_prompts": (_all(PREFILL, ONE, {"keys": (1, 1)}),),
}


_REJECTED = "The calls must be rejected. A region is a set of calls that are computed."
_SESSION = "It keeps what another call of the session left, which can lie in another region."
_TABLES = "It needs tables of more than 32,768 rows, which are too large for many cases."
_TILES = "The same fault in tiles of 16 keys stands for it; the numbers of keys are regions."
_EVERYWHERE_OF_AREA = {
    "acceptances": _REJECTED,
    "chunks": "It is on only where query_seqlens is connected, which is a region already.",
    "combinations": "It is on only where two properties meet; a region would be a third.",
    "dispatch": "The branch that it is in is a region already.",
    "messages": _REJECTED,
    "process": "The process ends, or the whole node is placed elsewhere, whatever it computes.",
}
_SIDES = "Few cases set the epsilon of one side; the other faults of the norm stand for it there."
_EVERYWHERE = {
    "norm_epsilons_of_sides_ignored": _SIDES,
    "norm_epsilons_swapped": _SIDES,
    "norm_epsilon_of_queries_for_both": _SIDES,
    "norm_epsilon_of_both_first": _SIDES,
    "padding_visible": "A bidirectional prompt may see its padding; a causal one's comes too late.",
    "masked_values_spread": "It shows in undefined elements only, where nothing is wrong.",
    "refuses_seqlens_of_rank_two": "Whatever is computed, seqlens_k has its rank.",
    "output_of_the_run_before": _SESSION,
    "past_of_the_first_run": _SESSION,
    "position_counted_by_the_session": _SESSION,
    "positions_of_the_first_run": _SESSION,
    "positions_in_16_bits": _TABLES,
    "positions_in_16_bits_without_sign": _TABLES,
}


def everywhere(name: str, area: str) -> str:
    """Why the mutant is not switched on in regions; empty if it is."""
    if area == "tiles" and not name.endswith("_of_16"):
        return _TILES
    return _EVERYWHERE.get(name) or _EVERYWHERE_OF_AREA.get(area, "")


#: Of the area of rounding, those that overflow: they are wrong by any number.
_OVERFLOWS = {
    "softmax_without_maximum",
    "softmax_with_the_global_minimum",
    "softmax_maximum_of_the_first_row",
}


def is_small(name: str, area: str) -> bool:
    """Whether the fault is an error of rounding, which may be within the error budget."""
    return area == "precision" and name not in _OVERFLOWS


#: What a call is like that must be computed: where texts let a kernel reject it, a rejection is no
#: fault (conformance/case/contracts.py). One alternative of each line.
_MUST_BE_COMPUTED: tuple[tuple[Needs, ...], ...] = (
    (_all(NOT_SLIDING, {"qk_norm": ("none",)}),),
    ({"phase": ("prefill", "decode")}, _all(CHUNK, {"batch": ("one",)})),
    ({"presents": ("both",)}, _all({"presents": ("none",)}, UNQUANTISED)),
    (
        {"rotary": ("none",)},
        {"rotary": ROTARIES, "head_size": (64, inf), "sixteens": ("none",)},
        {"rotary": ROTARIES[:2], "head_size": (16, 16), "sixteens": ("none",)},
    ),
    (CAUSAL, {"lengths": ("equal",)}, LATER),
)


def needs_of(name: str, area: str) -> list[Needs]:
    """The alternatives of what the mutant ``name`` needs."""
    own = [_all(OF_AREA.get(area, {}), one) for one in OF_MUTANT.get(name, ({},))]
    if area != "refusals":
        return own
    several = (_all(*needs) for needs in product(own, *_MUST_BE_COMPUTED))
    return [needs for needs in several if _possible(needs)]


def _possible(needs: Needs) -> bool:
    """Whether each feature has a value left, and each size a number."""
    return all(
        values and (name not in SIZES or values[0] <= values[1]) for name, values in needs.items()
    )


def faulty_keys(name: str) -> int:
    """How many keys the mutant can be at fault for, from the first on."""
    return _FAULTY_KEYS.get(name, 1 << 31)


#: Steps after past and new tokens are joined: they change no present.
_AFTER_THE_CACHE = {
    "logits", "products", "scale", "factor", "cap", "add_bias", "bias", "visible", "query_places",
    "last_visible", "window", "sink", "softmax", "top", "exp", "first_place", "kv_head",
    "turn_query", "readable", "load",
}  # fmt: skip
_OUTPUTS = {
    **dict.fromkeys(_AFTER_THE_CACHE, ("output", "output_qk")),
    **dict.fromkeys(("weigh", "finish"), ("output",)),
    **dict.fromkeys(("show", "shown_stage"), ("output_qk",)),
    **dict.fromkeys(("kept", "empty_present", "bind"), ("present_key", "present_value")),
}
#: Mutants that are at fault for the first keys only, and for how many.
_FAULTY_KEYS = {
    "first_key_unseen": 1,
    "first_key_of_the_second_tile_not_read_of_16": 17,
    "second_tile_not_read_of_16": 32,
}
ALL_OUTPUTS = ("output", "present_key", "present_value", "output_qk")
#: Mutants that change fewer outputs than their steps could.
_CHANGES = {
    "query_of_the_first_sequence": ("output", "output_qk"),
    "query_laid_out_by_heads": ("output", "output_qk"),
    "norm_of_keys_alone": ("output", "output_qk"),
    "padding_visible": ("output", "output_qk"),
    "new_tokens_not_quantised": ("output", "output_qk"),
    "position_ids_move_the_mask": ("output", "output_qk"),
    **dict.fromkeys(
        ("output_qk_without_bias", "output_qk_not_scaled", "output_qk_before_softcap"),
        ("output_qk",),
    ),
}
#: Mutants whose fault is a type, a shape or the first element.
_WHOLE = {
    "differs_in_the_last_bit", "memory_of_the_process_not_cleared",
    "output_in_float32", "output_flattened", "output_by_heads", "output_of_the_last_token_alone",
    "present_one_row_short", "present_one_row_longer", "present_grows_the_buffer",
    "present_cut_to_the_tokens",
}  # fmt: skip


def outputs_of(name: str, area: str, steps: set[str]) -> list[str]:
    """The outputs of which a mutant of ``steps`` can change a part."""
    if name in _WHOLE or area == "refusals":
        return []
    if name in _CHANGES:
        return list(_CHANGES[name])
    if "results" in steps:
        return ["output"] if area == "outputs" else ["present_key", "present_value"]
    changed = {output for step in steps for output in _OUTPUTS.get(step, ALL_OUTPUTS)}
    return [output for output in ALL_OUTPUTS if output in changed]
