"""What a call is, in words and comparisons: each is true of the calls that it names only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from shipped import shipped_cases

from conformance.base.signature import ATTRIBUTE_BY_NAME, INPUT_NAMES, OUTPUT_NAMES
from conformance.case.call import Call
from conformance.case.features import FEATURES
from conformance.case.properties import NAMES, OPERATORS, VOCABULARY, WORDS
from conformance.case.selection import SelectionError, compile_expression
from conformance.case.tensors import Step, steps_of


@dataclass(frozen=True)
class Described:
    call: Call
    steps: tuple[Step, ...]


def described(**fields: Any) -> Described:
    call = Call.model_validate(fields)
    return Described(call, steps_of(call))


def selects(text: str, *names: str, **fields: Any) -> bool:
    return compile_expression(text)(names, described(**fields))


INT8 = {
    **{"past_sequence_length": 3, "cache_dtype": "int8"},
    **{"k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR"},
}
RAGGED = {"batch_size": 2, "sequence_length": 5, "total_sequence_lengths": [5, 3]}
BORROWED = {"past_sequence_length": 4, "key_value": "zero_length"}
PADDED = {"past_sequence_length": 3, "sequence_length": 4}
STATIC = {"past_sequence_length": 3, "max_sequence_length": 8}


@pytest.mark.parametrize(
    ("word", "fields"),
    [
        ("softcap", {"softcap": 30.0}),
        ("SoftCap", {"attributes": {"softcap": 30.0}}),
        ("window", {"local_window_size": 3}),
        ("float16", {"dtype": "float16"}),
        ("ragged", RAGGED),
        ("borrowed", BORROWED),
        ("shared_kv", BORROWED),
        ("zero_length", BORROWED),
        ("packed_qkv", {"key_value": "packed"}),
        ("packed", {"key_value": "packed"}),
        ("mqa", {"kv_num_heads": 1}),
        ("decode", {"past_sequence_length": 3}),
        ("chunked_prefill", {"past_sequence_length": 3, "sequence_length": 2}),
        ("loop", {"loop": [2, 1]}),
        ("int8", INT8),
        ("int8_tensor", INT8),
        ("quantised_cache", INT8),
        ("static_cache", STATIC),
        ("static_cache", {**STATIC, "shared_buffer": True}),
        ("shared_buffer", {**STATIC, "shared_buffer": True}),
        ("rotary", {"rotary": "half_split"}),
        ("partial", {"rotary": "interleaved", "rotary_dim": 8}),
        ("interleaved", {"rotary": "interleaved", "rotary_dim": 8}),
        ("bidirectional", {"causal": 0, "sequence_length": 2}),
        ("sink", {"head_sink": True}),
        ("head_sink", {"head_sink": True}),
        ("sink", {"smooth_softmax": 1}),
        ("bias", {"attention_bias": "one_head"}),
        ("before_softmax", {"qk_output": 1}),
        ("scale", {"scale": 0.5}),
        ("qk_norm", {"qk_norm": True}),
        ("query_seqlens", {"past_sequence_length": 3, "query_seqlens": [1]}),
        ("padded_chunk", {**PADDED, "query_seqlens": [2]}),
        ("idle", {**PADDED, "query_seqlens": [0]}),
    ],
    ids=str,
)
def test_a_word_selects_a_call_that_is_or_has_it(word: str, fields: dict[str, Any]) -> None:
    assert selects(word, **fields)
    assert not selects(f"not {word}", **fields)
    plain = {"dtype": "bfloat16", "sequence_length": 2}
    assert not selects(word, **plain)
    assert selects(word, "a", f"entry[x={word}]", **plain), "the names still count"


@pytest.mark.parametrize(
    ("word", "fields"),
    [
        ("float16", {"dtype": "bfloat16"}),
        ("soft", {"softcap": 30.0}),
        ("int", INT8),
        ("one", {"attention_bias": "one_head", "presents": "key_only"}),
        ("given", {"softcap": 30.0}),
        ("causal", {"sequence_length": 2}),
        ("window", {"local_window_size": -1}),
        ("softcap", {"softcap": 0.0}),
        ("16", {}),
        ("shorter", {"local_window_size": 3, "sequence_length": 5}),
        ("softcap=30", {"softcap": 3.0}),
    ],
    ids=str,
)
def test_a_word_selects_no_other_call(word: str, fields: dict[str, Any]) -> None:
    assert not selects(word, **fields)


@pytest.mark.parametrize(
    ("text", "fields", "selected"),
    [
        ("dtype=float16", {"dtype": "float16"}, True),
        ("dtype=float16", {"dtype": "bfloat16"}, False),
        ("dtype=float16", {"dtype": "bfloat16", "cache_dtype": "float16"}, False),
        ("DTYPE==Float16", {"dtype": "float16"}, True),
        ("dtype!=float16", {"dtype": "bfloat16"}, True),
        ("dtype!=float16", {"dtype": "float16"}, False),
        ("cache_dtype=float16", {"dtype": "float16"}, True),
        ("cache_dtype=int8", INT8, True),
        ("head_size=256", {"head_size": 256}, True),
        ("head_size=25", {"head_size": 256}, False),
        ("head_size = 256", {"head_size": 256}, True),
        ("head_size>=256", {"head_size": 256}, True),
        ("head_size > 256", {"head_size": 256}, False),
        ("head_size<256", {"head_size": 128}, True),
        ("head_size<=128", {"head_size": 128}, True),
        ("head_size=64..128", {"head_size": 128}, True),
        ("head_size=64..128", {"head_size": 129}, False),
        ("head_size!=64..128", {"head_size": 129}, True),
        ("head_size=other", {"head_size": 48}, True),
        ("local_window_size<64", {"local_window_size": 5}, True),
        ("local_window_size<64", {}, False),
        ("local_window_size<64", {"local_window_size": -1}, False),
        ("local_window_size=-1", {}, True),
        ("causal=1", {}, True),
        ("causal=0", {}, False),
        ("causal=bidirectional", {"causal": 0}, True),
        ("softcap=30", {"softcap": 30.0}, True),
        ("softcap=3e1", {"attributes": {"softcap": 30.0}}, True),
        ("softcap=none", {}, True),
        ("softcap=given", {"softcap": 30.0}, True),
        ("softcap!=30", {}, True),
        ("softcap<40", {}, False),
        ("sequence_length=1", {"past_sequence_length": 1, "sequence_length": 2}, False),
        ("sequence_length=1..16", {"sequence_length": 16}, True),
        ("sequence_length=5", {"loop": [5, 1]}, True),
        ("past_sequence_length=5", {"loop": [5, 1]}, True),
        ("past_sequence_length=6", {"loop": [5, 1]}, False),
        ("total_sequence_length=7", {"past_sequence_length": 6}, True),
        ("kv_sequence_length=0", BORROWED, True),
        ("total_sequence_lengths=3", RAGGED, True),
        ("total_sequence_lengths>5", RAGGED, False),
        ("num_heads=2", {"num_heads": 4, "kv_num_heads": 2}, False),
        ("cache=static", STATIC, True),
        ("cache=concatenated", {"past_sequence_length": 3}, True),
        ("cache=shared_buffer", {**STATIC, "shared_buffer": True}, True),
        ("max_sequence_length>4", STATIC, True),
        ("key_value=zero_length", BORROWED, True),
        ("rotary=half_split", {"rotary": "half_split", "rotary_dim": 8}, True),
        ("rotary=partial_half_split", {"rotary": "half_split"}, False),
        ("attention_bias=one_batch", {"attention_bias": "one_batch_one_head"}, False),
        ("k_quant_type=per_tensor", INT8, True),
        ("do_rotary=1", {"rotary": "half_split"}, True),
        ("shared_buffer=true", {**STATIC, "shared_buffer": True}, True),
        ("head_sink=connected", {"head_sink": True}, True),
        ("present_key=omitted", {"presents": "value_only"}, True),
        ("past_key=connected", {}, False),
        ("seed=7", {"seed": 7}, True),
    ],
    ids=str,
)
def test_a_comparison_is_about_the_call(text: str, fields: dict[str, Any], selected: bool) -> None:
    assert selects(text, **fields) is selected


@pytest.mark.parametrize(
    ("text", "name", "selected"),
    [
        ("dtype=float16", "a[dtype=float16]", True),
        ("dtype=float16", "a[cache_dtype=float16]", False),
        ("dtype=float16", "a[x=1,dtype=float16,ep=cpu]", True),
        ("heads=mha", "a[heads=mha]", True),
        ("heads=m", "a[heads=mha]", True),  # no value, so a piece of an id
        ("dtype=float", "a[dtype=float16]", True),
        ("cache=int8", "a[cache=int8]", True),
        ("how=given", "a[how=given]", True),
        ("dtype=float16,heads=mha", "a[dtype=float16,heads=mha]", True),
        ("num_heads=3", "a[attributes.num_heads=3]", False),
    ],
)
def test_an_axis_of_the_same_name_counts(text: str, name: str, selected: bool) -> None:
    assert compile_expression(text)([name]) is selected


@pytest.mark.parametrize("operator", OPERATORS)
def test_every_comparison_has_an_answer_for_every_call(operator: str) -> None:
    """Also for calls that are invalid on purpose, whose attributes can be anything."""
    odd = [case for case in shipped_cases() if case.theme.startswith("bounds_")][::7]
    assert len(odd) > 100
    for name in NAMES:
        for value in ("-1", "0.5", "1e999", "1..3", "none", "true", "connected", "9" * 9999, "x=1"):
            try:
                expression = compile_expression(f"{name}{operator}{value}")
            except SelectionError:
                continue
            found = [case for case in odd if expression((), case)]
            if operator == "!=":
                equal = compile_expression(f"{name}={value}")
                assert [case for case in odd if not equal((), case)] == found


def test_of_a_graph_the_main_node_counts() -> None:
    borrows = [case for case in shipped_cases() if case.call.graph and case.steps[0].node]
    assert borrows
    for case in borrows:
        assert compile_expression("past_key=connected or past_key=omitted")((), case)
        heads = case.call.num_heads
        assert compile_expression(f"num_heads={heads} and dtype={case.call.dtype}")((), case)


def test_every_value_of_a_feature_has_words_or_says_nothing_alone() -> None:
    """A value that is added needs a decision: words here, or its feature's name and ``=``."""
    without = {
        *{("presents", value) for value in ("both", "none", "one")},
        *{("batch", value) for value in ("one", "more")},
        *{("head_size", value) for value in ("16", "8", "40", "64", "80", "128", "256", "512")},
        ("head_size", "other"),
    }
    for feature in FEATURES:
        values = {value for value in feature.values if value not in WORDS.get(feature.name, {})}
        plain = set() if feature.name in ("phase", "heads", "dtype") else {feature.values[0]}
        assert {(feature.name, value) for value in values - plain} <= without, feature.name
        assert WORDS.get(feature.name, {}).keys() <= {*feature.values}
    assert {"softcap", "window", "ragged", "borrowed", "float16"} <= {*VOCABULARY}


def test_everything_that_a_call_has_can_be_compared() -> None:
    fields = set(Call.model_fields) - {"graph", "attributes", "inputs", "outputs"}
    names = {*fields, *ATTRIBUTE_BY_NAME, *INPUT_NAMES, *OUTPUT_NAMES}
    assert {*NAMES} == names | {feature.name for feature in FEATURES}
