"""Which kernels ran: from what ONNX Runtime prints, to the verdict, the results and what they show.

No GPU is needed: ONNX Runtime's CPU provider computes the calls, and a wrapper around it prints
what the CUDA provider prints, where C++ prints it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from as_user import Gqa
from case_files import cases_of
from kernel_variants import variant
from reported import Parsed
from shipped import shipped_cases
from spoken_runner import RUNNERS, Start, bundle, gqa_inputs, gqa_model, one_node, runners, step
from synthetic_runs import case, result, write

from conformance.case.case import Case
from conformance.expectations.known import Known
from conformance.expectations.match import Expectation
from conformance.harness.outcomes import Ran
from conformance.judge.verdict import Judgement
from conformance.report.cells import cells
from conformance.report.html import render
from conformance.report.repro.reproduction import program_of
from conformance.report.terminal import tell
from conformance.results.causes import symptom
from conformance.results.descriptions import case_record
from conformance.results.reader import read
from conformance.results.records import ResultRecord, TargetRecord
from conformance.results.score import part_of
from conformance.results.table import tabulate
from conformance.results.verdicts import is_red, note_of, ranks_as, worst
from conformance.run.recording import result_record
from conformance.run.target import DescribedTarget
from conformance.targets import catalogue
from conformance.targets.catalogue import TARGETS
from conformance.targets.registry import target_for

FOLDER = RUNNERS / "onnxruntime"
SWITCH = "ORT_ENABLE_ATTENTION_KERNEL_DEBUG_INFO"

# What ONNX Runtime prints

#: Lines of attention_kernel_options.cc, with their colours.
SETTINGS = (
    "\x1b[36mAttentionKernelOptions: FLASH_ATTENTION=1 EFFICIENT_ATTENTION=0 MATH=0\n"
    "Warning: Unfused kernel cannot be disabled right now. MATH=0 is ignored.\x1b[0m\n"
)


def line(kernel: str, operator: str = "GroupQueryAttention", node: str = " Node=a b") -> str:
    return f"\x1b[36mOperator={operator}{node} DataType=fp16 SdpaKernel={kernel}\x1b[0m\n"


#: Writes to descriptor 1 as C++ does, and prints what is reported of it as JSON.
SCRIPT = """
import ctypes, json, os, sys
sys.path.insert(0, sys.argv[1])
from attention_kernels import KernelReport
answers = os.dup(1)
os.dup2(2, 1)
libc = ctypes.CDLL(None)
report = KernelReport()
found = []
for texts in json.loads(sys.argv[2]):
    report.start()
    for text in texts:
        libc.printf(b"%s", text.encode())
        libc.fflush(None)
    found.append(report.kernels())
libc.printf(b"after the last case\\n")
libc.fflush(None)
report.start()
found.append(report.kernels())
os.write(answers, json.dumps(found).encode())
"""


def reported(*cases: list[str]) -> tuple[list[list[str] | None], str]:
    """What is reported of each case that prints these texts; and what went to standard error."""
    command = [sys.executable, "-c", SCRIPT, str(FOLDER), json.dumps(cases)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    *found, last = json.loads(done.stdout)
    assert last is None
    return found, done.stderr


def test_a_kernel_has_its_usual_name() -> None:
    words = {
        **{"FLASH_ATTENTION": "flash", "EFFICIENT_ATTENTION": "efficient", "MATH": "math"},
        **{"CUDNN_FLASH_ATTENTION": "cudnn", "XQA": "xqa", "LEAN_ATTENTION": "lean"},
        "TRT_FUSED_ATTENTION": "trt_fused",
    }
    printed = [[line(word, node=node)] for node in ("", " Node=a b") for word in words]
    assert reported(*printed)[0] == [[name] for name in words.values()] * 2


def test_each_kernel_of_a_case_is_named_once_and_in_order() -> None:
    texts = [SETTINGS, line("XQA"), line("MATH"), line("XQA"), line("MATH") + line("MATH")]
    found, said = reported(texts)
    assert found == [["xqa", "math"]]
    assert said == "after the last case\n"


def test_a_case_without_a_report_has_none() -> None:
    other = line("FLASH_ATTENTION", operator="MultiHeadAttention")
    assert reported([], [SETTINGS], [other], [line("MATH")], [])[0] == [
        None, None, None, ["math"], None,
    ]  # fmt: skip


def test_everything_else_goes_on_to_standard_error() -> None:
    found, said = reported(["one\n", line("MATH"), "\x1b[36mtwo\x1b[0m\n", "three"], ["4"])
    assert found == [["math"], None]
    assert said == "one\n\x1b[36mtwo\x1b[0m\nthree\n4\nafter the last case\n"


# The runner

#: ONNX Runtime, and what its CUDA provider prints: flash for a short past, if it is asked for.
PRINTING = f"""
import os
__path__ = [REAL]
__file__ = REAL + "/__init__.py"
exec(compile(open(__file__).read(), __file__, "exec"))
class Printing:
    def __init__(self, session, options):
        self.session, self.options = session, options
    def __getattr__(self, name):
        return getattr(self.session, name)
    def run_with_ort_values(self, feeds, *rest):
        asked = self.options.get("sdpa_kernel") == "1"
        if "query" in feeds:
            past = feeds["past_key"].shape()[2] if "past_key" in feeds else 0
            flash = asked and past < 4
            text = {line("KERNEL")!r}.replace("KERNEL", "FLASH_ATTENTION" if flash else "MATH")
            os.write(1, text.encode())
        return self.session.run_with_ort_values(feeds, *rest)
class InferenceSession(InferenceSession):
    def __init__(self, *arguments, **more):
        os.write(1, {SETTINGS!r}.encode())
        super().__init__(*arguments, **more)
        ((_, options),) = more["providers"]
        self._sess = Printing(self._sess, options)
"""


@pytest.fixture(scope="module")
def printing(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which ONNX Runtime prints its kernels."""
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install it")
    package = tmp_path_factory.mktemp("fake") / "onnxruntime"
    package.mkdir()
    real = os.path.dirname(onnxruntime.__file__)
    (package / "__init__.py").write_text(PRINTING.replace("REAL", repr(real)))
    return {"PYTHONPATH": str(package.parent), SWITCH: "1"}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with runners(FOLDER / "runner.py", lambda: tmp_path) as started:
        yield started


def test_the_runner_names_kernels(start: Start, tmp_path: Path, printing: dict[str, str]) -> None:
    runner = start("--ep", "cpu", "--provider-option", "sdpa_kernel=1", **printing)
    found = []
    for past in (2, 6):
        folder = tmp_path / f"{past}"
        folder.mkdir()
        [files] = bundle(folder, gqa_model(), gqa_inputs(past, past + 1))
        found.append(runner.run(folder, step(files))["kernels"])
    assert found == [["flash"], ["math"]]
    (tmp_path / "other").mkdir()
    inputs = {"x": np.ones(2, np.float32)}
    [files] = bundle(tmp_path / "other", one_node("Identity", 1, 1), inputs)
    assert runner.run(tmp_path / "other", step(files))["kernels"] is None
    assert runner.end() == 0
    assert "SdpaKernel" not in runner.stderr()


def test_a_rejection_has_no_kernels(start: Start, tmp_path: Path, printing: dict[str, str]) -> None:
    runner = start("--ep", "cpu", **printing)
    [files] = bundle(tmp_path, gqa_model(), {**gqa_inputs(2, 3), "key": np.ones((1, 3, 8), "f4")})
    answer = runner.run(tmp_path, step(files))
    assert (answer["outcome"], "kernels" in answer) == ("rejected", False)


def test_without_switch_no_kernel(start: Start, tmp_path: Path, printing: dict[str, str]) -> None:
    """Without the switch there is nothing to read."""
    runner = start("--ep", "cpu", **printing | {SWITCH: ""})
    [files] = bundle(tmp_path, gqa_model(), gqa_inputs(2, 3))
    assert "kernels" not in runner.run(tmp_path, step(files))
    assert runner.end() == 0
    assert "SdpaKernel=MATH" in runner.stderr()


@pytest.mark.parametrize("text", ["sdpa_kernel", "=1"])
def test_an_option_of_the_provider_is_a_pair(start: Start, text: str) -> None:
    runner = start("--ep", "cpu", "--provider-option", text)
    assert runner.process.wait(60) == 2
    assert f"'{text}' is not KEY=VALUE, such as sdpa_kernel=1" in runner.stderr()


# The targets

CUDA = [entry for entry in TARGETS if entry.execution_provider == "CUDAExecutionProvider"]


def test_every_cuda_target_sets_every_switch_and_asks_for_the_report() -> None:
    usual = CUDA[0]
    assert (usual.name, usual.kernel, usual.kernel_variant_of) == ("cuda", None, None)
    assert {value for name, value in usual.environment.items() if name != SWITCH} == {""}
    for entry in CUDA:
        assert entry.environment.keys() == usual.environment.keys()
        assert entry.environment[SWITCH] == "1"
    for entry in CUDA[1:]:
        assert entry.kernel_variant_of == "cuda"
        assert entry.name.startswith(f"cuda-{entry.kernel or ''}")
        switched = {None: "", "xqa": "1"}.get(entry.kernel, "0")
        assert entry.environment["ORT_ENABLE_XQA"] == switched


def test_a_user_of_another_environment_tests_the_same_kernel() -> None:
    """An exported program sets what makes the difference, and prints the kernel that it ran."""
    (one,) = (each for each in shipped_cases() if each.id == "smoke/decode[dtype=float32]")
    record = case_record(one)
    for entry in CUDA:
        if entry.script is None:
            continue
        assert entry.script.environment.items() <= entry.environment.items()
        options = [f"{name}={value}" for name, value in entry.script.provider_options.items()]
        assert [*entry.arguments[3::2]] == options
        assert {*entry.arguments[2::2]} <= {"--provider-option"}
        told = TargetRecord(name=f"{entry.name}@1.31.1", ep=entry.name)
        wrong = result(target=told.name, verdict="wrong", placement="CUDAExecutionProvider")
        data = json.loads("\n".join(program_of(record, wrong, told).data))["runtime"]
        assert data["environment"] == entry.script.environment
        number = {"flash": 1, "efficient": 2, "cudnn": 8, "math": 16}.get(entry.kernel or "")
        assert data["provider_options"] == ({"sdpa_kernel": str(number)} if number else {})
        assert data["provider"] == "CUDAExecutionProvider"


# Verdicts

OTHER = Judgement("fallback", "It ran, but with math, not with flash.", other_kernel=True)


def on_flash(one: Case, judged: Judgement, *lines: Expectation) -> ResultRecord:
    ready = DescribedTarget(target_for("cuda-flash"), None, None, None)
    ran = Ran(runs=(), placement="CUDAExecutionProvider", load_ms=0, run_ms=0, kernels=("math",))
    return result_record(one, ready, judged, ran, lines)


def test_another_kernel_is_never_red_and_contradicts_no_expectation(tmp_path: Path) -> None:
    (one,) = cases_of(tmp_path, "- name: a")
    fields = {"cases": ["*"], "verdict": "wrong", "versions": ">=0", "link": "x", "why": "x"}
    known = Known.model_validate(fields)
    record = on_flash(one, OTHER, Expectation(known, tmp_path / "cuda.yaml", 7))
    assert (record.unexpected, record.expectation) == (False, None)
    assert record.reason == OTHER.reason
    assert (record.kernels, record.other_kernel) == (("math",), True)
    assert not is_red(OTHER, "specified")
    elsewhere = replace(OTHER, other_kernel=False)
    assert is_red(elsewhere, "specified")
    assert on_flash(one, elsewhere).unexpected


def test_another_kernel_says_nothing_about_the_one_that_was_asked_for() -> None:
    other = result(verdict="fallback", other_kernel=True, kernels=("math",))
    elsewhere = result(verdict="fallback")
    assert (part_of(other), part_of(elsewhere)) == (None, "accepted")
    assert (ranks_as(other), ranks_as(elsewhere)) == ("skip", "fallback")
    passed = result()
    assert worst([other, passed]) is passed
    assert (note_of(other), note_of(elsewhere)) == ("another kernel", "")
    assert symptom(other) == "it ran with math"
    assert symptom(other.model_copy(update={"kernels": None})) == "no kernel is known"


# Results and reports


def test_the_kernel_is_shown_wherever_a_result_is(tmp_path: Path) -> None:
    done = result(kernels=("flash",))
    assert "  kernel    flash" in tell(case(), done)
    other = result("a/b", verdict="fallback", kernels=("math",), other_kernel=True)
    page = Parsed(
        render(tabulate([read(write(tmp_path / "o.jsonl", [case("a/b")], [other]))]))
    ).words
    assert f"not tried : 1 case, 1 reason 1 on {other.target} : {other.reason}" in page
    run = read(write(tmp_path / "r.jsonl", [case()], [done]))
    assert Parsed(render(tabulate([run]))).cells["cases"][0]["results"][0]["look"]["kernels"] == [
        "flash"
    ]
    (cell,) = cells(tabulate([run]))
    assert (cell["kernels"], cell["other_kernel"]) == ("flash", False)


# A run


def test_a_run_tells_what_the_kernel_computed_from_what_another_did(
    gqa: Gqa, monkeypatch: pytest.MonkeyPatch, printing: dict[str, str], tmp_path: Path
) -> None:
    monkeypatch.setattr(catalogue, "TARGETS", (*TARGETS, variant(printing)))
    cases = ("smoke/prompt[dtype=float32,sequence_length=5]", "smoke/decode[dtype=float32]")
    done = gqa("run", *cases, "--ep", "fake-flash", "--results", str(tmp_path / "r.jsonl"))
    assert done.status == 0, done.both
    assert done.out.splitlines()[-2] == "2 results, 0 unexpected, 1 by another kernel"
    assert "fallback (another kernel)" in done.out
    assert "\nNot tried:\n  1 on fake-flash@" in done.out
    assert "It ran, but with the kernel math; flash was requested." in done.out
    by_case = {one.case: one for one in read(tmp_path / "r.jsonl").results}
    kernels = [(by_case[id].verdict, by_case[id].kernels) for id in cases]
    assert kernels == [("pass", ("flash",)), ("fallback", ("math",))]


@pytest.mark.push
def test_pytest_skips_what_another_kernel_ran(tmp_path: Path, printing: dict[str, str]) -> None:
    script = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1] / "support")!r})
from conformance.targets import catalogue
from kernel_variants import variant
catalogue.TARGETS = (*catalogue.TARGETS, variant({printing!r}))
import pytest
alone = ["-q", "-rs", "-p", "conformance.pytest_plugin", "-p", "no:cacheprovider"]
sys.exit(pytest.main([*alone, "--ep", "fake-flash", *sys.argv[1:]]))
"""
    text = "- {name: prompt, sequence_length: 3}\n- {name: step, past_sequence_length: 9}"
    cases_of(tmp_path, text)
    (file,) = tmp_path.glob("*.yaml")

    def said(*arguments: str) -> tuple[int, str]:
        command = [sys.executable, "-c", script, *arguments]
        alone = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        done = subprocess.run(
            command, cwd=tmp_path, env=alone, capture_output=True, text=True, timeout=60
        )
        return done.returncode, done.stdout + done.stderr

    status, text = said(str(file))
    assert (status, "1 passed, 1 skipped" in text) == (0, True), text
    assert "It ran, but with the kernel math; flash was requested." in text
    status, text = said(f"{file}::step")
    assert (status, "fake-flash: every case was skipped: It ran, but" in text) == (1, True), text


def test_kernel_unused(gqa: Gqa, monkeypatch: pytest.MonkeyPatch, printing: dict[str, str]) -> None:
    """A run that the kernel took no part in is not green."""
    monkeypatch.setattr(catalogue, "TARGETS", (*TARGETS, variant(printing)))
    done = gqa("run", "smoke/decode[dtype=float32]", "--ep", "fake-flash")
    assert done.status == 3
    said = "no case was tried on flash: It ran, but with the kernel math; flash was requested."
    assert said in done.out
    silent = variant({**printing, "PYTHONPATH": ""})
    monkeypatch.setattr(catalogue, "TARGETS", (*TARGETS, silent))
    done = gqa("run", "smoke/prompt[dtype=float32,sequence_length=5]", "--ep", "fake-flash")
    assert done.status == 3
    assert "the runtime reports no kernel, so nothing proves that flash ran." in done.out
