"""Transcripts of command lines: each file in ``transcripts`` has commands and all that they said.

``$`` begins a command, ``>`` a line of its standard input, ``!`` a line of its standard error, and
``[1]`` is an exit status other than 0. ``gqa`` and ``pytest`` run in this process, everything else
in a shell.
``exec:programs/NAME`` is a miniature of tests/support/faulty or runners_for_cli, which fails on
``three.yaml::faulty``; ``cases FILE`` writes a case file of the entries that it is given. What is
exported holds for the commands of gqa below; in them, ``$PWD`` is the folder.

``pytest --rewrite-transcripts`` writes what the commands say now, and ``git diff`` shows what has
changed.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from as_user import Desk, Done, Gqa
from case_files import HEAD
from goldens import check_text
from shipped import shipped_cases

from conformance import __version__
from conformance.base.paths import ROOT

TESTS = ROOT / "tests"
FILES = sorted((TESTS / "transcripts").glob("*.txt"))

#: The comment on a command, the command, and its input.
COMMAND = re.compile(r"((?:^# .*\n)*)^\$ (.*)\n((?:^> .*\n)*)", re.MULTILINE)


@pytest.fixture
def desk(tmp_path: Path, shared_cache: Path) -> Desk:
    made = Desk(tmp_path / "desk", shared_cache)
    writes = f'{{ printf %s {shlex.quote(HEAD)}; sed "s/^/  /"; }} > "$1"'
    made.program("cases", "sh", "-c", writes, "cases")
    made.program("python", sys.executable)
    path = f"{ROOT}{os.pathsep}{TESTS / 'support'}"
    made.environment |= {"SUITE": str(ROOT), "LC_ALL": "C", "PYTHONPATH": path}
    return made


@pytest.fixture
def replaced(desk: Desk, shared_cache: Path) -> dict[str, str]:
    """What differs from machine to machine, as expressions, and what stands for it."""
    return {
        rf"{Path(sys.executable).parent}/python[\d.]*": "python",
        rf"{desk.folder}\b": "/desk",
        rf"{shared_cache}\b": "/cache",
        rf"{ROOT}\b": "/suite",
        rf"\b{re.escape(__version__)}\b": "VERSION",
        r"\b[0-9a-f]{16}\b": "DIGEST",
        rf"\b{len(shipped_cases())} cases\b": "ALL cases",
        r"(?m)^\d+/\d+  .*\n": "",  # how far the run is
        # Without pip the command is that of uv, where the machine has uv.
        r"(\S+) -m ensurepip && \1 -m pip (install \S+)": r"uv pip \2 --python \1",
        r" in \d+\.\d+s\b": "",
        r"(?m)^(FAILED \S+) - .*": r"\1",  # not in each pytest
        r"(?m)^([=_!])\1+ (.*?) \1+$": r"= \2 =",
        r" +(?m:$)": "",
    }


Call = Callable[..., Done]


@pytest.fixture
def py_test(
    request: pytest.FixtureRequest, desk: Desk, capsys: pytest.CaptureFixture[str], oldest: bool
) -> Call:
    """``pytest`` with the plugin, as if it ran in a process of its own; the oldest does."""
    # Without the plugin that searches all of this process's memory for garbage when a session ends.
    left_out = ("-p", "no:faulthandler", "-p", "no:unraisableexception")
    plugins = ("-p", "conformance.pytest_plugin", *left_out)

    def call(*arguments: str) -> Done:
        with pytest.MonkeyPatch.context() as patch:
            for name in [name for name in os.environ if name.startswith(("PYTEST_", "CI"))]:
                patch.delenv(name)
            patch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
            patch.setenv("COLUMNS", "80")
            if not oldest:
                return Done(int(pytest.main([*plugins, *arguments])), *capsys.readouterr())
            folder = request.getfixturevalue("oldest_pytest")
            patch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{ROOT}")
            command = (sys.executable, "-m", "pytest", *plugins, *arguments)
            return desk.run(*command, environment=os.environ)

    return call


@pytest.fixture
def done(desk: Desk, gqa: Gqa, py_test: Call, monkeypatch: pytest.MonkeyPatch) -> Call:
    """A command, with the assignments before it and what its output is piped into."""

    def call(line: str, given: str) -> Done:
        for name in re.findall(r"exec:programs/(\w+)", line):
            desk.runner(name)
        command, _, filtered = line.partition(" | ")
        here = command.removesuffix(" 2>&1").replace("$PWD", str(desk.folder))
        words = shlex.split(here)
        if words[0] == "export":
            monkeypatch.setenv(*words[1].split("=", 1))
            return Done(0, "", "")
        with pytest.MonkeyPatch.context() as patch:
            while "=" in words[0]:
                patch.setenv(*words.pop(0).split("=", 1))
            if run := {"gqa": gqa, "pytest": py_test}.get(words[0]):
                said = run(*words[1:])
                if command.endswith(" 2>&1"):
                    said = Done(said.status, said.both, "")
                out = in_shell(desk, filtered, said.out).out if filtered else said.out
                return Done(said.status, out, said.err)
        return in_shell(desk, line, given)

    return call


def in_shell(desk: Desk, line: str, given: str) -> Done:
    process = desk.start("sh", "-c", line, stdin=subprocess.PIPE)
    out, err = process.communicate(given, timeout=60)
    return Done(process.returncode, out, err)


@pytest.mark.parametrize(
    ("file", "oldest"),
    [
        # README's command runs a third of them, of every subject.
        *(
            pytest.param(file, False, id=file.stem, marks=[pytest.mark.push] * (place % 3 < 2))
            for place, file in enumerate(FILES)
        ),
        *(
            pytest.param(file, True, id=f"{file.stem}-oldest", marks=pytest.mark.night)
            for file in FILES
            if "pytest" in file.stem
        ),
    ],
)
def test_commands_print_transcripts(file: Path, done: Call, replaced: dict[str, str]) -> None:
    wanted = file.read_text(encoding="utf-8")
    written = [wanted[: wanted.index("\n\n") + 1]]
    for comment, line, given in COMMAND.findall(wanted):
        said = done(line, re.sub("(?m)^> ", "", given))
        status = f"[{said.status}]\n" if said.status else ""
        both = said.out, said.err
        for what, stand_in in replaced.items():
            both = tuple(re.sub(what, stand_in, text) for text in both)
        complaint = "".join(f"! {line}".rstrip() + "\n" for line in both[1].splitlines())
        written.append(f"{comment}$ {line}\n{given}{both[0]}{complaint}{status}")
    check_text(file, "\n".join(written))
