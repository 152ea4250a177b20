"""The shares of error budgets: which are counted, their limits, and the command's output."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from synthetic_runs import case, result, target, write

from conformance.maintain.calibration import faults, findings, killed, main


def results_file(path: Path, *results: tuple[str, str, float | None], ep: str = "cpu") -> Path:
    """A results file of (dtype, verdict, share)."""
    cases = [
        case(f"sink/entry_{number}[dtype={dtype}]") for number, (dtype, _, _) in enumerate(results)
    ]
    records = [
        result(about.id, ep, verdict, share=share)
        for about, (_, verdict, share) in zip(cases, results, strict=True)
    ]
    write(path, cases, records, targets=[target(ep)])
    return path


def mutant(name: str, numerical: bool = True, kills: int = 3, **shares: float) -> dict[str, Any]:
    """An entry of python -m conformance.maintain.power."""
    of = {"mutant": name, "numerical": numerical, "kills": kills, "first": "sink/entry"}
    return of | {"largest_share": shares}


def test_faults_are_the_numerical_mutants_that_were_killed() -> None:
    mutants = (
        mutant("window", float32=500.0),
        mutant("precision", float32=math.nan, float16=4.0),
        mutant("message", numerical=False, float32=7.0),
        mutant("alive", kills=0, float32=0.2),
        mutant("correct", kills=1, float32=0.3),
    )
    points = faults(killed([mutants]))
    assert points["float32"] == [(500.0, "window"), (math.inf, "precision")]
    assert points["float16"] == [(4.0, "precision")]


def test_the_limits_are_half_a_budget_and_two_budgets() -> None:
    kernels = {"float32": [(0.5, "edge")], "float16": [(0.51, "case on cpu")]}
    mutants = (
        mutant("weak", float32=1.9, float16=0.2),
        mutant("fair", float32=0.1, float16=2.0),
        mutant("nan", float32=math.nan),
        mutant("alive", kills=0, float32=0.1),
    )
    assert findings(kernels, killed([mutants])) == [
        "case on cpu uses 0.51 of its budget; a correct kernel uses at most 0.5.",
        "The fault weak has a share of at most 1.9 of the budget; 2 is required on some case.",
    ]


def test_the_command_fails_at_a_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command prints a summary and fails beyond a limit."""
    results = results_file(tmp_path / "a.jsonl", ("float32", "pass", 0.3))
    power = tmp_path / "power.json"
    power.write_text(json.dumps([mutant("window", float32=500.0)]), encoding="utf-8")
    assert main([str(results), "--power", str(power)]) == 0
    assert capsys.readouterr().out.splitlines()[:2] == [
        "float32   1 result: least 0.3, median 0.3, largest 0.3",
        "          1 mutant: least 500, median 500, largest 500",
    ]
    assert main([str(results_file(tmp_path / "b.jsonl", ("float32", "pass", 0.7)))]) == 1
    assert "uses 0.7 of its budget" in capsys.readouterr().out
