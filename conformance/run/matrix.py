"""The jobs of a night: targets × releases × shards, with the command and the minutes of each.

A job of the plan is one ``gqa run`` of one target, whose results ``gqa merge`` joins.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from conformance.run.shard import MOST_SHARDS, divided
from conformance.run.target import TargetPlan
from conformance.run.times import Times
from conformance.targets.catalogue import TARGETS, entry_of
from conformance.targets.registry import Target
from conformance.targets.tools import ONNXRUNTIME_VERSION, TRACT_VERSION

FORMAT: Final = "gqa-plan/1"

#: The targets of a night that are older than the pinned release: the name and that release. Those
#: whose expectations cover older releases.
_OLDER: Final = {"cpu": ONNXRUNTIME_VERSION, "tract-wheel": TRACT_VERSION}


@dataclass(frozen=True)
class Job:
    """A part of the night that one machine does."""

    name: str
    """Of its results file, without suffix: `cpu@1.25.1`, or `webgpu-2of3`."""
    target: str
    """What `--ep` takes."""
    shard: str
    """What `--shard` takes; empty: all of it."""
    install: str
    """What pip installs from the checkout: `.[cpu]`."""
    setup: str
    """The command that installs the runtime; empty: pip has done so, or the run does."""
    command: str
    """The run."""
    results: int
    minutes: float
    """Expected for the run."""


def targets_of_a_night() -> list[str]:
    """What `--ep` takes for every target at its pinned release, and for older releases of some.

    A GPU is not there every night, so CUDA is left out.
    """
    pinned = [entry.name for entry in TARGETS if not entry.name.startswith("cuda")]
    return [*pinned, *(f"{name}@..{newest}" for name, newest in _OLDER.items())]


def is_pinned_twice(target: Target) -> bool:
    """Whether a target of `targets_of_a_night` is there under its own name already."""
    return target.release is not None and _OLDER.get(target.ep) == target.release


def jobs(
    plans: Sequence[TargetPlan],
    times: Times,
    arguments: Sequence[str],
    *,
    cores: int,
    shards: int | None,
    minutes: float | None,
) -> Iterator[Job]:
    """The jobs for these plans, each target in so many ``shards`` or none above ``minutes``.

    ``arguments`` are those of each run that select cases and times.
    """
    for plan in plans:
        for number, (part, load) in enumerate(parts := _parts(plan, times, cores, shards, minutes)):
            one_of = f"{number + 1}/{len(parts)}" if len(parts) > 1 else ""
            yield _job(plan.target, one_of, sum(len(p.cases) for p in part), load, arguments, cores)


def _parts(
    plan: TargetPlan, times: Times, cores: int, shards: int | None, minutes: float | None
) -> list[tuple[list[TargetPlan], float]]:
    """The shards of a target, each with its minutes."""

    def divide(of: int) -> list[tuple[list[TargetPlan], float]]:
        return [(part, ms / 60_000 / cores) for part, ms in divided([plan], of, times)]

    parts = divide(shards or 1)
    if minutes is None:
        return parts
    most = min(len(plan.cases), MOST_SHARDS)  # more shards than cases would not be faster
    while max(load for _, load in parts) > minutes and len(parts) < most:
        total = sum(load for _, load in parts)
        parts = divide(min(max(math.ceil(total / minutes), len(parts) + 1), most))
    return parts


def _job(
    target: Target,
    shard: str,
    results: int,
    minutes: float,
    arguments: Sequence[str],
    cores: int,
) -> Job:
    entry = entry_of(target.ep)
    name = target.label + (f"-{shard.replace('/', 'of')}" if shard else "")
    installed = "" if entry is None or target.release else entry.extra
    words = ["gqa", "run", *arguments, *target.arguments, "--jobs", str(cores)]
    words += ["--shard", shard] if shard else []
    return Job(
        name=name,
        target=target.typed,
        shard=shard,
        install=f".[{installed}]" if installed else ".",
        setup=f"gqa setup {entry.setup}" if entry and entry.setup and not target.release else "",
        command=shlex.join([*words, "--results", f"{name}.jsonl"]),
        results=results,
        minutes=round(minutes, 2),
    )


def plan_data(all_jobs: Sequence[Job]) -> dict[str, Any]:
    """The plan as JSON has it."""
    return {
        "format": FORMAT,
        "minutes": round(sum(job.minutes for job in all_jobs), 2),
        "targets": list(dict.fromkeys(job.target for job in all_jobs)),
        "jobs": [asdict(job) for job in all_jobs],
    }
