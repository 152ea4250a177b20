"""``gqa export``: what it writes, what it rejects, and that its program gives the same verdict."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from as_user import Desk, Gqa, has_onnxruntime
from synthetic_runs import result, target, write

from conformance.case.corpus import find
from conformance.results.descriptions import case_record
from conformance.results.verdicts import Verdict
from conformance.targets.catalogue import TARGETS

#: Of each test README's command runs one example, see support/tiers.py.
ONE_EXAMPLE = True


CASE = "bounds_attributes/local_window_size[dtype=float32,local_window_size=4294967297]"


def results_file(path: Path, name: str, id: str, verdict: Verdict) -> Path:
    """A results file in which the case has the verdict on this target."""
    (case,) = find([id]).named
    reason = "It ran, but \x1b[31moutput is 2."
    results = [result(id, name, verdict, reason=reason, errors=())]
    return write(path, [case_record(case)], results, targets=[target(name)])


@has_onnxruntime
def test_a_result_is_run_and_written(gqa: Gqa, desk: Desk) -> None:
    done = gqa("export", CASE, "new/folder")
    assert done.status == 0, done.err
    folder = desk.folder / "new" / "folder"
    assert sorted(file.name for file in folder.iterdir()) == [
        "bundle", "issue.md", "repro.py", "values", "values.txt"
    ]  # fmt: skip
    onnx.load(str(folder / "bundle" / "model.onnx"))
    assert (folder / "bundle" / "test_data_set_0" / "input_0.pb").is_file()
    verdict = done.out.split(" on cpu@", 1)[0]
    assert (folder / "repro.py").read_text() in (folder / "issue.md").read_text() + "\n"
    (command,) = re.findall(r"^Program: (.*)$", done.out, re.MULTILINE)
    assert command == f"{sys.executable} {folder / 'repro.py'}"
    ran = subprocess.run(command.split(), cwd="/", capture_output=True, text=True, timeout=60)
    assert ran.stdout.splitlines()[-1] == f"verdict: {verdict}"


@has_onnxruntime
def test_a_graph_is_written(gqa: Gqa, desk: Desk) -> None:
    """The program makes the model, its constants and its inputs, and checks every output."""
    case = "blocks/decoder[tokens=ragged,weights=int4_float16]"
    done = gqa("export", case, "graph")
    assert done.status == 0, done.err
    folder = desk.folder / "graph"
    assert sorted(file.name for file in folder.iterdir()) == [
        "bundle", "issue.md", "repro.py", "values"
    ]  # fmt: skip
    values = np.load(folder / "values" / "step_0.npz")
    assert values["attention"].shape == (2, 7, 64)
    assert values["attention"].dtype == np.float64
    report = (folder / "issue.md").read_text()
    assert "A graph of 22 nodes: ReduceSum 1, Sub 1, Cast 2" in report
    assert "Attributes of the first GroupQueryAttention: num\\_heads 4" in report
    program = [sys.executable, str(folder / "repro.py")]
    ran = subprocess.run(program, capture_output=True, text=True, timeout=60)
    assert ran.stdout.splitlines()[-1] == "verdict: pass", ran.stdout + ran.stderr
    assert "logits[" in ran.stdout


#: A case of each kind; whether there is a program depends on the target for the first two.
KINDS = [
    CASE,
    "bounds_lengths/cache_almost_full[dtype=float32,shared_buffer=true]",
    "loop/chunks[dtype=float16]",
    "output_qk/unknown_kind[dtype=float16,qk_output=-1]",
    "decode_shapes/no_token[dtype=float32]",
    "quantised_cache/float8_decode[dtype=float32,rotary=half_split,scales=tensor]",
]


@pytest.mark.parametrize("ep", [*(entry.name for entry in TARGETS), "exec:./mine", "npu"])
def test_texts_and_files_agree_about_the_program(gqa: Gqa, tmp_path: Path, ep: str) -> None:
    ids = KINDS if ep == "cpu" else KINDS[:2]
    results: list[tuple[str, Verdict]] = [*((id, "wrong") for id in ids), (ids[0], "skip")]
    for number, (id, verdict) in enumerate(results):
        file, folder = tmp_path / f"{number}.jsonl", tmp_path / str(number)
        results_file(file, f"{ep}@1.0", id, verdict)
        done = gqa("export", id, str(folder), "--results", str(file))
        assert (done.status, done.err) == (0, ""), (id, verdict)
        written = [found.name for found in folder.iterdir() if found.name.startswith("repro.")]
        text, line = (folder / "issue.md").read_text(), done.out.splitlines()[-1]
        assert "\x1b" not in done.out + text
        refused = re.fullmatch(r"Program: there is none\. (.+)", line)
        assert bool(written) == (refused is None) == ("Save it as" in text), (id, verdict)
        if refused:
            assert text.endswith(f"## Reproduction\n\n{refused[1]}\n")
        else:
            assert f"Save it as `{written[0]}`" in text
            assert "verdict: " in (folder / written[0]).read_text()


@has_onnxruntime
def test_the_values_are_written_with_what_was_returned(gqa: Gqa, desk: Desk) -> None:
    done = gqa("export", CASE, "of_values")
    assert done.status == 0, done.err
    folder = desk.folder / "of_values"
    assert (
        "Values:  of_values/values.txt, and those of all queries for NumPy: of_values/values\n"
    ) in done.out
    shown = gqa("show", CASE, "--values", "--ep", "cpu").out
    text = (folder / "values.txt").read_text()
    assert text.splitlines()[0] == CASE
    assert "element     output[0, 4, 49]" in text
    assert text.split("\n\n")[1].split() == shown.split("\n\n")[1].split()
    found = np.load(folder / "values" / "step_0.npz")
    summed = found["probabilities"] @ np.repeat(found["value"], 2, axis=1)
    output = summed.transpose(0, 2, 1, 3).reshape(found["expected_output"].shape)
    np.testing.assert_allclose(output, found["expected_output"], rtol=1e-12, atol=1e-15)
    wrong = np.abs(found["got_output"] - found["expected_output"]) > found["budget_output"]
    assert wrong[0, 4, 49]
    made = onnx.load_tensor(str(folder / "bundle" / "test_data_set_0" / "output_0.pb"))
    rounded = found["expected_output"].astype(np.float32)
    assert np.array_equal(onnx.numpy_helper.to_array(made), rounded)
