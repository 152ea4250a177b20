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
from onnx import TensorProto, numpy_helper
from onnx.helper import make_tensor_value_info
from tables import tables
from twin_decoders import graph_of as of_decoder
from twin_decoders import usual

TABLES = tables(__file__)

#: Of each test README's command runs one example, see support/tiers.py.
ONE_EXAMPLE = True

pytest.importorskip("onnxruntime")

BY_NAME = {kind.name: kind for kind in KINDS}


def checked(gqa: Gqa, folder: Path, model: onnx.ModelProto) -> tuple[dict[str, Any] | None, str]:
    """The answers for programs, None if there are none, and what was printed."""
    file, answers = folder / "model.onnx", folder / "answers.json"
    file.write_bytes(model.SerializeToString())
    answers.unlink(missing_ok=True)
    done = gqa("check", str(file), "--json", str(answers), "--lengths", "3")
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
    def expected(model: onnx.ModelProto, answer: str, *told: str) -> str:
        answers, said = checked(gqa, tmp_path, model)
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
    expect(model, "right", told, "✓ right, but see the notes")


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


def positions_are_those_of_the_first_axis(model: onnx.ModelProto) -> None:
    """As for time, height and width."""
    (positions,) = (each for each in model.graph.input if each.name == "position_ids")
    model.graph.input.remove(positions)
    takes(model, "position_ids", TensorProto.INT64, 3, "batch", "new")
    made = nodes("time = Gather (position_ids, zero)")
    put_in_front(model, made, renamed={"position_ids": "time"}, zero=0)


def positions_are_clipped(model: onnx.ModelProto) -> None:
    made = nodes("clipped = Min (position_ids, most)")
    put_in_front(model, made, renamed={"position_ids": "clipped"}, most=40)


def each_sequence_has_a_total(model: onnx.ModelProto) -> None:
    """A program gives as many as the graph declares, and the operator takes one."""
    (total,) = (each for each in model.graph.input if each.name == "total")
    total.type.tensor_type.shape.dim.add().dim_param = "batch"


def there_is_no_room_for_a_past(model: onnx.ModelProto) -> None:
    for value in model.graph.input:
        if value.name.startswith("past"):
            value.type.tensor_type.shape.dim[2].dim_value = 0


def nothing_tells_what_an_input_is(model: onnx.ModelProto) -> None:
    """The nodes alone are called; that the model was not run is said with what is right."""
    takes(model, "riddle", TensorProto.INT64, "n")
    model.graph.output.append(make_tensor_value_info("copy", TensorProto.INT64, ["n"]))
    model.graph.node.extend(nodes("copy = Identity (riddle)"))


@pytest.mark.parametrize(
    ("kind", "change", "answer", "told"),
    [
        ("projected", there_is_a_state_beside_the_cache, "right", "if you call it in batches"),
        ("projected", activations_are_quantised_by_the_call, "right", ""),
        ("projected", an_encoder_gives_inputs, "right", ""),
        ("rotary", each_sequence_has_a_total, "right", "must be of one element"),
        ("plain", there_is_no_room_for_a_past, "right", ""),
        ("turned in front", positions_are_those_of_the_first_axis, "right", "right in one chat"),
        ("turned in front", positions_are_clipped, "right", "to the next by another angle"),
        ("plain", nothing_tells_what_an_input_is, "unseen", "its input riddle is"),
    ],
)
def test_a_change(expect: Expect, kind: str, change: Change, answer: str, told: str) -> None:
    turned = usual(layers=1, rotary="op")
    model = of_decoder(turned) if kind == "turned in front" else graph_of(BY_NAME[kind])
    change(model)
    said = expect(model, answer, told)
    assert told or "graph is wrong" not in said


def test_a_model_that_cannot_be_checked_has_answers_for_programs(gqa: Gqa, tmp_path: Path) -> None:
    model = graph_of(BY_NAME["plain"])
    del model.graph.node[0].attribute[:]
    answers, _ = checked(gqa, tmp_path, model)
    assert (answers["exit_status"], answers["rows"]) == (2, [])
    assert "num_heads and kv_num_heads must be at least 1" in answers["model"]["not_checked"][""]
