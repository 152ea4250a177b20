"""What a case can express: each input, output and attribute, connected or not, of any shape.

The meaning of a call's fields is read from the ONNX model's own node and graph.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import AttributeProto
from shipped import shipped_cases

from conformance.base.array_types import NUMPY, WORD_OF_ONNX
from conformance.base.dtypes import INTEGER_RANGE
from conformance.base.signature import (
    ATTRIBUTES,
    INPUT_NAMES,
    INPUTS,
    OUTPUT_NAMES,
    OUTPUTS,
    Attribute,
    Parameter,
)
from conformance.bundle.inputs import draw_inputs
from conformance.bundle.model import build_model
from conformance.case.call import Call
from conformance.case.tensors import (
    MAX_ELEMENTS,
    MAX_INPUT_ELEMENTS,
    MAX_SCORES,
    MAX_SHOWN_SCORES,
    ShapeError,
    attributes_of,
    steps_of,
)

#: The inputs that a call has by default.
PLAIN = ("query", "key", "value", "seqlens_k", "total_sequence_length")


def model(**fields: Any) -> onnx.ModelProto:
    call = Call(**fields)
    return build_model(call, steps_of(call)[0])


def node(**fields: Any) -> onnx.NodeProto:
    (made,) = model(**fields).graph.node
    return made


def dims(value: onnx.ValueInfoProto) -> list[int | str | None]:
    """The dims that a graph declares: a number, a name, or None for neither."""
    assert value.type.tensor_type.HasField("shape")  # also of a scalar
    return [
        getattr(dim, kind) if (kind := dim.WhichOneof("value")) else None
        for dim in value.type.tensor_type.shape.dim
    ]


def declared(**fields: Any) -> dict[str, list[int | str | None]]:
    graph = model(**fields).graph
    return {value.name: dims(value) for value in (*graph.input, *graph.output)}


def dtypes(**fields: Any) -> dict[str, str]:
    graph = model(**fields).graph
    return {
        value.name: WORD_OF_ONNX[value.type.tensor_type.elem_type]
        for value in (*graph.input, *graph.output)
    }


def shapes(index: int = 0, **fields: Any) -> dict[str, tuple[int, ...]]:
    """Shapes of the connected inputs of one step."""
    step = steps_of(Call(**fields))[index]
    return {t.name: t.shape for t in step.inputs if t.connected and t.shape is not None}


def listed(*connected: str, upto: str) -> list[str]:
    """The node's inputs with these connected; the list ends with ``upto``."""
    end = INPUT_NAMES.index(upto) + 1
    return [name if name in connected else "" for name in INPUT_NAMES[:end]]


def refused(field: str, sentence: str, **fields: Any) -> None:
    with pytest.raises(ShapeError) as caught:
        steps_of(Call(**fields))
    assert (caught.value.field, str(caught.value)) == (field, sentence)


# Inputs and outputs: connected, omitted, trailing


def test_a_plain_call_has_five_inputs_and_three_outputs() -> None:
    plain = node()
    assert list(plain.input) == listed(*PLAIN, upto="total_sequence_length")
    assert list(plain.output) == ["output", "present_key", "present_value"]
    assert [value.name for value in model().graph.input] == list(PLAIN)


@pytest.mark.parametrize("parameter", INPUTS, ids=lambda p: p.name)
def test_each_input_can_be_connected(parameter: Parameter) -> None:
    name = parameter.name
    said = model(inputs={name: "connected"}, past_sequence_length=0)
    last = max(name, "total_sequence_length", key=INPUT_NAMES.index)
    assert list(said.graph.node[0].input) == listed(*PLAIN, name, upto=last)
    value = next(value for value in said.graph.input if value.name == name)
    assert len(dims(value)) == parameter.rank


@pytest.mark.parametrize("name", INPUT_NAMES)
def test_each_input_can_be_omitted_by_an_empty_name(name: str) -> None:
    said = model(inputs={name: "omitted"})
    last = max(name, "total_sequence_length", key=INPUT_NAMES.index)
    others = set(PLAIN) - {name}
    assert list(said.graph.node[0].input) == listed(*others, upto=last)
    assert {value.name for value in said.graph.input} == others


@pytest.mark.parametrize("name", INPUT_NAMES)
def test_the_list_of_inputs_can_end_before_each(name: str) -> None:
    index = INPUT_NAMES.index(name)
    every = dict.fromkeys(INPUT_NAMES[:index], "connected")
    trailing = dict.fromkeys(INPUT_NAMES[index:], "trailing")
    assert list(node(inputs=every | trailing).input) == list(INPUT_NAMES[:index])


def test_all_inputs_at_once() -> None:
    assert list(node(inputs=dict.fromkeys(INPUT_NAMES, "connected")).input) == list(INPUT_NAMES)


def test_an_empty_name_at_the_end_of_the_list_is_not_the_same_as_a_shorter_list() -> None:
    longer = listed(*PLAIN, upto="k_norm_weight")
    assert list(node(inputs={"k_norm_weight": "omitted"}).input) == longer
    assert list(node(inputs={"k_norm_weight": "trailing"}).input) == list(node().input)


@pytest.mark.parametrize("parameter", OUTPUTS, ids=lambda p: p.name)
def test_each_output_can_be_connected_alone(parameter: Parameter) -> None:
    states = {name: "omitted" for name in OUTPUT_NAMES if name != parameter.name}
    said = model(outputs=states | {parameter.name: "connected"})
    named = [name if name == parameter.name else "" for name in OUTPUT_NAMES]
    assert list(said.graph.node[0].output) == named
    (value,) = said.graph.output
    assert dims(value) == [None] * parameter.rank


@pytest.mark.parametrize("name", OUTPUT_NAMES)
def test_the_list_of_outputs_can_end_before_each(name: str) -> None:
    index = OUTPUT_NAMES.index(name)
    trailing = dict.fromkeys(OUTPUT_NAMES[index:], "trailing")
    assert list(node(outputs=trailing).output) == list(OUTPUT_NAMES[:index])


@pytest.mark.parametrize(
    ("fields", "outputs"),
    [
        ({"presents": "both"}, ["output", "present_key", "present_value"]),
        ({"presents": "none"}, ["output"]),
        ({"presents": "key_only"}, ["output", "present_key"]),
        ({"presents": "value_only"}, ["output", "", "present_value"]),
        ({"qk_output": 1}, [*OUTPUT_NAMES]),
        ({"qk_output": 1, "presents": "none"}, ["output", "", "", "output_qk"]),
        ({"qk_output": 0}, ["output", "present_key", "present_value"]),
    ],
)
def test_outputs_follow_from_fields(fields: dict[str, Any], outputs: list[str]) -> None:
    assert list(node(**fields).output) == outputs


# Attributes

SAMPLES: dict[str, int | float | str] = {"int": 7, "float": 0.5, "string": "PER_TENSOR"}


def set_on(made: onnx.NodeProto) -> dict[str, Any]:
    return {a.name: onnx.helper.get_attribute_value(a) for a in made.attribute}


def test_only_set_fields_become_attributes() -> None:
    assert set_on(node()) == {"num_heads": 4, "kv_num_heads": 2}


@pytest.mark.parametrize("attribute", ATTRIBUTES, ids=lambda a: a.name)
def test_each_attribute_can_be_set_and_left_out(attribute: Attribute) -> None:
    name, value = attribute.name, SAMPLES[attribute.kind]
    made = next(a for a in node(attributes={name: value}).attribute if a.name == name)
    assert made.type == AttributeProto.AttributeType.Value(attribute.kind.upper())
    wanted = value.encode() if isinstance(value, str) else value
    assert onnx.helper.get_attribute_value(made) == wanted
    assert name not in set_on(node(attributes={name: None}))


@pytest.mark.parametrize("attribute", ATTRIBUTES, ids=lambda a: a.name)
def test_a_field_and_its_attribute_are_equivalent(attribute: Attribute) -> None:
    name = attribute.name
    if name in Call.model_fields:
        value = SAMPLES[attribute.kind]
        assert attributes_of(Call(**{name: value}))[name] == value
        assert set_on(node(**{name: value})) == set_on(node(attributes={name: value}))


def test_rotary_sets_its_attributes() -> None:
    assert set_on(node(rotary="half_split")) == {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1}
    interleaved = set_on(node(rotary="interleaved"))
    assert (interleaved["do_rotary"], interleaved["rotary_interleaved"]) == (1, 1)
    assert set_on(node(rotary="half_split", attributes={"do_rotary": 0}))["do_rotary"] == 0


def test_attributes_are_in_the_order_of_the_signature() -> None:
    names = list(set_on(node(causal=0, scale=1.0, rotary="interleaved", softcap=2.0)))
    assert names == [a.name for a in ATTRIBUTES if a.name in names]


def test_an_attribute_can_have_the_wrong_type_on_purpose() -> None:
    made = next(a for a in node(attributes={"scale": 2}).attribute if a.name == "scale")
    assert made.type == AttributeProto.INT
    made = next(a for a in node(attributes={"causal": "no"}).attribute if a.name == "causal")
    assert made.type == AttributeProto.STRING


# Shapes that follow from fields

SIZES = {"batch_size": 2, "num_heads": 6, "kv_num_heads": 3, "head_size": 8}
LENGTHS = {"seqlens_k": (2,), "total_sequence_length": ()}

PACKED = {"key_value": "packed"}


def projected(queries: int, keys: int) -> dict[str, tuple[int, ...]]:
    """The shapes of query, key and value."""
    return {"query": (2, queries, 48), "key": (2, keys, 24), "value": (2, keys, 24)}


def past(rows: int) -> dict[str, tuple[int, ...]]:
    """The shapes of a past with this number of rows."""
    return dict.fromkeys(("past_key", "past_value"), (2, 3, rows, 8))


def tables(rows: int, half: int) -> dict[str, tuple[int, ...]]:
    """The shapes of the rotary tables."""
    return dict.fromkeys(("cos_cache", "sin_cache"), (rows, half))


FIELDS: dict[str, tuple[dict[str, Any], dict[str, tuple[int, ...]]]] = {
    "prompt": ({"sequence_length": 5}, projected(5, 5)),
    "decode": ({"past_sequence_length": 7}, projected(1, 1) | past(7)),
    "packed": ({"sequence_length": 5, **PACKED}, {"query": (2, 5, 96)}),
    "packed decode": (PACKED | {"past_sequence_length": 7}, {"query": (2, 1, 96), **past(7)}),
    "zero length": (
        {"key_value": "zero_length", "past_sequence_length": 7, "sequence_length": 2},
        projected(2, 0) | past(7),
    ),
    "zero valued": ({"key_value": "zero_valued", "sequence_length": 2}, projected(2, 2)),
    "omitted": (
        {"key_value": "omitted", "past_sequence_length": 7},
        {"query": (2, 1, 48), **past(7)},
    ),
    "key and value of their own length": ({"kv_sequence_length": 9}, projected(1, 9)),
    "no query token": (
        {"sequence_length": 0, "past_sequence_length": 7},
        projected(0, 0) | past(7),
    ),
    "empty past": ({"sequence_length": 5, "cache": "concatenated"}, projected(5, 5) | past(0)),
    "static buffer": (
        {"past_sequence_length": 7, "max_sequence_length": 12},
        projected(1, 1) | past(12),
    ),
    "rotary": (
        PACKED | {"rotary": "half_split", "past_sequence_length": 7},
        {"query": (2, 1, 96), **past(7), **tables(8, 4)},
    ),
    "partial rotary with long tables and positions": (
        PACKED
        | {"rotary": "half_split", "rotary_dim": 4, "rotary_cache_length": 99}
        | {"position_ids": True, "sequence_length": 5},
        {"query": (2, 5, 96), **tables(99, 2), "position_ids": (2, 5)},
    ),
    "rotary on a static buffer": (
        PACKED | {"rotary": "interleaved", "max_sequence_length": 12},
        {"query": (2, 1, 96), **past(12), **tables(12, 4)},
    ),
    "rotary without tokens": (
        PACKED | {"rotary": "half_split", "sequence_length": 0},
        {"query": (2, 0, 96), **tables(1, 4)},
    ),
    "bias": (
        PACKED | {"attention_bias": "full", "sequence_length": 5},
        {"query": (2, 5, 96), "attention_bias": (2, 6, 5, 5)},
    ),
    "bias of one batch": (
        PACKED | {"attention_bias": "one_batch", "sequence_length": 5},
        {"query": (2, 5, 96), "attention_bias": (1, 6, 5, 5)},
    ),
    "bias of one head": (
        PACKED | {"attention_bias": "one_head", "sequence_length": 5},
        {"query": (2, 5, 96), "attention_bias": (2, 1, 5, 5)},
    ),
    "bias of one batch and head on a past": (
        PACKED
        | {"attention_bias": "one_batch_one_head", "sequence_length": 2, "past_sequence_length": 7},
        {"query": (2, 2, 96), **past(7), "attention_bias": (1, 1, 2, 9)},
    ),
    "sink": (PACKED | {"head_sink": True}, {"query": (2, 1, 96), "head_sink": (6,)}),
}


@pytest.mark.parametrize(("fields", "wanted"), FIELDS.values(), ids=FIELDS)
def test_shapes_follow_from_fields(
    fields: dict[str, Any], wanted: dict[str, tuple[int, ...]]
) -> None:
    assert shapes(**SIZES, **fields) == wanted | LENGTHS


def test_lengths_of_a_batch() -> None:
    (step,) = steps_of(Call(batch_size=2, sequence_length=3, past_sequence_length=4))
    assert (step.new_tokens, step.total_lengths, step.total_sequence_length) == (3, (7, 7), 7)
    assert not step.carried


def test_a_ragged_batch_lists_its_lengths() -> None:
    (step,) = steps_of(
        Call(batch_size=3, past_sequence_length=9, total_sequence_lengths=(1, 10, 6))
    )
    assert (step.total_lengths, step.total_sequence_length) == ((1, 10, 6), 10)
    assert step.input("past_key").shape == (3, 2, 9, 16)


def test_padded_chunks_have_a_past_of_as_many_tokens_less() -> None:
    fields: dict[str, Any] = {"batch_size": 2, "sequence_length": 4, "query_seqlens": (3, 0)}
    (step,) = steps_of(Call(**fields, past_sequence_length=7))
    assert (step.total_lengths, step.query_lengths) == ((10, 7), (3, 0))
    assert step.positions.starts == (7, 7)
    assert step.total_sequence_length == 11  # rows of the present, for the padding too
    made = draw_inputs(Call(**fields, past_sequence_length=7), step)
    np.testing.assert_array_equal(made["query_seqlens"], np.array([3, 0], np.int32))
    (step,) = steps_of(Call(**fields, past_sequence_length=2, max_sequence_length=9))
    assert step.total_sequence_length == 5  # a static cache has its rows anyway
    bias = Call(**fields, max_sequence_length=9, total_sequence_length=9, attention_bias="full")
    assert steps_of(bias)[0].input("attention_bias").shape == (2, 4, 4, 9)


def test_a_loop_of_padded_chunks() -> None:
    counts = ((4, 2), (1, 0), (0, 4))
    steps = steps_of(
        Call(batch_size=2, loop=(4, 4, 4), query_seqlens=counts, total_sequence_lengths=(4, 2))
    )
    assert [step.total_lengths for step in steps] == [(4, 2), (5, 2), (5, 6)]
    assert [step.total_sequence_length for step in steps] == [4, 8, 9]
    assert [step.input("past_key").shape for step in steps] == [(2, 2, n, 16) for n in (0, 4, 8)]


@pytest.mark.parametrize("key_value", ["zero_length", "omitted"])
def test_a_borrowed_cache_does_not_grow(key_value: Any) -> None:
    (step,) = steps_of(Call(key_value=key_value, past_sequence_length=8, sequence_length=3))
    assert (step.new_tokens, step.total_lengths) == (0, (8,))


# dtypes


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_dtype_of_a_call_applies_to_all_but_the_lengths(dtype: str) -> None:
    more = dict.fromkeys(("k_scale", "q_norm_weight"), "connected")
    fields = {"past_sequence_length": 1, "attention_bias": "full", "qk_output": 1, "inputs": more}
    rotary = {"rotary": "half_split", "position_ids": True}
    found = dtypes(dtype=dtype, head_sink=True, **rotary, **fields)
    own = dict.fromkeys(("seqlens_k", "total_sequence_length"), "int32")
    own |= {"position_ids": "int64", "k_scale": "float32"}
    assert found == {name: own.get(name, dtype) for name in found}
    assert len(found) == 18


@pytest.mark.parametrize(
    "cache", ["float32", "float16", "bfloat16", "int8", "uint8", "float8e4m3fn"]
)
def test_a_cache_can_have_a_type_of_its_own(cache: str) -> None:
    found = dtypes(dtype="float16", cache_dtype=cache, past_sequence_length=1)
    caches = {"past_key", "past_value", "present_key", "present_value"}
    assert {name for name in found if found[name] == cache} >= caches
    assert found["query"] == found["output"] == "float16"


@pytest.mark.parametrize("dtype", list(NUMPY))
def test_any_input_can_have_any_type(dtype: str) -> None:
    assert dtypes(inputs={"query": {"dtype": dtype}})["query"] == dtype


def test_scales_have_one_number_or_one_for_each_channel() -> None:
    found = shapes(k_quant_type="PER_TENSOR", v_quant_type="PER_CHANNEL")
    assert (found["k_scale"], found["v_scale"]) == ((1,), (1, 2, 1, 16))
    assert not {"k_scale", "v_scale"} & set(shapes(k_quant_type="NONE"))


def test_two_values_of_four_bits_share_a_byte() -> None:
    fields: dict[str, Any] = {"cache_dtype": "uint8", "past_sequence_length": 3}
    assert shapes(**fields, kv_cache_bit_width=4)["past_key"] == (1, 2, 3, 8)
    assert shapes(**fields, kv_cache_bit_width=8)["past_key"] == (1, 2, 3, 16)


def test_norm_weights_have_the_size_of_a_head() -> None:
    found = shapes(qk_norm=True)
    assert found["q_norm_weight"] == found["k_norm_weight"] == (16,)
    assert "q_norm_weight" not in shapes()


def test_the_past_of_a_window_cache_has_its_capacity() -> None:
    """The lengths are those of the sequence, which may be longer than the cache."""
    window = {"sliding_window_cache": 1, "local_window_size": 4, "max_sequence_length": 5}
    fields = {"past_sequence_length": 20, "attention_bias": "full", "rotary": "half_split"}
    (step,) = steps_of(Call.model_validate(window | fields))
    assert (step.total_lengths, step.total_sequence_length) == ((21,), 21)
    assert step.input("past_key").shape == (1, 2, 5, 16)
    assert step.input("attention_bias").shape == (1, 4, 1, 21)
    assert step.input("cos_cache").shape == (21, 8)


# Written by hand


@pytest.mark.parametrize(
    ("written", "shape"),
    [
        ([], ()),
        ([1, 2], (1, 2)),
        ([0], (0,)),
        (["batch_size", "sequence_length"], (2, 3)),
        (["kv_sequence_length", "past_sequence_length", "total_sequence_length"], (3, 4, 7)),
        (["num_heads", "kv_num_heads", "head_size"], (4, 2, 16)),
        (["hidden_size", "kv_hidden_size"], (64, 32)),
        (["sequence_length+1", "hidden_size - 8", "head_size*2"], (4, 56, 32)),
        ([" batch_size ", "past_sequence_length-4", "num_heads*0"], (2, 0, 0)),
    ],
)
def test_a_shape_consists_of_numbers_and_names(written: list[Any], shape: tuple[int, ...]) -> None:
    fields = {"batch_size": 2, "sequence_length": 3, "past_sequence_length": 4}
    assert shapes(**fields, inputs={"query": {"shape": written}})["query"] == shape
    said = declared(**fields, outputs={"output": {"shape": written}})
    assert said["output"] == list(shape)


def test_max_sequence_length_is_the_length_of_the_buffer() -> None:
    written = {"inputs": {"query": {"shape": ["max_sequence_length"]}}}
    assert shapes(max_sequence_length=12, **written)["query"] == (12,)
    assert shapes(past_sequence_length=3, **written)["query"] == (3,)


def test_the_inputs_of_a_call_are_limited_alone_and_together() -> None:
    """A batch is counted before it is made: it may be two billion."""
    refused("batch_size", "2147483647 sequences; at most 65536 fit", batch_size=2**31 - 1)
    most = {"shape": [1, MAX_ELEMENTS, 1]}
    assert shapes(inputs={"key": most})["key"] == (1, MAX_ELEMENTS, 1)
    with pytest.raises(ShapeError, match=f"elements; at most {MAX_INPUT_ELEMENTS} fit"):
        shapes(inputs={"key": most, "value": most})


def test_a_call_has_no_more_scores_than_the_oracle_computes_in_a_minute() -> None:
    """A longer prompt is rejected with one sentence, and so is one whose scores must be kept."""
    longest = {"sequence_length": 8192, "num_heads": 2, "head_size": 8}
    assert shapes(**longest)["query"] == (1, 8192, 16)
    sentence = f"8192 keys and 2 heads are too many for the oracle: at most {MAX_SHOWN_SCORES}"
    with pytest.raises(ShapeError, match=f"{sentence} scores with output_qk"):
        shapes(qk_output=1, **longest)
    sentence = (
        "32768 query tokens, 32768 keys and 4 heads are too many for the oracle: at most"
        f" {MAX_SCORES} scores"
    )
    refused("sequence_length", sentence, sequence_length=32768)
    assert shapes(past_sequence_length=2**20, head_size=8)["query"] == (1, 1, 32)
    for rows in ("past_sequence_length", "max_sequence_length"):
        with pytest.raises(ShapeError, match="are too many for the oracle"):
            shapes(sequence_length=33, head_size=8, **{rows: 2**20})


def test_data_give_their_shape() -> None:
    found = shapes(inputs={"seqlens_k": {"data": [[3], [5]]}, "total_sequence_length": {"data": 7}})
    assert (found["seqlens_k"], found["total_sequence_length"]) == ((2, 1), ())
    assert shapes(inputs={"query": {"data": []}})["query"] == (0,)
    assert shapes(inputs={"query": {"data": [[], []]}})["query"] == (2, 0)
    assert shapes(inputs={"query": {"data": [[1], [2]], "shape": [2, 1]}})["query"] == (2, 1)


@pytest.mark.parametrize("dtype", list(INTEGER_RANGE))
def test_data_of_integers_fit_their_type(dtype: str) -> None:
    low, high = INTEGER_RANGE[dtype]
    said = {"inputs": {"query": {"dtype": dtype, "data": [low, high]}}}
    assert shapes(**said)["query"] == (2,)
    for number in (low - 1, high + 1, 0.5, float("nan"), float("inf")):
        written = {"query": {"dtype": dtype, "data": [number]}}
        refused("inputs.query", f"{number} is not a value of {dtype}", inputs=written)


# Static and symbolic dims


def test_dims_are_symbolic_as_exporters_write_them() -> None:
    assert declared(
        batch_size=2,
        sequence_length=3,
        past_sequence_length=4,
        rotary="half_split",
        position_ids=True,
        attention_bias="full",
        head_sink=True,
    ) == {
        "query": ["batch_size", "sequence_length", 64],
        "key": ["batch_size", "kv_sequence_length", 32],
        "value": ["batch_size", "kv_sequence_length", 32],
        "past_key": ["batch_size", 2, "past_sequence_length", 16],
        "past_value": ["batch_size", 2, "past_sequence_length", 16],
        "seqlens_k": ["batch_size"],
        "total_sequence_length": [],
        "cos_cache": ["rotary_cache_length", 8],
        "sin_cache": ["rotary_cache_length", 8],
        "position_ids": ["batch_size", "sequence_length"],
        "attention_bias": ["batch_size", 4, "sequence_length", "total_sequence_length"],
        "head_sink": [4],
        "output": [None, None, None],
        "present_key": [None] * 4,
        "present_value": [None] * 4,
    }


def test_dims_can_be_static() -> None:
    fields = {"batch_size": 2, "sequence_length": 3, "past_sequence_length": 4, "head_sink": True}
    found = declared(dims="static", **fields)
    for name, shape in shapes(dims="static", **fields).items():
        assert found[name] == list(shape)
    assert found["output"] == [None] * 3  # outputs are still declared by rank
    found = declared(dims="static", key_value="zero_length", past_sequence_length=4)
    assert found["key"] == [1, 0, 32]


def test_a_dim_that_broadcasts_is_a_number() -> None:
    lengths = ["sequence_length", "total_sequence_length"]
    for kind, sizes in (("one_batch", [1, 4]), ("one_head", ["batch_size", 1])):
        said = declared(attention_bias=kind, batch_size=2)
        assert said["attention_bias"] == sizes + lengths


def test_a_shape_written_by_hand_has_its_own_names() -> None:
    """It may contradict the other inputs on purpose, which a shared name would not allow."""
    said = declared(inputs={"key": {"shape": [1, 5, 32]}, "seqlens_k": {"data": [[0], [1]]}})
    assert said["key"] == ["key_0", "key_1", "key_2"]
    assert said["value"] == ["batch_size", "kv_sequence_length", 32]
    assert said["seqlens_k"] == ["seqlens_k_0", "seqlens_k_1"]


def test_the_length_of_a_static_cache_has_its_own_name() -> None:
    found = declared(max_sequence_length=9)
    assert found["past_key"] == ["batch_size", 2, "max_sequence_length", 16]


def test_one_name_is_one_number_in_every_shipped_case() -> None:
    for case in shipped_cases():
        for step in case.steps:
            meant: dict[str, int] = {}
            for tensor in step.inputs:
                for name, size in zip(tensor.dims, tensor.shape or (), strict=False):
                    if name is not None:
                        assert meant.setdefault(name, size) == size, (case.id, name)


# Loops


def test_a_loop_carries_its_cache() -> None:
    steps = steps_of(Call(loop=(5, 1, 2), batch_size=2, key_value="packed"))
    assert [step.index for step in steps] == [0, 1, 2]
    assert [step.carried for step in steps] == [False, True, True]
    assert [step.input("query").shape for step in steps] == [(2, 5, 128), (2, 1, 128), (2, 2, 128)]
    assert [step.input("past_key").shape for step in steps] == [(2, 2, n, 16) for n in (0, 5, 6)]
    assert [step.total_lengths for step in steps] == [(5, 5), (6, 6), (8, 8)]


def test_a_loop_starts_on_a_past() -> None:
    steps = steps_of(Call(loop=(1, 1), past_sequence_length=7))
    assert [step.input("past_value").shape for step in steps] == [(1, 2, 7, 16), (1, 2, 8, 16)]


def test_a_loop_in_a_static_buffer_keeps_its_shapes() -> None:
    steps = steps_of(Call(loop=(1, 1, 1), max_sequence_length=9, dims="static"))
    assert {step.input("past_key").shape for step in steps} == {(1, 2, 9, 16)}
    assert [step.total_sequence_length for step in steps] == [1, 2, 3]


def test_a_ragged_loop() -> None:
    steps = steps_of(Call(loop=(4, 1), batch_size=2, total_sequence_lengths=(4, 2)))
    assert [step.total_lengths for step in steps] == [(4, 2), (5, 3)]


def test_the_tables_of_a_loop_reach_to_its_end() -> None:
    steps = steps_of(Call(loop=(5, 1, 1), rotary="half_split"))
    assert {step.input("cos_cache").shape for step in steps} == {(7, 8)}


def test_borrowing_in_a_loop_does_not_grow_the_cache() -> None:
    steps = steps_of(Call(loop=(1, 1), past_sequence_length=6, key_value="zero_length"))
    assert [step.input("past_key").shape for step in steps] == [(1, 2, 6, 16)] * 2


def test_infinities_and_nan_differ_in_json() -> None:
    """The name of a bundle is a digest of this text."""
    texts = set()
    for value in (float("inf"), float("-inf"), float("nan"), 0.0, -0.0):
        constant = {"kind": "constant", "value": value}
        for fields in (
            {"inputs": {"query": {"values": constant}}},
            {"inputs": {"query": {"data": [value]}}},
            {"attributes": {"scale": value}},
            {"softcap": value},
        ):
            text = Call(**fields).model_dump_json()
            json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
            texts.add(text)
    assert len(texts) == 20
