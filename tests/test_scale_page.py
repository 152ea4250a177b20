"""docs/scale.md: what can be copied from it parses, and its variables are those that are read."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from conformance.base.paths import ROOT
from conformance.cli.commands import command, gqa
from conformance.run.matrix import Job
from conformance.run.shard import SCHEDULERS, Scheduler, shard_for

PAGE = ROOT / "docs" / "scale.md"
pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="not a checkout")
TEXT = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""


def section(heading: str) -> str:
    return TEXT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def blocks(heading: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", section(heading), re.DOTALL)


def file(heading: str) -> Any:
    (text,) = blocks(heading, "yaml")
    return yaml.safe_load(text)


def commands() -> Iterator[str]:
    """Every call of gqa on the page, in the text too, with a value for each variable."""
    found = re.findall(r"(?:^|[`\s])(gqa (?:run|merge|plan) [^`\n]*)", TEXT, re.MULTILINE)
    for line in found:
        line = re.sub(r"\$\{\{[^}]*\}\}|\$\w+", "4", line.partition(" || ")[0])
        if " --" in line and not line.endswith("--shard"):
            yield line


@pytest.mark.parametrize("line", list(commands()))
def test_the_commands_are_commands(line: str) -> None:
    name, *arguments = shlex.split(line)[1:]
    above = gqa.make_context("gqa", [name])
    command(name).make_context(name, arguments, parent=above)  # raises for an unknown option


def test_there_are_commands() -> None:
    assert len(list(commands())) >= 10


@pytest.mark.parametrize("scheduler", SCHEDULERS, ids=lambda each: each.name)
def test_the_table_has_the_variables_that_are_read(scheduler: Scheduler) -> None:
    names = [scheduler.index, scheduler.total]
    names += [name for name in (scheduler.first, scheduler.step) if isinstance(name, str)]
    rows = [row for row in section("Shards").splitlines() if f"`{scheduler.index}`" in row]
    (row,) = rows
    assert re.findall(r"`([A-Z_]+)`", row) == [names[0], *names[2:], names[1]]


def test_a_workflow_of_github_says_which_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    job = file("GitHub")["jobs"]["shard"]
    said = {
        "${{ strategy.job-index }}": "3",
        "${{ strategy.job-total }}": str(len(job["strategy"]["matrix"]["part"])),
    }
    environment = {name: said[value] for name, value in job["env"].items()}
    assert str(shard_for("auto", environment)) == "4/4"


def test_gitlab_and_its_merge() -> None:
    found = file("GitLab")
    assert found["merge"]["needs"] == ["shard"]
    environment = {"CI_NODE_INDEX": "4", "CI_NODE_TOTAL": str(found["shard"]["parallel"])}
    assert str(shard_for("auto", environment)) == "4/4"


def test_the_job_of_kubernetes_is_indexed_and_says_its_total() -> None:
    job = file("Kubernetes")
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    assert job["spec"]["completionMode"] == "Indexed"
    template = job["spec"]["template"]["spec"]
    assert template["restartPolicy"] == "Never"  # which backoffLimitPerIndex needs
    (container,) = template["containers"]
    environment = {each["name"]: each["value"] for each in container["env"]}
    assert environment["GQA_JOB_TOTAL"] == str(job["spec"]["completions"])
    last = {**environment, "JOB_COMPLETION_INDEX": str(job["spec"]["completions"] - 1)}
    assert str(shard_for("auto", last)) == "8/8"
    volumes = {each["name"] for each in template["volumes"]}
    assert {each["name"] for each in container["volumeMounts"]} == volumes


def test_the_array_of_slurm() -> None:
    array, merge = blocks("Slurm", "sh")
    for script in (array, merge):
        head, *rest = script.splitlines()
        assert head == "#!/bin/bash"
        options = [line for line in rest if line.startswith("#SBATCH")]
        assert rest[: len(options)] == options  # Slurm ignores those after a command
        assert all(re.fullmatch(r"#SBATCH --[a-z-]+(=\S+)?", line) for line in options)
    first, last = map(int, re.findall(r"--array=(\d+)-(\d+)", array)[0])
    environment = {
        "SLURM_ARRAY_TASK_ID": str(last),
        "SLURM_ARRAY_TASK_MIN": str(first),
        "SLURM_ARRAY_TASK_MAX": str(last),
        "SLURM_ARRAY_TASK_STEP": "1",
        "SLURM_ARRAY_TASK_COUNT": str(last - first + 1),
    }
    assert str(shard_for("auto", environment)) == "8/8"


def test_the_fields_of_a_job_are_described() -> None:
    text = section("Plans")
    assert [name for name in Job.__dataclass_fields__ if f"`{name}`" not in text] == []
