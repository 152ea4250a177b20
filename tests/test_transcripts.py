"""Transcripts of command lines: each file in ``transcripts`` has commands and all that they said.

``$`` begins a command, ``>`` a line of its standard input, ``!`` a line of its standard error, and
``[1]`` is an exit status other than 0. ``gqa`` runs in this process, everything else in a shell.
``exec:programs/NAME`` is a miniature of tests/faulty or tests/runners_for_cli, which fails on
``three.yaml::faulty``; ``cases FILE`` writes a case file of the entries that it is given. What is
exported holds for the commands of gqa below.

``WRITE_TRANSCRIPTS=1 pytest tests/test_transcripts.py`` writes what the commands say now, and
``git diff`` shows what has changed.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from as_user import Desk, Done, Gqa
from case_files import HEAD

from conformance import __version__
from conformance.base.paths import ROOT

FILES = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))

#: The comment on a command, the command, and its input.
COMMAND = re.compile(r"((?:^# .*\n)*)^\$ (.*)\n((?:^> .*\n)*)", re.MULTILINE)


@pytest.fixture
def desk(tmp_path: Path, shared_cache: Path) -> Desk:
    made = Desk(tmp_path / "desk", shared_cache)
    writes = f'{{ printf %s {shlex.quote(HEAD)}; sed "s/^/  /"; }} > "$1"'
    made.program("cases", "sh", "-c", writes, "cases")
    made.program("python", sys.executable)
    return made


@pytest.fixture
def replaced(desk: Desk) -> dict[str, str]:
    """What differs from machine to machine, as expressions, and what stands for it."""
    return {
        rf"{Path(sys.executable).parent}/python[\d.]*": "python",
        rf"{desk.folder}\b": "/desk",
        rf"{ROOT}\b": "/suite",
        rf"\b{re.escape(__version__)}\b": "VERSION",
        r"\b[0-9a-f]{16}\b": "DIGEST",
        r"(?m)^\d+/\d+  .*\n": "",  # how far the run is
        r" +(?m:$)": "",
    }


def done(desk: Desk, gqa: Gqa, monkeypatch: pytest.MonkeyPatch, line: str, given: str) -> Done:
    """A command, with the assignments before it and what its output is piped into."""
    if line.startswith("export "):
        monkeypatch.setenv(*line.removeprefix("export ").split("=", 1))
        return Done(0, "", "")
    for name in re.findall(r"exec:programs/(\w+)", line):
        desk.runner(name)
    command, _, filtered = line.partition(" | ")
    words = shlex.split(command)
    with pytest.MonkeyPatch.context() as patch:
        while "=" in words[0]:
            patch.setenv(*words.pop(0).split("=", 1))
        if words[0] == "gqa":
            said = gqa(*words[1:])
            if not filtered:
                return said
            return Done(said.status, in_shell(desk, filtered, said.out).out, said.err)
    return in_shell(desk, line, given)


def in_shell(desk: Desk, line: str, given: str) -> Done:
    process = desk.start("sh", "-c", line, stdin=subprocess.PIPE)
    out, err = process.communicate(given, timeout=60)
    return Done(process.returncode, out, err)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_commands_say_what_the_transcript_says(
    file: Path, desk: Desk, gqa: Gqa, replaced: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = file.read_text(encoding="utf-8")
    written = [wanted[: wanted.index("\n\n") + 1]]
    for comment, line, given in COMMAND.findall(wanted):
        said = done(desk, gqa, monkeypatch, line, re.sub("(?m)^> ", "", given))
        status = f"[{said.status}]\n" if said.status else ""
        both = said.out, said.err
        for what, stand_in in replaced.items():
            both = tuple(re.sub(what, stand_in, text) for text in both)
        complaint = "".join(f"! {line}".rstrip() + "\n" for line in both[1].splitlines())
        written.append(f"{comment}$ {line}\n{given}{both[0]}{complaint}{status}")
    if os.environ.get("WRITE_TRANSCRIPTS"):
        file.write_text("\n".join(written), encoding="utf-8")
    assert "\n".join(written) == wanted
