"""Faults that are on in a region only: the regions, the cells, the record, and `gqa power`."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from as_user import Done

from conformance.base.paths import ROOT
from conformance.case.corpus import find
from conformance.case.features import BY_NAME
from conformance.cli.power_regions import closing, summary
from conformance.maintain.fault_rows import SPECIAL_NUMBERS
from conformance.maintain.power import (
    MUTANTS,
    Mutant,
    Power,
    PowerError,
    can_run,
    known_mutants,
)
from conformance.maintain.power import known_regions as all_regions
from conformance.maintain.region_record import Recorded
from conformance.maintain.region_run import Cells, fill, impossible
from conformance.maintain.regions import SIZES, Region, excluded

WINDOW = "window/prompt[dtype=float32,local_window_size=4]"
HALF = "window/prompt[dtype=float16,local_window_size=4]"
LONG = "window/long_prompt[dtype=float32,rotary=none]"

#: Prints which elements of an output differ from the correct kernel's: for each region the smallest
#: index on the axis of its part. Five sequences of 20 tokens, 4 query heads, 2 heads of 80.
PARTS = """
import json, sys
import numpy as np
from areas import MUTANTS
from kernel import Kernel
from parts import AXES, with_heads
from regions import REGIONS
from switched import in_region

random = np.random.RandomState(0)
inputs = {
    "query": random.rand(5, 20, 320).astype("f"),
    "key": random.rand(5, 20, 160).astype("f"),
    "value": random.rand(5, 20, 160).astype("f"),
    "seqlens_k": np.full(5, 19, "i4"),
    "total_sequence_length": np.array(20, "i4"),
}
call = (inputs, {"num_heads": 4, "kv_num_heads": 2}, ("output", "present_key", "present_value"))
right, found = Kernel().run(*call), {}
for mutant, region in json.loads(sys.argv[1]):
    part = REGIONS[region].part
    got = in_region(MUTANTS[mutant].kernel, REGIONS[region])().run(*call)
    least = [
        int(np.nonzero(with_heads(name, got[name] != array, 4))[AXES[name][part.axis]].min())
        for name, array in right.items()
        if part.axis in AXES[name] and (got[name] != array).any()
    ]
    found[region] = min(least, default=None)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def mutants() -> dict[str, Mutant]:
    return {mutant.name: mutant for mutant in known_mutants()}


@pytest.fixture(scope="module")
def regions() -> dict[str, Region]:
    return {region.name: region for region in all_regions()}


@pytest.fixture(scope="module")
def cells(mutants: dict[str, Mutant], regions: dict[str, Region]) -> Cells:
    """All cells, none of them filled."""
    return Cells(list(mutants.values()), list(regions.values()))


def gqa_power(*arguments: str) -> Done:
    argv = [sys.executable, "-m", "conformance", "power", *arguments]
    done = subprocess.run(argv, capture_output=True, text=True)
    return Done(done.returncode, done.stdout, done.stderr)


def in_region(mutant: Mutant, region: str, *cases: str) -> list[str]:
    """The cases that detect the mutant if it is at fault in the region only."""
    made = Power([mutant], list(find(cases).named), region=region)
    made.run()
    assert made.troubles == []
    return [kill.case.id for kill in made.scores[0].kills]


def test_regions_and_needs_are_written_in_the_words_of_the_features(
    mutants: dict[str, Mutant], regions: dict[str, Region]
) -> None:
    assert len({region.what for region in regions.values()}) == len(regions)
    needs = [region.needs for region in regions.values()]
    for one in (*needs, *(one for mutant in mutants.values() for one in mutant.needs)):
        for name, values in one.items():
            if name in SIZES:
                low, high = values
                assert 1 <= low <= high  # type: ignore[operator]
            elif name == "numbers":
                assert set(values) <= {*SPECIAL_NUMBERS}
            elif name == "group":
                assert all(float(value) > 1 for value in values)
            elif name in ("sixteens", "power_of_two"):
                assert set(values) <= {"none", "rest", "yes", "no"}
            else:
                assert set(values) <= {*BY_NAME[name].values}, name


def test_a_mutant_in_a_region_is_wrong_only_there(mutants: dict[str, Mutant]) -> None:
    mutant = mutants["window_ignored"]
    assert in_region(mutant, "float16", WINDOW, HALF) == [HALF]
    assert in_region(mutant, "prefill", WINDOW, HALF) == [WINDOW, HALF]
    assert in_region(mutant, "decode", WINDOW, HALF) == []
    assert in_region(mutant, "query_rows_from_16", WINDOW, LONG) == [LONG]


def test_a_part_affects_only_its_part() -> None:
    pairs = [
        ("scale_ignored", "sequences_from_3"),
        ("scale_ignored", "sequences_from_7"),
        ("scale_ignored", "query_heads_from_1"),
        ("scale_ignored", "query_rows_from_16"),
        ("scale_ignored", "channels_from_64"),
        ("presents_empty", "kv_heads_from_1"),
        ("presents_empty", "present_rows_from_16"),
    ]
    path = os.pathsep.join(map(str, (MUTANTS, ROOT / "runners" / "common")))
    argv = [sys.executable, "-c", PARTS, json.dumps(pairs)]
    done = subprocess.run(
        argv, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": path}
    )
    found = json.loads(done.stdout)
    assert found == {
        "sequences_from_3": 3,
        "sequences_from_7": None,
        "query_heads_from_1": 1,
        "query_rows_from_16": 16,
        "channels_from_64": 64,
        "kv_heads_from_1": 1,
        "present_rows_from_16": 16,
    }


@pytest.mark.parametrize(
    ("needs", "why"),
    [
        ({}, ""),
        ({"phase": ["decode"], "cache": ["static"]}, ""),
        ({"phase": ["decode"], "cache": ["none"]}, "Without a cache there are no tokens"),
        ({"rotary": ["none"], "position_ids": ["given"]}, "Positions are the rotation angles"),
        ({"heads": []}, "The two need different values of heads."),
        ({"keys": [65, 64]}, "The two need different numbers of keys."),
        ({"phase": ["decode"], "queries": [2, 99]}, "A decode has one query token."),
        ({"batch": ["one"], "batch_size": [4, 99]}, "A batch of one has no second sequence."),
        (
            {"cache": ["sliding_window"], "phase": ["chunked_prefill"], "batch_size": [2, 9]},
            "Several tokens on a sliding-window cache require a batch of one.",
        ),
    ],
)
def test_why_no_call_meets_both(needs: dict[str, list[str | float]], why: str) -> None:
    assert excluded(needs).startswith(why)
    assert bool(excluded(needs)) == bool(why)


@pytest.mark.parametrize(
    ("mutant", "region", "why"),
    [
        ("window_ignored", "bidirectional", "local_window_size must be -1 if causal is 0."),
        ("window_ignored", "decode", ""),
        ("says_error", "decode", "The calls must be rejected."),
        ("window_ignored", "kv_heads_from_1", "The outputs that it changes have no such part."),
        ("norm_by_the_sum", "no_presents", ""),
        ("scale_ignored", "keys_from_16", "Its step makes nothing for each key."),
        ("output_flattened", "query_rows_from_16", "A rejection, a type, a shape"),
        ("heads_modulo", "mqa", "The two need different values of heads."),
    ],
)
def test_faults_that_cannot_be_on_in_a_region(
    mutants: dict[str, Mutant], regions: dict[str, Region], mutant: str, region: str, why: str
) -> None:
    found = impossible(mutants[mutant], regions[region])
    assert found.startswith(why)
    assert bool(found) == bool(why)


def test_one_run_fills_the_cells_of_all_regions_of_a_case(
    mutants: dict[str, Mutant], regions: dict[str, Region]
) -> None:
    chosen = [mutants["window_ignored"], mutants["last_key_unseen"]]
    cells = Cells(chosen, list(regions.values()))
    fill(cells, list(find([LONG]).named))
    (filled,) = cells.killers["window_ignored"].values()
    assert {"float32", "prefill", "over_16_keys", "window", "query_rows_from_16"} <= {*filled}
    assert {"keys_from_16"} <= {*cells.killers["last_key_unseen"][LONG]}
    assert not {"float16", "decode", "ragged", "sequences_from_3"} & {*filled}
    assert 2 < cells.runs < 20
    assert "window_ignored" in {mutant.name for mutant, _ in cells.holes()}
    text = summary(cells)
    assert "| masks | 2 | 0/2 | 0/2 |" in text
    assert "- `decode`: 2 faults **not detected** (masks 2)." in text
    assert "| local_window_size must be -1 if causal is 0. |" in text
    assert "pairs of fault and region detected" in closing(cells)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mutant", "case"),
    [
        ("window_ignored", LONG),
        ("past_of_the_first_sequence", "static_cache/ragged[dtype=float32]"),
        ("present_without_past", "static_cache/ragged[dtype=float32]"),
    ],
)
def test_derived_cells_agree_with_real_runs(
    mutants: dict[str, Mutant], regions: dict[str, Region], mutant: str, case: str
) -> None:
    cells = Cells([mutants[mutant]], list(regions.values()))
    possible = sorted(cells.open[mutant])
    fill(cells, list(find([case]).named))
    filled = {region for of in cells.killers[mutant].values() for region in of}
    chosen = random.Random(0).sample(possible, 2) + random.Random(1).sample(sorted(filled), 2)
    for region in chosen:
        assert bool(in_region(mutants[mutant], region, case)) == (region in filled), region


def test_the_record_fits_the_corpus_the_mutants_and_the_regions(cells: Cells) -> None:
    assert Recorded.read().stale(cells, {case.id for case in find([]).named}) == ""


def test_a_record_that_does_not_fit(cells: Cells) -> None:
    recorded = Recorded.read()
    corpus = {case.id for case in find([]).named}
    name, of = next((name, of) for name, of in recorded.mutants.items() if of.cases)
    assert "no longer exists" in recorded.stale(cells, corpus - {of.cases[0]})
    fewer = Recorded(recorded.regions[:-1], recorded.cases, recorded.mutants)
    assert fewer.stale(cells, corpus) == "the regions have changed"
    others = {other: of for other, of in recorded.mutants.items() if other != name}
    assert (
        Recorded(recorded.regions, recorded.cases, others)
        .stale(cells, corpus)
        .startswith(f"the mutant {name} is new")
    )
    empty = {**recorded.mutants, name: type(of)()}
    assert (
        Recorded(recorded.regions, recorded.cases, empty)
        .stale(cells, corpus)
        .startswith(f"no case is recorded for {name} in ")
    )


def test_the_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    recorded, file = Recorded.read(), tmp_path / "regions.json"
    recorded.write(file)
    assert Recorded.read(file) == recorded
    assert file.stat().st_size < 400_000
    file.write_text('{"regions": []}')
    with pytest.raises(PowerError, match="Fix: gqa power --regions --record"):
        Recorded.read(file)


def test_a_hole_is_an_error() -> None:
    done = gqa_power("--regions", "--mutant", "window_ignored", WINDOW)
    assert done.status == 1
    assert "No case detects in decode: window_ignored." in done.out
    assert "not detected" in done.out.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--region", "decod"], "There is no region 'decod'; did you mean 'decode'?"),
        (["--region", "zzz"], "There is no region 'zzz'."),
        (["--region", "decode", "--regions"], "--region is for single runs: without"),
        (["--regions", "--quick"], "--regions goes neither with --quick nor with --json."),
        (["--regions", "--record", WINDOW], "--regions --record requires the whole corpus."),
    ],
)
def test_bad_input(arguments: list[str], says: str) -> None:
    done = gqa_power(*arguments)
    assert done.status == 2
    assert done.err.startswith(says)
    assert done.err.count("\n") == 1


@pytest.mark.slow
def test_the_recorded_cases_detect_the_faults(cells: Cells) -> None:
    """The reduced form: nothing is missing that is not recorded as missing."""
    done = gqa_power("--regions", "--reduced", "--jobs", "2")
    missing = sum(len(of.missing) for of in Recorded.read().mutants.values())
    assert done.status == (1 if missing else 0), done.out[-3000:] + done.err
    assert f" {missing:,} not detected;" in done.out.splitlines()[-1]


@pytest.mark.slow
def test_no_case_detects_a_fault_where_it_is_said_to_have_no_effect(cells: Cells) -> None:
    """The declared needs of the mutants, on a sample of the corpus.

    Calls that are only requested are left out: the past of some is in their new keys. So are
    prompts of layers that borrow, whose new tokens are in their past, and calls at the bounds of
    an input, of which some are hardly a decode or a prompt.
    """
    mutants = [mutant for mutant in cells.mutants if not mutant.everywhere]
    calls = [region for region in cells.regions if region.part is None]
    opposite = Cells(mutants, calls)
    for mutant in mutants:
        excluded_ones = {r.name for r in calls if (mutant.name, r.name) in opposite.excluded}
        opposite.open[mutant.name] = excluded_ones - opposite.open[mutant.name]
    corpus = [case for case in find([]).named if can_run(case)]
    cases = random.Random(3).sample(corpus, 300)
    cases = [
        case
        for case in cases
        if case.contract.basis != "requested"
        and not case.theme.startswith("bounds_")
        and not (case.call.key_value == "zero_length" and case.call.sequence_length > 1)
    ]
    fill(opposite, cases, 2)
    assert {name: of for name, of in opposite.killers.items() if of} == {}
