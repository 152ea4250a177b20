"""`gqa check` says right only of models that run right: plain onnxruntime runs each graph, too."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from as_user import Gqa
from check_graphs import KINDS, changes, graph_of, is_right, nodes, put_in_front
from onnx import TensorProto, helper, numpy_helper
from onnx.helper import make_node, make_tensor_value_info
from tables import tables

from conformance.base.paths import data_path

TABLES = tables(__file__)

#: Of each test README's command runs one example, see support/tiers.py.
ONE_EXAMPLE = True

pytest.importorskip("onnxruntime")

BY_NAME = {kind.name: kind for kind in KINDS}


def checked(
    gqa: Gqa, folder: Path, model: onnx.ModelProto, *options: str
) -> tuple[dict[str, Any] | None, str]:
    """The answers for programs, None if there are none, and what was printed."""
    file, answers = folder / "model.onnx", folder / "answers.json"
    file.write_bytes(model.SerializeToString())
    answers.unlink(missing_ok=True)
    done = gqa("check", str(file), "--json", str(answers), *options)
    assert "Traceback" not in done.both, done.both
    return json.loads(answers.read_text()) if answers.exists() else None, done.both


def one_chat(answers: dict[str, Any] | None) -> set[str]:
    """What one chat of the layers comes to on the only target."""
    if answers is None or not answers["rows"]:
        return {"not checked"}
    found = set()
    for row in answers["rows"]:
        (answer,) = row["answers"].values()
        found |= {part["answer"] for part in answer["uses"].get("one chat", [])}
        found |= {"unseen"} if answer["unseen"] else set()
    return found


#: Makes something of a graph wrong, or other.
Change = Callable[[onnx.ModelProto], None]

#: Asserts what one chat of a model's layers comes to, and what is told of it, which it returns.
Expect = Callable[..., str]


@pytest.fixture
def expect(gqa: Gqa, tmp_path: Path) -> Expect:
    def expected(
        model: onnx.ModelProto, answer: str, *told: str, options: tuple[str, ...] = ()
    ) -> str:
        answers, said = checked(gqa, tmp_path, model, *options)
        found, said = one_chat(answers), " ".join(said.split())
        assert found == {"right"} if answer == "right" else answer in found, said
        assert [each for each in told if each not in said] == [], said
        return said

    return expected


def takes(model: onnx.ModelProto, name: str, kind: int, *dims: str | int) -> None:
    """The graph has this input, too."""
    model.graph.input.append(make_tensor_value_info(name, kind, dims))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_truthful_graph_is_right(expect: Expect, kind: Any) -> None:
    model = graph_of(kind)
    assert is_right(model, kind)
    expect(model, "right")


@pytest.mark.parametrize(("kind", "change", "told"), TABLES["made wrong"])
def test_one_thing_made_wrong(gqa: Gqa, tmp_path: Path, kind: str, change: str, told: str) -> None:
    model = dict(changes(graph_of(BY_NAME[kind])))[change]
    assert not is_right(model, BY_NAME[kind])
    answers, said = checked(gqa, tmp_path, model)
    assert one_chat(answers) != {"right"}, said
    assert told in " ".join(said.split())


@pytest.mark.night
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_no_graph_is_called_right_that_is_not(gqa: Gqa, tmp_path: Path, kind: Any) -> None:
    """Each declared dim, dtype, rank, name, version and length made wrong in turn."""
    false = []
    for name, model in changes(graph_of(kind)):
        answers, _ = checked(gqa, tmp_path, model)
        if one_chat(answers) == {"right"} and not is_right(model, kind):
            false.append(name)
    assert not false


# Changes of a truthful graph


def tables_are_cut_at_the_position(model: onnx.ModelProto) -> None:
    takes(model, "position_ids", TensorProto.INT64, "b", "n")
    made = """
        flat = Reshape (position_ids, minus)
        from = Gather (flat, zero)
        cos_from = Slice (cos, from, end, axis)
        sin_from = Slice (sin, from, end, axis)
    """
    renamed = {"cos": "cos_from", "sin": "sin_from"}
    put_in_front(model, nodes(made), renamed=renamed, zero=[0], end=[2**31], axis=[0], minus=[-1])


@pytest.mark.push
@pytest.mark.parametrize("too_short", [False, True])
def test_lengths_that_a_function_computes(expect: Expect, too_short: bool) -> None:
    model = graph_of(BY_NAME["masked"])
    graph, made = model.graph, [*model.graph.node]
    if too_short:
        made.insert(1, make_node("Sub", ["count", "one"], ["shorter"]))
        made[2].input[0] = "shorter"
    takes = [i.name for i in graph.input] + [w.name for w in graph.initializer]
    gives = [each.name for each in graph.output]
    function = helper.make_function("own", "Decoder", takes, gives, made, [*model.opset_import])
    del graph.node[:]
    graph.node.append(make_node("Decoder", takes, gives, domain="own"))
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("own", 1))
    said = expect(model, "wrong" if too_short else "right")
    assert ("seqlens_k is 4, not 5" in said) is too_short


@pytest.mark.push
@pytest.mark.parametrize(
    ("too_short", "reduced", "found"),
    [
        (False, False, {"right"}),
        (True, False, {"right", "wrong"}),
        (True, True, {"right", "unseen"}),
    ],
)
def test_lengths_that_the_body_of_an_if_computes(
    gqa: Gqa, tmp_path: Path, too_short: bool, reduced: bool, found: set[str]
) -> None:
    """They cannot be seen, but what the model computes with them can, if it is there for each
    token."""
    model = graph_of(BY_NAME["masked"])
    graph = model.graph
    lengths = {node.output[0]: node for node in graph.node[:3]}
    body = [lengths["last"], lengths["seqlens_k"], *graph.node[6:]]
    if too_short:
        lengths["last"].input[0] = "shorter"
        body.insert(0, make_node("Sub", ["count", "one"], ["shorter"]))
    branch = helper.make_graph(body, "body", [], [*graph.output])
    kept = [lengths["count"], *graph.node[3:6]]
    kept.append(make_node("Cast", ["first"], ["yes"], to=TensorProto.BOOL))
    outputs = [value.name for value in graph.output]
    kept.append(make_node("If", ["yes"], outputs, then_branch=branch, else_branch=branch))
    if reduced:
        for name in ("out.0", "out.1"):
            outputs[outputs.index(name)] = f"all_{name}"
            kept.append(make_node("ReduceMax", [f"all_{name}", "one"], [name]))
        kept[-3].output[:] = outputs
    del graph.node[:]
    graph.node.extend(kept)
    assert is_right(model, BY_NAME["masked"]) is not too_short
    answers, said = checked(gqa, tmp_path, model)
    assert one_chat(answers) == found, said
    told = " ".join(said.split())
    assert ("are not those for the same tokens in a prompt" in told) is ("wrong" in found)
    assert ("is computed in the body of an If or Loop" in told) is ("unseen" in found)


#: How positions are made, by what they are.
POSITIONS = TABLES["positions"]


def _rotates_in_front(model: onnx.ModelProto, positions: str) -> None:
    """Rotate queries and keys before the only node, at ``positions``."""
    graph, made = model.graph, POSITIONS.get(positions, "")
    dims = (3, "batch", "new") if positions == "time" else ("batch", "new")
    takes(model, "position_ids", TensorProto.INT64, *dims)
    alone = positions == "only queries"
    at = "position_ids" if alone else positions
    *projections, node = graph.node
    for place, heads in ((0, 4), (1, 2))[: 1 if alone else 2]:
        turned = f"turned_{place} = com.microsoft.RotaryEmbedding <num_heads = {heads}>"
        made += f"\n{turned} ({'qk'[place]}__0, {at}, cos, sin)"
        node.input[place] = f"turned_{place}"
    del graph.node[:-1]
    put_in_front(model, [*projections, *nodes(made)], zero=0, step=1, most=40)


@pytest.mark.parametrize(("positions", "do_rotary", "told"), TABLES["rotary"])
def test_rotary(expect: Expect, tmp_path: Path, positions: str, do_rotary: int, told: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"rope_theta": 100.0}))
    model = graph_of(BY_NAME["projected"])
    if positions:
        _rotates_in_front(model, positions)
    for attribute in model.graph.node[-1].attribute:
        if attribute.name == "do_rotary":
            attribute.i = do_rotary
    expect(model, "wrong" if told else "right", told)


def test_prompts_that_are_padded_at_the_left(expect: Expect, tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text('{"padding_side": "left"}')
    told = "padded at the left (tokenizer_config.json) are not those"
    expect(graph_of(BY_NAME["masked"]), "right", told)


def the_past_is_cut_to_the_window(model: onnx.ModelProto) -> None:
    """The rows that are left out lie before the window, and lengths count those that are left."""
    graph, node = model.graph, model.graph.node[0]
    node.attribute.remove(next(each for each in node.attribute if each.name == "do_rotary"))
    node.input[:] = [*node.input[:3], "key", "value", "last", "total", "", ""]
    made = """
        key = Slice (past__0__key, four, end, axis)
        value = Slice (past__0__value, four, end, axis)
        rows = Shape <start = 2, end = 3> (key)
        new = Shape <start = 1, end = 2> (q__0)
        rows_after = Add (rows, new)
        last_row = Sub (rows_after, one)
        total = Cast <to = 6> (rows_after)
        last = Cast <to = 6> (last_row)
    """
    put_in_front(model, nodes(made), four=[-4], end=[2**31], axis=[2], one=[1])
    kept = [each for each in graph.input if each.name not in ("seqlens_k", "total")]
    for value in (*kept, *graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 1
    del graph.input[:]
    graph.input.extend(kept)


@pytest.mark.parametrize(
    ("rows", "columns", "told"),
    [
        (np.arange(64), np.arange(8) // 2 * 2, "columns 0 and 1 of the rotary tables are the same"),
        (
            np.minimum(np.arange(64), 40),
            np.arange(8),
            "rows 40 and 41 of the rotary tables are not one position apart",
        ),
    ],
)
def test_rotary_tables(expect: Expect, rows: np.ndarray, columns: np.ndarray, told: str) -> None:
    model = graph_of(BY_NAME["rotary"])
    for each in model.graph.initializer:
        table = numpy_helper.to_array(each)
        each.CopyFrom(numpy_helper.from_array(table[rows][:, columns], each.name))
    expect(model, "wrong", told)


def there_is_a_state_beside_the_cache(model: onnx.ModelProto) -> None:
    """A program gives it back, so that the results of a token are those of a prompt; of a shorter
    sequence in a batch it has seen padding."""
    takes(model, "state", TensorProto.FLOAT, "batch", 1, 32)
    state = make_tensor_value_info("state_out", TensorProto.FLOAT, ["batch", 1, 32])
    model.graph.output.append(state)
    made = """
        sums = CumSum (x, axis)
        mixed = Add (sums, state)
        state_out = Slice (mixed, last, end, tokens)
    """
    numbers = {"axis": 1, "last": [-1], "end": [2**31], "tokens": [1]}
    put_in_front(model, nodes(made), renamed={"x": "mixed"}, **numbers)


def activations_are_quantised_by_the_call(model: onnx.ModelProto) -> None:
    """The scale is that of all tokens of a call, so the result for one depends on the others."""
    draws, last, made = np.random.default_rng(3), "x", ""
    scale = numpy_helper.from_array(np.array(0.005, np.float32), "weight_scale")
    model.graph.initializer.append(scale)
    for n in range(8):
        weight = draws.integers(-100, 100, (32, 32)).astype(np.int8)
        model.graph.initializer.append(numpy_helper.from_array(weight, f"weight_{n}"))
        made += f"""
            codes_{n}, scale_{n}, zero_{n} = DynamicQuantizeLinear ({last})
            sums_{n} = MatMulInteger (codes_{n}, weight_{n}, zero_{n})
            float_{n} = Cast <to = 1> (sums_{n})
            by_{n} = Mul (scale_{n}, weight_scale)
            x_{n} = Mul (float_{n}, by_{n})
        """
        last = f"x_{n}"
    put_in_front(model, nodes(made), renamed={"x": last})


def an_encoder_gives_inputs(model: onnx.ModelProto) -> None:
    """They are the same in each call, and as long."""
    takes(model, "encoder_hidden_states", TensorProto.FLOAT, "batch", "frames", 32)
    takes(model, "encoder_attention_mask", TensorProto.INT64, "batch", "frames")
    made = """
        floats = Cast <to = 1> (encoder_attention_mask)
        least = ReduceMin (floats, axis)
        mean = ReduceMean (encoder_hidden_states, axis)
        weight = Unsqueeze (least, axis)
        context = Mul (mean, weight)
        mixed = Add (x, context)
    """
    put_in_front(model, nodes(made), renamed={"x": "mixed"}, axis=[1])


def each_sequence_has_a_total(model: onnx.ModelProto) -> None:
    """A program gives as many as the graph declares, and the operator takes one."""
    (total,) = (each for each in model.graph.input if each.name == "total")
    total.type.tensor_type.shape.dim.add().dim_param = "batch"


def there_is_no_room_for_a_past(model: onnx.ModelProto) -> None:
    for value in model.graph.input:
        if value.name.startswith("past"):
            value.type.tensor_type.shape.dim[2].dim_value = 0


def presents_are_named_for_another_layer(model: onnx.ModelProto) -> None:
    """A program gives past.0 what present.0 was, whichever node made it."""
    for node in model.graph.node:
        if node.domain:
            there = "1" if ".0" in node.output[0] else "0"
            node.output[1:] = [f"present.{there}.{part}" for part in ("key", "value")]
    assert not is_right(model, BY_NAME["masked"])


def lengths_are_those_of_the_widest(model: onnx.ModelProto) -> None:
    """Lengths taken from the padded width are wrong in the call behind a ragged prompt."""
    model.graph.node[2].input[0] = "of_all"
    model.graph.initializer.append(numpy_helper.from_array(np.array([0]), "none"))
    made = """
        widest = ReduceMax <keepdims = 1> (last, none)
        sequences = Shape (last)
        of_all = Expand (widest, sequences)
    """
    for place, node in enumerate(nodes(made), 2):
        model.graph.node.insert(place, node)


def scales_are_zero(model: onnx.ModelProto) -> None:
    graph, node = model.graph, model.graph.node[0]
    for value in (*graph.input, *graph.output):
        if value.name.startswith(("past.", "present.")):
            value.type.tensor_type.elem_type = TensorProto.INT8
    graph.initializer.append(numpy_helper.from_array(np.zeros(1, np.float32), "scale"))
    node.input.extend(["", "", "", "", "", "scale", "scale"])
    told = {"k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR", "kv_cache_bit_width": 8}
    node.attribute.extend(helper.make_attribute(*each) for each in told.items())


def nothing_tells_what_an_input_is(model: onnx.ModelProto) -> None:
    """The nodes alone are called; that the model was not run is said with what is right."""
    takes(model, "riddle", TensorProto.INT64, "n")
    model.graph.output.append(make_tensor_value_info("copy", TensorProto.INT64, ["n"]))
    model.graph.node.extend(nodes("copy = Identity (riddle)"))


@pytest.mark.parametrize(
    ("kind", "change", "answer", "told"),
    [
        ("rotary", tables_are_cut_at_the_position, "wrong", "have other rows in each"),
        ("window", the_past_is_cut_to_the_window, "right", ""),
        ("projected", there_is_a_state_beside_the_cache, "right", "prompts of 4 and 6"),
        ("projected", activations_are_quantised_by_the_call, "right", ""),
        ("projected", an_encoder_gives_inputs, "right", ""),
        ("rotary", each_sequence_has_a_total, "right", "must be of one element"),
        ("plain", there_is_no_room_for_a_past, "right", ""),
        ("masked", presents_are_named_for_another_layer, "wrong", "past_key is not what"),
        ("masked", lengths_are_those_of_the_widest, "right", "seqlens_k is 5, not 3, "),
        ("plain", scales_are_zero, "wrong", "have scales of 0"),
        ("plain", nothing_tells_what_an_input_is, "unseen", "its input riddle is"),
    ],
)
def test_a_change(expect: Expect, kind: str, change: Change, answer: str, told: str) -> None:
    model = graph_of(BY_NAME[kind])
    change(model)
    said = expect(model, answer, told)
    assert told or "not those" not in said


#: What a model of four layers is checked with; by default it is called 80 times.
SHORT = ("--lengths", "3", "--batch", "1")


def borrowing() -> tuple[onnx.ModelProto, list[onnx.NodeProto]]:
    """A model with two layers that borrow, and its attention."""
    file = data_path("cases") / "exported" / "graphs" / "gemma4_tiny_mobius_cpu.onnx"
    model = onnx.load(file, load_external_data=False)
    return model, [node for node in model.graph.node if node.op_type == "GroupQueryAttention"]


@pytest.mark.parametrize(
    ("whose", "told"),
    [
        ("owner's", "past_key is present_value of"),
        ("owner's", "past_value is present_key of"),
        ("two layers'", "past_key and past_value are of /model/layers.9/attn and"),
        ("caller's", "past_key is past.value, and past_value past.key"),
    ],
)
def test_a_layer_that_borrows_values_for_keys(expect: Expect, whose: str, told: str) -> None:
    """Or the keys of one layer and the values of another. Both are so in each call."""
    model, (first, _, borrower, _) = borrowing()
    if whose == "caller's":
        past = next(each for each in model.graph.input if each.name.endswith("0.key"))
        for place, name in ((4, "past.key"), (3, "past.value")):
            borrower.input[place] = name
            model.graph.input.append(past)
            model.graph.input[-1].name = name
    elif whose == "two layers'":
        second = onnx.NodeProto()
        second.CopyFrom(first)
        second.name = "/model/layers.9/attn"
        second.output[:] = ["out.9", "key.9", "value.9"]
        model.graph.node.insert([*model.graph.node].index(first) + 1, second)
        borrower.input[4] = "value.9"
    else:
        borrower.input[3], borrower.input[4] = borrower.input[4], borrower.input[3]
    expect(model, "wrong", told, options=SHORT)


@pytest.mark.push
def test_a_layer_that_borrows_is_compared_too(expect: Expect) -> None:
    model, (*_, borrower, _) = borrowing()
    query, total = borrower.input[0], borrower.input[6]
    made = "length = Cast <to = 1> (total)\nlonger = Mul (query, length)"
    for number, node in enumerate(nodes(made)):
        node.input[:] = [{"total": total, "query": query}.get(name, name) for name in node.input]
        model.graph.node.insert([*model.graph.node].index(borrower) + number, node)
    borrower.input[0] = "longer"
    told = "wrong in layer 2: its results", "are not those for the same"
    expect(model, "wrong", *told, options=SHORT)


def test_what_is_surely_a_mistake(expect: Expect, tmp_path: Path) -> None:
    config = {
        "layer_types": ["full_attention"],
        "query_pre_attn_scalar": 64,
        "num_attention_heads": 8,
        "max_position_embeddings": 4096,
        "attn_logit_softcapping": 30.0,
        "rope_theta": 10000.0,
        "head_dim": 16,
    }
    genai = {
        "model": {"decoder": {"session_options": {"provider_options": [{"cuda": {"x": "1"}}]}}}
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "genai_config.json").write_text(json.dumps(genai))
    expect(
        graph_of(BY_NAME["window"]),
        "right",
        "config.json has no window in layer 0, and the graph has one of 4 there.",
        "config.json has a scale of 0.125, and layer 0 has 0.25, unless the graph",
        "config.json has a num_heads of 8, and layer 0 has 4.",
        "config.json has a softcap of 30, and layer 0 has 0.",
        "config.json has a base of the rotary tables of 10000, and layer 0 has 100.",
        "The rotary tables have 64 rows, and the configuration allows 4096 tokens",
        "genai_config.json sets x (cuda), which this check does not apply",
    )


@pytest.mark.push
def test_what_is_surely_a_mistake_in_rotation(expect: Expect, tmp_path: Path) -> None:
    config = {"model_type": "llama", "num_hidden_layers": 2, "partial_rotary_factor": 0.5}
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = graph_of(BY_NAME["rotary"])
    (rotates,) = (each for each in model.graph.node[0].attribute if each.name == "do_rotary")
    model.graph.node[0].attribute.append(helper.make_attribute("rotary_interleaved", 1))
    expect(
        model,
        "right",
        "of a llama, which rotates the halves of a head, and layer 0 rotates pairs",
        "config.json has a rotated share of a head of 0.5, and layer 0 has 1.",
        "config.json has 2 layers of attention, and the graph has this attention in 1.",
    )
    rotates.i = 0
    told = "Rotary tables are connected to layer 0, and do_rotary is 0: none is used."
    expect(model, "right", told)


def test_a_model_that_cannot_be_checked_has_answers_for_programs(gqa: Gqa, tmp_path: Path) -> None:
    model = graph_of(BY_NAME["plain"])
    del model.graph.node[0].attribute[:]
    answers, _ = checked(gqa, tmp_path, model)
    assert (answers["exit_status"], answers["rows"]) == (2, [])
    assert "num_heads and kv_num_heads must be at least 1" in answers["model"]["not_checked"][""]
