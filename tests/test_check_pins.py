"""``gqa check`` in CI: results that are pinned, and the answers for programs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from as_user import Desk, Done, Gqa
from attention_models import GEMMA, Layer, decoder, saved
from check_graphs import KINDS, graph_of
from jsonschema import Draft202012Validator

from conformance.base.paths import data_path
from conformance.judge.expectations import load_pinned

FEW = ("--lengths", "3,12")

#: Runs the command on a model; it must end with the status, which is 0 unless it is given.
Check = Callable[..., Done]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with the four groups of Gemma 4."""
    return saved(decoder(*GEMMA), tmp_path_factory.mktemp("models"))


@pytest.fixture
def check(gqa: Gqa) -> Check:
    def call(model: Path, *arguments: str, status: int = 0) -> Done:
        done = gqa("check", str(model), *arguments)
        assert done.status == status, done.both
        return done

    return call


@pytest.fixture
def refusing(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> str:
    """A target that rejects every call."""
    monkeypatch.setenv("FAULT_ON", "/")
    return desk.runner("rejects")


def test_what_is_pinned_is_green_and_the_pins_can_be_read(
    check: Check, refusing: str, tiny: Path, tmp_path: Path
) -> None:
    pins = tmp_path / "known.yaml"
    done = check(tiny, "--ep", refusing, *FEW, "--write-expect", str(pins))
    assert f"Pinned:  30 results of miniature, for --expect {pins}" in done.out
    for line in load_pinned([pins]):
        known = line.known
        assert (line.target, known.verdict, known.link) == ("miniature", "unsupported", "TODO")
        assert line.known.why == "Pinned as it was: query has rank 2"
    done = check(tiny, "--ep", refusing, *FEW, "--expect", str(pins))
    assert "○ refused (expected)" in done.out
    assert "see " not in done.out  # TODO is no link
    assert "Not pinned" not in done.out


def test_a_regression_is_red_and_names_the_command(
    check: Check,
    desk: Desk,
    tiny: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pins = tmp_path / "pins"
    correct = desk.runner("correct")
    check(tiny, "--ep", correct, *FEW, "--write-expect", str(pins))
    assert [file.name for file in pins.iterdir()] == ["miniature.yaml"]
    monkeypatch.setenv("FAULT_ON", "/")
    refusing = desk.runner("rejects")
    done = check(tiny, "--ep", refusing, *FEW, "--expect", str(pins), status=1)
    lines = [line for line in done.out.splitlines() if line.startswith("Not pinned: ")]
    assert len(lines) == 30
    assert lines[0] == "Not pinned: tiny/window_8[stage=prompt_3] on miniature@1.0: refused."
    assert done.out.splitlines()[-1] == (
        f"To pin what is there today: gqa check {tiny} --ep {refusing} --lengths 3,12"
        f" --expect {pins} --write-expect {pins}"
    )


def test_an_improvement_is_told_and_green(
    check: Check, desk: Desk, refusing: str, tiny: Path, tmp_path: Path
) -> None:
    pins = tmp_path / "known.yaml"
    check(tiny, "--ep", refusing, *FEW, "--write-expect", str(pins))
    correct = desk.runner("correct")
    done = check(tiny, "--ep", correct, *FEW, "--expect", str(pins))
    place = f"{pins}:3"
    assert (
        f"Better than pinned as unsupported in {place}: tiny/window_8[stage=prompt_3] on"
        " miniature@1.0 is right." in done.out
    )
    again = "--expect", str(pins), "--write-expect", str(pins)
    check(tiny, "--ep", correct, *FEW, *again)
    done = check(tiny, "--ep", correct, *FEW, "--expect", str(pins))
    assert "Better" not in done.out


def test_a_call_that_is_rejected_as_it_must_be_is_pinned_too(
    check: Check, refusing: str, tmp_path: Path
) -> None:
    """The verdict is pass, and the model does not run."""
    model = saved(decoder(Layer(outputs=["attention.0"])), tmp_path)
    pins = tmp_path / "known.yaml"
    check(model, "--ep", refusing, *FEW, status=1)
    check(model, "--ep", refusing, *FEW, "--write-expect", str(pins))
    check(model, "--ep", refusing, *FEW, "--expect", str(pins))


def test_one_file_is_for_one_target(check: Check, tiny: Path, tmp_path: Path) -> None:
    two = "--ep", "cpu", "--ep", "tract"
    done = check(tiny, *two, "--write-expect", str(tmp_path / "known.yaml"), status=2)
    assert "can have the results of one target only; name a folder, for cpu and tract." in done.err
    done = check(tiny, "--expect", str(tmp_path), status=2)
    assert f"--expect: there is no .yaml file in {tmp_path}." in done.err


def test_the_answers_for_programs(
    check: Check, desk: Desk, refusing: str, tiny: Path, tmp_path: Path
) -> None:
    file = tmp_path / "answers.json"
    check(tiny, "--ep", refusing, *FEW, "--json", str(file), status=1)
    answers = json.loads(file.read_text())
    schema = json.loads((data_path("reports") / "check.schema.json").read_text())
    Draft202012Validator.check_schema(schema)
    Draft202012Validator(schema).validate(answers)
    assert (answers["exit_status"], answers["model"]["not_checked"]) == (1, {})
    assert [row["layers"] for row in answers["rows"]] == [[0], [1], [2], [3], [0, 2], [1, 3]]
    first = answers["rows"][0]["answers"]["miniature@1.0"]
    assert first["answer"] == "refused"
    assert {use: parts[0]["answer"] for use, parts in first["uses"].items()} == {
        "one chat": "refused",
        "chunked prompts": "refused",
    }
    assert first["uses"]["one chat"][0]["cases"][0] == "tiny/window_8[stage=prompt_3]"


def test_what_the_model_itself_does_is_pinned_too(check: Check, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    model = graph_of(KINDS[0])
    model.graph.input[4].type.tensor_type.shape.dim[1].dim_value = 4
    file, pins = tmp_path / "model.onnx", tmp_path / "known.yaml"
    file.write_bytes(model.SerializeToString())
    check(file, status=1)
    check(file, "--write-expect", str(pins))
    done = check(file, "--expect", str(pins))
    assert "○ refused as it stands in the model (expected)" in done.out
    assert "Not pinned" not in done.out
    pins.write_text("target: cpu\nexpectations: []\n")
    done = check(file, "--expect", str(pins), status=1)
    assert "Not pinned: one chat of layer 0 on cpu@" in done.out
    check(file, "--expect", str(pins), "--write-expect", str(pins))
    file.write_bytes(graph_of(KINDS[0]).SerializeToString())
    done = check(file, "--expect", str(pins))
    assert f"Better than pinned as unsupported in {pins}:3: " in done.out
    again = check(file, "--expect", str(pins), "--write-expect", str(pins))
    assert "Pinned:  0 results" in again.out
