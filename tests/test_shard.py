"""``gqa run --shard``: each case in one shard, by its weight, the same on every machine."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from as_user import Gqa
from as_user import desk as desk
from as_user import gqa as gqa
from shipped import shipped_cases
from synthetic_runs import case, result, write

from conformance.results.errors import ResultsError
from conformance.results.reader import read
from conformance.results.records import Milliseconds
from conformance.run.shard import Shard, ShardError, divided, shard_for
from conformance.run.target import TargetPlan
from conformance.run.times import Times, recorded_times
from conformance.targets.registry import targets_for


def plans(*eps: str) -> list[TargetPlan]:
    return [TargetPlan(target, shipped_cases(), ()) for target in targets_for(eps or ("cpu",))]


def ids(parts: list[tuple[list[TargetPlan], float]]) -> list[list[str]]:
    return [[case.id for plan in part for case in plan.cases] for part, _ in parts]


def test_each_case_is_in_one_shard_on_all_targets() -> None:
    parts = divided(plans("cpu", "tract"), 5, Times())
    for part, _ in parts:
        first, second = part
        assert first.cases == second.cases
    found = [case.id for part, _ in parts for case in part[0].cases]
    assert sorted(found) == sorted(case.id for case in shipped_cases())


def test_shards_do_not_depend_on_the_order_of_cases() -> None:
    shuffled = list(shipped_cases())
    random.Random(0).shuffle(shuffled)
    (plan,) = plans()
    other = [replace(plan, cases=tuple(shuffled))]
    one, two = (ids(divided(which, 7, Times())) for which in ([plan], other))
    assert [set(part) for part in one] == [set(part) for part in two]


def test_shards_take_equally_long_and_heavy_cases_are_spread() -> None:
    times = Times()
    parts = divided(plans(), 8, times)
    loads = [load for _, load in parts]
    assert max(loads) < 1.01 * min(loads)
    heaviest = sorted(shipped_cases(), key=times.preparing)[-8:]
    where = [n for case in heaviest for n, part in enumerate(ids(parts)) if case.id in part]
    assert sorted(where) == list(range(8))


def test_recorded_times_decide_where_there_are_any(tmp_path: Path) -> None:
    (slow, fast, *_) = shipped_cases()
    results = [
        result(slow.id, ms=Milliseconds(total=90_000)),
        result(fast.id, ms=Milliseconds(total=1)),
    ]
    file = write(tmp_path / "r.jsonl", [case(slow.id), case(fast.id)], results)
    times = recorded_times([file, file])
    assert times.recorded == {(slow.id, "cpu"): 90_000, (fast.id, "cpu"): 1}
    assert times.running(slow, "cpu") == times.running(slow, "cpu@1.25.1") == 90_000
    assert times.running(slow, "tract") == Times().running(slow, "tract")
    few = [TargetPlan(targets_for(["cpu"])[0], shipped_cases()[:9], ())]
    with_it = next(part for part in ids(divided(few, 2, times)) if slow.id in part)
    assert with_it == [slow.id]


def test_results_without_times_are_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "r.jsonl", [case()], [result(ms=None)])
    with pytest.raises(ResultsError, match="has no times"):
        recorded_times([file])


@pytest.mark.parametrize(
    ("environment", "shard"),
    [
        ({"GQA_JOB_INDEX": "0", "GQA_JOB_TOTAL": "8"}, "1/8"),
        ({"CI_NODE_INDEX": "8", "CI_NODE_TOTAL": "8"}, "8/8"),
        ({"CI_NODE_TOTAL": "1", "JOB_COMPLETION_INDEX": "2", "GQA_JOB_TOTAL": "3"}, "3/3"),
        ({"SLURM_ARRAY_TASK_ID": "0", "SLURM_ARRAY_TASK_COUNT": "4"}, "1/4"),
        (
            {
                "SLURM_ARRAY_TASK_ID": "7",
                "SLURM_ARRAY_TASK_MIN": "1",
                "SLURM_ARRAY_TASK_MAX": "7",
                "SLURM_ARRAY_TASK_STEP": "2",
                "SLURM_ARRAY_TASK_COUNT": "4",
            },
            "4/4",
        ),
        ({"CI_NODE_INDEX": "2", "CI_NODE_TOTAL": "4", "GQA_JOB_INDEX": ""}, "2/4"),
    ],
)
def test_the_shard_is_in_the_environment(environment: dict[str, str], shard: str) -> None:
    assert str(shard_for("auto", environment)) == shard


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({}, "no scheduler says which shard this is"),
        ({"JOB_COMPLETION_INDEX": "0"}, "GQA_JOB_TOTAL is not"),
        ({"CI_NODE_INDEX": "0", "CI_NODE_TOTAL": "4"}, "there is no shard 0 of 4"),
        ({"GQA_JOB_INDEX": "4", "GQA_JOB_TOTAL": "4"}, "there is no shard 5 of 4"),
        ({"GQA_JOB_INDEX": "x", "GQA_JOB_TOTAL": "4"}, "GQA_JOB_INDEX='x' is not a number"),
        (
            {"SLURM_ARRAY_TASK_ID": "1,3,9", "SLURM_ARRAY_TASK_COUNT": "3"},
            "SLURM_ARRAY_TASK_ID='1,3,9' is not a number",
        ),
        (
            {
                "GQA_JOB_INDEX": "1",
                "GQA_JOB_TOTAL": "4",
                "CI_NODE_INDEX": "1",
                "CI_NODE_TOTAL": "4",
            },
            "GQA_JOB_INDEX says 2/4, but CI_NODE_INDEX says 1/4",
        ),
    ],
)
def test_a_contradictory_environment_is_refused(environment: dict[str, str], says: str) -> None:
    with pytest.raises(ShardError) as refused:
        shard_for("auto", environment)
    assert says in str(refused.value)


def test_shards_of_one_scheduler_that_agree_with_another_are_taken() -> None:
    both = {"GQA_JOB_INDEX": "0", "GQA_JOB_TOTAL": "4", "CI_NODE_INDEX": "1", "CI_NODE_TOTAL": "4"}
    assert shard_for("auto", both) == Shard(1, 4)


@pytest.mark.parametrize("text", ["", "3", "0/8", "9/8", "3/", "a/b", "-1/8", "1/0", "1/99999"])
def test_what_is_no_shard_is_refused(gqa: Gqa, text: str) -> None:
    done = gqa("run", "three.yaml", "--shard", text)
    assert done.status == 2
    assert done.err.startswith("--shard: ")
    assert done.err.count("\n") == 1


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


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--times", "r.jsonl"], "--times needs --shard."),
        (["--shard", "1/2", "--lf"], "--shard and --lf"),
    ],
)
def test_options_that_contradict_each_other(gqa: Gqa, arguments: list[str], says: str) -> None:
    done = gqa("run", "three.yaml", *arguments)
    assert (done.status, says in done.err) == (2, True)
