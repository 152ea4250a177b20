"""``gqa setup cuda``, and interruptions; a transcript has the others (setups.txt)."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from as_user import Desk, Gqa, in_this_process, wait_for
from spoken_runner import fake_program

from conformance.base.paths import data_path
from conformance.targets.tools import (
    ONNXRUNTIME_GPU_VERSION,
    ONNXRUNTIME_WEB_VERSION,
    TRACT_VERSION,
)

REAL = sys.executable

#: What a runner finds as onnxruntime.
WHEEL = """
__version__ = "1.31.1"
def get_available_providers(): return ["CPUExecutionProvider"]
def get_build_info(): return ""
"""

FOLDERS = {
    "tract": f"tract-{TRACT_VERSION}",
    "webgpu": f"onnxruntime-web-{ONNXRUNTIME_WEB_VERSION}",
    "cuda": f"onnxruntime-gpu-{ONNXRUNTIME_GPU_VERSION}",
}
if sys.platform == "darwin":
    del FOLDERS["cuda"]


class Place:
    """A folder of tools, only the fakes on PATH, and the environment to use them."""

    def __init__(self, folder: Path) -> None:
        self.tools = folder / "tools"
        self.calls = folder / "calls"
        self.programs = folder / "programs"
        self.programs.mkdir()
        # Nothing else is on PATH, so no mistake can start a real installer.
        for name in ("cat", "chmod", "cp", "mkdir", "sed", "sh", "sleep"):
            found = shutil.which(name)
            (self.programs / name).symlink_to(found)
        for program in (Path(__file__).parents[1] / "support" / "installers").iterdir():
            shutil.copy(program, self.programs)
        fake_program(self.programs, "node")
        package = folder / "packages" / "onnxruntime"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(WHEEL)
        self.environment = {
            "GQA_TOOLS": str(self.tools),
            "CALLS": str(self.calls),
            "BEFORE": "",
            "REAL": REAL,
            "PACKAGES": str(package.parent),
            "CARGO_HOME": str(folder / "no_cargo_home"),
            "PATH": str(self.programs),
        }

    def called(self) -> list[str]:
        """The calls of the fakes."""
        return self.calls.read_text().splitlines() if self.calls.exists() else []

    def there(self) -> list[str]:
        """What is in the folder of the tools, but for what cargo keeps to go on with."""
        made = os.listdir(self.tools) if self.tools.is_dir() else []
        return sorted(name for name in made if not name.startswith(".compiled"))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    made = Place(tmp_path)
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "executable", str(made.programs / "python"))
    return made


@pytest.fixture
def gqa(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Gqa]:
    """``gqa`` in this process, which behaves the same and starts faster."""
    with in_this_process(monkeypatch, capsys) as call:
        yield call


@pytest.mark.parametrize(
    "name",
    [name if name == "webgpu" else pytest.param(name, marks=pytest.mark.night) for name in FOLDERS],
)
def test_interruption_ends_what_was_started(desk: Desk, place: Place, gqa: Gqa, name: str) -> None:
    environment = {
        **place.environment,
        "BEFORE": f"sleep 61.5 & echo $! > {place.tools.parent}/child; sleep 61.5",
        "PYTHONPATH": desk.environment["PYTHONPATH"],
    }
    script = (
        f"import sys; sys.executable = '{place.programs}/python'; "
        f"sys.argv = ['gqa', 'setup', '{name}']\n"
        "from conformance.cli.main import main; main()"
    )
    process = desk.start(REAL, "-c", script, environment=environment)
    child = place.tools.parent / "child"
    wait_for(lambda: child.exists() and child.read_text())
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert err.endswith("Interrupted.\n")
    assert place.there() == []

    def is_gone() -> bool:
        try:
            os.kill(int(child.read_text()), 0)
        except ProcessLookupError:
            return True
        return False

    wait_for(is_gone)
    assert gqa("setup", name).status == 0
    assert [*place.tools.iterdir()] == [place.tools / FOLDERS[name]]


# onnxruntime-gpu


@pytest.mark.skipif("cuda" not in FOLDERS, reason="there is no CUDA for macOS")
def test_cuda_is_installed_once(gqa: Gqa, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/of/the/user")
    monkeypatch.setenv("PIP_USER", "1")
    (place.tools / FOLDERS["cuda"]).mkdir(parents=True)
    first, again = gqa("setup", "cuda"), gqa("setup", "cuda")
    assert f"{FOLDERS['cuda']} has no Python" in first.err
    assert (again.status, again.err) == (0, "")
    assert " is already installed: " in again.out.splitlines()[0]
    assert first.out.splitlines()[1:] == again.out.splitlines()[1:]
    assert place.there() == [FOLDERS["cuda"]]
    venv, pip = place.called()
    assert "-m venv --clear --without-pip " in venv
    requirement = f"onnxruntime-gpu[cuda,cudnn]=={ONNXRUNTIME_GPU_VERSION}"
    assert f" install {requirement} numpy in / PYTHONPATH= PIP_USER=0" in pip
    assert gqa("setup", "cuda@1.22.3").out == "cuda@1.22.3: installed\n"
    assert len(place.there()) == 2
    monkeypatch.setenv("BEFORE", "exit 7")
    failed = gqa("setup", "cuda@1.22.4")
    assert (failed.status, failed.out, len(place.there())) == (3, "", 2)
    assert "failed with status 7; what it printed says why." in failed.err


# lavapipe

#: Stand-ins for the system's package manager: Mesa 25 can be installed.
SYSTEM = {
    "id": 'echo "$FAKE_UID"',
    "apt-get": 'echo "apt-get $*" >>"$CALLS"; [ "$1" = update ] || : >"$LAVAPIPE"',
    "apt-cache": 'echo "  Candidate: 25.0.7-2"',
    "sudo": "exit 1",
}


@pytest.mark.parametrize("root", [True, False])
def test_gets_lavapipe(gqa: Gqa, place: Place, monkeypatch: pytest.MonkeyPatch, root: bool) -> None:
    """Lavapipe is installed by root and else its command is printed."""
    for name, script in SYSTEM.items():
        program = place.programs / name
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    lavapipe = place.tools.parent / "lavapipe"
    for name, value in {
        "FAKE_UID": "0" if root else "1000",
        "LAVAPIPE": str(lavapipe),
        "FAKE_NODE": "no_float16",
        "FAKE_NODE_FIX": "gqa setup lavapipe",
    }.items():
        monkeypatch.setenv(name, value)
    first = gqa("setup", "webgpu")
    assert first.status == 0
    assert first.out.splitlines()[1:] == [
        "device: fake adapter, without float16",
        "  fix: gqa setup lavapipe",
        "use it with: gqa run --ep webgpu",
    ]
    done = gqa("setup", "lavapipe")
    if root:
        assert (done.status, lavapipe.exists()) == (0, True)
        assert place.called()[-1].startswith("apt-get install --no-install-recommends -y mesa-")
    else:
        script = data_path("runners") / "onnxruntime_web" / "lavapipe.sh"
        assert (done.status, done.err.splitlines()[-1]) == (3, f"  fix: sudo sh {script}")
        monkeypatch.setenv("FAKE_UID", "0")
        subprocess.run(["sh", script], check=True, capture_output=True)
        assert lavapipe.exists()
    assert ", without" not in gqa("setup", "webgpu").out
