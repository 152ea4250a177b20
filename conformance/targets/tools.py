"""Programs that targets need beside Python packages: which is meant, and where ours are kept.

What ``gqa setup`` builds lies in a folder of its own, for each release one, so that nothing that
the user has installed is touched.
"""

from __future__ import annotations

import os
import re
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

#: The release that expectations/webgpu.yaml was made with, as in the runner's package.json.
ONNXRUNTIME_WEB_VERSION: Final = "1.30.0"

#: Names a folder whose node_modules has onnxruntime-web, or a release that was set up.
ONNXRUNTIME_WEB_VARIABLE: Final = "GQA_ONNXRUNTIME_WEB"

#: A release of an npm package, such as 1.30.0 or 1.31.0-dev.20261101-0a1b2c3.
_NPM_RELEASE: Final = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?")


@dataclass(frozen=True)
class Program:
    """A program and, in words, by what it was found."""

    path: Path
    found_by: str
    named: bool = False
    """A person named it: nothing else is taken instead."""
    release: str | None = None
    """What was named is this release, which ``gqa setup`` can put there."""


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


def is_npm_release(word: str) -> bool:
    """Whether ``word`` is a release as npm writes it, and no range and no tag."""
    return _NPM_RELEASE.fullmatch(word) is not None


def built_onnxruntime_web(version: str = ONNXRUNTIME_WEB_VERSION) -> Path:
    """Where ``gqa setup webgpu`` puts ``node_modules`` of ``version``, there or not."""
    return tools_root() / f"onnxruntime-web-{version}"


def find_onnxruntime_web(named: str | None = None) -> Program | None:
    """The folder whose ``node_modules`` has the onnxruntime-web that is meant, None if none.

    ``named`` (``--onnxruntime-web``), the environment variable GQA_ONNXRUNTIME_WEB and what
    ``gqa setup webgpu`` installed, in this order. Both names are a folder, or a release that was
    set up; what is named is meant even where it is not there. There is no PATH of packages.
    """
    if named:
        return _named_onnxruntime_web(named, "--onnxruntime-web")
    if variable := os.environ.get(ONNXRUNTIME_WEB_VARIABLE):
        return _named_onnxruntime_web(
            variable, f"the environment variable {ONNXRUNTIME_WEB_VARIABLE}"
        )
    built = built_onnxruntime_web()
    there = os.path.isdir(built / "node_modules" / "onnxruntime-web")
    return Program(built, "gqa setup webgpu") if there else None


def _named_onnxruntime_web(word: str, found_by: str) -> Program:
    if is_npm_release(word):
        return Program(built_onnxruntime_web(word), found_by, named=True, release=word)
    folder = Path(os.path.expanduser(word)).absolute()
    # The folder that holds the packages, for the one that they are in: what Node looks them up in.
    folder = folder.parent if folder.name == "node_modules" else folder
    return Program(folder, found_by, named=True)


def as_typed(named: str) -> Path:
    """``named`` as a shell would find it: a name without a slash is looked up in PATH."""
    found = shutil.which(named) if os.sep not in named else None
    return Path(found or os.path.expanduser(named)).absolute()
