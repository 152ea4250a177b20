"""Dense attention in standard operators computes what the oracle does for one prompt."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from gqa_calls import Arrays, Attributes, inputs_of, rotary_caches
from graph_models import ATTENTION, HEAD, computed
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from random_configurations import STAGES, random_configuration
from twin_decoders import graph_of, usual

from conformance.base.array_types import ONNX_OF_NUMPY
from conformance.operator.signature import DOMAIN, INPUT_NAMES, OUTPUT_NAMES
from conformance.oracle import reference
from conformance.oracle.numbers import FLOAT_DTYPES
from conformance.rewriting.dense import CannotRewrite, dense_model

pytest.importorskip("onnxruntime")

#: Stages of a cache in which all tokens of the sequences are given at once.
WHOLE = ("prompt", "prompt_into_static", "borrowed_prompt", "all_at_once")


def ran(model: onnx.ModelProto, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The outputs of a model on onnxruntime's CPU, which gets the inputs that there are."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    content = model.SerializeToString()
    session = onnxruntime.InferenceSession(content, options, ["CPUExecutionProvider"])
    feeds = {each.name: inputs[each.name] for each in session.get_inputs()}
    for name, array in feeds.items():
        if array.dtype == ml_dtypes.float8_e4m3fn:
            of = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type
            feeds[name] = of(array.view(np.uint8), TensorProto.FLOAT8E4M3FN)
    names = [each.name for each in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def one_node(
    inputs: Arrays, attributes: Attributes, *outputs: str, opset: int = 21
) -> onnx.ModelProto:
    """A graph of one node."""
    outputs = outputs or ("output",)
    names = [name if name in inputs else "" for name in INPUT_NAMES]
    made = [name if name in outputs else "" for name in OUTPUT_NAMES]
    node = helper.make_node("GroupQueryAttention", names, made, domain=DOMAIN, **attributes)
    values = [
        helper.make_tensor_value_info(name, ONNX_OF_NUMPY[array.dtype], array.shape)
        for name, array in inputs.items()
    ]
    kind = ONNX_OF_NUMPY[inputs["query"].dtype]
    results = [helper.make_tensor_value_info(name, kind, None) for name in outputs]
    graph = helper.make_graph([node], "g", values, results)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def compare(inputs: Arrays, attributes: Attributes, *outputs: str, **how: Any) -> None:
    """Assert that the dense graph computes what the oracle does."""
    outputs = outputs or ("output",)
    dense = dense_model(one_node(inputs, attributes, *outputs, **how))
    assert {node.domain for node in dense.graph.node} <= {""}
    wide = {
        name: array.astype(np.float32) if array.dtype in FLOAT_DTYPES else array
        for name, array in inputs.items()
    }
    got = ran(dense, wide)
    for name, each in reference(inputs, attributes, outputs).items():
        right = np.where(each.defined, each.value, 0)
        limit = 1e-5 * max(1.0, np.abs(right).max(initial=0))
        assert got[name].shape == right.shape
        np.testing.assert_allclose(np.where(each.defined, got[name], 0), right, 0, limit)


@pytest.mark.parametrize(
    "seed", [seed for seed in range(240) if STAGES[seed % len(STAGES)] in WHOLE]
)
def test_any_whole_prompt(seed: int) -> None:
    drawn = random_configuration(seed)
    total = int(drawn.inputs["total_sequence_length"])
    inputs = {n: each for n, each in drawn.inputs.items() if n != "position_ids"}
    if drawn.stage == "borrowed_prompt":  # the rows of a buffer are all read
        for name in ("past_key", "past_value"):
            inputs[name] = np.ascontiguousarray(inputs[name][:, :, :total])
    inputs["seqlens_k"] = np.full_like(inputs["seqlens_k"], total - 1)
    compare(inputs, drawn.attributes, opset=(13, 17, 18, 21, 23)[seed % 5])


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def prompt(tokens: int = 6, heads: int = 4, kv_heads: int = 2, size: int = 8) -> Arrays:
    """The inputs of a prompt."""
    widths = (heads, kv_heads, kv_heads)
    made = [numbers(1, tokens, each * size, seed=at) for at, each in enumerate(widths)]
    return inputs_of(*made, lengths=[tokens])


HEADS: Attributes = {"num_heads": 4, "kv_num_heads": 2}


@pytest.mark.parametrize("qk_output", [1, 2])
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("rows", [0, 1])
def test_norms_and_scores(interleaved: int, qk_output: int, rows: int) -> None:
    inputs = prompt()
    inputs["cos_cache"], inputs["sin_cache"] = rotary_caches(8, 3)
    inputs["head_sink"] = numbers(4)
    inputs |= {"q_norm_weight": numbers(8), "k_norm_weight": numbers(8, seed=1)}
    epsilons = {"q_norm_epsilon": 0.1} if rows else {"qk_norm_epsilon": 0.01}
    inputs = {name: inputs[name] for name in INPUT_NAMES if name in inputs}
    attributes = {**HEADS, "do_rotary": 1, "rotary_interleaved": interleaved, **epsilons}
    compare(inputs, {**attributes, "qk_output": qk_output}, "output", "output_qk")


# Quantised caches

CODES = {
    "int8": (np.dtype(np.int8), 0.03),
    "int4": (np.dtype(np.uint8), 0.4),
    "float8": (np.dtype(ml_dtypes.float8_e4m3fn), 0.3),
}


def quantised(name: str, scales: str, rows: int, new: int) -> tuple[Arrays, Attributes]:
    """A prompt on a quantised cache of some rows."""
    dtype, step = CODES[name]
    inputs, draws = prompt(), np.random.default_rng(3)
    for each in ("key", "value"):
        inputs[each] = inputs[each][:, :new]
        width = 4 if name == "int4" else 8
        stored = draws.integers(0, 100, (1, 2, rows, width)).astype(np.uint8).view(dtype)
        inputs[f"past_{each}"] = stored
        shape = {"PER_TENSOR": [1], "PER_CHANNEL": [1, 2, 1, 8], "flat": [16]}[scales]
        inputs[f"{each[0]}_scale"] = (step * draws.uniform(1, 2, shape)).astype(np.float32)
    kind = "PER_TENSOR" if scales == "PER_TENSOR" else "PER_CHANNEL"
    attributes = {**HEADS, "k_quant_type": kind, "v_quant_type": kind}
    return inputs, {**attributes, "kv_cache_bit_width": 4 if name == "int4" else 8}


@pytest.mark.parametrize("scales", ["PER_TENSOR", "PER_CHANNEL", "flat"])
@pytest.mark.parametrize("name", CODES)
def test_rounding_is_that_of_the_codes(name: str, scales: str) -> None:
    """Where no number is beyond the range of the codes, they are what the operator attends to."""
    inputs, attributes = quantised(name, scales, 6, 6)
    model = one_node(inputs, attributes)
    rounded, plain = (ran(dense_model(model, rounded=each), inputs)["output"] for each in (1, 0))
    right = reference(inputs, attributes, ["output"])["output"].value
    np.testing.assert_allclose(rounded, right, 0, 1e-5)
    assert np.abs(plain - right).max() > 1e-3
    bare = {each: inputs[each] for each in prompt()}
    right = reference(bare, HEADS, ["output"])["output"].value
    np.testing.assert_allclose(plain, right, 0, 1e-5)


def test_rounding_has_no_limits() -> None:
    inputs, attributes = quantised("int8", "PER_TENSOR", 6, 6)
    inputs |= {"k_scale": np.array([1e-4], np.float32), "v_scale": np.array([1e-4], np.float32)}
    model = one_node(inputs, attributes)
    rounded, plain = (ran(dense_model(model, rounded=each), inputs)["output"] for each in (1, 0))
    np.testing.assert_allclose(rounded, plain, 0, 1e-3)


@pytest.mark.parametrize("name", CODES)
def test_a_cache_of_codes_is_borrowed(name: str) -> None:
    """A drafter has no keys: the target's cache is an input of its graph."""
    compare(*quantised(name, "PER_CHANNEL", 6, 0))


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("rounded", [False, True])
def test_codes_outside_of_the_node(rounded: bool, by_hand: bool) -> None:
    """The graph itself quantises the cache, by one scale for each head."""
    text = """
    agraph (float[B, S, 32] query, float[B, S, 16] key, float[B, S, 16] value,
            int8[B, 2, P, 8] codes, int32[B] seqlens_k, int32 total_sequence_length,
            float[2] step) => (float[B, S, 32] output, int8[B, 2, T, 8] present) {
      past = DequantizeLinear <axis = 1> (codes, step)
      output, present_key, present_value = com.microsoft.GroupQueryAttention
        <num_heads = 4, kv_num_heads = 2>
        (query, key, value, past, past, seqlens_k, total_sequence_length)
      present = QuantizeLinear <axis = 1> (present_key, step)
    }
    """
    inputs, step = prompt(), np.array([0.3, 0.4], np.float32)
    if by_hand:
        made = """numbers = Cast <to = 1> (codes) axes = Constant <value_ints = [0, 2, 3]> ()
                  steps = Unsqueeze (step, axes) past = Mul (steps, numbers)"""
        text = text.replace("past = DequantizeLinear <axis = 1> (codes, step)", made)
    dense = dense_model(parsed(text), rounded=rounded)
    assert [each.name for each in dense.graph.output] == ["output"]
    got = ran(dense, {**inputs, "step": step})["output"]
    if rounded:
        for name in ("key", "value"):
            steps = step[:, None]
            heads = inputs[name].reshape(1, 6, 2, 8)
            inputs[name] = (np.rint(heads / steps) * steps).reshape(1, 6, 16)
    right = reference(inputs, HEADS, ["output"])["output"].value
    np.testing.assert_allclose(got, right, 0, 1e-5)


# Graphs


def parsed(text: str, opset: int = 18) -> onnx.ModelProto:
    """A model in ONNX's own language."""
    head = HEAD.replace('"" : 18', f'"" : {opset}')
    return onnx.parser.parse_model(head + text)


OWN = ATTENTION.split("{")[1].rsplit("}", 1)[0]
#: Nodes that make a key without rows.
NO_KEYS = """
    zero = Constant <value_ints = [0]> ()
    one = Constant <value_ints = [1]> ()
    two = Constant <value_ints = [2]> ()
    no_keys = Slice (key, zero, zero, one)
"""
BORROWING = """
agraph (float[B, S, 16] query, float[B, S, 8] key, float[B, S, 8] value,
        float[B, 1, P, 8] past_key, float[B, 1, P, 8] past_value, float[B, S, 16] other,
        int32[B] seqlens_k, int32 total) => (float[B, S, 16] last) {
"""


def two_layers(between: str, keys: str = "no_keys, no_keys") -> str:
    """A graph whose second node attends to keys and values, k and v, that the first one made."""
    second = f"(other, {keys}, k, v, seqlens_k, total)"
    last = f"last = com.microsoft.GroupQueryAttention <num_heads = 2, kv_num_heads = 1> {second}"
    return f"{BORROWING} {NO_KEYS} {OWN} {between} {last} }}"


def arrays(tokens: int = 5) -> Arrays:
    """The inputs of the graphs of two layers."""
    inputs = prompt(tokens, 2, 1, 8)
    inputs["total"] = inputs.pop("total_sequence_length")
    inputs["other"] = numbers(1, tokens, 16, seed=9)
    inputs |= {name: np.zeros((1, 1, 0, 8), np.float32) for name in ("past_key", "past_value")}
    return inputs


BETWEEN = {
    "copied": "k = Identity (present_key) v = Identity (present_value)",
    "cast": """k16 = Cast <to = 1> (present_key) k = Identity (k16)
               v16 = Cast <to = 1> (present_value) v = Identity (v16)""",
    "sliced": """many = Constant <value_ints = [99]> ()
                 k = Slice (present_key, zero, many, two) v = Slice (present_value, zero, many, two)
              """,
    "in a sequence": """both = SequenceConstruct (present_key, present_value)
                        k = SequenceAt (both, i0) v = SequenceAt (both, i1)""",
}


@pytest.mark.parametrize("keys", ["no_keys, no_keys", " , "], ids=["empty", "omitted"])
@pytest.mark.parametrize("between", BETWEEN)
def test_a_node_borrows(between: str, keys: str) -> None:
    text = two_layers(BETWEEN[between], keys)
    if between == "in a sequence":
        indices = "i0 = Constant <value_int = 0> () i1 = Constant <value_int = 1> ()"
        text = text.replace(NO_KEYS, f"{NO_KEYS} {indices}")
    plain = two_layers(BETWEEN["copied"])
    right = computed(plain, arrays())["last"].value
    dense = dense_model(parsed(text))
    assert {each.name for each in dense.graph.input} == {"query", "key", "value", "other"}
    np.testing.assert_allclose(ran(dense, arrays())["last"], right, 0, 1e-5)


def test_presents_are_not_quantised_on_their_way() -> None:
    codes = """
      step = Constant <value_float = 1.0> ()
      zero_point = Constant <value = int8 {0}> ()
      kq = QuantizeLinear (present_key, step, zero_point) k = DequantizeLinear (kq, step)
      vq = QuantizeLinear (present_value, step, zero_point) v = DequantizeLinear (vq, step)
    """
    right = computed(two_layers(BETWEEN["copied"]), arrays())["last"].value
    got = ran(dense_model(parsed(two_layers(codes))), arrays())["last"]
    np.testing.assert_allclose(got, right, 0, 1e-5)


@pytest.mark.parametrize("rows", [0, 5])
def test_keys_of_unknown_length(rows: int) -> None:
    """Whether the node has keys of its own is known when it runs."""
    text = ATTENTION.replace("float[B, S, 8] key, float[B, S, 8] value", "float[B, L, 8] key")
    text = text.replace("key, value,", "key, key,")
    inputs = arrays()
    inputs |= {"past_key": numbers(1, 1, 5, 8), "past_value": numbers(1, 1, 5, 8, seed=2)}
    inputs["key"] = inputs["key"][:, :rows]
    right = computed(
        text,
        inputs
        if rows == 0
        else {
            **inputs,
            **{name: np.zeros((1, 1, 0, 8), np.float32) for name in ("past_key", "past_value")},
        },
    )["output"].value
    np.testing.assert_allclose(ran(dense_model(parsed(text)), inputs)["output"], right, 0, 1e-5)


#: A graph that makes one token after the other.
LOOP = """
agraph (float[B, S, 16] query, float[B, S, 8] key, float[B, S, 8] value,
        float[B, 1, P, 8] past_key, float[B, 1, P, 8] past_value, float[B, S, 16] other,
        int32[B] seqlens_k, int32 total)
      => (float[S, B, 1, 16] outputs, float[B, 1, T, 8] last_key) {
  one = Constant <value_ints = [1]> ()
  zero = Constant <value_ints = [0]> ()
  always = Constant <value = bool {1}> ()
  shape = Shape (query)
  index = Constant <value_int = 1> ()
  tokens = Gather (shape, index)
  last_key, last_value, outputs = Loop (tokens, always, past_key, past_value) <body = round (
      int64 at, bool go, float[B, 1, P, 8] k, float[B, 1, P, 8] v
    ) => (bool goes, float[B, 1, T, 8] new_k, float[B, 1, T, 8] new_v, float[B, 1, 16] out) {
      goes = Identity (go)
      last = Constant <value_ints = [-1]> ()
      start = Reshape (at, last)
      end = Add (start, one)
      q1 = Slice (query, start, end, one)
      k1 = Slice (key, start, end, one)
      v1 = Slice (value, start, end, one)
      BODY
    }>
}
"""
STEP = """com.microsoft.GroupQueryAttention <num_heads = 2, kv_num_heads = 1, local_window_size = 3>
          (q1, k1, v1, k, v, seqlens_k, total)"""


def test_a_loop_carries_a_cache() -> None:
    dense = dense_model(parsed(LOOP.replace("BODY", f"out, new_k, new_v = {STEP}")))
    assert [each.name for each in dense.graph.output] == ["outputs"]
    got = ran(dense, arrays())["outputs"][:, 0, 0]
    heads = "num_heads = 2, kv_num_heads = 1"
    whole = ATTENTION.replace(heads, f"{heads}, local_window_size = 3")
    np.testing.assert_allclose(got, computed(whole, arrays())["output"].value[0], 0, 1e-5)


def test_a_branch_in_a_loop_makes_what_is_borrowed() -> None:
    step = STEP.replace(", local_window_size = 3", "")
    declared = "float[B, 1, 16] o{0}, float[B, 1, T, 8] k{0}, float[B, 1, T, 8] v{0}"
    branches = ", ".join(
        f"{name}_branch = {name} () => ({declared.format(at)}) {{ o{at}, k{at}, v{at} = {step} }}"
        for name, at in (("then", 8), ("else", 9))
    )
    body = f"""first, new_k, new_v = If (go) <{branches}>
      q2 = Slice (other, start, end, one)
      none = Slice (key, zero, zero, one)
      out = com.microsoft.GroupQueryAttention <num_heads = 2, kv_num_heads = 1>
        (q2, none, none, new_k, new_v, seqlens_k, total)"""
    got = ran(dense_model(parsed(LOOP.replace("BODY", body))), arrays())["outputs"][:, 0, 0]
    right = computed(two_layers(BETWEEN["copied"]), arrays())["last"].value[0]
    np.testing.assert_allclose(got, right, 0, 1e-5)


def test_a_loop_carries_no_codes() -> None:
    quantised = STEP.replace("kv_num_heads = 1", 'kv_num_heads = 1, k_quant_type = "PER_TENSOR"')
    with pytest.raises(CannotRewrite, match="A loop carries a quantised cache"):
        dense_model(parsed(LOOP.replace("BODY", f"out, new_k, new_v = {quantised}")))


#: What a small decoder gets for a prompt.
PROMPT = {"input_ids": np.arange(7)[None], "attention_mask": np.ones((1, 7), np.int64)}


def by_dense(**makes: Any) -> np.ndarray:
    """What the dense graph of a small decoder makes of a prompt."""
    return ran(dense_model(graph_of(usual(**makes))), PROMPT)["logits"]


@pytest.mark.parametrize("wrap", ["if new", "function"])
@pytest.mark.parametrize("half", [False, True])
def test_attention_in_bodies(wrap: str, half: bool) -> None:
    makes = {"layers": 3, "borrow": "constant", "window": 4, "half": half}
    one = by_dense(**makes, norm="node", wrap=wrap)
    np.testing.assert_allclose(one, by_dense(**makes, norm="node"), 0, 1e-5)
    assert np.abs(by_dense(**makes) - one).max() > 1e-2


@pytest.mark.parametrize(
    "makes", [{}, {"packed": True}, {"cache": "static"}, {"borrow": "constant"}], ids=str
)
def test_a_decoder_is_what_onnxruntime_makes_of_it(makes: dict[str, Any]) -> None:
    model = graph_of(usual(**makes))
    pasts = {
        each.name: np.zeros((1, 2, 64 if makes.get("cache") else 0, 16), np.float32)
        for each in model.graph.input[2:]
    }
    model.ir_version = 3
    before = model.SerializeToString()
    dense = dense_model(model)
    assert dense.ir_version == 4
    assert model.SerializeToString() == before
    model.ir_version = 9
    assert [each.name for each in dense.graph.input] == ["input_ids"]
    right = ran(model, PROMPT | pasts)["logits"]
    np.testing.assert_allclose(ran(dense, PROMPT)["logits"], right, 0, 1e-5)


# Other attention


def test_standard_attention_borrows() -> None:
    """As in microsoft/onnxruntime#28188: layers that borrow are nodes of the standard operator."""
    queries = """
      shape = Constant <value_ints = [0, 0, 2, 8]> ()
      split = Reshape (other, shape) q = Transpose <perm = [0, 2, 1, 3]> (split)
      y = Attention <is_causal = 1> (q, present_key, present_value)
      last = Identity (y)
    """
    text = f"{BORROWING} {OWN} {queries} }}".replace("[B, S, 16] last", "[B, 2, S, 8] last")
    inputs = arrays()
    borrowing = two_layers(BETWEEN["copied"])
    right = computed(borrowing, inputs)["last"].value.reshape(1, 5, 2, 8).swapaxes(1, 2)
    dense = dense_model(parsed(text, 23))
    assert "Attention" not in {each.op_type for each in dense.graph.node}
    np.testing.assert_allclose(ran(dense, inputs)["last"], right, 0, 1e-5)


STANDARD = {
    "causal": (23, {"is_causal": 1}, None),
    "softcap and a mask of numbers": (23, {"softcap": 2.0, "scale": 0.3}, numbers(5, 5)),
    "a mask of booleans": (24, {"is_causal": 1}, numbers(1, 4, 5, 5) > -0.5),
    "a mask for keys": (23, {}, np.array([[True, True, False, True, False]])),
    "windows": (25, {"left_window_size": 2, "right_window_size": 1}, None),
    "nothing to attend to": (24, {}, np.zeros((5, 5), bool)),
}


@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("name", STANDARD)
def test_standard_attention(name: str, flat: bool) -> None:
    opset, attributes, mask = STANDARD[name]
    inputs = {"q": numbers(2, 5, 32), "k": numbers(2, 5, 16), "v": numbers(2, 5, 12)}
    if flat:
        attributes = {**attributes, "q_num_heads": 4, "kv_num_heads": 2}
    else:
        sizes = {"q": 4, "k": 2, "v": 2}
        inputs = {
            each: array.reshape(2, 5, sizes[each], -1).swapaxes(1, 2)
            for each, array in inputs.items()
        }
    if mask is not None:
        inputs["mask"] = mask
    node = helper.make_node("Attention", [*inputs], ["y"], **attributes)
    model = whole_model(node, inputs, opset)
    right = ReferenceEvaluator(model).run(None, inputs)[0]
    np.testing.assert_allclose(ran(dense_model(model), inputs)["y"], right, 0, 1e-5)


def whole_model(node: onnx.NodeProto, inputs: Arrays, opset: int) -> onnx.ModelProto:
    values = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
        )
        for name, array in inputs.items()
    ]
    results = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph([node], "g", values, results)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def test_new_rows_of_a_buffer() -> None:
    """Attention whose keys are a buffer, an input of the graph, with the new rows written in."""
    text = """
    agraph (float[B, 4, S, 8] q, float[B, 2, S, 8] k, float[B, 2, S, 8] v, float[B, 2, 16, 8] k0,
            float[B, 2, 16, 8] v0, int64[B] at, bool[1, 1, S, 16] mask)
          => (float[B, 4, S, 8] y, float[B, 2, 16, 8] k1, float[B, 2, 16, 8] v1) {
      k1 = TensorScatter (k0, k, at)
      v1 = TensorScatter (v0, v, at)
      y = Attention (q, k1, v1, mask)
    }
    """
    parts = {each: numbers(1, 4 if each == "q" else 2, 5, 8) for each in "qkv"}
    mask = np.tri(5, 16, dtype=bool)[None, None]
    dense = dense_model(parsed(text, 24))
    assert [each.name for each in dense.graph.output] == ["y"]
    node = helper.make_node("Attention", [*"qkv"], ["y"], is_causal=1)
    right = ReferenceEvaluator(whole_model(node, parts, 24)).run(None, parts)[0]
    np.testing.assert_allclose(ran(dense, {**parts, "mask": mask})["y"], right, 0, 1e-5)


MULTI_HEAD = {
    "plain": {},
    "causal": {"unidirectional": 1, "scale": 0.2},
    "with biases": {"bias": numbers(24)},
    "with a bias of the scores": {"attention_bias": numbers(1, 1, 5, 5)},
    "keys in heads": {"key": numbers(2, 2, 6, 4), "value": numbers(2, 2, 6, 4, seed=1)},
}


@pytest.mark.parametrize("name", MULTI_HEAD)
def test_multi_head_attention(name: str) -> None:
    given = MULTI_HEAD[name]
    names = ("query", "key", "value", "bias", "key_padding_mask", "attention_bias")
    inputs: dict[str, Any] = {each: numbers(2, 5, 8, seed=at) for at, each in enumerate(names[:3])}
    inputs |= {each: array for each, array in given.items() if each in names}
    inputs = {each: array for each, array in inputs.items() if array is not None}
    attributes = {each: number for each, number in given.items() if each not in names}
    listed = [each if each in inputs else "" for each in names]
    node = helper.make_node(
        "MultiHeadAttention", listed, ["y"], domain=DOMAIN, num_heads=2, **attributes
    )
    model = whole_model(node, inputs, 21)
    right = ran(model, inputs)["y"]
    np.testing.assert_allclose(ran(dense_model(model), inputs)["y"], right, 0, 1e-5)


def test_packed_multi_head_attention() -> None:
    """ONNX Runtime's CPU does not have these forms."""
    parts = {name: numbers(2, 5, 8, seed=at) for at, name in enumerate(("query", "key", "value"))}

    def made(inputs: Arrays) -> np.ndarray:
        names = [*inputs]
        node = helper.make_node("MultiHeadAttention", names, ["y"], domain=DOMAIN, num_heads=2)
        return ran(dense_model(whole_model(node, inputs, 21)), inputs)["y"]

    right = made(parts)
    query, key, value = (each.reshape(2, 5, 2, 1, 4) for each in parts.values())
    packed = np.concatenate([query, key, value], 3)
    np.testing.assert_allclose(made({"query": packed}), right, 0, 1e-6)
    packed = np.concatenate([key, value], 3)
    np.testing.assert_allclose(made({"query": parts["query"], "key": packed}), right, 0, 1e-6)


# The model


def test_nothing_is_half_precise() -> None:
    dense = dense_model(graph_of(usual(half=True, wrap="if new", borrow="constant")))
    types = set(re.findall("(?:data_type|elem_type): [0-9]+", str(dense)))
    assert not types & {f"{of}: {each}" for of in ("data_type", "elem_type") for each in (10, 16)}


def test_values_are_kept() -> None:
    dense = dense_model(parsed(two_layers(BETWEEN["copied"])), keep=["output", "k"])
    assert [each.name for each in dense.graph.output] == ["last", "output", "k"]
    got = ran(dense, arrays())
    assert got["output"].shape == (1, 5, 16)
    assert got["k"].shape == (1, 1, 5, 8)


def test_sizes_are_open() -> None:
    text = ATTENTION.replace("[B, S, 16] query", "[2, 4, 16] query")
    text = text.replace("[B, S, 8] key, float[B, S, 8]", "[2, 4, 8] key, float[2, 4, 8]")
    dense = dense_model(parsed(text))
    sizes = [
        [dim.dim_value for dim in each.type.tensor_type.shape.dim] for each in dense.graph.input
    ]
    assert sizes == [[0, 0, 16], [0, 0, 8], [0, 0, 8]]
    assert ran(dense, arrays())["output"].shape == (1, 5, 16)


def test_what_cannot_be_rewritten() -> None:
    with pytest.raises(CannotRewrite, match="operator set 12, and 13 is the lowest known"):
        dense_model(parsed(ATTENTION, 12))
    with pytest.raises(CannotRewrite, match="no value nothing"):
        dense_model(parsed(ATTENTION), keep=["nothing"])
    with pytest.raises(CannotRewrite, match="GroupQueryAttention has no kv_num_heads"):
        dense_model(parsed(ATTENTION.replace(", kv_num_heads = 1", "")))
    with pytest.raises(CannotRewrite, match="GroupQueryAttention has an attribute out of its"):
        dense_model(parsed(ATTENTION.replace("num_heads = 2", "num_heads = 0")))
    model = parsed(ATTENTION)
    model.graph.initializer.add(name="w", data_type=TensorProto.FLOAT16, dims=[4]).raw_data = b"1"
    with pytest.raises(CannotRewrite, match="A weight has no content"):
        dense_model(model)
