"""The oracle for graphs: its operators, its error budgets, what is undefined, and what it shows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from graph_models import ATTENTION, HEAD_23, computed, declared, model_of
from onnx import helper
from onnx.helper import get_attribute_value
from shipped import cases_of_theme, shipped_cases
from tables import tables

from conformance.bundle.prepare import prepare
from conformance.bundle.script import Script, script_of
from conformance.case.case import Case
from conformance.oracle import OracleError, Reference, reference
from conformance.oracle.graph_reference import GraphReference
from conformance.oracle.operators import OPERATORS
from conformance.oracle.tolerance import budgets, past_errors, shares

TABLES = tables(__file__)

BLOCKS = {case.label: case for case in cases_of_theme("blocks")}


def uniform(*shape: int, seed: int = 0, dtype: str = "f4") -> np.ndarray:
    return np.random.RandomState(seed).uniform(-1, 1, shape).astype(dtype)


# Operators, compared with ONNX Runtime

#: The text of a graph from x [2, 3, 32] and w to y, and the shapes and types of other inputs.
OPERATORS_OF = TABLES["operators"]


def of_operator(call: str, shapes: dict[str, tuple[int, ...]]) -> tuple[bytes, dict[str, Any]]:
    inputs: dict[str, Any] = {"x": 3 * uniform(2, 3, 32)}
    inputs |= {name: uniform(*shape, seed=5) for name, shape in shapes.items()}
    if "last" in call:
        inputs["last"] = np.array([-1])
    if "positions" in call:
        inputs["positions"] = np.array([[0, 4, 2], [8, 1, 3]])
    text = f"{HEAD_23}g ({declared(inputs)}) => (float y) {{ y = {call} }}"
    model = onnx.parser.parse_model(text)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return model.SerializeToString(), inputs


@pytest.mark.parametrize("name", OPERATORS_OF)
def test_an_operator_is_what_onnxruntime_computes(name: str) -> None:
    """Within the budget, and the budget is not larger than 3000 roundings of float32."""
    onnxruntime = pytest.importorskip("onnxruntime")
    model, inputs = of_operator(*OPERATORS_OF[name])
    found = GraphReference(onnx.load_model_from_string(model)).references(inputs)["y"]
    (got,) = onnxruntime.InferenceSession(model).run(None, inputs)
    assert got.shape == found.value.shape
    assert shares(got.astype("f8"), found.value, found.unit, "cpu").max() <= 0.6
    assert (found.unit <= 3000 * 2.0**-24 * (1 + np.abs(found.value))).all()


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("zero_points", ["none", "codes", "numbers"])
def test_quantised_products(bits: int, zero_points: str) -> None:
    """Compared with the weights taken apart by hand."""
    random = np.random.RandomState(bits)
    codes = random.randint(0, 2**bits, (5, 64))
    zeros = random.randint(0, 2**bits, (5, 2)) if zero_points == "codes" else None
    scales = random.uniform(0.1, 0.2, (5, 2)).astype("f4")
    middle: Any = 2 ** (bits - 1)
    if zeros is not None:
        middle = np.repeat(zeros, 32, axis=1)
    inputs = {"x": uniform(3, 64), "b": packed(codes, bits).reshape(5, 2, -1), "s": scales}
    names = "x, b, s"
    if zeros is not None:
        inputs["z"], names = packed(zeros, bits), "x, b, s, z"
    if zero_points == "numbers":
        inputs["z"], names = random.uniform(1, 2, (5, 2)).astype("f4"), "x, b, s, z"
        middle = np.repeat(inputs["z"].astype("f8"), 32, axis=1)
    weights = (codes - middle) * np.repeat(scales.astype("f8"), 32, axis=1)
    made = computed(
        f"g ({declared(inputs)}) => (float[3, 5] y) {{ y = com.microsoft.MatMulNBits"
        f"<K = 64, N = 5, bits = {bits}, block_size = 32> ({names}) }}",
        inputs,
    )["y"]
    np.testing.assert_allclose(made.value, inputs["x"].astype("f8") @ weights.T, rtol=1e-12)


def packed(codes: np.ndarray, bits: int) -> np.ndarray:
    """Codes [..., n] in bytes, the first in the low bits; each row is padded to whole bytes."""
    each = 8 // bits
    rows = np.pad(codes, [(0, 0), (0, -codes.shape[-1] % each)]).reshape(len(codes), -1, each)
    return (rows << (bits * np.arange(each))).sum(axis=-1).astype("u1")


@pytest.mark.parametrize("zero_points", [False, True])
def test_quantised_embeddings(zero_points: bool) -> None:
    random = np.random.RandomState(1)
    codes, scales = random.randint(0, 16, (10, 64)), random.uniform(0.1, 0.2, (10, 2)).astype("f4")
    zeros = random.randint(0, 16, (10, 2)) if zero_points else np.full((10, 2), 8)
    inputs = {"d": packed(codes, 4), "i": np.array([[3, 9], [0, 3]]), "s": scales}
    if zero_points:
        inputs["z"] = packed(zeros, 4)
    made = computed(
        f"g ({declared(inputs)}) => (float[2, 2, 64] y) {{ y = com.microsoft.GatherBlockQuantized"
        f"<bits = 4, block_size = 32, quantize_axis = 1> ({', '.join(inputs)}) }}",
        inputs,
    )["y"]
    table = (codes - np.repeat(zeros, 32, axis=1)) * np.repeat(scales.astype("f8"), 32, axis=1)
    np.testing.assert_array_equal(made.value, table[inputs["i"]])


@pytest.mark.parametrize("name", ["SkipSimplifiedLayerNormalization", "SkipLayerNormalization"])
def test_a_norm_of_a_sum(name: str) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    more = ", v" if name == "SkipLayerNormalization" else ""
    text = (
        "g (float[2, 3, 16] x, float[2, 3, 16] s, float[16] w, float[16] v, float[16] b) =>"
        " (float[2, 3, 16] y, float[2, 3, 16] sum)"
        f" {{ y, mean, inverse, sum = com.microsoft.{name} <epsilon = 1e-5> (x, s, w{more}, b) }}"
    )
    inputs = {n: uniform(2, 3, 16, seed=i) for i, n in enumerate("xs")}
    inputs |= {n: uniform(16, seed=9 + i) for i, n in enumerate("wvb")}
    found = computed(text, inputs)
    got = onnxruntime.InferenceSession(model_of(text)).run(None, inputs)
    for one, array in zip(found.values(), got, strict=True):
        assert shares(array.astype("f8"), one.value, one.unit, "cpu").max() <= 0.6


#: What an Attention of 3 tokens has beside a mask: its attributes, and what says where they are.
STANDARD: dict[str, tuple[dict[str, Any], str]] = {
    "all keys": ({"scale": 0.25, "softcap": 2.0}, ""),
    "causal": ({"is_causal": 1}, ""),
    "past": ({"is_causal": 1, "softmax_precision": 11}, "past"),
    "past, not causal": ({"softcap": 1.5}, "past"),
    "window": ({"is_causal": 1, "left_window_size": 2}, "past"),
    "two windows": ({"left_window_size": 1, "right_window_size": 1}, "past"),
    "lengths": ({}, "lengths"),
    "causal lengths": ({"is_causal": 1}, "lengths"),
}


@pytest.mark.parametrize("heads", [False, True])
@pytest.mark.parametrize("masked", ["no", "bool", "float", "short"])
@pytest.mark.parametrize("kind", STANDARD)
def test_the_standard_attention_is_that_of_onnx(heads: bool, masked: str, kind: str) -> None:
    from onnx.reference import ReferenceEvaluator

    attributes, places = STANDARD[kind]
    shapes = {"q": (2, 4, 3, 8), "k": (2, 2, 5, 8), "v": (2, 2, 5, 8)}
    if not heads:
        shapes = {n: (2, s[2], s[1] * 8) for n, s in shapes.items()}
        attributes = {"q_num_heads": 4, "kv_num_heads": 2, **attributes}
    inputs: dict[str, Any] = {n: uniform(*s, seed=i) for i, (n, s) in enumerate(shapes.items())}
    every, outputs = 5, ["y"]
    if places == "past":
        inputs |= {n: uniform(2, 2, 4, 8, seed=i) for i, n in enumerate(("pk", "pv"))}
        every, outputs = 9, ["y", "present_k", "present_v"]
    elif places == "lengths":
        inputs["n"] = np.array([5, 3])
    if masked == "bool":
        inputs["m"] = np.tri(3, every, 2, dtype=bool)
    elif masked != "no":
        inputs["m"] = uniform(2, 1, 3, every - (masked == "short"))
    slots = [n if n in inputs else "" for n in ("q", "k", "v", "m", "pk", "pv", "n")]
    node = helper.make_node("Attention", slots, outputs, **attributes)
    taken = [onnx.ValueInfoProto(name=name) for name in inputs]
    graph = helper.make_graph([node], "g", taken, [onnx.ValueInfoProto(name=n) for n in outputs])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)])
    found = GraphReference(model).references(inputs)
    exact = {n: a.astype("f8") if a.dtype.kind == "f" else a for n, a in inputs.items()}
    for name, want in zip(outputs, ReferenceEvaluator(model).run(None, exact), strict=True):
        one = found[name]
        assert one.value.shape == want.shape
        np.testing.assert_allclose(one.value, want, rtol=1e-9, atol=1e-12)
        assert one.defined.all() or not want[~one.defined].any()  # no key is left to the row
        assert (one.unit == 0).all() == name.startswith("present")


@pytest.mark.parametrize(("attribute", "value", "told"), TABLES["unknown attentions"])
def test_an_attention_that_the_operator_does_not_have(
    attribute: str, value: float, told: str
) -> None:
    text = (
        f"{HEAD_23}g (float[1, 2, 3, 8] q) => (float[1, 2, 3, 8] y) {{ y = Attention (q, q, q) }}"
    )
    model = onnx.parser.parse_model(text)
    model.graph.node[0].attribute.append(helper.make_attribute(attribute, value))
    with pytest.raises(OracleError, match=told):
        GraphReference(model).references({"q": uniform(1, 2, 3, 8)})


def test_an_attention_with_other_values_or_with_scores_is_unknown() -> None:
    inputs = {"q": uniform(1, 2, 3, 8), "v": uniform(1, 2, 3, 4)}
    text = f"{HEAD_23}g ({declared(inputs)}) => (float y) {{ y = Attention (q, q, v) }}"
    with pytest.raises(OracleError, match="values have another size than its keys"):
        GraphReference(onnx.parser.parse_model(text)).references(inputs)
    text = text.replace("{ y =", "{ y, k, v2, s =").replace("q, v)", "q, q)")
    with pytest.raises(OracleError, match="whose scores are an output is unknown"):
        GraphReference(onnx.parser.parse_model(text)).references(inputs)


def test_nothing_is_rounded_between_nodes() -> None:
    """1 + 2^-30 vanishes in float32; the oracle keeps it, also through a cast to float16."""
    text = """g (float[1] x, float[1] y) => (float[1] z, float16[1] h) {
        s = Add (x, y)
        z = Sub (s, x)
        t = Cast <to = 10> (y)
        h = Mul (t, t) }"""
    found = computed(text, {"x": np.ones(1, "f4"), "y": np.array([2.0**-30], "f4")})
    assert found["z"].value == 2.0**-30
    assert found["h"].value == 2.0**-60
    assert found["h"].dtype == np.float16


def test_an_unknown_operator_is_named() -> None:
    model = onnx.load_model_from_string(model_of("g (float[2] x) => (float[2] y) { y = Selu (x) }"))
    with pytest.raises(OracleError, match=r"The operator Selu is unknown to the oracle"):
        GraphReference(model)


def test_a_node_that_cannot_be_computed_is_named() -> None:
    text = "g (float[2] x, float[3] w) => (float[2] y) { y = Add (x, w) }"
    with pytest.raises(OracleError, match=r"^Add cannot be computed: "):
        computed(text, {"x": uniform(2), "w": uniform(3)})
    inputs = {"query": uniform(1, 2, 16), "key": uniform(1, 2, 8), "value": uniform(1, 2, 8)}
    inputs |= {name: uniform(1, 1, 3, 8) for name in ("past_key", "past_value")}
    inputs |= {"seqlens_k": np.array([7], "i4"), "total": np.array(8, "i4")}
    with pytest.raises(OracleError, match=r"^GroupQueryAttention.*: total_sequence_length 8"):
        computed(ATTENTION, inputs)


def test_a_node_that_makes_too_few_outputs_is_named() -> None:
    text = """g (float[3] x) => (float a, float b, float c) <int64[2] s = {2, 1}> {
        a, b, c = Split <axis = 0> (x, s) }"""
    with pytest.raises(OracleError, match=r"^Split cannot be computed: it makes 2 outputs, not 3$"):
        computed(text, {"x": np.ones(3, "f4")})


def test_every_operator_is_tried() -> None:
    """The contributed operators: by a test, or by a shipped graph that ONNX Runtime runs."""
    tried = {"SkipSimplifiedLayerNormalization", "SkipLayerNormalization", "MatMulNBits"}
    text = " ".join(call for call, _ in OPERATORS_OF.values())
    own = {name for (domain, name) in OPERATORS if domain}
    shipped = {n.op_type for case in BLOCKS.values() for n in script_of(case.call).model.graph.node}
    assert not {name for name in own - tried - shipped if f".{name} " not in text}


# Error budgets


def single(script: Script) -> tuple[dict[str, Reference], dict[str, Reference], dict[str, Any]]:
    """The two nodes of a borrowing graph, each as a call of its own, and the second one's units."""
    inputs = script.steps[0].inputs
    tables = {t.name: onnx.numpy_helper.to_array(t) for t in script.model.graph.initializer}
    tables = {name: tables[name] for name in ("cos_cache", "sin_cache")}
    one, two = (n for n in script.model.graph.node if n.op_type == "GroupQueryAttention")
    outputs = ("output", "present_key", "present_value")
    given = {n: a for n, a in inputs.items() if n != "borrower_query"} | tables
    first = reference(given, attributes_of(one), outputs)
    query = inputs["borrower_query"]
    given |= {n: np.zeros((len(query), 0, 16), query.dtype) for n in ("key", "value")}
    given |= {
        f"past_{n}": first[f"present_{n}"].value.astype(query.dtype) for n in ("key", "value")
    }
    second = reference(given | {"query": query}, attributes_of(two), outputs)
    return first, second, budgets(second, past_errors(first, None))


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    return {each.name: get_attribute_value(each) for each in node.attribute}


@pytest.mark.parametrize(
    "label",
    [label for label, case in BLOCKS.items() if case.name in ("borrow", "borrow_in_window")],
)
def test_a_pair_has_the_budget_of_two_single_nodes(label: str) -> None:
    """That of a loop, in which a past is the present of the call before: no more, and not much
    less, since random signs are not the worst ones."""
    script = script_of(BLOCKS[label].call)
    found = script.compute(script.steps[0].inputs)
    first, second, units = single(script)
    own = budgets(first)
    for name in ("output", "present_key", "present_value"):
        np.testing.assert_allclose(found[name].value, first[name].value)
        np.testing.assert_allclose(found[name].unit, own[name])
        borrowed, defined = found[f"borrower_{name}"], second[name].defined
        assert (borrowed.defined == defined).all()
        assert (borrowed.unit <= 1.001 * units[name])[defined].all()
        assert (borrowed.unit >= 0.6 * units[name])[defined].all()


def test_copies_through_a_graph_are_exact() -> None:
    case = BLOCKS["borrow_in_window[tokens=chunk,dtype=float16]"]
    found = script_of(case.call).compute(script_of(case.call).steps[0].inputs)
    for name in ("present_value", "borrower_present_value"):
        assert not found[name].unit.any()


def test_errors_move_with_the_numbers() -> None:
    """A transposed sum has the error of the sum, element by element, and a product more."""
    text = """g (float[2, 3] x, float[2, 3] y) => (float[3, 2] t, float[2, 3] s, float[2, 3] p) {
        s = Add (x, y)
        t = Transpose (s)
        p = Mul (s, s) }"""
    found = computed(text, {"x": uniform(2, 3), "y": uniform(2, 3, seed=1)})
    unit = found["s"].unit
    np.testing.assert_allclose(unit, 2.0**-24 * np.abs(found["s"].value), rtol=1e-6)
    np.testing.assert_array_equal(found["t"].unit, unit.T)
    np.testing.assert_allclose(found["p"].unit, 3 * 2.0**-24 * found["p"].value, rtol=1e-3)


def test_the_errors_of_a_float16_product_allow_sums_of_float16() -> None:
    """As WebGPU keeps them: the sums of 64 terms, rounded after each."""
    text = "g (float16[8, 64] x, float16[64, 8] w) => (float16[8, 8] y) { y = MatMul (x, w) }"
    x, w = uniform(8, 64, dtype="f2"), uniform(64, 8, seed=1, dtype="f2")
    found = computed(text, {"x": x, "w": w})["y"]
    total = np.zeros((8, 8), np.float16)
    for k in range(64):
        total = (total + x[:, k : k + 1] * w[k]).astype(np.float16)
    share = shares(total.astype("f8"), found.value, found.unit, "gpu").max()
    assert 0.1 < share < 1


# Undefined elements


def test_padding_is_undefined_in_every_node_after_it() -> None:
    case = BLOCKS["decoder[tokens=ragged,weights=float32]"]
    script = script_of(case.call)
    found = script.compute(script.steps[0].inputs)
    defined = found["logits"].defined.all(axis=2)
    assert defined.tolist() == [[True] * 7, [True] * 4 + [False] * 3]
    assert found["present.0.key"].defined[1, :, 4:].any() == np.False_
    assert not found["logits"].value[~found["logits"].defined].any()


def test_what_does_not_depend_on_undefined_elements_is_defined() -> None:
    """A sum over the tokens has a part of the padding; the first token has none."""
    text = ATTENTION.replace("(float[B, S, 16] output) {", "(float[B, 16] all, float[B, 16] one) {")
    text = text.replace("int32 total)", "int32 total, int64[1] axis, int64 zero)").replace(
        "\n}", "\n  all = ReduceSum <keepdims = 0> (output, axis)\n"
        "  one = Gather <axis = 1> (output, zero)\n}",
    )  # fmt: skip
    inputs = {"query": uniform(2, 3, 16), "key": uniform(2, 3, 8), "value": uniform(2, 3, 8)}
    inputs |= {name: np.zeros((2, 1, 0, 8), "f4") for name in ("past_key", "past_value")}
    inputs |= {"seqlens_k": np.array([2, 1], "i4"), "total": np.array(3, "i4")}
    found = computed(text, inputs | {"axis": np.array([1]), "zero": np.array(0)})
    assert found["all"].defined.all(axis=1).tolist() == [True, False]
    assert found["one"].defined.all()


# Faults


def with_attributes(script: Script, index: int, **changes: Any) -> onnx.ModelProto:
    """The model with attributes of one attention changed; None removes one."""
    model = onnx.ModelProto()
    model.CopyFrom(script.model)
    node = [n for n in model.graph.node if n.op_type == "GroupQueryAttention"][index]
    kept = [a for a in node.attribute if a.name not in changes]
    del node.attribute[:]
    node.attribute.extend(kept)
    node.attribute.extend(
        helper.make_attribute(name, value) for name, value in changes.items() if value is not None
    )
    return model


def swapped(script: Script, name: str) -> onnx.ModelProto:
    """The model with the first two heads of a tensor swapped before an attention reads it."""
    model = onnx.ModelProto()
    model.CopyFrom(script.model)
    nodes = list(model.graph.node)
    reader = next(n for n in nodes if n.op_type == "GroupQueryAttention" and name in n.input)
    order = np.arange(64).reshape(4, 16)[[1, 0, 2, 3]].ravel()
    model.graph.initializer.append(onnx.numpy_helper.from_array(order, "order"))
    reader.input[list(reader.input).index(name)] = "swapped"
    made = helper.make_node("Gather", [name, "order"], ["swapped"], axis=2)
    model.graph.node.insert(nodes.index(reader), made)
    return model


def faults(script: Script) -> Iterator[tuple[str, onnx.ModelProto, str]]:
    """Each fault with its graph, and the output that it spoils."""
    last = script.outputs[-1] if "borrower_output" not in script.outputs else "borrower_output"
    borrows = "borrower_output" in script.outputs
    index = 1 if borrows else 0
    if borrows:
        for window in (7, 9, -1):
            yield f"window {window}", with_attributes(script, 1, local_window_size=window), last
        yield "heads", swapped(script, "borrower_query"), last
    yield "scale 5 % off", with_attributes(script, index, scale=0.25 * 1.05), last
    yield "not causal", with_attributes(script, index, causal=0, local_window_size=-1), last
    yield "not rotated", with_attributes(script, index, do_rotary=0), last


#: The least share of the error budget, for K = 2, that a fault has.
LEAST = {"float32": 100.0, "float16": 2.0}


@pytest.mark.parametrize("label", TABLES["labels"])
def test_a_deliberate_fault_is_beyond_the_budget(label: str) -> None:
    case = BLOCKS[label]
    script = script_of(case.call)
    inputs = script.steps[0].inputs
    right = script.compute(inputs)
    for fault, model, output in faults(script):
        if "decode" in label.partition("tokens=")[2] and fault == "not causal":
            continue
        wrong = GraphReference(model).references(inputs)[output]
        want = right[output]
        unit = np.where(want.defined, want.unit, np.nan)
        share = shares(wrong.value, want.value, unit, "cpu").max()
        assert share >= LEAST[case.call.dtype], f"{fault}: {share:.3g}"


@pytest.mark.push
def test_onnxruntime_runs_the_graphs_within_half_of_the_budget() -> None:
    """Every shipped graph, on the CPU."""
    onnxruntime = pytest.importorskip("onnxruntime")
    for case in BLOCKS.values():
        made = prepare(case.call)
        session = onnxruntime.InferenceSession(made.inputs["model.onnx"])
        inputs = script_of(case.call).steps[0].inputs
        names = [output.name for output in session.get_outputs()]
        for name, got in zip(names, session.run(names, inputs), strict=True):
            want = made.expected[0][name]
            assert got.shape == want.shape
            share = shares(got.astype("f8"), want.value, want.unit, "cpu").max()
            assert share <= 0.5, f"{case.id} {name}"


#: Entries with codes so near to a tie that either is right.
NEAR_A_TIE = ("far_prompt_int8", "decode_d512_partial_half_split_int4_tensor")


def sample() -> list[Case]:
    """Calls of single nodes with a meaning, of every theme, and all kinds of quantised caches."""
    single = [case for case in shipped_cases() if not case.is_graph and not case.call.loop]
    chosen = {case.theme: case for case in single if case.contract.demands == "computes"}
    chosen |= {case.name: case for case in single if case.theme == "quantised_cache"}
    chosen |= {case.name: case for case in single if case.theme == "quantised_types"}
    chosen |= {case.id: case for case in single if case.name in NEAR_A_TIE}
    return list(chosen.values())


@pytest.mark.night
def test_a_graph_of_one_node_is_judged_as_that_node() -> None:
    """Values, what is undefined, and the budgets, of codes near a tie, too."""
    near_a_tie = untold = 0
    for case in sample():
        script = script_of(case.call)
        inputs = script.steps[0].inputs
        try:
            right = script.compute(inputs)
        except OracleError:
            continue
        found, units = GraphReference(script.model).references(inputs), budgets(right)
        for name, want in right.items():
            got, unit = found[name], units[name]
            told = want.defined & ~np.isnan(unit)
            near_a_tie += int((unit[told] > 0).sum()) if got.dtype.kind in "iu" else 0
            untold += int(np.isnan(unit).sum())
            assert got.dtype == want.dtype
            assert (got.defined & ~np.isnan(got.unit) == told).all(), (case.id, name)
            np.testing.assert_array_equal(got.value[told], want.value[told], case.id)
            np.testing.assert_allclose(got.unit[told], unit[told], rtol=1e-12, err_msg=case.id)
    assert near_a_tie > 0
    assert untold > 0
