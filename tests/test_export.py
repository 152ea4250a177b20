"""``gqa export``: what it writes, what it rejects, and that its program gives the same verdict."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
from as_user import Desk, Done, Gqa, in_this_process
from synthetic_runs import header, target

from conformance.case.corpus import find
from conformance.results.records import ResultRecord
from conformance.results.writer import Writer
from conformance.run.records import case_record

has_onnxruntime = pytest.mark.skipif(
    importlib.util.find_spec("onnxruntime") is None, reason="onnxruntime is not installed"
)

CASE = "bounds_attributes/local_window_size[dtype=float32,local_window_size=4294967297]"


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory, shared_cache: Path) -> Desk:
    return Desk(tmp_path_factory.mktemp("desk"), shared_cache)


@pytest.fixture
def gqa(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Gqa]:
    monkeypatch.chdir(desk.folder)
    with in_this_process(monkeypatch, capsys) as call:
        yield call


def results_file(path: Path, *names: str, old: bool = False) -> Path:
    """A results file in which the case is wrong on each target in ``names``."""
    (case,) = find([CASE]).named
    record = case_record(case)
    if old:
        inputs = tuple(t.model_copy(update={"recipe": None}) for t in record.call.inputs)
        call = record.call.model_copy(update={"inputs": inputs, "later": ()})
        record = record.model_copy(update={"call": call})
    with Writer(path, header([target(name) for name in names], 1, len(names))) as writer:
        writer.case(record)
        for name in names:
            writer.result(
                ResultRecord(
                    case=CASE,
                    target=name,
                    verdict="wrong",
                    unexpected=True,
                    outcome="ran",
                    reason="It ran, but \x1b[31moutput is 2.",
                    reproduce="gqa run …",
                )
            )
        writer.finish(complete=True)
    return path


def sentence(done: Done, status: int) -> str:
    assert (done.status, done.out) == (status, "")
    (line,) = done.err.splitlines()
    return line


@has_onnxruntime
def test_a_result_is_run_and_written(gqa: Gqa, desk: Desk) -> None:
    done = gqa("export", CASE, "new/folder")
    assert done.status == 0, done.err
    folder = desk.folder / "new" / "folder"
    assert sorted(file.name for file in folder.iterdir()) == ["bundle", "issue.md", "repro.py"]
    onnx.load(str(folder / "bundle" / "model.onnx"))
    assert (folder / "bundle" / "test_data_set_0" / "input_0.pb").is_file()
    verdict = done.out.split(" on cpu@", 1)[0]
    assert (folder / "repro.py").read_text() in (folder / "issue.md").read_text() + "\n"
    (command,) = re.findall(r"^Program: (.*)$", done.out, re.MULTILINE)
    assert command == "python3 new/folder/repro.py"
    program = command.replace("python3", sys.executable).split()
    ran = subprocess.run(program, cwd=desk.folder, capture_output=True, text=True, timeout=60)
    assert ran.stdout.splitlines()[-1] == f"verdict: {verdict}"


def test_a_result_is_taken_from_a_file(gqa: Gqa, desk: Desk) -> None:
    file = results_file(desk.folder / "one.jsonl", "cpu@1.31.1")
    done = gqa("export", CASE, "taken", "--results", str(file))
    assert done.status == 0, done.err
    assert done.out.startswith("wrong on cpu@1.31.1: It ran, but output is 2.\n")
    assert "\x1b" not in done.out + (desk.folder / "taken" / "issue.md").read_text()


@pytest.mark.parametrize(
    ("ep", "program", "command"),
    [
        ("tract", "repro.sh", "sh by_name/repro.sh"),
        ("webgpu@1.30.0+lavapipe", "repro.mjs", "node "),
        ("tract-wheel", "repro.py", "python3 by_name/repro.py"),
    ],
)
def test_of_several_targets_one_must_be_named(
    gqa: Gqa, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ep: str, program: str, command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    names = ("cpu@1.31.1", "tract@0.23.9", "webgpu@1.30.0+lavapipe", "tract-wheel@0.23.9")
    results_file(tmp_path / "several.jsonl", *names)
    told = sentence(gqa("export", CASE, "by_name", "--results", "several.jsonl"), 2)
    assert told == f"several.jsonl has results of {CASE} on {', '.join(names)}; name one with --ep."
    done = gqa("export", CASE, "by_name", "--results", "several.jsonl", "--ep", ep)
    assert done.status == 0, done.err
    assert (tmp_path / "by_name" / program).is_file()
    assert command in done.out


def test_a_target_that_this_version_does_not_know_has_no_program(gqa: Gqa, desk: Desk) -> None:
    file = results_file(desk.folder / "unknown.jsonl", "npu@3.1.0")
    done = gqa("export", CASE, "of_unknown", "--results", str(file))
    assert done.status == 0, done.err
    reason = "This version of the suite cannot write a program for npu."
    assert done.out.splitlines()[-1] == f"Program: there is none. {reason}"
    assert reason in (desk.folder / "of_unknown" / "issue.md").read_text()


def test_a_results_file_without_recipes_is_accepted(gqa: Gqa, desk: Desk) -> None:
    file = results_file(desk.folder / "old.jsonl", "cpu@1.31.1", old=True)
    assert gqa("export", CASE, "of_old", "--results", str(file)).status == 0
    assert 'uniform("0/0/query"' in (desk.folder / "of_old" / "repro.py").read_text()


def test_a_file_with_another_call_of_that_name_is_rejected(gqa: Gqa, desk: Desk) -> None:
    file = results_file(desk.folder / "other.jsonl", "cpu@1.31.1")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    lines[1]["call"]["attributes"]["num_heads"] = 8
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    told = sentence(gqa("export", CASE, "refused", "--results", "other.jsonl"), 2)
    assert told == f"{CASE} is another call in other.jsonl than it is now; run it anew."
    assert not (desk.folder / "refused").exists()


def test_a_folder_that_is_not_empty_is_left_alone(gqa: Gqa, desk: Desk) -> None:
    folder = desk.folder / "full"
    folder.mkdir()
    (folder / "mine").write_text("")
    told = sentence(gqa("export", CASE, "full"), 2)
    assert told == "full is not empty; name a folder that is, or none yet."
    assert [file.name for file in folder.iterdir()] == ["mine"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("nosuch/case", "x"), "No case file and no shipped theme is called 'nosuch'"),
        ((CASE, "x", "--ep", "cpuu"), "Unknown target 'cpuu'; known: cpu, "),
        (
            (CASE, "x", "--results", "none.jsonl"),
            "Cannot read results from none.jsonl: No such file",
        ),
        ((CASE, "x", "--results", "cpu.jsonl", "--ep", "cuda"), "cpu.jsonl has no result of "),
    ],
)
def test_bad_input_gives_one_sentence(
    gqa: Gqa, desk: Desk, arguments: tuple[str, ...], says: str
) -> None:
    results_file(desk.folder / "cpu.jsonl", "cpu@1.31.1")
    assert sentence(gqa("export", *arguments), 2).startswith(says)
    assert not (desk.folder / "x").exists()


def test_an_ambiguous_argument_is_rejected_with_examples(gqa: Gqa) -> None:
    done = gqa("export", "smoke", "x")
    assert done.status == 2
    assert re.match(r"'smoke' means \d+ cases; which one\?\n  smoke/", done.err)
    assert re.search(r"\n  and \d+ more\n$", done.err)


def test_nothing_is_written_for_an_unavailable_target(gqa: Gqa, desk: Desk) -> None:
    done = gqa("export", CASE, "x", "--ep", "exec:/no/such/runner")
    assert (done.status, done.out) == (3, "")
    assert done.err.startswith("exec:/no/such/runner: ")
    assert not (desk.folder / "x").exists()
