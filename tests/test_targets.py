"""The names of targets, and that kernel variants really use another code path."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from as_user import Desk, Gqa
from case_files import cases_of

from conformance.bundle.cache import Bundle, bundle_for
from conformance.harness.jobs import Job
from conformance.harness.outcomes import Ran
from conformance.harness.pool import Pool
from conformance.harness.protocol import DescribedAnswer, UnavailableAnswer
from conformance.results.join import join
from conformance.results.reader import Run, read
from conformance.results.records import ResultRecord
from conformance.run.engine import TargetRun
from conformance.run.target import TargetPlan
from conformance.targets.catalogue import Programs, TargetError, run_options
from conformance.targets.registry import Target, built_in, eps_of, target_for, targets_for


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    body = "- name: prompt\n  sequence_length: 37\n  head_size: 64"
    (case,) = cases_of(tmp_path_factory.mktemp("cases"), body)
    return bundle_for(case.call)


@pytest.fixture(scope="module")
def long_past(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """One head that decodes: its keys are what a kernel can split."""
    body = (
        "- {name: decode, past_sequence_length: 600, num_heads: 1, kv_num_heads: 1, head_size: 128}"
    )
    (case,) = cases_of(tmp_path_factory.mktemp("cases"), body)
    return bundle_for(case.call)


def output_of(ep: str, bundle: Bundle) -> bytes:
    """The exact output of ``ep``."""
    pool = Pool(target_for(ep).command)
    try:
        outcome = pool.run_one(Job(key=ep, bundle=str(bundle.path), steps=bundle.steps, seconds=30))
        assert isinstance(outcome, Ran)
        return outcome.runs[0][0]["output"]
    finally:
        pool.close()


def test_cpu_noflash_uses_the_other_kernels_in_any_environment(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install onnxruntime")
    usual, other = output_of("cpu", bundle), output_of("cpu-noflash", bundle)
    assert usual != other  # the order of summation differs, so the last bits do
    monkeypatch.setenv("ORT_GQA_DISABLE_FLASH_ATTENTION", "1")
    assert output_of("cpu", bundle) == usual
    monkeypatch.setenv("ORT_GQA_DISABLE_FLASH_ATTENTION", "0")
    assert output_of("cpu-noflash", bundle) == other


def test_cpu_threads_splits_a_call(long_past: Bundle) -> None:
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
        with TargetRun(TargetPlan(target_for(ep), (), ())) as run:
            records = [run.run_one(case) for case in cases]
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


def test_a_program_says_what_it_is_called(desk: Desk, gqa: Gqa) -> None:
    ep = desk.runner("names_itself")
    out, run = results(desk, gqa, "--ep", ep)
    (target,) = run.header.targets
    shown = ep.replace(f"{desk.folder}/", "")
    assert (target.name, target.ep) == ("openvino@2026.4.1", shown)
    assert target.describe is not None
    assert (target.describe.name, target.describe.threads) == ("openvino", "default")
    assert "openvino@2026.4.1: miniature 2026.4.1 on none" in out.splitlines()
    assert all(result.reproduce.endswith(f" --ep {shown}") for result in run.results)


def test_two_programs_that_describe_themselves_alike_are_told_apart(desk: Desk, gqa: Gqa) -> None:
    one = desk.runner("names_itself")
    other = desk.folder / "programs" / "other"
    other.write_text(Path(one.removeprefix("exec:")).read_text())
    other.chmod(0o755)
    _, run = results(desk, gqa, "--ep", one, "--ep", f"exec:{other}")
    assert [t.name for t in run.header.targets] == ["openvino@2026.4.1", "openvino@2026.4.1#2"]


def test_configurations_are_told_apart_by_name(desk: Desk, gqa: Gqa) -> None:
    one, other = desk.runner("names_itself"), desk.runner("correct")
    _, run = results(desk, gqa, "--ep", one, "--ep", other, "--name", "fast", "--name", "slow")
    assert [t.name for t in run.header.targets] == ["fast@2026.4.1", "slow@1.0"]
    assert all("--name" in result.reproduce for result in run.results)
    _, run = results(desk, gqa, "--ep", one, "-k", "three", "--name", "v2.1_int8-x")
    assert [t.name for t in run.header.targets] == ["v2.1_int8-x@2026.4.1"]


def test_an_option_with_two_values_gives_two_targets(tmp_path: Path) -> None:
    both = Programs(ort_python=["a/python", "b/python", "a/python"], tract="t")
    targets = targets_for(["cpu", "tract", "cpu-noflash"], both)
    assert names(targets) == ["cpu", "cpu#2", "tract", "cpu-noflash", "cpu-noflash#2"]
    assert [target.ep for target in targets[:2]] == ["cpu", "cpu"]
    assert [Path(target.command.argv[0]).parent.name for target in targets[:2]] == ["a", "b"]
    assert targets[1].arguments == ("--ep", "cpu", "--ort-python", "b/python")
    assert targets[1].expectations == targets[0].expectations
    four = targets_for(
        ["webgpu"], Programs(onnxruntime_web=["a", "b"], adapter=["gpu", "lavapipe"])
    )
    assert names(four) == ["webgpu", "webgpu#2", "webgpu#3", "webgpu#4"]
    with pytest.raises(TargetError, match="This command takes one target, not 2: --ep cpu --ort"):
        target_for("cpu", Programs(ort_python=["a/python", "b/python"]))


def test_one_version_in_two_environments_gives_two_columns(desk: Desk, gqa: Gqa) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    python = desk.folder / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    _, run = results(desk, gqa, "--ort-python", sys.executable, "--ort-python", str(python))
    name = f"cpu@{onnxruntime.__version__}"
    assert [t.name for t in run.header.targets] == [name, f"{name}#2"]
    assert [t.ep for t in run.header.targets] == ["cpu", "cpu"]
    joined = join([run])
    assert [column.label for column in joined.columns] == [name, f"{name}#2"]


@pytest.mark.parametrize(
    ("version", "second"), [("1.31.1", "cpu@1.31.1#2"), ("1.30.0", "cpu@1.30.0")]
)
def test_a_number_is_given_only_where_the_name_is_taken(
    monkeypatch: pytest.MonkeyPatch, version: str, second: str
) -> None:
    runs: list[TargetRun] = []
    for target in targets_for(["cpu"], Programs(ort_python=["a", "b"])):
        runs.append(TargetRun(TargetPlan(target, (), ()), 1, tuple(runs)))
    for run, says in zip(runs, ("1.31.1", version), strict=True):
        answer = DescribedAnswer(
            id=1,
            outcome="described",
            runtime="onnxruntime",
            version=says,
            device="none",
            dtypes=(),
            execution_provider=None,
        )
        monkeypatch.setattr(run._pool, "start", lambda answer=answer: answer)
    assert runs[1].ready.name == second  # even if it is asked first
    assert runs[0].ready.name == "cpu@1.31.1"


def test_expectations_apply_whatever_the_name(gqa: Gqa) -> None:
    pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    case = "bounds_attributes/local_window_size[dtype=float32,local_window_size=4294967297]"
    done = gqa("run", case, "--name", "mine")
    assert done.status == 0
    assert f"{case} on mine@" in done.out
    assert f"gqa run '{case}' --ep cpu --name mine" in done.out


@pytest.mark.parametrize(
    ("eps", "given", "says"),
    [
        (["cpu"], ["tract"], "--name 'tract' cannot be the name of cpu: tract is the name of a t"),
        (["exec:./x"], ["cpu"], "--name 'cpu' cannot be the name of exec:./x: cpu is the name of"),
        (["cpu"], ["Mine"], "--name 'Mine' is not a name: it takes up to 40 lower-case letters"),
        (["cpu"], ["m" * 41], "is not a name"),
        (["cpu"], ["\x1b[2J"], "is not a name"),
        (
            ["cpu", "tract"],
            ["a"],
            "--name gives 1 different names to 2 targets; give one to each: ",
        ),
        (["cpu", "tract"], ["a", "a"], "--name gives 1 different names to 2 targets"),
        (["cpu"], ["a", "b"], "--name gives 2 different names to 1 targets"),
    ],
)
def test_a_name_that_cannot_be_given(eps: list[str], given: list[str], says: str) -> None:
    with pytest.raises(TargetError) as caught:
        targets_for(eps, Programs(name=given))
    assert says in str(caught.value)


def test_an_option_of_a_target_that_is_not_run_is_refused() -> None:
    with pytest.raises(TargetError) as caught:
        targets_for(["cpu", "exec:./x"], Programs(tract="t", ort_python="p"))
    assert str(caught.value) == (
        "--tract is for tract, tract-plain, and the targets are cpu, exec:./x; add --ep tract."
    )


def test_an_option_that_a_target_refuses(tmp_path: Path) -> None:
    tool = tmp_path / "compute-sanitizer"
    tool.touch()
    programs = Programs(compute_sanitizer=str(tool))
    for eps in (["cuda-graph"], ["cuda", "cuda-graph"]):
        with pytest.raises(TargetError) as caught:
            targets_for(eps, programs)
        assert str(caught.value) == (
            "cuda-graph cannot run with --compute-sanitizer: under it each tensor is an "
            "allocation of its own, and CUDA allocates nothing while it captures a graph."
        )
    checked = names(built_in(programs))  # by gqa doctor
    assert "cuda" in checked
    assert "cuda-graph" not in checked


def test_an_option_without_a_value_is_refused() -> None:
    for option in run_options():
        with pytest.raises(TargetError) as caught:
            targets_for(["cpu"], Programs(**{option.name: ""}))
        assert str(caught.value) == f"{option.flag} '' is empty; it takes {option.metavar}."
    with pytest.raises(TargetError, match="--device '' is empty; it takes N"):
        targets_for(["cuda"], Programs(device=["1", ""]))


@pytest.mark.parametrize(
    ("ep", "meant"),
    [("ort-plugin", "ort-plugin:WORD"), ("exec", "exec:PATH"), ("tract-plane", "tract-plain")],
)
def test_a_target_that_is_not_known(ep: str, meant: str) -> None:
    with pytest.raises(TargetError) as caught:
        target_for(ep)
    assert str(caught.value).endswith(f"; did you mean '{meant}'?")


def test_the_fix_of_a_python_that_an_option_names_is_not_gqa_setup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What gqa setup installs would not be used."""
    monkeypatch.setenv("GQA_TOOLS", str(tmp_path))
    answer = UnavailableAnswer(id=1, outcome="unavailable", reason="no CUDA", fix="gqa setup cuda")
    fixes = []
    for programs in (Programs(), Programs(ort_python="my/python"), Programs(device="1")):
        run = TargetRun(TargetPlan(target_for("cuda", programs), (), ()))
        monkeypatch.setattr(run._pool, "start", lambda: answer)
        fixes.append(run.ready.fix)
    instead = "leave out --ort-python to use what gqa setup cuda installs"
    assert fixes == ["gqa setup cuda", instead, "gqa setup cuda"]


def test_labels_are_what_ids_of_a_run_without_ep_name() -> None:
    programs = Programs(name=["old", "new"])
    assert eps_of(["cpu#2", "cpu", "tract#12", "exec:./a#2"], programs) == [
        *("cpu", "tract", "exec:./a#2")
    ]
    assert eps_of(["new", "old"], programs) == ["cpu"]


def test_a_target_may_be_given_its_own_name() -> None:
    assert names(targets_for(["cpu"], Programs(name=["cpu"]))) == ["cpu"]


def test_a_folder_is_not_an_interpreter(tmp_path: Path, gqa: Gqa) -> None:
    done = gqa("run", "three.yaml", "--ort-python", str(tmp_path))
    assert (done.status, done.out) == (2, "")
    assert f"{tmp_path} is a folder, not an interpreter." in done.err
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    done = gqa("run", "three.yaml", "--ort-python", str(tmp_path))
    assert f"{tmp_path} is a folder; its interpreter is {tmp_path}/bin/python." in done.err
