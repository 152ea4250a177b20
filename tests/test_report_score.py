"""The score: what counts as right, what it is a share of, and that every form has the same."""

from __future__ import annotations

from pathlib import Path

from synthetic_runs import case, of_results, result, small

from conformance.case.contract import Contract
from conformance.results.score import Score
from conformance.results.table import tabulate

REQUESTED = Contract(basis="requested", source="https://example.org/1")


def test_requested_calls_and_untried_ones_are_counted_apart(tmp_path: Path) -> None:
    verdicts = {"a/x": "pass", "a/y": "wrong", "b/x": "skip", "b/z": "unsupported", "b/u": "pass"}
    verdicts |= {"a/1": "fallback", "a/2": "timeout", "a/3": "unsupported", "a/4": "accepted"}
    cases = {id: case(id) for id in [*verdicts, "b/gone"]}
    cases |= {id: case(id, contract=REQUESTED) for id in ("b/z", "b/u")}
    results = {id: result(id, verdict=verdict) for id, verdict in verdicts.items()}
    results["a/4"] = result("a/4", verdict="accepted", values_right=True)
    run = of_results(tmp_path / "r", [*results.values()], [*cases.values()])
    table = tabulate([run])
    found = table.scores([column.label for column in table.columns])
    assert found.specified.numbers() == {
        "asked": 6, "right": 1, "rejected": 1, "accepted": 2, "software": 0, "presents": 0,
        "silent": 1, "none": 1, "not_tried": 2,
    }  # fmt: skip
    assert (found.requested.right, found.requested.asked, found.requested.not_tried) == (1, 2, 0)
    themes = {theme: (score.right, score.asked) for theme, score in found.themes.items()}
    assert themes == {"a": (1, 6), "b": (0, 0)}


def test_only_all_is_a_hundred_per_cent() -> None:
    assert Score.of(["silent", *["right"] * 999]).percent == 99
    assert Score.of([]).percent == 0


def test_a_case_of_two_files_counts_by_the_worse(tmp_path: Path) -> None:
    runs = [small(tmp_path / verdict, verdict) for verdict in ("pass", "wrong")]
    table = tabulate(runs)
    score = table.scores([column.label for column in table.columns]).specified
    assert score.numbers()["silent"] == score.asked == 1
