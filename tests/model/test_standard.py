"""GroupQueryAttention in standard operators."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from as_user import Gqa
from onnx import TensorProto, helper

from conformance.bundle.script import script_of
from conformance.case.corpus import find
from conformance.graph.nodes import is_attention
from conformance.graph.walks import nodes_in
from conformance.operator.signature import DOMAIN
from conformance.rewriting.standard import StandardModel, standard_model

#: Themes that have every form of a call between them.
THEMES = (
    *("smoke", "decode_shapes", "shared_kv", "ragged", "rotary", "window", "softcap", "sink"),
    *("attention_bias", "packed_qkv", "qk_norm", "positions", "output_qk", "query_seqlens"),
    *("quantised_cache", "sliding_window_cache", "static_cache", "loop", "causal"),
)


#: Why the only calls of these themes without a form have none; the operator may refuse them.
WITHOUT_MEANING = {
    "its sliding-window cache has no window, or no buffer",
    "its qk_output does not say what output_qk has",
}


@pytest.mark.push
@pytest.mark.parametrize("theme", THEMES)
def test_a_call_in_standard_operators_is_right(gqa: Gqa, theme: str) -> None:
    done = gqa("run", theme, "--ep", "standard:cpu", "-k", "float32")
    assert done.status == 0, done.out
    assert " pass" in done.out
    assert "wrong" not in done.out
    assert {*re.findall(r"no form in standard operators: (.*)\.", done.out)} <= WITHOUT_MEANING


def model_of(case: str) -> onnx.ModelProto:
    return script_of(find([case]).named[0].call).model


def rewritten(model: onnx.ModelProto) -> StandardModel:
    made = standard_model(model)
    onnx.checker.check_model(made.model)
    return made


def test_names_inputs_outputs_and_weights_stay() -> None:
    model = model_of("constants")
    made = rewritten(model)
    assert (made.rewritten, made.left) == (("gqa",), ())
    assert not any(map(is_attention, nodes_in(made.model.graph)))
    assert list(made.model.graph.input) == list(model.graph.input)
    assert list(made.model.graph.output) == list(model.graph.output)
    weights = {each.name: each for each in made.model.graph.initializer}
    assert all(weights[each.name] == each for each in model.graph.initializer)
    assert DOMAIN not in {each.domain for each in made.model.opset_import}
    assert any(map(is_attention, model.graph.node))  # the model itself is as it was


def test_sizes_have_no_names_but_in_inputs() -> None:
    """tract refuses names that it would have to unify with the numbers that it is told."""
    model = model_of("smoke/decode[dtype=float32]")
    dims = model.graph.output[1].type.tensor_type.shape.dim
    dims[0].dim_value, dims[2].dim_param = 2, "total_sequence_length"
    model.graph.value_info.append(model.graph.output[1])
    made = rewritten(model).model.graph
    dims = made.output[1].type.tensor_type.shape.dim
    assert (dims[0].dim_value, dims[2].WhichOneof("value")) == (2, None)
    assert list(made.input) == list(model.graph.input)
    assert not made.value_info


@pytest.mark.parametrize("theme", ["smoke", pytest.param("shared_kv", marks=pytest.mark.push)])
def test_tract_takes_the_form(gqa: Gqa, theme: str) -> None:
    """No shape follows from a value but those of presents."""
    pytest.importorskip("tract")
    done = gqa("run", theme, "--ep", "standard:tract-wheel", "-k", "float32")
    assert done.status == 0, done.out
    assert "refused" not in done.out.partition("unexpected")[0]


def test_a_node_in_a_branch_is_rewritten_there() -> None:
    model = model_of("smoke/decode[dtype=float32]")
    graph = model.graph
    body = helper.make_graph(graph.node, "body", [], graph.output)
    condition = helper.make_tensor("always", TensorProto.BOOL, [], [True])
    names = [output.name for output in graph.output]
    node = helper.make_node("If", ["always"], names, then_branch=body, else_branch=body)
    del graph.node[:]
    graph.node.append(node)
    graph.initializer.append(condition)
    made = rewritten(model)
    assert made.rewritten == ("gqa", "gqa")
    assert not any(map(is_attention, nodes_in(made.model.graph)))


@pytest.mark.parametrize(
    ("attributes", "why"),
    [
        ({"num_heads": 3}, "the numbers of its heads do not fit"),
        ({"local_window_size": 4, "causal": 0}, "a window without a causal mask has no meaning"),
        ({"sliding_window_cache": 1}, "its sliding-window cache has no window, or no buffer"),
        ({"do_rotary": 1}, "it has no cos_cache"),
        ({"windw": 8}, "its attribute windw is not known here, or not its value"),
        ({"softcap": 1}, "its attribute softcap is not known here, or not its value"),
        (
            {"local_window_size": 0},
            "its attribute local_window_size is not known here, or not its value",
        ),
    ],
    ids=str,
)
def test_a_node_without_a_form_stays(attributes: dict[str, int], why: str) -> None:
    model = model_of("smoke/decode[dtype=float32]")
    (node,) = model.graph.node
    kept = [each for each in node.attribute if each.name not in attributes]
    del node.attribute[:]
    node.attribute.extend(kept)
    node.attribute.extend(helper.make_attribute(*each) for each in attributes.items())
    made = standard_model(model)
    assert (made.rewritten, made.left) == ((), (("gqa", why),))
    assert list(made.model.graph.node) == [node]


FLOAT8 = "quantised_cache/float8_decode[dtype=float32,rotary=none,scales=tensor]"


def test_float8_needs_operator_set_19(gqa: Gqa) -> None:
    """The model gets it if that changes none of its own operators."""
    for opset, own, after in ((18, "Mul", 19), (18, "Reshape", None), (21, "Reshape", 21)):
        model = model_of(FLOAT8)
        model.opset_import[0].version = opset
        names = ["present_key", "present_key"] if own == "Mul" else ["seqlens_k", "seqlens_k"]
        model.graph.node.append(helper.make_node(own, names, ["more"]))
        made = standard_model(model)
        if after is None:
            assert made.left == (("gqa", "its float8 cache needs operator set 19"),)
        else:
            assert made.left == ()
        versions = {each.domain: each.version for each in made.model.opset_import}
        assert versions[""] == (after or opset)


def test_a_cache_of_another_type_is_named() -> None:
    model = model_of("smoke/decode[dtype=float32]")
    past = next(each for each in model.graph.input if each.name == "past_key")
    past.type.tensor_type.elem_type = TensorProto.FLOAT16
    why = "its cache is of the type float16, and its query of float32"
    assert standard_model(model).left == (("gqa", why),)


def test_a_node_whose_type_is_unknown_stays() -> None:
    model = model_of("smoke/decode[dtype=float32]")
    model.graph.input[0].ClearField("type")
    assert standard_model(model).left == (("gqa", "the type of its query is not known"),)


def saved(folder: Path) -> Path:
    """A model with a weight in another file."""
    model = model_of("constants")
    table = np.zeros((64, 64), np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(table, "unused"))
    onnx.save(model, folder / "m.onnx", save_as_external_data=True, location="m.data")
    return folder / "m.onnx"


def test_external_data_is_named_or_copied(gqa: Gqa, tmp_path: Path) -> None:
    (there := tmp_path / "there").mkdir()
    model = saved(tmp_path)
    beside = gqa("rewrite", str(model), "-o", str(tmp_path / "out.onnx"))
    assert beside.status == 0
    assert "m.data" not in beside.out
    elsewhere = gqa("rewrite", str(model), "-o", str(there / "out.onnx"))
    assert "Beside it must lie m.data" in elsewhere.out
    assert not (there / "m.data").exists()
    gqa("rewrite", str(model), "-o", str(there / "out.onnx"), "--copy-data")
    assert (there / "m.data").read_bytes() == (tmp_path / "m.data").read_bytes()
    onnx.checker.check_model(there / "out.onnx")


def test_external_data_of_another_folder_is_not_copied(gqa: Gqa, tmp_path: Path) -> None:
    model = onnx.load(saved(tmp_path), load_external_data=False)
    (tmp_path / "secret").write_bytes(b"1" * (1 << 20))
    (folder := tmp_path / "models").mkdir()
    for tensor in model.graph.initializer:
        for each in tensor.external_data:
            if each.key == "location":
                each.value = "../secret"
    onnx.save(model, folder / "m.onnx")
    (out := tmp_path / "out").mkdir()
    done = gqa("rewrite", str(folder / "m.onnx"), "-o", str(out / "o.onnx"), "--copy-data")
    assert done.status == 2
    assert "../secret is no file beside the model" in done.err
    assert list(out.iterdir()) == []
