"""Whatever a model has in it, ``gqa check`` ends in plain sentences and leaves nothing behind."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
from as_user import Desk, Gqa
from endings import check_ending, no_hang
from hostile_models import MARK, graphs, write

#: Of each test README's command runs one example, see support/tiers.py.
ONE_EXAMPLE = True


@pytest.mark.push
@pytest.mark.parametrize("count", [12, pytest.param(300, marks=pytest.mark.night)])
def test_no_model_ends_a_check_with_a_traceback_or_prints_a_line_of_its_own(
    desk: Desk, gqa: Gqa, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setenv("FAULT_ON", "/")  # in each case
    for name in ("HOME", "TMPDIR"):
        (tmp_path / name).mkdir()
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "model").mkdir()
    runner, wholes, seen = desk.runner("forges"), graphs(), Counter[int]()
    first = int(os.environ.get("GQA_FIRST_SEED", "0"))
    for seed in range(first, first + count):
        file = write(tmp_path / "model", wholes, seed)
        with no_hang(f"model {seed}", 120):
            done = gqa("check", str(file), "--ep", runner, "--lengths", "5")
        check_ending(done)
        forged = [
            line
            for line in done.both.splitlines()
            if line.strip().startswith((MARK, f"fix: {MARK}"))
        ]
        assert forged == [], (seed, done.both)
        seen[done.status] += 1
    assert [*(tmp_path / "HOME").iterdir(), *(tmp_path / "TMPDIR").iterdir()] == []
    assert seen[1] + seen[3] >= count // 5, seen


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", f"x\n  fix: {MARK}.onnx"),
        ("check", "three.yaml", "--ep", f"x\n  fix: {MARK}"),
        ("check", "three.yaml", "--lengths", "1" * 5000),
        ("models", f"x\n{MARK}" + "x" * 100_000),
        ("run", "three.yaml", "--jobs", "9" * 5000),
        ("run", "three.yaml", "-k", "(" * 100_000),
    ],
    ids=["line feed", "target", "digits", "long", "jobs", "parentheses"],
)
def test_an_odd_argument_ends_in_a_short_sentence(gqa: Gqa, arguments: tuple[str, ...]) -> None:
    done = gqa(*arguments)
    check_ending(done)
    assert done.status == 2
    assert len(done.both) < 2000
    assert [line for line in done.both.splitlines() if line.strip().startswith(("fix", MARK))] == []
