"""Programs that targets need beside Python packages: which is meant, and where ours are kept.

What ``gqa setup`` builds lies in a folder of its own, for each release one, so that nothing that
the user has installed is touched.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import platformdirs

#: Names the folder of the tools; the platform's folder for a program's data by default.
TOOLS_VARIABLE: Final = "GQA_TOOLS"

#: The release that expectations/tract.yaml was made with.
TRACT_VERSION: Final = "0.23.9"

#: Names a tract binary.
TRACT_VARIABLE: Final = "GQA_TRACT"


@dataclass(frozen=True)
class Program:
    """A program and, in words, by what it was found."""

    path: Path
    found_by: str
    named: bool = False
    """A person named it: nothing else is taken instead."""


def tools_root() -> Path:
    """The folder of the tools."""
    named = os.environ.get(TOOLS_VARIABLE)
    return Path(named).absolute() if named else platformdirs.user_data_path("gqa-conformance")


def built_tract(version: str = TRACT_VERSION) -> Path:
    """Where ``gqa setup tract`` puts the binary of ``version``, whether it is there or not."""
    return tools_root() / f"tract-{version}" / "bin" / "tract"


def find_tract(named: str | None = None) -> Program | None:
    """The tract binary that is meant, None if there is none.

    ``named`` (``--tract``), the environment variable GQA_TRACT, what ``gqa setup tract`` built and
    PATH, in this order. What a person names is meant even where it is not there: the runner says
    so, and nothing else is taken instead. What was set up comes before PATH, since it is the
    release that the expectations are about, and someone asked for it.
    """
    if named:
        return Program(as_typed(named), "--tract", named=True)
    if variable := os.environ.get(TRACT_VARIABLE):
        return Program(as_typed(variable), f"the environment variable {TRACT_VARIABLE}", True)
    built = built_tract()
    if os.path.isfile(built):  # False, too, for a path that the system does not take
        return Program(built, "gqa setup tract")
    on_path = shutil.which("tract")
    return Program(Path(on_path).absolute(), "PATH") if on_path else None


def as_typed(named: str) -> Path:
    """``named`` as a shell would find it: a name without a slash is looked up in PATH."""
    found = shutil.which(named) if os.sep not in named else None
    return Path(found or os.path.expanduser(named)).absolute()
