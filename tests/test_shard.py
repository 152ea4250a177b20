"""``gqa run --shard``: each case in one shard, the same on every machine."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from as_user import Gqa
from as_user import desk as desk
from as_user import gqa as gqa
from shipped import shipped_cases

from conformance.maintain.power import scores
from conformance.results.reader import read
from conformance.run.shard import Shard, part_of
from conformance.run.target import TargetPlan
from conformance.targets.registry import targets_for


def plans(*eps: str) -> list[TargetPlan]:
    return [TargetPlan(target, shipped_cases(), ()) for target in targets_for(eps or ("cpu",))]


def parts(plans: list[TargetPlan], of: int) -> list[list[TargetPlan]]:
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
    loads = [sum(scores(case) + 200_000 for case in part.cases) for (part,) in parts(plans(), of)]
    assert max(loads) < 1.5 * sum(loads) / of


def test_the_header_says_which_shard_the_results_are_of(gqa: Gqa, tmp_path: Path) -> None:
    runs = []
    for number in (1, 2, 3, 4):  # the last one has no case
        file = tmp_path / f"{number}.jsonl"
        done = gqa("run", "three.yaml", "--shard", f"{number}/4", "--results", str(file))
        assert done.status == 0, done.both
        assert f"Shard {number}/4: " in done.out
        runs.append(read(file))
    assert [len(run.results) for run in runs] == [1, 1, 1, 0]
    assert {run.header.corpus for run in runs} == {runs[0].header.corpus}
    for number, run in enumerate(runs, 1):
        assert run.problems == ()
        assert run.header.shard is not None
        assert run.header.shard.model_dump() == {
            "number": number,
            "of": 4,
            "cases": 3,
            "results": 3,
        }
