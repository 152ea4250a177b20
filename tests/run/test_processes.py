"""Nothing that lies in the user's current folder is run or read by a program that is started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from attention_models import Layer, decoder, saved
from tables import tables

from conformance.base.paths import ROOT
from conformance.base.processes import START, ask
from conformance.targets.tools import TOOLS_VARIABLE

TABLES = tables(__file__)

#: Of each test README's command runs one example, see support/tiers.py.
ONE_EXAMPLE = True

#: Modules that Python, pip, venv and the runners import.
MODULES = ("re", "json", "numpy", "onnx", "onnxruntime", "pip", "venv", "sitecustomize", "conftest")
#: Files that configure npm, Node, pip, uv, cargo and rustup for the folder that they are in.
FILES = TABLES["files"]
GQA = (sys.executable, "-P", "-c", "from conformance.cli.main import main; main()")


@pytest.fixture
def traps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a download; whichever of its modules is run leaves a file beside the folder.

    npm, cargo, uv and node write down in which folder they start.
    """
    folder = tmp_path / "download"
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    for name in MODULES:
        text = f"open({str(tmp_path / 'ran')!r}, 'a').write({name!r})\nraise SystemExit(9)\n"
        (folder / f"{name}.py").write_text(text)
    saved(decoder(Layer()), folder, "model.onnx")
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("npm", "cargo", "uv", "node", "runner"):
        (programs / name).write_text(f"#!/bin/sh\npwd >> '{tmp_path}/started'\nexit 1\n")
        (programs / name).chmod(0o755)
    for name in list(os.environ):
        if name.startswith(("PYTEST_", "PYTHON", "COVERAGE", "COV_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv(TOOLS_VARIABLE, str(tmp_path / "tools"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("TMPDIR", ".")
    return folder


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "model.onnx", "--ep", "cpu", "--ep", "exec:../programs/runner"),
        pytest.param(("check", "model.onnx", "--ep", "cpu@latest"), marks=pytest.mark.night),
        ("check", "model.onnx", "--ep", "wasm@latest"),
        ("check", "model.onnx", "--ep", "tract@latest", "--ep", "webgpu"),
        ("setup", "cpu@1.25.1", "wasm@1.27.0", "tract@0.22.0"),
        ("run", "smoke", "-k", "packed and float32", "--ep", "cpu", "--ep", "cuda"),
    ],
    ids=" ".join,
)
def test_a_download_runs_nothing(traps: Path, arguments: tuple[str, ...]) -> None:
    done = subprocess.run((*GQA, *arguments), cwd=traps, capture_output=True, text=True, timeout=90)
    assert "Traceback" not in done.stderr
    assert not (traps.parent / "ran").exists(), (traps.parent / "ran").read_text()
    started = traps.parent / "started"
    for folder in started.read_text().split() if started.exists() else []:
        assert not Path(folder).is_relative_to(traps)
    if "cpu" in arguments:
        assert done.returncode in (0, 1, 3), done.stderr
        assert "cpu" in done.stdout


def test_a_path_means_what_it_means_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty entry is the current folder, too, and nobody wants that."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"lib{os.pathsep}{os.pathsep}/usr/lib{os.pathsep}")
    monkeypatch.setenv("TMPDIR", ".")
    shows = "import os; print(os.getcwd(), os.environ['PYTHONPATH'], os.environ['TMPDIR'])"
    said = ask((sys.executable, "-c", shows)).stdout.decode().split()
    assert said == [START, f"{tmp_path}/lib{os.pathsep}/usr/lib", str(tmp_path)]


def test_a_program_gets_its_time() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        ask(("sleep", "9"), 0.1)
