"""Dividing a run among machines: the cases of each shard."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from conformance.case.case import Case
from conformance.results.records import ShardRecord
from conformance.run.target import Plan


@dataclass(frozen=True)
class Shard:
    """The ``number``-th of ``of`` shards, from 1."""

    number: int
    of: int

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    @classmethod
    def named(cls, text: str) -> Self | None:
        """The shard that ``text`` names, such as ``3/8``; None if it names none."""
        match = re.fullmatch(r"([0-9]{1,4})/([0-9]{1,4})", text)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            return None
        return cls(int(match[1]), int(match[2]))


def part_of(plans: Sequence[Plan], shard: Shard) -> list[Plan]:
    """The plans with the cases of a shard: every ``shard.of``-th of all cases by file and id.

    A case is in one shard, on all its targets, regardless of the order of cases and files. Long
    cases have neighbouring ids, so they are spread over the shards.
    """
    every = sorted({_key(case) for plan in plans for case in plan.cases})
    mine = set(every[shard.number - 1 :: shard.of])
    return [
        replace(plan, cases=tuple(case for case in plan.cases if _key(case) in mine))
        for plan in plans
    ]


def _key(case: Case) -> tuple[str, str]:
    """A key that identifies a case on every machine, wherever its file is."""
    return case.file.name, case.id


def shard_record(plans: Sequence[Plan], shard: Shard) -> ShardRecord:
    """The shard for the header of its results; ``plans`` are those of the whole run."""
    return ShardRecord(
        number=shard.number,
        of=shard.of,
        cases=len({case.id for plan in plans for case in plan.cases}),
        results=sum(len(plan.cases) for plan in plans),
    )
