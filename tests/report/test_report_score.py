"""The score: what counts as right, what it is a share of, and that every form has the same."""

from __future__ import annotations

from pathlib import Path

from synthetic_runs import case, expected, of_results, result, small

from conformance.case.contract import Contract
from conformance.results.score import Score, part_of
from conformance.results.table import tabulate
from conformance.results.verdicts import colour_of, drawing_of, note_of, worst

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


def test_what_only_a_software_gpu_has_is_no_silent_failure_of_the_runtime(tmp_path: Path) -> None:
    """The verdict stays ``wrong``; the finding and the adapter decide what it means."""
    subgroups = expected(link="docs/findings/webgpu-small-subgroups.md")
    another = expected(link="docs/findings/webgpu-softcap.md")
    lavapipe, gpu = "webgpu@1.30.0+lavapipe", "webgpu@1.30.0+h100"
    wanted = {("a/x", lavapipe, subgroups): "software", ("a/y", lavapipe, another): "silent",
              ("a/z", lavapipe, None): "silent", ("a/x", gpu, subgroups): "silent"}  # fmt: skip
    results = [
        result(id, at, "wrong", expectation=known, unexpected=known is None)
        for id, at, known in wanted
    ]
    assert [part_of(each) for each in results] == [*wanted.values()]
    assert [each.verdict for each in results] == ["wrong"] * 4
    software, *others = results
    assert (colour_of(software), drawing_of(software), note_of(software)) == (
        "software", "software", "software GPU",
    )  # fmt: skip
    assert not any(colour_of(each) == "software" for each in others)
    assert worst(results[:2]) is results[1]
    run = of_results(tmp_path / "r", results, [case(id) for id in ("a/x", "a/y", "a/z")])
    table = tabulate([run])
    numbers = table.scores([lavapipe]).specified.numbers()
    assert (numbers["asked"], numbers["software"], numbers["silent"]) == (3, 1, 2)
