"""The jobs of a night: targets × releases × shards, with the command and the minutes of each.

A job of the plan is one ``gqa run`` of one target, whose results ``gqa merge`` joins.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from conformance.base.words import listed
from conformance.run.shard import MOST_SHARDS, divided
from conformance.run.target import TargetPlan
from conformance.run.times import Times
from conformance.targets.catalogue import TARGETS, Package, TargetError, entry_of
from conformance.targets.registry import Target
from conformance.targets.releases import Published, newer_releases, releases
from conformance.targets.tools import (
    ONNXRUNTIME_VERSION,
    ONNXRUNTIME_WEB_VERSION,
    TRACT_VERSION,
)

FORMAT: Final = "gqa-plan/1"

#: The pinned release of each package that a night takes.
_PINNED: Final = {
    "onnxruntime": ONNXRUNTIME_VERSION,
    "tract": TRACT_VERSION,
    "tract-cli": TRACT_VERSION,
    "onnxruntime-web": ONNXRUNTIME_WEB_VERSION,
}

#: The targets that a night has in older releases, too: those whose expectations cover them.
_OLDER: Final = ("cpu", "tract-wheel")


@dataclass(frozen=True)
class Job:
    """A part of the night that one machine does."""

    name: str
    """Of its results file, without suffix: `cpu@1.25.1`, or `webgpu@nightly-2of3`."""
    target: str
    """What `--ep` takes: `cpu@1.25.1`, or `webgpu@nightly`."""
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


@dataclass(frozen=True)
class Night:
    """The targets of a night.

    ``names`` has what ``--ep`` takes for each, and its name, which is the same in each night:
    ``cpu@latest`` for ``cpu@1.32.0``. ``left_out`` says which releases could not be found, and why.
    """

    names: Mapping[str, str]
    left_out: Sequence[str]


def targets_of_a_night(published: Published) -> Night:
    """Every target at its pinned release, and in newer releases; older releases of some.

    A GPU is not there every night, so CUDA is left out.
    """
    entries = [entry for entry in TARGETS if not entry.name.startswith("cuda")]
    names = {entry.name: entry.name for entry in entries}
    left_out = []
    for package in dict.fromkeys(entry.package for entry in entries if entry.package):
        those = [entry.name for entry in entries if entry.package == package]
        try:
            known = published(package)
        except TargetError as why:
            left_out.append(f"Only the pinned release of {listed(those)} is in the plan. {why}")
            continue
        for name in those:
            names |= _other_releases(name, package, known)
    return Night(names, left_out)


def _other_releases(name: str, package: Package, known: Sequence[str]) -> dict[str, str]:
    """What `Night.names` has of a target beside its pinned release; ``known`` are all releases."""
    pinned = _PINNED[package.name]
    older = releases(f"..{pinned}", package, lambda _: known) if name in _OLDER else []
    newer = newer_releases(pinned, package, lambda _: known)
    return {
        **{f"{name}@{release}": f"{name}@{release}" for release in older if release != pinned},
        **{f"{name}@{release}": f"{name}@{word}" for word, release in newer.items()},
    }


def jobs(
    plans: Sequence[TargetPlan],
    times: Times,
    arguments: Sequence[str],
    *,
    names: Mapping[str, str],
    cores: int,
    shards: int | None,
    minutes: float | None,
) -> Iterator[Job]:
    """The jobs for these plans, each target in so many ``shards`` or none above ``minutes``.

    ``arguments`` are those of each run that select cases and times; ``names`` are those of `Night`.
    """
    for plan in plans:
        for number, (part, load) in enumerate(parts := _parts(plan, times, cores, shards, minutes)):
            one_of = f"{number + 1}/{len(parts)}" if len(parts) > 1 else ""
            results = sum(len(each.cases) for each in part)
            yield _job(plan.target, names, one_of, results, load, arguments, cores)


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
    names: Mapping[str, str],
    shard: str,
    results: int,
    minutes: float,
    arguments: Sequence[str],
    cores: int,
) -> Job:
    entry = entry_of(target.ep)
    name = names.get(target.label, target.label)
    name += f"-{shard.replace('/', 'of')}" if shard else ""
    installed = "" if entry is None or target.release else entry.extra
    words = ["gqa", "run", *arguments, *target.arguments, "--jobs", str(cores)]
    words += ["--shard", shard] if shard else []
    return Job(
        name=name,
        target=names.get(target.typed, target.typed),
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
