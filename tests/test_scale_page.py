"""docs/scale.md: what can be copied from it parses, and its variables are those that are read."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from conformance.base.paths import ROOT
from conformance.cli.commands import command, gqa

PAGE = ROOT / "docs" / "scale.md"
pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="not a checkout")
TEXT = PAGE.read_text(encoding="utf-8").replace("\\\n", "") if PAGE.exists() else ""


def section(heading: str) -> str:
    return TEXT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def blocks(heading: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", section(heading), re.DOTALL)


def file(heading: str) -> Any:
    (text,) = blocks(heading, "yaml")
    return yaml.safe_load(text)


def commands() -> Iterator[str]:
    """Every call of gqa on the page, in the text too, with a value for each variable."""
    found = re.findall(r"(?:^|[`\s])(gqa (?:run|merge) [^`\n]*)", TEXT, re.MULTILINE)
    for line in found:
        line = re.sub(r"\$\{\{[^}]*\}\}|\$\w+", "4", line.partition(" || ")[0])
        if " --" in line and not line.endswith("--shard"):
            yield line


def test_the_commands_are_commands() -> None:
    lines = list(commands())
    assert len(lines) >= 8
    for line in lines:
        name, *arguments = shlex.split(line)[1:]
        above = gqa.make_context("gqa", [name])
        command(name).make_context(name, arguments, parent=above)  # raises for an unknown option


def shard_of(script: str, environment: dict[str, str]) -> str:
    """What ``--shard`` gets from the shell that runs the script."""
    given = {"PATH": os.environ["PATH"], "SLURM_CPUS_PER_TASK": "1", **environment}
    stand_in = 'gqa() { echo "$@"; }\n'
    lines = [line for line in script.splitlines() if "activate" not in line]
    shell = ["sh", "-c", stand_in + "\n".join(lines)]
    done = subprocess.run(shell, env=given, capture_output=True, text=True, check=True)
    return done.stdout.partition("--shard ")[2].split()[0]


def test_a_workflow_of_github_says_which_shard() -> None:
    job = file("GitHub")["jobs"]["shard"]
    assert job["env"]["SHARD"] == "${{ matrix.part }}/${{ strategy.job-total }}"
    assert job["strategy"]["matrix"]["part"] == [1, 2, 3, 4]
    (run,) = [step["run"] for step in job["steps"] if "--shard" in step.get("run", "")]
    assert "--shard $SHARD " in run


def test_gitlab_and_its_merge() -> None:
    found = file("GitLab")
    assert found["merge"]["needs"] == ["shard"]
    environment = {"CI_NODE_INDEX": "4", "CI_NODE_TOTAL": str(found["shard"]["parallel"])}
    assert shard_of(found["shard"]["script"][1], environment) == "4/4"


def test_the_job_of_kubernetes_is_indexed_and_says_its_total() -> None:
    job = file("Kubernetes")
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    assert job["spec"]["completionMode"] == "Indexed"
    template = job["spec"]["template"]["spec"]
    assert template["restartPolicy"] == "Never"  # which backoffLimitPerIndex needs
    (container,) = template["containers"]
    environment = {each["name"]: each["value"] for each in container["env"]}
    assert environment["SHARDS"] == str(job["spec"]["completions"])
    for index in ("0", "7"):
        numbered = {**environment, "JOB_COMPLETION_INDEX": index}
        assert shard_of(container["args"][0], numbered) == f"{int(index) + 1}/8"
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
    assert first == 1
    assert shard_of(array, {"SLURM_ARRAY_TASK_ID": str(last)}) == f"{last}/{last}"
