"""A program of a published crate, compiled by cargo: how cargo is started, watched and ended."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from conformance.targets.setup.build_process import end, shortened, without_words

#: How often cargo is looked at, in seconds.
_LOOK: Final = 0.5

#: What cargo is about to do: a word set to the right in 12 columns, and what it does it to.
_STATUS: Final = re.compile(r"(?= *[A-Z][a-z]+ )(.{12}) (\S.*)")
_ERROR: Final = re.compile(r"error(?:\[E\d+\])?: (.*)")

#: One plain line for each thing that cargo does, whatever the user's configuration says.
_PLAIN: Final = {
    "CARGO_TERM_COLOR": "never",
    "CARGO_TERM_PROGRESS_WHEN": "never",
    "CARGO_TERM_QUIET": "false",
    "CARGO_TERM_VERBOSE": "false",
}


class CargoFailed(Exception):
    """Cargo did not start or did not succeed; the message is why, mostly in its own words."""


@dataclass(frozen=True)
class Progress:
    """How far cargo is.

    ``crates`` is how many it has begun to compile, ``doing`` the last that it said of itself,
    such as ``Compiling libc v0.2.1``, ``seconds`` the time since its start.
    """

    crates: int
    doing: str
    seconds: float


Watch = Callable[[Progress], None]


def find_cargo() -> str | None:
    """The path of cargo: from PATH, else from where rustup puts it; None without one."""
    if cargo := shutil.which("cargo"):
        return os.path.abspath(cargo)
    home = os.environ.get("CARGO_HOME") or os.path.expanduser("~/.cargo")
    return shutil.which(os.path.abspath(os.path.join(home, "bin", "cargo")))


def install_command(cargo: str, crate: str, version: str, root: Path) -> tuple[str, ...]:
    """What builds exactly this release, as its authors locked it, into ``root/bin``.

    Forced, since cargo does not replace a binary that it has not put there itself. ``cargo`` is
    a path where it is run: for a name that does not start, the next in PATH would be taken.
    """
    return (
        cargo,
        "install",
        crate,
        "--version",
        version,
        "--locked",
        "--force",
        "--root",
        f"{root}",
    )


def run_cargo(command: tuple[str, ...], folder: Path, log: Path, watch: Watch) -> None:
    """Run ``command`` in ``folder`` to its end; ``log`` gets all of what it writes.

    ``watch`` hears of its progress about twice a second. Raises :class:`CargoFailed`. Whatever
    ends this early, an interrupt too, ends cargo and the compilers that it has started.
    """
    # Through the file, not a pipe: nothing can block, and the log is whole whatever happens here.
    with log.open("wb") as file:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env={**os.environ, **_PLAIN},
                start_new_session=True,
            )
        except OSError as error:
            raise CargoFailed(f"{command[0]} does not start: {error.strerror}") from None
    try:
        status = _follow(process, log, watch)
    except BaseException:
        end(process)
        raise
    if status:
        raise CargoFailed(why_it_failed(log.read_text(encoding="utf-8", errors="replace"), status))


def _follow(process: subprocess.Popen[bytes], log: Path, watch: Watch) -> int:
    """Tell ``watch`` of what is written to ``log`` until the process ends; its exit status."""
    started = time.monotonic()
    crates, doing, rest = 0, "", ""
    with log.open(encoding="utf-8", errors="replace") as written:
        status = None
        while status is None:
            with suppress(subprocess.TimeoutExpired):
                status = process.wait(_LOOK)
            *lines, rest = (rest + written.read()).split("\n")
            for line in lines:
                if said := _STATUS.match(line):
                    doing = f"{said[1].strip()} {said[2]}"
                    crates += doing.startswith("Compiling ")
            watch(Progress(crates, doing, time.monotonic() - started))
    return status


def why_it_failed(text: str, status: int) -> str:
    """Of all that cargo wrote, the one error that tells most, and the last cause of it.

    The first error is meant, since those after it are about what then could not go on; and not the
    sentence that all of it failed, unless there is nothing else.
    """
    lines = text.splitlines()
    errors = [number for number, line in enumerate(lines) if _ERROR.match(line)]
    if not errors:
        return without_words(text, status)
    own = [n for n in errors if not lines[n].startswith("error: failed to compile `")]
    chosen = (own or errors)[0]
    after = [n for n in errors if n > chosen]
    block = lines[chosen : after[0] if after else len(lines)]
    causes = [n + 1 for n, line in enumerate(block[:-1]) if line == "Caused by:"]
    # "failed to compile tract" says nothing that its cause does not.
    numbers = ([0] if own or not causes else []) + causes[-1:]
    return ": ".join(shortened(_sentence(block, number)) for number in numbers)


def _sentence(lines: list[str], number: int) -> str:
    """The line, and the one after it where it ends with a colon."""
    said = _ERROR.sub(r"\1", lines[number]).strip()
    if said.endswith(":") and number + 1 < len(lines):
        said = f"{said} {lines[number + 1].strip()}"
    return said
