"""``gqa run --shard``: each case in one shard, the same on every machine."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from shipped import shipped_cases

from conformance.diagnosis.shared import effort
from conformance.run.shard import Shard, part_of
from conformance.run.target import Plan
from conformance.targets.registry import targets_for


def plans(*eps: str) -> list[Plan]:
    return [Plan(target, shipped_cases(), ()) for target in targets_for(eps or ("cpu",))]


def parts(plans: list[Plan], of: int) -> list[list[Plan]]:
    return [part_of(plans, Shard(number, of)) for number in range(1, of + 1)]


def test_each_case_is_in_one_shard_on_all_targets() -> None:
    found = []
    for first, second in parts(plans("cpu", "tract"), 5):
        assert first.cases == second.cases
        found += [case.id for case in first.cases]
    assert sorted(found) == sorted(case.id for case in shipped_cases())


def test_shards_do_not_depend_on_the_order_of_cases() -> None:
    shuffled = list(shipped_cases())
    random.Random(0).shuffle(shuffled)
    (plan,) = plans()
    other = [replace(plan, cases=tuple(shuffled))]
    one, two = (
        [{case.id for case in part.cases} for (part,) in parts(which, 7)]
        for which in ([plan], other)
    )
    assert one == two


@pytest.mark.parametrize("of", [2, 4, 8])
def test_long_cases_are_spread(of: int) -> None:
    """A case takes a fixed time, that of some 200,000 scores, and more for each of its own."""
    loads = [
        sum(effort(case) // max(case.call.head_size, 1) + 200_000 for case in part.cases)
        for (part,) in parts(plans(), of)
    ]
    assert max(loads) < 1.5 * sum(loads) / of
