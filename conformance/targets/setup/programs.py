"""Runs pip, uv, npm and cargo, and moves the installation into its final folder.

They use the registry of their own configuration, and print to the terminal.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from conformance.base.processes import run
from conformance.harness.folders import temporary_folder
from conformance.targets.tools import TOOLS_VARIABLE, tools_root

Tell = Callable[[str], None]


class SetupError(Exception):
    """A program could not be installed; the message says why and how to fix it.

    ``fix`` is a command that helps, if it is not to install the program again.
    """

    def __init__(self, message: str, fix: str | None = None) -> None:
        super().__init__(message)
        self.fix = fix


def with_fix(reason: str, fix: str | None) -> str:
    """The reason, and on another line the fix if there is one."""
    return f"{reason}\n  fix: {fix}" if fix else reason


def find_npm() -> str | None:
    """The path of npm, from PATH or else beside this interpreter; None if there is none."""
    return _found("npm", os.path.dirname(sys.executable))


def find_cargo() -> str | None:
    """The path of cargo, from PATH or else from rustup's folder; None if there is none."""
    home = os.environ.get("CARGO_HOME") or os.path.expanduser("~/.cargo")
    return _found("cargo", os.path.join(home, "bin"))


def _found(name: str, folder: str) -> str | None:
    path = shutil.which(name) or shutil.which(name, path=os.path.abspath(folder))
    return os.path.abspath(path) if path else None


def pip_command() -> tuple[str, ...] | None:
    """The command that runs pip, with this Python or with uv; None if there is neither."""
    options = ("pip", "--disable-pip-version-check", "--no-input")
    if importlib.util.find_spec("pip") is not None:
        return (sys.executable, "-m", *options)
    return ("uv", "tool", "run", *options) if shutil.which("uv") else None


def run_installer(
    command: tuple[str, ...],
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Run ``command``, in ``folder`` if it needs one. Raises :class:`SetupError` if it fails."""
    name = Path(command[0]).name
    try:
        status = run(command, environment, folder)
    except OSError as error:
        raise SetupError(f"{command[0]} does not start: {error.strerror}") from None
    if status:
        raise SetupError(f"{name} failed with status {status}; what it printed says why")


def put_in_place(
    final: Path, what_is_wrong: Callable[[Path], str], make: Callable[[Path], None], tell: Tell
) -> bool:
    """Create the folder ``final`` with ``make``, unless it exists and is complete; whether it did.

    ``what_is_wrong`` describes the fault of a folder as the end of a sentence, or returns an empty
    text. ``make`` gets the path of a new folder, which is renamed to ``final`` at the end, so that
    an interrupt leaves nothing behind, and of two processes one succeeds. Raises
    :class:`SetupError`.
    """
    if not (why := what_is_wrong(final)):
        return False
    if os.path.lexists(final):
        tell(f"{final} {why}, so it is installed again.")
    try:
        tools_root().mkdir(parents=True, exist_ok=True)
        with temporary_folder(tools_root()) as folder:
            made = folder / "made"
            make(made)
            if why := what_is_wrong(made):
                raise SetupError(f"What was installed as {final.name} {why}; it is not used.")
            if what_is_wrong(final):  # unless another process was faster
                if os.path.lexists(final):
                    final.rename(folder / "old")
                made.rename(final)
    except OSError as error:
        where = error.filename or tools_root()
        raise SetupError(
            f"Cannot write {where}: {error.strerror}. Set {TOOLS_VARIABLE} to another folder."
        ) from None
    return True
