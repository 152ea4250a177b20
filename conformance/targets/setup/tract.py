"""``gqa setup tract``: builds tract with cargo."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from packaging.version import Version

from conformance.base.processes import ask
from conformance.targets.setup.programs import (
    SetupError,
    Tell,
    find_cargo,
    put_in_place,
    run_installer,
)
from conformance.targets.tools import folder_of, tools_root

#: The time limit for tract to print its version, in seconds.
_TO_START: Final = 20.0


def set_up_tract(version: str, tell: Tell) -> bool:
    """Build this release of tract, unless it is installed and works; whether it did.

    Raises :class:`SetupError`.
    """
    return put_in_place(
        folder_of("tract", version),
        lambda folder: why_it_does_not_work(folder / "bin" / "tract", version),
        lambda folder: _build(version, folder, tell),
        tell,
    )


def why_it_does_not_work(binary: Path, version: str) -> str:
    """The fault of a binary as the end of a sentence; empty if it is the release ``version``."""
    try:
        output = ask((binary, "--version"), _TO_START).stdout.decode(errors="replace")
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"has a tract that does not start ({error})"
    return "" if version in output.split() else f"has a tract of version '{output.strip()}'"


def _build(version: str, folder: Path, tell: Tell) -> None:
    """Build the release into ``folder``; an interrupted build can be continued."""
    cargo = find_cargo()
    if cargo is None:
        pip = shlex.join((sys.executable, "-m", "pip", "install", f"tract=={version}"))
        raise SetupError(
            f"Building tract {version} needs cargo, which is not installed.\n"
            "  install it    https://rustup.rs\n"
            f"  without Rust  {pip}, then gqa run --ep tract-wheel"
        )
    # The crate was renamed in 0.23.0.
    crate = "tract-cli" if Version(version) >= Version("0.23.0.dev0") else "tract"
    compiled = tools_root() / f".compiled-tract-{version}"
    tell(
        f"Building tract {version} with cargo: 9 to 15 minutes on 2 cores (here: "
        f"{os.cpu_count()}), and 1 GB of temporary disk space."
    )
    command = (cargo, "install", crate, "--version", version, "--locked")
    try:
        # cargo locks the target folder, so only one process builds at a time.
        run_installer((*command, "--root", str(folder), "--target-dir", str(compiled)))
    except SetupError as error:
        raise SetupError(f"tract {version} could not be built: {error}.") from None
    shutil.rmtree(compiled, ignore_errors=True)
