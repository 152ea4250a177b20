"""A user's environment: a case file, runners as programs, and a command line in a folder."""

from __future__ import annotations

import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest
from case_files import entries, write
from shipped import load_once

from conformance.base.paths import CACHE_VARIABLE, ROOT
from conformance.bundle.prepare import digest_of
from conformance.case import load
from conformance.cli.commands import COMMANDS, command
from conformance.cli.main import main

has_onnxruntime = pytest.mark.skipif(find_spec("onnxruntime") is None, reason="needs onnxruntime")

LAUNCH = Path(__file__).parent / "runners_for_cli" / "launch.py"

#: In the environment of processes that a test looks for with ``living``.
MARK = "GQA_TEST_MARK"

#: ``three/faulty`` is the case on which the runners of tests/support/faulty fail. Its time limit is
#: about those that hang; all others answer within it on a busy machine, too.
THREE = entries(
    """
    - name: one
    - name: faulty
      seed: 1
      time_limit_seconds: 6.0
    - name: fine
      seed: 2
    """
)

#: Twenty cases; the first ten have one token.
TWENTY = entries(
    """
    - name: many
      matrix:
        sequence_length: [1, 2]
        seed: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    """
)


@dataclass(frozen=True)
class Done:
    """The result of a command."""

    status: int
    out: str
    err: str

    @property
    def both(self) -> str:
        """Its whole output."""
        return self.out + self.err


class Desk:
    """A folder to work in, with ``three.yaml``, and the environment for what is started there."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self.folder = folder
        file = write(folder, THREE, "three.yaml")
        self.faulty = next(digest_of(c.call) for c in load.load_file(file) if c.name == "faulty")
        path = f"{self.program('gqa', sys.executable, '-m', 'conformance').parent}{os.pathsep}"
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
        self.environment = {
            **inherited,
            CACHE_VARIABLE: str(cache),
            "FAULT_ON": self.faulty,
            "PYTHONPATH": str(ROOT),
            "PATH": path + os.environ["PATH"],
            "OMP_NUM_THREADS": "1",
        }
        for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "CARGO_HOME"):
            self.environment.pop(name, None)

    def program(self, name: str, *command: str) -> Path:
        program = self.folder / "programs" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
        program.chmod(0o755)
        return program

    def runner(self, name: str) -> str:
        """The target for a miniature of tests/support/faulty or of tests/support/runners_for_cli.

        In the file ``NAME.mark``, its processes tell one another what they did.
        """
        mark = f"FAULT_MARK={self.folder / name}.mark"
        program = self.program(name, "env", mark, sys.executable, "-S", str(LAUNCH), name)
        return f"exec:{program}"

    def start(
        self, *command: str, environment: Mapping[str, str] | None = None, **rest: object
    ) -> subprocess.Popen[str]:
        """The command, started here."""
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env={**self.environment, **(environment or {})},
            text=True,
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **rest},  # type: ignore[call-overload]
        )

    def run(self, *command: str, environment: Mapping[str, str] | None = None) -> Done:
        """The command, run here to its end."""
        process = self.start(*command, environment=environment)
        out, err = process.communicate(timeout=120)
        return Done(process.returncode, out, err)

    def gqa(self, *arguments: str, environment: Mapping[str, str] | None = None) -> Done:
        """``gqa`` in a process of its own."""
        return self.run(
            sys.executable, "-P", "-m", "conformance", *arguments, environment=environment
        )


Gqa = Callable[..., Done]


@contextmanager
def in_this_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Gqa]:
    """``gqa`` in this process, which behaves the same and starts faster.

    Its commands are imported now, before a test replaces what their options are made from.
    """
    for name in COMMANDS:
        command(name)
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)  # put back afterwards
    monkeypatch.setattr(load, "load_file", load_once)

    def call(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["gqa", *arguments])
        handlers = [signal.getsignal(number) for number in numbers]
        try:
            with pytest.raises(SystemExit) as ended:
                main()
        finally:
            for number, handler in zip(numbers, handlers, strict=True):
                signal.signal(number, handler)
        assert isinstance(ended.value.code, int)
        return Done(ended.value.code, *capsys.readouterr())

    yield call


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory, shared_cache: Path) -> Desk:
    """One for all tests of a file, with ``twenty.yaml`` beside ``three.yaml``."""
    made = Desk(tmp_path_factory.mktemp("desk"), shared_cache)
    write(made.folder, TWENTY, "twenty.yaml")
    return made


@pytest.fixture(scope="session")
def oldest_pytest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the oldest pytest and pytest-xdist that pyproject.toml allows."""
    if not (ROOT / "pyproject.toml").is_file():
        pytest.skip("not a checkout: there is no pyproject.toml")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = project["optional-dependencies"]["test"]
    oldest = [one.replace(">=", "==") for one in wanted if re.match(r"pytest(-xdist)?>=", one)]
    place = tmp_path_factory.mktemp("oldest_pytest")
    install = (sys.executable, "-m", "pip", "install", "--quiet", "--target", str(place), *oldest)
    done = subprocess.run(install, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"pip cannot install {oldest}: {done.stderr.strip()[-300:]}")
    version = oldest[0].partition("==")[2]
    assert list(place.glob(f"pytest-{version}*.dist-info"))
    return place


@pytest.fixture
def gqa(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Gqa]:
    """``gqa`` in this process, in the folder of ``desk``."""
    monkeypatch.chdir(desk.folder)
    monkeypatch.setenv("FAULT_ON", desk.faulty)
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "CARGO_HOME"):
        monkeypatch.delenv(name, raising=False)
    with in_this_process(monkeypatch, capsys) as call:
        yield call


def living(mark: str) -> list[str]:
    """The command lines of all processes but this one with ``mark`` in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get(MARK) == mark:
                found.append(" ".join(process.cmdline()))
        except (psutil.Error, OSError):
            continue  # ended, or another's
    return found


def wait_for(what: Callable[[], object], seconds: float = 30) -> None:
    """Waits until ``what()`` is true; fails if that takes longer."""
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until
        time.sleep(0.02)


def in_terminal(desk: Desk, *arguments: str, **environment: str) -> tuple[int, str]:
    """Exit status of ``gqa`` in a terminal of 100 columns, and its whole output."""
    master, slave = pty.openpty()
    process = desk.start(
        *(sys.executable, "-P", "-m", "conformance", *arguments),
        environment={"TERM": "xterm-256color", "COLUMNS": "100", **environment},
        stdin=slave,
        stdout=slave,
        stderr=slave,
    )
    os.close(slave)
    written = all_of(master)
    return process.wait(timeout=60), written


def all_of(master: int) -> str:
    """What is written to a terminal until its other end is closed."""
    written = bytearray()
    try:
        while piece := os.read(master, 1 << 16):
            written += piece
    except OSError:
        pass  # the other end is closed
    finally:
        os.close(master)
    return written.decode()
