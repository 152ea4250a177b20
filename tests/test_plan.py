"""``gqa plan``: the jobs of a night, and a night in two shards on this machine, end to end."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from as_user import Desk, Gqa
from synthetic_runs import case, result, write

from conformance.results.reader import Run, read
from conformance.results.records import Milliseconds
from conformance.run import matrix
from conformance.targets import registry
from conformance.targets.catalogue import TARGETS, Package, TargetError


def plan(gqa: Gqa, *arguments: str) -> dict[str, Any]:
    done = gqa("plan", *arguments, "--json")
    assert done.status == 0, done.both
    assert done.out.count("\n") == 1  # a variable of a workflow has one line
    found: dict[str, Any] = json.loads(done.out)
    assert found["format"] == "gqa-plan/1"
    return found


#: What the registries have beside the pinned releases.
OTHERS = {
    "onnxruntime": ("1.20.0", "1.25.1", "99.0.0"),
    "tract": ("0.23.0", "0.23.5"),
    "tract-cli": ("0.22.5",),
    "onnxruntime-web": ("1.25.1", "99.1.0-dev.20260914-8d85527a0"),
}


@pytest.fixture
def unanswered(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The registries have a few releases; those of these package managers do not answer."""
    silent: list[str] = []

    def published(package: Package) -> list[str]:
        if package.manager in silent:
            raise TargetError(f"Cannot ask {package.manager}.")
        return [*OTHERS[package.name], matrix._PINNED[package.name]]

    monkeypatch.setattr(registry, "published", published)
    monkeypatch.setattr("conformance.cli.plan.published", published)
    return silent


#: Those of a night that need no GPU, at their pinned releases.
NAMES = [entry.name for entry in TARGETS if not entry.name.startswith("cuda")]


def of_package(name: str, word: str) -> list[str]:
    """The targets of a night that have the package, in the release that the word stands for."""
    return [
        f"{entry.name}@{word}"
        for entry in TARGETS
        if entry.name in NAMES and entry.package is not None and entry.package.name == name
    ]


@pytest.mark.usefixtures("unanswered")
def test_a_night_has_every_target_without_a_gpu_and_newer_and_older_releases(gqa: Gqa) -> None:
    found = plan(gqa, "smoke")
    targets = [
        *NAMES,
        *("cpu@1.20.0", "cpu@1.25.1"),
        *of_package("onnxruntime", "latest"),
        *("tract-wheel@0.23.0", "tract-wheel@0.23.5"),
        *of_package("onnxruntime-web", "nightly"),
    ]
    assert sorted(job["target"] for job in found["jobs"]) == sorted(targets)
    assert found["targets"][: len(NAMES)] == NAMES
    assert sorted(found["targets"]) == sorted(targets)
    jobs = {job["name"]: job for job in found["jobs"]}
    assert jobs["cpu"]["install"] == ".[cpu]"
    assert jobs["cpu@1.25.1"]["install"] == jobs["tract-wheel@0.23.5"]["install"] == "."
    assert jobs["cpu@latest"]["command"] == (
        "gqa run smoke --ep cpu@99.0.0 --jobs 2 --results cpu@latest.jsonl"
    )
    assert (jobs["webgpu"]["setup"], jobs["cpu"]["setup"]) == ("gqa setup webgpu", "")
    assert jobs["webgpu@nightly"]["setup"] == ""
    assert jobs["webgpu"]["minutes"] > 2 * jobs["cpu"]["minutes"]
    assert found["minutes"] == pytest.approx(sum(job["minutes"] for job in found["jobs"]), abs=0.1)


@pytest.mark.parametrize(
    ("silent", "there", "missing"),
    [("npm", "cpu@latest", "wasm@nightly"), ("pip", "wasm@nightly", "cpu@1.25.1")],
)
def test_a_registry_that_does_not_answer_costs_the_releases_that_are_not_pinned(
    gqa: Gqa, unanswered: list[str], silent: str, there: str, missing: str
) -> None:
    unanswered.append(silent)
    done = gqa("plan", "smoke", "--json")
    targets = json.loads(done.out)["targets"]
    assert done.status == 0
    assert targets[: len(NAMES)] == NAMES
    assert there in targets
    assert missing not in targets
    (line,) = [one for one in done.err.splitlines() if missing.partition("@")[0] in one]
    assert line.startswith("Only the pinned release of ")
    assert line.endswith(f" is in the plan. Cannot ask {silent}.")


@pytest.mark.usefixtures("unanswered")
def test_named_targets_are_those_of_the_plan(gqa: Gqa) -> None:
    (job,) = plan(gqa, "smoke", "--ep", "cpu@latest")["jobs"]
    assert (job["name"], job["target"]) == ("cpu@99.0.0", "cpu@99.0.0")


def test_each_target_is_divided(gqa: Gqa) -> None:
    jobs = plan(gqa, "smoke", "--ep", "cpu", "--ep", "tract", "--shards", "2")["jobs"]
    assert [(job["name"], job["shard"]) for job in jobs] == [
        ("cpu-1of2", "1/2"),
        ("cpu-2of2", "2/2"),
        ("tract-1of2", "1/2"),
        ("tract-2of2", "2/2"),
    ]
    assert jobs[0]["command"] == (
        "gqa run smoke --ep cpu --jobs 2 --shard 1/2 --results cpu-1of2.jsonl"
    )
    assert jobs[0]["results"] + jobs[1]["results"] == 32


def test_so_many_shards_that_none_takes_longer(gqa: Gqa) -> None:
    (whole,) = plan(gqa, "regions", "--ep", "cpu")["jobs"]
    most = whole["minutes"] / 3.5
    jobs = plan(gqa, "regions", "--ep", "cpu", "--minutes", str(most))["jobs"]
    assert 4 <= len(jobs) <= 6
    assert all(job["minutes"] <= most + 0.01 for job in jobs)
    tiny = plan(gqa, "smoke", "--ep", "cpu", "--minutes", "0.000001")["jobs"]
    assert len(tiny) == 32  # no more shards than cases


def test_recorded_times_are_used_by_the_plan_and_its_runs(gqa: Gqa, tmp_path: Path) -> None:
    id = "smoke/prompt[dtype=float32,sequence_length=5]"
    slow = result(id, ms=Milliseconds(total=600_000))
    file = write(tmp_path / "times.jsonl", [case(id)], [slow])
    (job,) = plan(gqa, "smoke", "--ep", "cpu", "--times", str(file), "--jobs", "1")["jobs"]
    assert 10 < job["minutes"] < 11
    assert f"--times {file}" in job["command"]


def test_options_of_targets_are_in_the_command(gqa: Gqa) -> None:
    (job,) = plan(gqa, "smoke", "-k", "a or p", "--ep", "webgpu", "--adapter", "lavapipe")["jobs"]
    words = shlex.split(job["command"])
    assert words[:8] == ["gqa", "run", "smoke", "-k", "a or p", "--ep", "webgpu", "--adapter"]


def test_what_contradicts_itself_is_refused(gqa: Gqa) -> None:
    done = gqa("plan", "smoke", "--ep", "cpu", "--shards", "2", "--minutes", "3")
    assert (done.status, done.err) == (2, "--shards and --minutes: give one.\n")


def test_people_can_read_it(gqa: Gqa) -> None:
    done = gqa("plan", "smoke", "--ep", "cpu", "--shards", "2")
    assert done.status == 0
    assert "min  gqa run smoke --ep cpu --jobs 2 --shard 1/2" in done.out
    assert done.out.endswith("min  in 2 jobs\n")


def test_a_plan_in_two_shards_is_the_undivided_run(desk: Desk, gqa: Gqa) -> None:
    arguments = ["smoke", "-k", "float32", "--ep", "cpu"]
    jobs = plan(gqa, *arguments, "--shards", "2")["jobs"]
    assert len(jobs) == 2
    started = [desk.start(*shlex.split(job["command"])) for job in jobs]
    for process in started:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, out + err
    files = [f"{job['name']}.jsonl" for job in jobs]
    assert gqa("merge", *files, "-o", "night.jsonl.xz").status == 0
    assert gqa("run", *arguments, "--results", "whole.jsonl").status == 0
    divided, whole = (read(desk.folder / name) for name in ("night.jsonl.xz", "whole.jsonl"))
    assert divided.problems == whole.problems == ()
    assert judged(divided) == judged(whole)
    assert divided.cases == whole.cases
    assert divided.header.corpus == whole.header.corpus
    assert divided.footer is not None
    assert whole.footer is not None
    assert divided.footer.counts == whole.footer.counts
    assert gqa("diff", "whole.jsonl", "night.jsonl.xz").status == 0


def judged(run: Run) -> dict[tuple[str, str], Any]:
    """All of each result that does not depend on the time."""
    return {
        (record.case, record.target): record.model_copy(update={"ms": None, "stderr": ""})
        for record in run.results
    }


def test_the_plan_knows_the_targets_and_their_pinned_releases() -> None:
    from conformance.run.times import SLOWER

    assert SLOWER.keys() <= {entry.name for entry in TARGETS}
    assert {*matrix._OLDER} <= {entry.name for entry in TARGETS}
    packages = {entry.package.name for entry in TARGETS if entry.package and entry.name in NAMES}
    assert matrix._PINNED.keys() == packages
