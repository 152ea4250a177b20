"""What a case can express: each input, output and attribute, connected or not, of any shape.

The meaning of a call's fields is read from the ONNX model's own node and graph.
"""

from __future__ import annotations

from typing import Any

import onnx
import pytest
from built_models import declared, dims, model
from onnx import AttributeProto
from shipped import shipped_cases
from tables import tables

from conformance.base.array_types import WORD_OF_ONNX
from conformance.base.dtypes import INTEGER_RANGE
from conformance.case.node_steps import (
    MAX_ELEMENTS,
    MAX_INPUT_ELEMENTS,
    MAX_SCORES,
    MAX_SHOWN_SCORES,
)
from conformance.case.steps import steps_of
from conformance.operator.call import CALL_FIELDS, checked_call
from conformance.operator.signature import (
    ATTRIBUTES,
    INPUT_NAMES,
    INPUTS,
    OUTPUT_NAMES,
    OUTPUTS,
    Attribute,
    Parameter,
)
from conformance.operator.tensors import ShapeError, attributes_of

TABLES = tables(__file__)

#: The inputs that a call has by default.
PLAIN = ("query", "key", "value", "seqlens_k", "total_sequence_length")


def node(**fields: Any) -> onnx.NodeProto:
    (made,) = model(**fields).graph.node
    return made


def dtypes(**fields: Any) -> dict[str, str]:
    graph = model(**fields).graph
    return {
        value.name: WORD_OF_ONNX[value.type.tensor_type.elem_type]
        for value in (*graph.input, *graph.output)
    }


def shapes(index: int = 0, **fields: Any) -> dict[str, tuple[int, ...]]:
    """Shapes of the connected inputs of one step."""
    step = steps_of(checked_call(fields))[index]
    return {t.name: t.shape for t in step.inputs if t.connected and t.shape is not None}


def listed(*connected: str, upto: str) -> list[str]:
    """The node's inputs with these connected; the list ends with ``upto``."""
    end = INPUT_NAMES.index(upto) + 1
    return [name if name in connected else "" for name in INPUT_NAMES[:end]]


def refused(field: str, sentence: str, **fields: Any) -> None:
    with pytest.raises(ShapeError) as caught:
        steps_of(checked_call(fields))
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
    if name in CALL_FIELDS:
        value = SAMPLES[attribute.kind]
        assert attributes_of(checked_call({name: value}))[name] == value
        assert set_on(node(**{name: value})) == set_on(node(attributes={name: value}))


def test_rotary_sets_its_attributes() -> None:
    assert set_on(node(rotary="half_split")) == {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1}
    interleaved = set_on(node(rotary="interleaved"))
    assert (interleaved["do_rotary"], interleaved["rotary_interleaved"]) == (1, 1)
    assert set_on(node(rotary="half_split", attributes={"do_rotary": 0}))["do_rotary"] == 0


def test_an_attribute_can_have_the_wrong_type_on_purpose() -> None:
    made = next(a for a in node(attributes={"scale": 2}).attribute if a.name == "scale")
    assert made.type == AttributeProto.INT
    made = next(a for a in node(attributes={"causal": "no"}).attribute if a.name == "causal")
    assert made.type == AttributeProto.STRING


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


# Written by hand


@pytest.mark.parametrize(("written", "shape"), TABLES["shapes"])
def test_a_shape_consists_of_numbers_and_names(written: list[Any], shape: tuple[int, ...]) -> None:
    fields = {"batch_size": 2, "sequence_length": 3, "past_sequence_length": 4}
    assert shapes(**fields, inputs={"query": {"shape": written}})["query"] == tuple(shape)
    said = declared(**fields, outputs={"output": {"shape": written}})
    assert said["output"] == shape


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


def test_one_name_is_one_number_in_every_shipped_case() -> None:
    for case in shipped_cases():
        for step in case.steps:
            meant: dict[str, int] = {}
            for tensor in step.inputs:
                for name, size in zip(tensor.dims, tensor.shape or (), strict=False):
                    if name is not None:
                        assert meant.setdefault(name, size) == size, (case.id, name)
