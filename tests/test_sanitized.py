"""Cases under compute-sanitizer; ``fake_sanitizer.py`` writes its logs.

The runner is that of ONNX Runtime on the CPU, in the place of CUDA.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from as_user import Desk, Gqa
from spoken_runner import (
    RUNNERS,
    Message,
    Modules,
    Runner,
    Start,
    bundle,
    fake_program,
    gqa_inputs,
    gqa_model,
    importing,
    runners,
    step,
)

from conformance.results.reader import read
from conformance.targets import catalogue
from conformance.targets.catalogue import Programs
from conformance.targets.registry import target_for

pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install onnxruntime")

FAKE = Path(__file__).parent / "fake_sanitizer.py"
SANITIZED = RUNNERS / "onnxruntime" / "sanitized.py"
RUNNER = RUNNERS / "onnxruntime" / "runner.py"
module = importing("onnxruntime")
FOUND = {
    "memcheck": (
        "Invalid __global__ read of size 2 bytes at void flash_fwd_kernel<(int)64, __half>"
        "(Flash_fwd_params)+0x1f0 in kernel.h:53 by thread (64,0,0) in block (2,0,0) Address "
        "0x7f1c0a0006f4 is out of bounds and is 5 bytes after the nearest allocation at "
        "0x7f1c0a000400 of size 752 bytes (3 errors in all)"
    ),
    "initcheck": (
        "Uninitialized __global__ memory read of size 4 bytes at vectorAdd(int *)+0x70 in "
        "memset_error.cu:41 by thread (31,0,0) in block (1,0,0) Address 0x7f3c7ec000fc (3 errors "
        "in all)"
    ),
}


@pytest.fixture
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Starts the runner under the fake, unless another tool is named."""
    with runners(SANITIZED, lambda: tmp_path_factory.mktemp("runner")) as started:
        yield lambda tool=FAKE, **rest: started("--tool", tool, RUNNER, "--ep", "cpu", **rest)


def run(runner: Runner, folder: Path) -> Message:
    """The answer for a case of one step; after it, its folder has no log."""
    [files] = bundle(folder, gqa_model(), gqa_inputs(past=4, total=5))
    answer = runner.run(folder, step(files))
    assert not list(folder.glob("out*/*.log"))
    return answer


def test_the_description_is_the_runners_with_the_version_of_the_tool(start: Start) -> None:
    answer = start().ask(cmd="describe")
    assert answer["outcome"] == "described"
    assert answer["runtime"] == "onnxruntime"
    assert answer["versions"]["compute-sanitizer"] == "2026.4.0.0"


def test_a_case_without_a_report_has_the_runners_own_answer(start: Start, tmp_path: Path) -> None:
    runner = start(FAKE_MARK=str(tmp_path / "mark"), FAKE_DOES="noise host_copy")
    answer = run(runner, tmp_path)
    assert answer["outcome"] == "ran"
    assert answer["arrays"][0][0]["present_key"].shape == (1, 1, 5, 8)
    assert runner.compiled == 1  # so that it gets more time
    assert runner.stderr() == ""
    assert (tmp_path / "mark").read_text().splitlines() == [
        "memcheck ['--log-file', '--padding', '--report-api-errors', '--tool'] 1",
        "initcheck ['--log-file', '--tool'] 1",
    ]


def test_a_signal_is_a_crash_of_the_runtime(start: Start, tmp_path: Path) -> None:
    answer = run(start(FAKE_DOES="segfault"), tmp_path)
    assert answer == {"outcome": "crashed", "step": None, "ended": "SIGSEGV"}


def test_an_error_of_the_runner_ends_it(start: Start, tmp_path: Path) -> None:
    runner = start()
    [files] = bundle(tmp_path, gqa_model(), gqa_inputs(past=4, total=5))
    (tmp_path / "model.onnx").unlink()
    (tmp_path / "out").mkdir()
    line = runner.tell(
        {
            **{"id": 1, "cmd": "run", "bundle": str(tmp_path), "out": str(tmp_path / "out")},
            **{"repeat": 1, "steps": [step(files)]},
        }
    )
    assert b'"compiling"' in line
    assert runner.process.stdout is not None
    assert runner.process.stdout.readline() == b""
    assert runner.process.wait(20) == 1
    assert runner.stderr().splitlines()[-1] == (
        "sanitized.py: the runner ended with status 1 under memcheck: it wrote no more"
    )


def test_a_case_of_which_the_tool_has_missed_something_is_not_tried(
    start: Start, tmp_path: Path
) -> None:
    answer = run(start(FAKE_DOES="internal"), tmp_path)
    assert answer["outcome"] == "unavailable"
    assert answer["reason"] == (
        "compute-sanitizer 2026.4.0.0 does not work here (memcheck): Internal Sanitizer Error: "
        "Errors might go undetected. (out of memory)"
    )


def unavailable(runner: Runner) -> tuple[str, str | None]:
    answer = runner.ask(cmd="describe")
    assert answer["outcome"] == "unavailable"
    assert runner.end() == 0
    return answer["reason"], answer["fix"]


def test_a_tool_that_does_not_look_is_unavailable(start: Start) -> None:
    reason, _ = unavailable(start(FAKE_DOES="no_summary"))
    assert "it ended with status 0 and no summary" in reason
    reason, _ = unavailable(start(FAKE_FINDS="memcheck", FAULT_ON="describe"))
    assert "it reports an error before any case was run: Invalid __global__ read" in reason


def test_what_is_no_compute_sanitizer_is_unavailable(start: Start, tmp_path: Path) -> None:
    assert unavailable(start("/bin/true"))[0] == (
        "/bin/true is no compute-sanitizer: it does not say its version."
    )
    assert "does not run: " in unavailable(start(tmp_path))[0]


def test_a_missing_tool_is_named_with_what_installs_it(start: Start, tmp_path: Path) -> None:
    reason, fix = unavailable(start("auto", PATH=str(tmp_path), CUDA_HOME=str(tmp_path)))
    assert reason.startswith("compute-sanitizer is neither on the PATH nor among the packages of ")
    assert fix is not None
    assert fix.endswith("install nvidia-cuda-sanitizer-api")


@pytest.mark.parametrize("place", ["PATH", "CUDA_HOME", "PYTHONPATH"])
def test_auto_finds_the_tool(start: Start, tmp_path: Path, place: str) -> None:
    folder = {"PATH": ".", "CUDA_HOME": "bin", "PYTHONPATH": "nvidia/cu13/bin"}[place]
    (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    fake_program(tmp_path / folder, "compute-sanitizer")
    environment = {"PATH": str(tmp_path / "none"), place: str(tmp_path)}
    assert start("auto", **environment).ask(cmd="describe")["outcome"] == "described"


# Logs


def test_reports_of_older_releases(module: Modules) -> None:
    log = module("sanitizer_log").read_log(
        (FAKE.parent / "sanitizer_logs" / "of_2021.txt").read_text()
    )
    said = "Target application terminated before first instrumented API call"
    trouble = module("sanitizer_log").read_log(f"========= COMPUTE-SANITIZER\n========= {said}\n")
    assert (trouble.reports, trouble.complete, trouble.trouble) == ([], False, said)
    assert log.reports == [
        "Invalid __global__ write of size 2 bytes at 0xd80 in /src/paged.cu:162:void "
        "add_fused<(bool)1, __half>(T2 *, int) by thread (63,0,0) in block (506,0,0) Address "
        "0x7fcd07a0312c is out of bounds and is 12589 bytes after the nearest allocation at "
        "0x7fcd079ffc00 of size 1024 bytes"
    ]
    assert (log.total, log.complete, log.trouble) == (1204, True, None)


# Memory


def test_each_allocation_is_one_of_cuda(module: Modules) -> None:
    """With malloc in its place, through the addresses that ONNX Runtime gets."""
    allocations = module("cuda_allocations")
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    sizes = []

    def allocate(pointer: object, size: ctypes.c_size_t) -> int:
        sizes.append(size.value)
        if size.value > 1 << 40:
            return 2  # cudaErrorMemoryAllocation
        ctypes.cast(pointer, ctypes.POINTER(ctypes.c_void_p))[0] = libc.malloc(size)  # type: ignore[arg-type]
        return 0

    options = allocations.provider_options(SimpleNamespace(cudaMalloc=allocate, cudaFree=libc.free))
    made = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)(int(options["gpu_external_alloc"]))
    freed = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(int(options["gpu_external_free"]))
    first, second = made(3), made(700)
    assert first
    assert second
    assert first != second
    assert made(1 << 50) is None
    assert sizes == [3, 700, 1 << 50]
    freed(first)
    freed(second)


# The option


def test_what_is_known_under_the_tool_and_what_is_known_of_cuda_hold() -> None:
    files = target_for("cuda", Programs(compute_sanitizer=str(FAKE))).expectations
    assert [file.name for file in files] == ["cuda-sanitized.yaml", "cuda.yaml"]


@pytest.mark.parametrize("tool", ["memcheck", pytest.param("initcheck", marks=pytest.mark.slow)])
def test_a_run_tells_what_was_found_and_of_which_case(
    gqa: Gqa, tmp_path: Path, shared_cache: Path, monkeypatch: pytest.MonkeyPatch, tool: str
) -> None:
    monkeypatch.setenv("FAKE_FINDS", tool)
    desk = Desk(tmp_path, shared_cache)
    cuda = catalogue.entry_of("cuda")
    assert cuda is not None
    here = replace(cuda, arguments=("--ep", "cpu"), execution_provider="CPUExecutionProvider")
    entries = (here if entry is cuda else entry for entry in catalogue.TARGETS)
    monkeypatch.setattr(catalogue, "TARGETS", tuple(entries))
    for name, value in desk.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(desk.folder)
    command = ("run", "three.yaml", "--ep", "cuda", "--compute-sanitizer", os.fspath(FAKE))
    done = gqa(*command, "--results", "sanitized.jsonl", "-j", "1")
    run = read(desk.folder / "sanitized.jsonl")
    assert (done.status, "Traceback" in done.both) == (1, False)
    assert {run.cases[r.case].name: r.verdict for r in run.results} == {
        **{"one": "pass", "faulty": "crash", "fine": "pass"}
    }
    found = next(result for result in run.results if result.verdict == "crash")
    assert found.message == f"The runtime's process ended in a {tool} error: {FOUND[tool]}"
    assert "========= ERROR SUMMARY: 3 errors" in found.stderr
    (target,) = run.header.targets
    assert target.name.startswith("cuda-sanitized@")
    assert target.ep == "cuda"
    assert target.describe is not None
    assert target.describe.versions["compute-sanitizer"] == "2026.4.0.0"
    assert "--compute-sanitizer" in found.reproduce
    assert not run.instability
