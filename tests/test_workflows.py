"""The GitHub workflows: they are safe and refer to existing things; and the scripts they call."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from npm_packages import FOLDER

from conformance.base.paths import ROOT
from conformance.targets.registry import KNOWN

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
SCRIPTS = ROOT / ".ci"

pytestmark = pytest.mark.skipif(not WORKFLOWS, reason="not a checkout")
each_workflow = pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)

#: What actionlint of this release does not know yet, or cannot: labels of runners, and a context
#: of expressions that GitHub has had since 2023.
NOT_KNOWN_TO_ACTIONLINT = (
    'label "ubuntu-24.04" is unknown.',
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


def test_actionlint_finds_errors(packages: Path, tmp_path: Path) -> None:
    text = next(f for f in WORKFLOWS if f.name == "nightly.yml").read_text(encoding="utf-8")
    broken = tmp_path / "broken.yml"
    broken.write_text(text.replace("needs: report", "needs: repart"))
    assert any("repart" in line for line in found_by(packages, broken))


def test_the_lock_file_names_no_registry() -> None:
    assert "://" not in (FOLDER / "package-lock.json").read_text(encoding="utf-8")


@each_workflow
def test_actions_are_pinned(file: Path) -> None:
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if "uses:" in line]
    assert lines
    for line in lines:
        assert re.fullmatch(
            r" +(?:- )?uses: [\w-]+/[\w-]+(?:/[\w-]+)?@[0-9a-f]{40} # v\d+\.\d+\.\d+", line
        ), line


def test_an_action_is_pinned_once() -> None:
    pins: dict[str, set[str]] = {}
    for file in WORKFLOWS:
        for action, pin in re.findall(r"uses: ([\w-]+/[\w-]+)[\w/-]*(@.*)", file.read_text()):
            pins.setdefault(action, set()).add(pin)
    assert {action: pin for action, pin in pins.items() if len(pin) > 1} == {}


@each_workflow
def test_permissions_are_minimal(file: Path) -> None:
    workflow = load(file)
    assert workflow["permissions"] == {"contents": "read"}
    more = {
        name: job["permissions"] for name, job in workflow["jobs"].items() if "permissions" in job
    }
    allowed = {"pages": {"pages": "write", "id-token": "write"}}
    assert more == (allowed if file.name == "nightly.yml" else {})


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


@each_workflow
def test_every_job_has_a_time_limit(file: Path) -> None:
    workflow = load(file)
    assert "group" in workflow["concurrency"]
    for name, job in workflow["jobs"].items():
        assert 0 < job["timeout-minutes"] <= 360, name


@each_workflow
def test_scripts_in_workflows_exist(file: Path) -> None:
    named = {
        name
        for step in steps(load(file))
        for name in re.findall(r"(?<!\S)\.ci/[\w-]+", step.get("run", ""))
    }
    assert named
    for name in named:
        assert os.access(ROOT / name, os.X_OK), name


@each_workflow
def test_files_in_the_keys_of_caches_exist(file: Path) -> None:
    for arguments in re.findall(r"hashFiles\(([^)]*)\)", file.read_text(encoding="utf-8")):
        for pattern in re.findall(r"'([^']*)'", arguments):
            assert any(ROOT.glob(pattern)), pattern


def test_the_nightly_runs_all_targets_and_reports_on_each() -> None:
    jobs = load(ROOT / ".github" / "workflows" / "nightly.yml")["jobs"]
    targets = [entry["target"] for entry in jobs["target"]["strategy"]["matrix"]["include"]]
    assert sorted([*targets, "cuda"]) == sorted(name for name in KNOWN if ":" not in name)
    (report,) = [s["run"] for s in jobs["report"]["steps"] if "nightly-report" in s.get("run", "")]
    assert report.split()[3:] == [*targets, "${CUDA:+cuda}"]


def test_the_same_release_runs_on_cpu_and_cuda() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    (cpu,), (cuda,) = extras["cpu"], extras["cuda"]
    assert cpu.partition("==")[2] == cuda.partition("==")[2]


# ── The scripts ──────────────────────────────────────────────────────────────────────────────────

#: A stand-in for gqa. A results file is a word: another word is a regression, `bad` is unreadable.
GQA = """#!/bin/sh
echo "$*" >>"$LOG"
case "$1" in
  setup) [ -z "$NO_SETUP" ] || exit 3 ;;
  run)
    while [ $# -gt 0 ]; do
      if [ "$1" = --results ]; then echo "${WORD:-fine}" >"$2"; fi
      shift
    done
    exit "${STATUS:-0}" ;;
  diff)
    case "$(cat "$2" "$3")" in *bad*) exit 2 ;; esac
    echo "from $(cat "$2") to $(cat "$3")" >"$5"
    cmp -s "$2" "$3" ;;
  report)
    while [ $# -gt 0 ]; do
      case "$1" in --html | --markdown) echo "report" >"$2" ;; esac
      shift
    done ;;
esac
"""


class Night:
    """A folder with a stand-in for gqa, and the scripts that call it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        programs = folder / "programs"
        programs.mkdir()
        (programs / "gqa").write_text(GQA)
        (programs / "gqa").chmod(0o755)
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

    @property
    def baseline(self) -> dict[str, str]:
        """The baseline of the next night: the word of each target."""
        files = sorted((self.out / "baseline").iterdir())
        return {file.name: file.read_text().strip() for file in files}


@pytest.fixture
def night(tmp_path: Path) -> Night:
    if shutil.which("bash") is None:
        pytest.skip("there is no bash")
    return Night(tmp_path)


@pytest.mark.parametrize(
    ("target", "setups"),
    [
        ("cpu", []),
        ("cpu-noflash", []),
        ("cuda", []),
        ("tract", ["setup tract"]),
        ("tract-plain", ["setup tract"]),
        ("tract-wheel", []),
        ("wasm", ["setup webgpu"]),
    ],
)
def test_a_target_is_set_up_and_run(night: Night, target: str, setups: list[str]) -> None:
    assert night.target(target, "-k", "a or b") == 0
    assert night.calls("setup") == setups if setups else not night.calls("setup")
    (run,) = night.calls("run")
    assert run.startswith(f"run --ep {target} --jobs ")
    assert run.endswith(f"--results {night.out}/{target}.jsonl -k a or b")
    assert (night.out / f"{target}.status").read_text() == "0\n"


@pytest.mark.parametrize("target", ["webgpu", "webgpu-jsep"])
def test_webgpu_runs_on_lavapipe_everywhere(night: Night, target: str) -> None:
    # Other users call sudo, which here runs its arguments.
    (night.folder / "programs" / "sudo").write_text('#!/bin/sh\nshift\nexec "$@"\n')
    (night.folder / "programs" / "sudo").chmod(0o755)
    assert night.target(target) == 0
    assert night.calls("setup") == ["setup webgpu", "setup lavapipe"]
    assert "--adapter lavapipe" in night.calls("run")[0]


@pytest.mark.parametrize(("status", "end"), [(0, 0), (1, 0), (2, 2), (3, 3), (130, 130)])
def test_unexpected_results_do_not_fail_the_job(night: Night, status: int, end: int) -> None:
    assert night.target("cpu", STATUS=str(status)) == end
    assert (night.out / "cpu.status").read_text() == f"{status}\n"


def test_a_set_up_that_fails_is_a_failure(night: Night) -> None:
    night.out.mkdir()
    (night.out / "tract.jsonl").write_text("of another night")
    assert night.target("tract", NO_SETUP="1") == 3
    assert (night.out / "tract.status").read_text() == "3\n"
    assert not (night.out / "tract.jsonl").exists()
    assert not night.calls("run")


def test_an_unknown_target_and_missing_arguments(night: Night) -> None:
    status, said = night.call("nightly-target", "nosuch", str(night.out))
    assert (status, said) == (2, "nightly-target knows no target 'nosuch'.\n")
    for script in ("nightly-target", "nightly-report"):
        status, said = night.call(script)
        assert status == 2
        assert said.startswith(f"Usage: .ci/{script} ")


def test_the_first_night(night: Night) -> None:
    night.target("cpu")
    night.target("wasm")
    assert night.report("cpu", "wasm") == 0
    assert night.summary.startswith("# Nothing is worse\n\nWithout a night before: cpu wasm.\n")
    assert night.summary.endswith("report\n")
    assert night.baseline == {"cpu.jsonl": "fine", "wasm.jsonl": "fine"}
    assert (night.out / "site" / "index.html").is_file()
    report = next(call for call in night.calls("report") if "--html" in call)
    assert report.startswith(f"report {night.out}/cpu.jsonl {night.out}/wasm.jsonl --html ")


def test_a_first_night_that_is_not_as_expected(night: Night) -> None:
    night.target("cpu", STATUS="1")
    assert night.report("cpu") == 1
    assert "- cpu: it is not as expected, and there is no night before" in night.summary


@pytest.mark.parametrize(
    ("word", "status", "end"),
    [("fine", "0", 0), ("fine", "1", 0), ("worse", "1", 1), ("worse", "0", 1)],
)
def test_a_later_night_fails_only_for_changes(
    night: Night, word: str, status: str, end: int
) -> None:
    night.target("cpu", STATUS=status)
    night.report("cpu")
    night.next()
    night.target("cpu", WORD=word, STATUS=status)
    assert night.report("cpu") == end
    open_ = " open" if end else ""
    assert f"<details{open_}><summary>cpu since the night before</summary>" in night.summary
    assert f"\n\nfrom fine to {word}\n\n</details>\n" in night.summary
    assert ("- cpu: it is worse than the night before." in night.summary) == (end == 1)
    assert night.baseline == {"cpu.jsonl": word}


@pytest.mark.parametrize("how", ["missing", "failed", "empty", "cut off"])
def test_a_failed_target_is_reported_and_compared_again_once_it_works(
    night: Night, how: str
) -> None:
    for target in ("cpu", "tract"):
        night.target(target)
    night.report("cpu", "tract")
    night.next()
    night.target("cpu")
    if how == "failed":
        night.target("tract", NO_SETUP="1")
    elif how == "cut off":
        night.target("tract", STATUS="3", WORD="half")
    elif how == "empty":
        night.target("tract")
        (night.out / "tract.jsonl").write_text("")
    assert night.report("cpu", "tract") == 3
    assert "# Nothing is worse\n\n## Not everything could be tried\n\n- tract: " in night.summary
    assert night.baseline == {"cpu.jsonl": "fine", "tract.jsonl": "fine"}
    # The partial output is shown.
    assert ("tract.jsonl" in night.calls("report")[-1]) == (how == "cut off")
    night.next()
    for target in ("cpu", "tract"):
        night.target(target, WORD="worse" if target == "tract" else "fine")
    assert night.report("cpu", "tract") == 1
    assert "from fine to worse" in night.summary


def test_both_worse_and_failed_is_worse(night: Night) -> None:
    night.target("cpu", STATUS="1")
    assert night.report("cpu", "wasm") == 1
    assert "- wasm: its job left no results." in night.summary


def test_an_optional_target_is_reported_if_it_exists(night: Night) -> None:
    night.target("cpu")
    night.target("cuda")
    assert night.report("cpu") == 0
    assert night.baseline == {"cpu.jsonl": "fine", "cuda.jsonl": "fine"}
    night.next()
    night.target("cpu")
    assert night.report("cpu") == 0


def test_a_report_without_any_results(night: Night) -> None:
    assert night.report("cpu", "wasm") == 3
    assert "- No target has left results; there is no report.\n" in night.summary
    assert not (night.folder / "log").exists()
    assert night.report() == 3


def test_results_that_cannot_be_compared(night: Night) -> None:
    night.target("cpu", WORD="bad")
    night.report("cpu")
    night.next()
    night.target("cpu")
    assert night.report("cpu") == 3
    assert "- cpu: gqa diff ended with status 2; it could not be compared." in night.summary


def test_a_second_report_equals_the_first(night: Night) -> None:
    night.target("cpu")
    assert night.report("cpu") == 0
    before = night.summary
    assert night.report("cpu") == 0
    assert night.summary == before


@pytest.mark.parametrize(
    "name", sorted(p.name for p in SCRIPTS.glob("*")) if SCRIPTS.is_dir() else []
)
def test_bash_can_parse_the_script(name: str) -> None:
    script = SCRIPTS / name
    assert script.read_text(encoding="utf-8").startswith("#!/usr/bin/env bash\n")
    assert os.access(script, os.X_OK)
    done = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_shellcheck_finds_nothing() -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("there is no shellcheck; apt-get install shellcheck")
    # Files that pip puts into a virtual environment are not checked.
    command = ["shellcheck", "--exclude=SC1091", *map(str, SCRIPTS.iterdir())]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
