"""Divides a run among machines: which cases are in which shard.

Every machine computes the same shards by itself, from the selected cases and from what they are
known to take (:mod:`conformance.run.times`), whatever the order of the case files.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from conformance.case.case import Case
from conformance.results.records import ShardRecord
from conformance.run.target import TargetPlan
from conformance.run.times import Times

#: What ``--shard`` takes to have the shard from the environment.
AUTO: Final = "auto"

#: The most shards of a run.
MOST_SHARDS: Final = 10_000


class ShardError(ValueError):
    """A shard that is none; one sentence says why."""


@dataclass(frozen=True)
class Shard:
    """The ``number``-th of ``of`` shards, from 1."""

    number: int
    of: int

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.of <= MOST_SHARDS:
            raise ShardError(
                f"there is no shard {self.number} of {self.of}: it is a number from 1 to the "
                f"number of shards, of which there are {MOST_SHARDS:,} at most"
            )

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


def shard_for(text: str, environment: Mapping[str, str]) -> Shard:
    """The shard that ``text`` names: ``3/8``, or `AUTO`. Raises `ShardError`."""
    if text == AUTO:
        return _from_environment(environment)
    match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text)
    if match is None:
        raise ShardError(f"'{text}' is not a shard: it takes NUMBER/OF, such as 3/8, or {AUTO}")
    return Shard(int(match[1]), int(match[2]))


@dataclass(frozen=True)
class Scheduler:
    """The variables by which a scheduler tells a job its number and the number of jobs.

    ``first`` is the number of the first job, or the variable that has it; ``step`` is the variable
    with the distance of two numbers, if they are not neighbours.
    """

    name: str
    index: str
    total: str
    first: int | str = 0
    step: str | None = None

    def shard(self, environment: Mapping[str, str]) -> Shard | None:
        """The shard that the variables say; None if this scheduler did not start the process.

        Raises `ShardError`.
        """
        if not environment.get(self.index):
            return None
        if not environment.get(self.total):
            raise ShardError(
                f"{self.index} is set, as {self.name} does, but {self.total} is not, which must "
                "have the number of shards; docs/scale.md has an example"
            )
        first = (
            self.first
            if isinstance(self.first, int)
            else _number(environment, self.first, missing=0)
        )
        step = _number(environment, self.step, missing=1) if self.step else 1
        place = _number(environment, self.index) - first
        if step < 1 or place % step:
            raise ShardError(
                f"{self.index}={environment[self.index]} is none of the numbers that {self.first} "
                f"and {self.step} say"
            )
        try:
            return Shard(place // step + 1, _number(environment, self.total))
        except ShardError as error:
            raise ShardError(
                f"{self.index}={environment[self.index]} and "
                f"{self.total}={environment[self.total]}: {error}"
            ) from None


#: Those that ``--shard auto`` knows. GitHub sets no variables: a workflow passes its
#: ``strategy.job-index`` and ``strategy.job-total``, and an indexed job of Kubernetes its number of
#: ``completions``.
SCHEDULERS: Final = (
    Scheduler("a workflow of GitHub", "GQA_JOB_INDEX", "GQA_JOB_TOTAL"),
    Scheduler("GitLab", "CI_NODE_INDEX", "CI_NODE_TOTAL", first=1),
    Scheduler("an indexed job of Kubernetes", "JOB_COMPLETION_INDEX", "GQA_JOB_TOTAL"),
    Scheduler(
        "a job array of Slurm",
        "SLURM_ARRAY_TASK_ID",
        "SLURM_ARRAY_TASK_COUNT",
        first="SLURM_ARRAY_TASK_MIN",
        step="SLURM_ARRAY_TASK_STEP",
    ),
)


def _number(environment: Mapping[str, str], name: str, missing: int | None = None) -> int:
    text = environment.get(name, "")
    if not text and missing is not None:
        return missing
    if re.fullmatch(r"\d{1,9}", text) is None:
        raise ShardError(f"{name}='{text}' is not a number")
    return int(text)


def _from_environment(environment: Mapping[str, str]) -> Shard:
    said = {each: found for each in SCHEDULERS if (found := each.shard(environment)) is not None}
    if not said:
        known = ", ".join(f"{each.index} ({each.name})" for each in SCHEDULERS)
        raise ShardError(f"no scheduler says which shard this is: none of {known} is set")
    if len(set(said.values())) > 1:
        both = ", but ".join(f"{each.index} says {shard}" for each, shard in said.items())
        raise ShardError(f"{both}; name the shard, or unset the variables of one")
    return next(iter(said.values()))


def divided(
    plans: Sequence[TargetPlan], of: int, times: Times
) -> list[tuple[list[TargetPlan], float]]:
    """The plans of each of ``of`` shards, with the milliseconds that it is to take on one core.

    A case runs in one shard, on all its targets, so that its bundle is made once. The heaviest case
    goes first, each to the shard that has the least to do. A shard of a small run may be empty.
    """
    milliseconds: dict[tuple[str, str], float] = {}
    for case, on in _cases(plans).items():
        milliseconds[case] = times.preparing(on[0][1]) + sum(
            times.running(each, plan.target.typed) for plan, each in on
        )
    heaviest_first = sorted(milliseconds, key=lambda case: (-milliseconds[case], case))
    loads = [(0.0, number) for number in range(of)]
    shard_of: dict[tuple[str, str], int] = {}
    for case in heaviest_first:
        load, number = loads[0]
        shard_of[case] = number
        heapq.heapreplace(loads, (load + milliseconds[case], number))
    load_of = {number: load for load, number in loads}
    return [
        (
            [
                replace(plan, cases=tuple(c for c in plan.cases if shard_of[_key(c)] == number))
                for plan in plans
            ],
            load_of[number],
        )
        for number in range(of)
    ]


def _key(case: Case) -> tuple[str, str]:
    """What tells a case from others on every machine, wherever its file is."""
    return case.id, case.file.name


def _cases(plans: Sequence[TargetPlan]) -> dict[tuple[str, str], list[tuple[TargetPlan, Case]]]:
    """Each case with the plans that have it."""
    found: dict[tuple[str, str], list[tuple[TargetPlan, Case]]] = {}
    for plan in plans:
        for case in plan.cases:
            found.setdefault(_key(case), []).append((plan, case))
    return found


def shard_record(plans: Sequence[TargetPlan], shard: Shard) -> ShardRecord:
    """The shard for the header of its results; ``plans`` are those of the whole run."""
    return ShardRecord(
        number=shard.number,
        of=shard.of,
        cases=len({case.id for plan in plans for case in plan.cases}),
        results=sum(len(plan.cases) for plan in plans),
    )
