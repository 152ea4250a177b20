"""Joining campaigns: ``gqa merge`` with the folders of ``gqa fuzz``."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import pytest
from as_user import Desk

from conformance.base.paths import data_path
from conformance.fuzz.join import join
from conformance.fuzz.naming import NamedFault
from conformance.fuzz.state import FILE, STATE, CampaignState
from conformance.run.shard import Shard

TARGET = "cpu@1.0"


def fault(number: int, like: tuple[str, ...] = (), **needs: str) -> NamedFault:
    return NamedFault(TARGET, ("wrong", "", "beyond_budget"), needs, number, like=like)


def shard(folder: Path, number: int, *faults: NamedFault) -> Path:
    """The folder of a shard with these faults, whose case files say where they are from."""
    folder.mkdir()
    verdicts = {TARGET: {"wrong": sum(one.calls for one in faults)}}
    state = CampaignState({"--seed": "0"}, {Shard(number, 3): 10}, verdicts, faults=list(faults))
    (folder / FILE).write_bytes(STATE.dump_json(state))
    for one in faults:
        (folder / f"{one.name}.yaml").write_text(f"shard {number}, call {one.number}")
    return folder


@pytest.mark.push
def test_processes_find_what_one_campaign_finds(desk: Desk) -> None:
    """Three shards at once, beside the campaign that is not divided."""
    runner = data_path("mutants") / "runner.py"
    kernel = desk.program("kernel", sys.executable, str(runner), "--mutant", "window_one_longer")
    command = ("gqa", "fuzz", "--ep", f"exec:{kernel}", "--from", "window", "--calls", "18")
    shards = [("--shard", f"{n}/3", "--out", f"fuzz-{n}") for n in (1, 2, 3)]
    every = [*shards, ("--out", "whole")]
    started = [desk.start(*command, *rest, "--jobs", "1") for rest in every]
    for process in started:
        _, complaint = process.communicate(timeout=240)
        assert (process.returncode, complaint) == (1, "")
    done = desk.gqa("merge", "fuzz-2", "fuzz-3", "fuzz-1", "--output", "joined")
    assert (done.status, done.err) == (0, "")
    joined, whole = desk.folder / "joined", desk.folder / "whole"
    state = json.loads((joined / FILE).read_text())
    assert state["faults"]
    assert state == json.loads((whole / FILE).read_text())
    assert {each.name for each in joined.iterdir()} == {each.name for each in whole.iterdir()}


def test_one_fault_has_one_name_in_all_shards(tmp_path: Path) -> None:
    """As in one campaign: what needs more than an earlier one, or is like the same, is that one."""
    window, half = fault(6, window="shorter"), fault(3, dtype="float16")
    bias, both = fault(4, ("m",), bias="4d"), fault(1, window="shorter", softcap="yes")
    folders = [
        shard(tmp_path / "a", 1, half, window),
        shard(tmp_path / "b", 2, both, bias, fault(7, window="shorter")),
        shard(tmp_path / "c", 3, fault(5, ("m",), packed="yes"), fault(8, **half.needs, k="v")),
    ]
    first, *others = [join(order) for order in itertools.permutations(folders)]
    assert [(one.number, one.calls) for one in first.state.faults] == [
        (1, 1),
        (3, 2),
        (4, 2),
        (6, 2),
    ]
    assert first.files[f"{window.name}.yaml"] == b"shard 1, call 6"
    assert {*first.files} == {FILE, *(f"{one.name}.yaml" for one in (both, half, bias, window))}
    assert all([*each.files.items()] == [*first.files.items()] for each in others)


def test_a_shard_without_calls_is_one(desk: Desk) -> None:
    kernel = desk.runner("correct")
    command = ("fuzz", "--ep", kernel, "--from", "smoke", "--calls", "2", "--jobs", "1")
    for number in (3, 1, 2):
        done = desk.gqa(*command, "--shard", f"{number}/3", "--out", f"part-{number}")
        assert (done.status, done.err) == (0, "")
    done = desk.gqa("merge", "part-3", "part-1", "part-2", "--output", "together")
    assert (done.status, done.err) == (0, "")
    assert "Campaign: together, 2 calls: " in done.out
    # It is in nobody's way.
    assert desk.gqa(*command, "--seed", "5", "--out", "part-3").status == 0
