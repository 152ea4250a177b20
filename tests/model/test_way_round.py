"""``gqa check`` in standard operators: where a model is not right, or as a target."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from as_user import Done, Gqa, has_onnxruntime
from attention_models import Layer, decoder, saved

from conformance.base.paths import data_path
from conformance.case.case import Case
from conformance.cli import check_way_round
from conformance.harness.runner import RunnerFailed
from conformance.rewriting.node_writer import NodeWriter
from conformance.run.engine import PlanRun

pytestmark = has_onnxruntime

#: An attribute with which ONNX Runtime refuses to load a model, and which says nothing.
UNKNOWN = {"rotary_embedding_dim": 0}
FEW = ("--lengths", "3,12")


def checked(gqa: Gqa, model: Path, *arguments: str) -> tuple[Done, Mapping[str, Any]]:
    """The command's answer, and what its JSON says of standard operators."""
    file = model.parent / "answers.json"
    done = gqa("check", str(model), "--json", str(file), *arguments or FEW)
    told = json.loads(file.read_text())
    schema = json.loads((data_path("reports") / "check.schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(told)
    return done, told["in_standard_operators"]


def test_a_model_that_is_refused_is_right_in_standard_operators(gqa: Gqa, tmp_path: Path) -> None:
    """The sentence is beside the headline, which stays, in the terminal and in the report."""
    report = tmp_path / "report.html"
    model = saved(decoder(Layer(attributes=UNKNOWN), Layer(borrows=0)), tmp_path)
    done, told = checked(gqa, model, *FEW, "--html", str(report))
    assert done.status == 1
    lines = done.out.splitlines()
    headline = next(at for at, line in enumerate(lines) if "refuses to load the model." in line)
    told_next = lines[headline + 1]
    assert told_next.startswith("In standard operators (gqa rewrite): cpu@")
    assert told_next.endswith(" runs the model right.")
    assert told["sentence"] == told_next
    assert list(told["kinds"].values()) == ["right"]
    assert "runs the model right." in report.read_text(encoding="utf-8")


def test_nothing_is_tried_where_the_model_is_right(gqa: Gqa, tmp_path: Path) -> None:
    done, told = checked(gqa, saved(decoder(Layer()), tmp_path))
    assert (done.status, told) == (0, {"sentence": "", "kinds": {}})
    assert "standard operators" not in done.out


def test_a_node_without_such_a_form_is_named(gqa: Gqa, tmp_path: Path) -> None:
    layer = Layer(attributes={"sliding_window_cache": 1})
    done, told = checked(gqa, saved(decoder(Layer(), layer), tmp_path))
    assert told["sentence"] in done.out
    assert told["sentence"] == (
        "In standard operators (gqa rewrite): /model/layers.1/attn/GroupQueryAttention cannot be"
        " written in standard operators: its sliding-window cache has no window, or no buffer."
    )


def test_calls_that_were_not_made_are_named(
    gqa: Gqa, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ends(PlanRun):
        def run_one(self, case: Case) -> Any:
            raise RunnerFailed(f"The runner ended before {case.name}.")

    monkeypatch.setattr(check_way_round, "PlanRun", Ends)
    _, told = checked(gqa, saved(decoder(Layer(attributes=UNKNOWN)), tmp_path))
    assert told["sentence"].endswith(": The runner ended before global.")
    assert " 2 calls not made on cpu@" in told["sentence"]


def test_a_rewriting_that_is_wrong_like_its_reference_is_seen(
    gqa: Gqa, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both divide scores by the size of a head, so that only calls of nodes show it."""
    real = NodeWriter.node

    def without_root(self: NodeWriter, operator: str, *names: str, **more: Any) -> str:
        return names[0] if operator == "Sqrt" else real(self, operator, *names, **more)

    monkeypatch.setattr(NodeWriter, "node", without_root)
    _, told = checked(gqa, saved(decoder(Layer(attributes=UNKNOWN)), tmp_path))
    assert "silently wrong" in told["sentence"]
    assert list(told["kinds"].values()) == ["wrong"]


def test_a_node_that_cannot_be_checked_is_not_right(gqa: Gqa, tmp_path: Path) -> None:
    unclear = Layer(attributes={"k_quant_type": "PER_TENSOR"})
    _, told = checked(gqa, saved(decoder(Layer(attributes=UNKNOWN), unclear), tmp_path))
    assert told["sentence"].endswith("; 1 node not checked.")
    assert told["kinds"] == {}


@pytest.mark.push
def test_calls_that_are_wrong_alone_are_made_again(gqa: Gqa, tmp_path: Path) -> None:
    """tract runs the model right in one chat, and batches of its node wrong."""
    pytest.importorskip("tract")
    (tmp_path / "tokenizer_config.json").write_text('{"padding_side": "right"}')
    exported = data_path("cases") / "exported" / "graphs" / "gemma3_reported_in_tract.onnx"
    model = Path(shutil.copy(exported, tmp_path))
    done, told = checked(gqa, model, "--ep", "tract-wheel", "--ways", "chat")
    assert "in batches padded at the right silently wrong" in done.out
    assert list(told["kinds"].values()) == ["right"]


#: Exported models; those with heads as published take longer.
EXPORTED = (
    *("llama3_tiny_genai_cpu", "gpt_oss_tiny_genai_cpu", "gemma4_tiny_mobius_cpu"),
    *(
        pytest.param(name, marks=pytest.mark.push)
        for name in (
            *("llama3_genai_cpu", "phi4_genai_cpu_int4", "phi4_mobius_cpu"),
            *("gpt_oss_genai_cpu", "gemma4_e2b_mobius_cpu"),
        )
    ),
)


@pytest.mark.parametrize("name", EXPORTED)
def test_an_exported_model_is_right_in_standard_operators(gqa: Gqa, name: str) -> None:
    graph = data_path("cases") / "exported" / "graphs" / f"{name}.onnx"
    few = ("--ways", "chat,chunks,right", "--lengths", "3")
    done = gqa("check", str(graph), "--ep", "standard:cpu", *few)
    assert done.status == 0, done.out
    assert "standard:cpu@" in done.out
    assert " runs the model right" in done.out


@pytest.mark.push
def test_tract_runs_an_exported_model_in_standard_operators(gqa: Gqa) -> None:
    """It refuses the packed query of the model as it is written."""
    pytest.importorskip("tract")
    graph = data_path("cases") / "exported" / "graphs" / "llama3_tiny_genai_cpu.onnx"
    done = gqa("check", str(graph), "--ep", "tract-wheel", "--ways", "chat", "--lengths", "3")
    assert ": refuses to load the model." in done.out
    assert "In standard operators (gqa rewrite): tract-wheel@" in done.out
    assert " runs the model right." in done.out


def test_a_target_in_standard_operators_gets_the_model_in_them(gqa: Gqa, tmp_path: Path) -> None:
    model = saved(decoder(Layer(attributes=UNKNOWN)), tmp_path)
    done, told = checked(gqa, model, *FEW, "--ep", "standard:cpu", "--ways", "chat,shared")
    assert done.status == 0, done.out
    assert "runs the model right." in done.out
    assert "in standard operators, past and present cannot share a buffer" in done.out
    assert told["kinds"] == {}
