"""The runner for onnxruntime-web in a browser: a real Chromium, with its SwiftShader."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from spoken_runner import (
    RUNNERS,
    Runner,
    Start,
    assert_same,
    bundle,
    gqa_inputs,
    gqa_model,
    packages_in_node,
    runners,
    starting,
    step,
)

from conformance.targets.tools import find_onnxruntime_web

LAUNCH = RUNNERS / "onnxruntime_web" / "launch.py"
start = starting(LAUNCH)
pytestmark = pytest.mark.push


@pytest.fixture(scope="module")
def arguments() -> tuple[str, ...]:
    """Those of ``webgpu`` in Node, on SwiftShader."""
    packages = packages_in_node(find_onnxruntime_web, "webgpu")
    return ("--ep", "webgpu", "--modules", str(packages), "--adapter", "swiftshader")


@pytest.fixture(scope="module")
def chromium(
    arguments: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Runner]:
    """The runner in Chromium, one for all tests."""
    with runners(LAUNCH, lambda: tmp_path_factory.mktemp("runner")) as started:
        yield described(started(*arguments, "--browser", "chromium"))


def described(runner: Runner) -> Runner:
    answer = runner.ask(cmd="describe")
    if answer["outcome"] == "unavailable":
        pytest.skip(f"needs Chromium and SwiftShader: {answer['reason']}")
    return runner


def test_it_describes_the_browser_and_its_adapter(chromium: Runner) -> None:
    answer = chromium.ask(cmd="describe")
    assert (answer["adapter"], answer["lacks"]) == ("swiftshader", {"float16": None})
    assert answer["device"] == f"{answer['versions']['browser']}, google, swiftshader"
    assert answer["versions"]["browser"].startswith("Chromium ")
    assert "float16" not in answer["dtypes"]


@pytest.mark.parametrize("shared", [False, True])
def test_its_results_are_those_of_node(
    start: Start, chromium: Runner, arguments: tuple[str, ...], tmp_path: Path, shared: bool
) -> None:
    """Also where past and present share a buffer on the device."""
    node = described(start(*arguments))
    [files] = bundle(tmp_path, gqa_model(), gqa_inputs(past=8, total=4))
    share = {"present_key": "past_key", "present_value": "past_value"} if shared else {}
    results = [runner.run(tmp_path, step(files, share=share)) for runner in (chromium, node)]
    for [got], [want] in zip(*(each["arrays"] for each in results), strict=True):
        assert_same(got, want)
    assert [each["placement"] for each in results] == ["WebGpuExecutionProvider"] * 2


def test_it_takes_no_driver(start: Start, arguments: tuple[str, ...], chromium: Runner) -> None:
    runner = start(*arguments[:-1], "lavapipe", "--browser", "chromium")
    reason, fix = "A browser takes no Vulkan driver.", "use --adapter swiftshader"
    assert runner.ask(cmd="describe") == {"outcome": "unavailable", "reason": reason, "fix": fix}
    assert runner.end() == 0


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("echo It lacks a library. >&2\nexit 1", "It lacks a library."),
        ("exit 0", "it ended with status 0 and said nothing."),
        ("kill -9 $$", "it ended with SIGKILL and said nothing."),
    ],
)
def test_a_browser_that_does_not_start(
    start: Start, arguments: tuple[str, ...], tmp_path: Path, program: str, why: str
) -> None:
    broken = tmp_path / "chrome"
    broken.write_text(f"#!/bin/sh\n{program}\n")
    broken.chmod(0o755)
    reason = start(*arguments, "--browser", broken).ask(cmd="describe")["reason"]
    assert reason == f"{broken} does not start: {why}"


def test_a_browser_that_never_opens_the_page(arguments: tuple[str, ...], tmp_path: Path) -> None:
    lazy = tmp_path / "chrome"
    lazy.write_text("#!/bin/sh\nexec sleep 600\n")
    lazy.chmod(0o755)
    program = RUNNERS / "onnxruntime_web" / "browser_runner.mjs"
    command = ["node", program, *arguments, "--browser", lazy, "--opening", "1"]
    asked = '{"id": 1, "cmd": "describe"}\n'
    done = subprocess.run(command, input=asked, capture_output=True, text=True, timeout=60)
    reason = f"{lazy} does not start: it did not open the page within 1 s."
    assert json.loads(done.stdout)["reason"] == reason


def test_a_long_path_of_temporary_files_does_not_stop_it(
    start: Start, arguments: tuple[str, ...], chromium: Runner, tmp_path: Path
) -> None:
    """The path of a socket has at most 107 bytes."""
    deep = tmp_path / ("x" * 80)
    deep.mkdir()
    runner = start(*arguments, "--browser", "chromium", TMPDIR=str(deep))
    assert runner.ask(cmd="describe")["outcome"] == "described"
    assert runner.end() == 0


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder with a short path, as a browser's sockets need."""
    with tempfile.TemporaryDirectory(prefix="gqa-", dir="/tmp") as folder:
        yield Path(folder)


def browsers(folder: Path) -> list[int]:
    """The browsers, without their own processes, whose profile is in the folder."""
    done = subprocess.run(["ps", "-ewwo", "pid,args"], capture_output=True, text=True, check=True)
    found = [line for line in done.stdout.splitlines() if f"--user-data-dir={folder}" in line]
    return [int(line.split()[0]) for line in found if " --type=" not in line]


@pytest.mark.parametrize("killed", ["runner", "browser"])
def test_nothing_is_left_if_one_is_killed(
    start: Start, arguments: tuple[str, ...], short: Path, chromium: Runner, killed: str
) -> None:
    own = {"TMPDIR": str(short), "XDG_RUNTIME_DIR": str(short.parent)}
    runner = described(start(*arguments, "--browser", "chromium", **own))
    if killed == "runner":
        runner.process.kill()
    else:
        [browser] = browsers(short)
        os.kill(browser, signal.SIGKILL)
    ended = -signal.SIGKILL if killed == "runner" else -signal.SIGABRT
    assert runner.process.wait(60) == ended
    deadline = time.monotonic() + 60
    while (browsers(short) or [*short.iterdir()]) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert (browsers(short), [*short.iterdir()]) == ([], [])
