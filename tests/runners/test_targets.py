"""The names of targets, and that kernel variants really use another code path."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from as_user import Desk, Gqa
from case_files import cases_of

from conformance.bundle.prepare import Prepared, prepare
from conformance.harness.jobs import Job
from conformance.harness.outcomes import Ran
from conformance.harness.session import Session
from conformance.results.reader import Run, read
from conformance.results.records import ResultRecord
from conformance.results.table import tabulate
from conformance.run.engine import PlanRun
from conformance.run.target import Plan
from conformance.targets.catalogue import OptionValues, TargetError
from conformance.targets.registry import Target, eps_of, target_for, targets_for


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    body = "- name: prompt\n  sequence_length: 37\n  head_size: 64"
    (case,) = cases_of(tmp_path_factory.mktemp("cases"), body)
    return prepare(case.call)


@pytest.fixture(scope="module")
def long_past(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """One head that decodes: its keys are what a kernel can split."""
    body = (
        "- {name: decode, past_sequence_length: 600, num_heads: 1, kv_num_heads: 1, head_size: 128}"
    )
    (case,) = cases_of(tmp_path_factory.mktemp("cases"), body)
    return prepare(case.call)


def output_of(ep: str, bundle: Prepared) -> bytes:
    """The exact output of ``ep``."""
    session = Session(target_for(ep).command)
    try:
        outcome = session.run(Job(case=ep, files=bundle.inputs, steps=bundle.steps, seconds=30))
        assert isinstance(outcome, Ran)
        return outcome.runs[0][0]["output"]
    finally:
        session.close()


def test_cpu_noflash_uses_other_kernels(bundle: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    """``cpu-noflash`` uses the other kernels in any environment."""
    pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install onnxruntime")
    usual, other = output_of("cpu", bundle), output_of("cpu-noflash", bundle)
    assert usual != other  # the order of summation differs, so the last bits do
    monkeypatch.setenv("ORT_GQA_DISABLE_FLASH_ATTENTION", "1")
    assert output_of("cpu", bundle) == usual
    monkeypatch.setenv("ORT_GQA_DISABLE_FLASH_ATTENTION", "0")
    assert output_of("cpu-noflash", bundle) == other


def test_cpu_threads_splits_a_call(long_past: Prepared) -> None:
    pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install onnxruntime")
    split = output_of("cpu-threads", long_past)
    assert split != output_of("cpu", long_past)  # the sums of the parts are added
    assert split == output_of("cpu-threads", long_past)


def test_results_record_where_two_targets_return_the_same_bits(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install onnxruntime")
    body = "- {name: prompt, sequence_length: 37, head_size: 64, matrix: {softcap: [0.0, 1.0]}}"
    cases = cases_of(tmp_path, body)
    bits = []
    for ep in ("cpu", "cpu-noflash"):
        with PlanRun(Plan(target_for(ep), (), ())) as run:
            records = [run.run_one(case).record for case in cases]
        assert all(isinstance(r, ResultRecord) and r.verdict == "pass" for r in records)
        bits.append([r.bits for r in records if isinstance(r, ResultRecord)])
    (tiled, capped), (plain, plain_capped) = bits
    assert tiled != plain
    assert capped == plain_capped  # the newer kernels do not support softcap


# Names


def names(targets: Sequence[Target]) -> list[str]:
    return [target.label for target in targets]


def results(desk: Desk, gqa: Gqa, *arguments: str) -> tuple[str, Run]:
    """The output of a run of ``three.yaml`` in which all is as expected, and its results."""
    file = desk.folder / "results.jsonl"
    done = gqa("run", "three.yaml", *arguments, "--results", str(file))
    assert done.status == 0, done.both
    run = read(file)
    assert {result.target for result in run.results} == {t.name for t in run.header.targets}
    assert len(run.results) == 3 * len(run.header.targets)
    return done.out, run


def test_an_option_with_two_values_gives_two_targets(tmp_path: Path) -> None:
    both = OptionValues(ort_python=["a/python", "b/python", "a/python"], tract="t")
    targets = targets_for(["cpu", "tract", "cpu-noflash"], both)
    assert names(targets) == ["cpu", "cpu#2", "tract", "cpu-noflash", "cpu-noflash#2"]
    assert [target.ep for target in targets[:2]] == ["cpu", "cpu"]
    assert [Path(target.command.argv[0]).parent.name for target in targets[:2]] == ["a", "b"]
    assert targets[1].arguments == ("--ep", "cpu", "--ort-python", "b/python")
    assert targets[1].expectations == targets[0].expectations
    four = targets_for(
        ["webgpu"], OptionValues(onnxruntime_web=["a", "b"], adapter=["gpu", "lavapipe"])
    )
    assert names(four) == ["webgpu", "webgpu#2", "webgpu#3", "webgpu#4"]
    with pytest.raises(TargetError, match="This command takes one target, not 2: --ep cpu --ort"):
        target_for("cpu", OptionValues(ort_python=["a/python", "b/python"]))


def test_a_browser_is_in_the_name_and_changes_no_expectations() -> None:
    [node] = targets_for(["webgpu"])
    [browser] = targets_for(["webgpu"], OptionValues(browser="chromium", adapter="swiftshader"))
    assert (node.base, browser.base) == ("webgpu", "webgpu-chromium")
    assert browser.expectations == node.expectations
    again = ("--adapter", "swiftshader", "--browser", "chromium")
    assert browser.arguments == ("--ep", "webgpu", *again)
    assert browser.command.argv[-2:] == again[-2:]
    [named] = targets_for(["wasm"], OptionValues(browser="/opt/chrome", name="mine"))
    assert (named.base, named.command.argv[-1]) == ("mine", "/opt/chrome")


def test_one_version_in_two_environments_gives_two_columns(desk: Desk, gqa: Gqa) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    python = desk.folder / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    _, run = results(desk, gqa, "--ort-python", sys.executable, "--ort-python", str(python))
    name = f"cpu@{onnxruntime.__version__}"
    assert [t.name for t in run.header.targets] == [name, f"{name}#2"]
    assert [t.ep for t in run.header.targets] == ["cpu", "cpu"]
    joined = tabulate([run])
    assert [column.label for column in joined.columns] == [name, f"{name}#2"]


def test_expectations_apply_whatever_the_name(gqa: Gqa) -> None:
    pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    case = "bounds_attributes/local_window_size[dtype=float32,local_window_size=4294967297]"
    done = gqa("run", case, "--name", "mine")
    assert done.status == 0
    assert f"{case} on mine@" in done.out
    assert f"gqa run '{case}' --ep cpu --name mine" in done.out


def test_labels_are_what_ids_of_a_run_without_ep_name() -> None:
    programs = OptionValues(name=["old", "new"])
    assert eps_of(["cpu#2", "cpu", "tract#12", "exec:./a#2"], programs) == [
        *("cpu", "tract", "exec:./a#2")
    ]
    assert eps_of(["new", "old"], programs) == ["cpu"]
