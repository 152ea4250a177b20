"""``gqa setup tract``: builds tract with cargo; and what it shares with ``gqa setup webgpu``.

A program is built in a temporary folder, tried, and then moved to its final path by one rename, so
that the final path never holds an incomplete program. If a build of tract ends early, what cargo
compiled is kept, and the next attempt continues from there.
"""

from __future__ import annotations

import fcntl
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from conformance.base.processes import ask
from conformance.targets.setup.cargo import (
    CargoFailed,
    RustTooOld,
    Watch,
    fetched_source,
    find_cargo,
    install_command,
    lock_for_this_rust,
    run_cargo,
)
from conformance.targets.tools import (
    TOOLS_VARIABLE,
    TRACT_VERSION,
    built_tract,
    find_tract,
    tools_root,
)

#: The oldest Rust that compiles TRACT_VERSION: `rust-version` in its crates' Cargo.toml.
TRACT_NEEDS_RUST: Final = "1.91"

#: Time limit for a program to print its version, in seconds.
_TO_START: Final = 20.0

Tell = Callable[[str], None]


class SetupError(Exception):
    """A program could not be installed; the message says why and how to fix it.

    ``fix`` is the command that helps, where it is another than installing it once more.
    """

    def __init__(self, message: str, fix: str | None = None) -> None:
        super().__init__(message)
        self.fix = fix


class NoRelease(ValueError):
    """The requested version is not a release."""


@dataclass(frozen=True)
class Ready:
    """A working program; ``new`` says that it was installed just now."""

    path: Path
    new: bool


def set_up_tract(version: str, tell: Tell, watch: Watch) -> Ready:
    """Build this release of tract, unless it is installed and works.

    ``tell`` is called with messages, ``watch`` with cargo's progress. Raises :class:`SetupError`,
    and :class:`NoRelease` for a ``version`` that is not like 1.2.3.
    """
    if not re.fullmatch(r"[0-9]+\.[0-9]+\.[0-9]+", version):
        raise NoRelease(
            f"'{version}' is not a release of tract; expected three numbers, such as "
            f"{TRACT_VERSION}."
        )
    binary = built_tract(version)
    working = working_folder(f"tract-{version}")
    return put_in_place(
        binary,
        working,
        wrong=lambda: why_it_does_not_work(binary, version),
        without=lambda: "" if find_cargo() else _without_cargo(version),
        make=lambda: _build(version, working, tell, watch),
        made="built",
        tell=tell,
    )


def how_to_use_tract(binary: Path) -> str:
    """The command that runs cases on ``binary``; with ``--tract`` if another would be used."""
    found = find_tract()
    taken = found is not None and found.path == binary
    return (
        "gqa run --ep tract" if taken else f"gqa run --ep tract --tract {shlex.quote(f'{binary}')}"
    )


def why_it_does_not_work(binary: Path, version: str) -> str:
    """What is wrong with the program, as the end of a sentence; empty if it is this release."""
    try:
        done = ask((binary, "--version"), _TO_START)
    except subprocess.TimeoutExpired:
        return f"did not print its version within {_TO_START:.0f} s"
    except OSError as error:
        return f"does not start ({error.strerror})"
    said = (done.stdout or done.stderr).decode(errors="replace").strip()
    if done.returncode:
        return f"does not start (exit status {done.returncode}{f': {said}' if said else ''})"
    return "" if version in said.split() else f"reports version '{said}', not {version}"


def working_folder(name: str) -> Path:
    """The temporary folder in which ``name`` is built, on the file system of its final path."""
    return tools_root() / "building" / name


def put_in_place(
    final: Path,
    working: Path,
    *,
    wrong: Callable[[], str],
    without: Callable[[], str],
    make: Callable[[], None],
    made: str,
    tell: Tell,
) -> Ready:
    """Call ``make``, which installs ``final``, unless it exists and nothing is ``wrong`` with it.

    ``wrong`` returns what is wrong, as the end of a sentence, and ``without`` why it cannot be made
    here; both return an empty text otherwise. ``working`` is removed at the end. ``made`` is the
    verb for messages, such as "built". Raises :class:`SetupError`.
    """
    why = wrong()
    if not why and not working.exists():
        return Ready(final, new=False)
    if why and (lacking := without()):
        raise SetupError(lacking)
    try:
        working.parent.mkdir(parents=True, exist_ok=True)
        with _alone(working.with_name(f"{working.name}.lock"), tell):
            # Another process may have made it meanwhile.
            why = wrong()
            if why:
                if os.path.lexists(final):
                    tell(f"{final} {why}, so it is {made} again.")
                make()
            shutil.rmtree(working, ignore_errors=True)
    except OSError as error:
        where = error.filename or tools_root()
        raise SetupError(
            f"Cannot write {where}: {error.strerror}. Set {TOOLS_VARIABLE} to another folder."
        ) from None
    return Ready(final, new=bool(why))


@contextmanager
def _alone(file: Path, tell: Tell) -> Iterator[None]:
    """Hold the lock of ``file``, and wait for it if needed; it ends with the process."""
    with file.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            tell("Another gqa setup is installing the same release; waiting for it.")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(version: str, working: Path, tell: Tell, watch: Watch) -> None:
    """Build the release in ``working``, try it, and move it to its final path."""
    cargo = find_cargo() or "cargo"
    # The crate was renamed in 0.23.0.
    crate = "tract-cli" if tuple(map(int, version.split("."))) >= (0, 23) else "tract"
    root, log = working / "root", working / "cargo.log"
    shutil.rmtree(root, ignore_errors=True)
    working.mkdir(exist_ok=True)
    command = install_command(cargo, crate, version, root)
    tell(
        f"Building tract {version} with cargo: 9 to 15 minutes on 2 cores (here: "
        f"{os.cpu_count()}), and 1 GB of temporary disk space."
    )
    try:
        # In a folder of its own: rust-toolchain.toml and .cargo/config.toml of the current folder
        # belong to another project.
        to = ("--target-dir", f"{working / 'target'}")
        try:
            run_cargo((*command, *to), working, log, watch)
        except RustTooOld as error:
            source = _source_for_this_rust(cargo, crate, version, working, watch)
            if source is None:
                raise
            tell(f"{error}. With older dependencies instead:")
            again = (cargo, "install", "--path", f"{source}", *command[command.index("--locked") :])
            run_cargo((*again, *to), working, log, watch)
    except CargoFailed as error:
        typed = "cargo" if shutil.which("cargo") else cargo
        by_hand = install_command(typed, crate, version, built_tract(version).parent.parent)
        raise SetupError(
            f"cargo could not build tract {version}: {error}\n"
            f"  full output       {log}\n"
            f"  try it by hand    {shlex.join(by_hand)}"
        ) from None
    except KeyboardInterrupt:
        tell("What was compiled is kept; the same command continues from there.")
        raise
    made = root / "bin" / "tract"
    if why := why_it_does_not_work(made, version):
        raise SetupError(f"cargo built tract {version}, but {made} {why}; it is not used.")
    final = built_tract(version)
    final.parent.mkdir(parents=True, exist_ok=True)
    made.replace(final)


def _source_for_this_rust(
    cargo: str, crate: str, version: str, working: Path, watch: Watch
) -> Path | None:
    """A copy of the release with dependencies that this Rust compiles; None without its source.

    A release locks what was newest then, which can need a newer Rust than the release itself.
    """
    fetched = fetched_source(crate, version)
    if fetched is None:
        return None
    source = working / "source"
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(fetched, source)
    lock_for_this_rust(cargo, source, working / "lock.log", watch)
    return source


def _without_cargo(version: str) -> str:
    """What to do without cargo."""
    pinned = version == TRACT_VERSION
    wants = f" of Rust {TRACT_NEEDS_RUST} or later" if pinned else ""
    enough = f" if that is {TRACT_NEEDS_RUST} or later" if pinned else ""
    pip = shlex.join((sys.executable, "-m", "pip", "install", f"tract=={version}"))
    return (
        f"Building tract {version} needs cargo{wants}, which is not installed.\n"
        f"  install it    https://rustup.rs, or apt-get install cargo{enough}\n"
        f"  without Rust  {pip}, then gqa run --ep tract-wheel"
    )
