"""Runs cargo to install a program of a published crate: progress, interruption, errors."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from conformance.base.processes import start
from conformance.targets.setup.build_process import end, shortened, without_words

#: Time between two looks at cargo's output, in seconds.
_LOOK: Final = 0.5

#: A status line of cargo: a verb, right-aligned in 12 columns, and its object.
_STATUS: Final = re.compile(r"(?= *[A-Z][a-z]+ )(.{12}) (\S.*)")
_ERROR: Final = re.compile(r"error(?:\[E\d+\])?: (.*)")

#: Settings that give one plain line per step, whatever the user has configured.
_PLAIN: Final = {
    "CARGO_TERM_COLOR": "never",
    "CARGO_TERM_PROGRESS_WHEN": "never",
    "CARGO_TERM_QUIET": "false",
    "CARGO_TERM_VERBOSE": "false",
}


#: What cargo says where a dependency needs a newer Rust than this one.
_NEEDS_NEWER_RUST: Final = "is not supported by the following package"


class CargoFailed(Exception):
    """Cargo did not start or failed; the message says why, mostly in cargo's words."""


class RustTooOld(CargoFailed):
    """A dependency needs a newer Rust."""


@dataclass(frozen=True)
class Progress:
    """The progress of cargo.

    ``crates`` is the number of crates that it has started to compile, ``doing`` its last status
    line, such as ``Compiling libc v0.2.1``, and ``seconds`` the time since its start.
    """

    crates: int
    doing: str
    seconds: float


Watch = Callable[[Progress], None]


def find_cargo() -> str | None:
    """The path of cargo, from PATH or else from rustup's folder; None if there is none."""
    if cargo := shutil.which("cargo"):
        return os.path.abspath(cargo)
    home = os.environ.get("CARGO_HOME") or os.path.expanduser("~/.cargo")
    return shutil.which(os.path.abspath(os.path.join(home, "bin", "cargo")))


def fetched_source(crate: str, version: str) -> Path | None:
    """Where cargo keeps the source of a release that it has downloaded; None if it has not."""
    home = Path(os.environ.get("CARGO_HOME") or os.path.expanduser("~/.cargo"))
    return next(home.glob(f"registry/src/*/{crate}-{version}"), None)


def install_command(cargo: str, crate: str, version: str, root: Path) -> tuple[str, ...]:
    """The command that builds this release, with its locked dependencies, into ``root/bin``.

    It needs ``--force``, since cargo does not replace a binary that it did not install. ``cargo``
    must be a path: of a name that does not start, the next one in PATH would be run.
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


def lock_for_this_rust(cargo: str, source: Path, log: Path, watch: Watch) -> None:
    """Lock the newest dependencies of the package in ``source`` that this Rust compiles.

    ``cargo install`` does not do so by itself. Raises :class:`CargoFailed`.
    """
    (source / "Cargo.lock").unlink(missing_ok=True)
    fallback = {"CARGO_RESOLVER_INCOMPATIBLE_RUST_VERSIONS": "fallback"}
    run_cargo((cargo, "generate-lockfile"), source, log, watch, fallback)


def run_cargo(
    command: tuple[str, ...],
    folder: Path,
    log: Path,
    watch: Watch,
    settings: Mapping[str, str] | None = None,
) -> None:
    """Run ``command`` in ``folder`` to its end and write all its output to ``log``.

    ``settings`` are further environment variables. ``watch`` is called about twice a second. Raises
    :class:`CargoFailed`. An exception, such as an interrupt, also ends cargo and the compilers that
    it started.
    """
    # Output goes to a file, not a pipe: cargo cannot block, and the log is always complete.
    with log.open("wb") as file:
        try:
            process = start(
                command,
                {**_PLAIN, **(settings or {})},
                folder,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
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
        text = log.read_text(encoding="utf-8", errors="replace")
        kind = RustTooOld if _NEEDS_NEWER_RUST in text else CargoFailed
        raise kind(why_it_failed(text, status))


def _follow(process: subprocess.Popen[bytes], log: Path, watch: Watch) -> int:
    """Call ``watch`` with what appears in ``log`` until the process ends; its exit status."""
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
    """The most informative error in cargo's output, with its last cause.

    That is the first error, since later ones follow from it; but not the sentence that the whole
    installation failed, unless there is no other.
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
    # "failed to compile tract" adds nothing to its cause.
    numbers = ([0] if own or not causes else []) + causes[-1:]
    return ": ".join(shortened(_sentence(block, number)) for number in numbers)


def _sentence(lines: list[str], number: int) -> str:
    """The line, with the next one if it ends with a colon."""
    said = _ERROR.sub(r"\1", lines[number]).strip()
    if said.endswith(":") and number + 1 < len(lines):
        said = f"{said} {lines[number + 1].strip()}"
    return said
