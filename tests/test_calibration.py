"""The calibration picture: the shares it contains, their positions, and the command's output."""

from __future__ import annotations

import json
import math
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from synthetic_runs import case, result, target, write

from conformance.base.paths import ROOT
from conformance.maintain.calibration import (
    FIRST,
    LAST,
    MutantRecord,
    Point,
    bin_of,
    described,
    faults,
    findings,
    joined,
    main,
    right,
    svg,
)

SVG = "{http://www.w3.org/2000/svg}"


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


def power_file(path: Path, *mutants: dict[str, Any]) -> Path:
    path.write_text(json.dumps(mutants), encoding="utf-8")
    return path


def mutant(name: str, numerical: bool = True, kills: int = 3, **shares: Any) -> dict[str, Any]:
    """An entry of gqa power, with additional fields."""
    of = {"mutant": name, "numerical": numerical, "kills": kills, "first": "sink/entry"}
    return of | {"largest_share": shares}


def entries(*mutants: dict[str, Any]) -> list[MutantRecord]:
    return [MutantRecord.model_validate_json(json.dumps(m)) for m in mutants]


def test_correct_kernels_are_passed_results_with_numbers(tmp_path: Path) -> None:
    from conformance.results.reader import read

    ours = results_file(
        tmp_path / "a.jsonl",
        ("float32", "pass", 0.3),
        ("float32", "pass", 0.1),
        ("float16", "wrong", 37.0),
        ("float16", "pass", None),
    )
    others = results_file(tmp_path / "b.jsonl", ("bfloat16", "pass", 0.2), ep="exec:correct")
    points = right([read(ours), read(others)])
    assert {dtype: [point.share for point in found] for dtype, found in points.items()} == {
        "float32": [0.1, 0.3],
        "float16": [],
        "bfloat16": [0.2],
    }
    assert points["bfloat16"][0].name == "sink/entry_0[dtype=bfloat16] on exec:correct"


def test_faults_are_the_numerical_mutants_that_were_killed() -> None:
    points = faults(
        entries(
            mutant("window", float32=500.0, float16=None),
            mutant("precision", float32="nan", float16=4.0, float64=1.0),
            mutant("message", numerical=False, float32=7.0),
            mutant("alive", kills=0, float32=0.2),
            mutant("correct", kills=1, float32=0.3),
        )
    )
    assert points["float32"] == [Point(500.0, "window"), Point(math.inf, "precision")]
    assert points["float16"] == [Point(4.0, "precision")]


def test_the_limits_are_half_a_budget_and_two_budgets() -> None:
    kernels = {"float32": [Point(0.5, "edge")], "float16": [Point(0.51, "case on cpu")]}
    mutants = entries(
        mutant("weak", float32=1.9, float16=0.2),
        mutant("fair", float32=0.1, float16=2.0),
        mutant("nan", float32="nan"),
        mutant("alive", kills=0, float32=0.1),
    )
    assert findings(kernels, mutants) == [
        "case on cpu uses 0.51 of its budget; a correct kernel uses at most 0.5.",
        "The fault weak has a share of at most 1.9 of the budget; 2 is required on some case.",
    ]


@pytest.mark.parametrize("edge", [0.5, 1.0, 2.0, 2.0**-5.5, 2.0**7.5])
def test_a_share_on_an_edge_belongs_to_the_lower_bin(edge: float) -> None:
    assert bin_of(edge * 1.001) == bin_of(edge) + 1 == bin_of(edge * 0.999) + 1


@pytest.mark.parametrize(
    ("share", "number"),
    [(0.0, 0), (1e-9, 0), (1e30, LAST - FIRST + 1), (math.inf, LAST - FIRST + 1)],
)
def test_shares_beyond_the_axis_are_in_its_last_bin(share: float, number: int) -> None:
    assert bin_of(share) == number


def bars(picture: str, name: str) -> list[list[tuple[float, float]]]:
    """For each dtype, the left edges and heights (downwards positive) of its bars."""
    paths = ElementTree.fromstring(picture).iter(f"{SVG}path")
    return [
        [(float(x), float(v)) for x, v in re.findall(r"M(\S+) \S+?v(-?[\d.]+)h", path.attrib["d"])]
        for path in paths
        if path.attrib["class"] == name
    ]


def test_bar_heights_are_counts() -> None:
    shares = [0.1, 0.1, 0.1, 0.1, 0.4, 0.4]
    points = {"float16": [Point(share, "a") for share in shares]}
    picture = svg(points, {"float16": [Point(30.0, "b")]})
    upwards, downwards = bars(picture, "right"), bars(picture, "fault")
    assert [len(dtype) for dtype in upwards] == [0, 2, 0]
    (x1, first), (x2, second) = upwards[1]
    assert first == 2 * second < 0
    ((x3, only),) = downwards[1]
    assert only == -first
    band = next(
        r for r in ElementTree.fromstring(picture).iter(f"{SVG}rect") if r.get("class") == "band"
    )
    low = float(band.attrib["x"])
    high = low + float(band.attrib["width"])
    assert x1 < x2 < low < high < x3


def test_shares_beyond_the_axis_do_not_flatten_the_rest() -> None:
    shares = [math.inf] * 7 + [30.0, 30.0, 300.0]
    picture = svg({}, {"float32": [Point(share, "a") for share in shares]})
    heights = [height for _, height in bars(picture, "fault")[0]]
    assert heights[0] == 2 * heights[1] == heights[2]
    assert "7" in [text.text for text in ElementTree.fromstring(picture).iter(f"{SVG}text")]


def test_the_picture_names_its_marks_and_both_ends() -> None:
    texts = [text.text for text in ElementTree.fromstring(svg({}, {})).iter(f"{SVG}text")]
    assert {"0", "0.001", "0.5", "1", "2", "10", "10⁶", "∞"} <= set(texts)
    assert texts.count("no results") == texts.count("no mutants") == 3


def test_a_distribution_is_summarised_in_one_line() -> None:
    points = [Point(share, "a") for share in (0.0, 0.0493, 12345.0)]
    assert described(points, "result") == "3 results: least 0, median 0.049, largest 10⁴"
    assert described([Point(math.inf, "a")], "mutant") == "1 mutant: least ∞, median ∞, largest ∞"


def test_the_command_draws_and_prints_a_summary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = results_file(tmp_path / "a.jsonl", ("float32", "pass", 0.3))
    power = power_file(tmp_path / "power.json", mutant("window", float32=500.0))
    picture = tmp_path / "calibration.svg"
    assert main([str(results), "--power", str(power), "-o", str(picture)]) == 0
    assert "1 result: least 0.3" in picture.read_text(encoding="utf-8")
    assert capsys.readouterr().out.splitlines()[:2] == [
        "float32   1 result: least 0.3, median 0.3, largest 0.3",
        "          1 mutant: least 500, median 500, largest 500",
    ]


def test_the_command_fails_if_a_limit_is_exceeded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = results_file(tmp_path / "a.jsonl", ("float32", "pass", 0.7))
    assert main([str(results), "-o", str(tmp_path / "x.svg")]) == 1
    assert "uses 0.7 of its budget" in capsys.readouterr().out


@pytest.mark.parametrize("content", [None, "", '{"mutant": "a"}', '[{"kills": 1}]'])
def test_a_file_that_is_not_a_power_file_is_named(
    content: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = results_file(tmp_path / "a.jsonl", ("float32", "pass", 0.3))
    power = tmp_path / "power.json"
    if content is not None:
        power.write_text(content, encoding="utf-8")
    assert main([str(results), "--power", str(power), "-o", str(tmp_path / "x.svg")]) == 3
    assert "power.json" in capsys.readouterr().err


def test_files_that_cannot_be_read_or_written_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = results_file(tmp_path / "a.jsonl", ("float32", "pass", 0.3))
    assert main([str(tmp_path / "none.jsonl"), "-o", str(tmp_path / "x.svg")]) == 3
    assert main([str(results), "-o", str(tmp_path / "none" / "x.svg")]) == 3
    assert capsys.readouterr().err.count("\n") == 2


def test_the_shipped_picture_is_complete_and_linked() -> None:
    if not (ROOT / "docs").is_dir():
        pytest.skip("not a checkout")
    ElementTree.parse(ROOT / "docs" / "calibration.svg")
    assert "](calibration.svg)" in (ROOT / "docs" / "tolerance.md").read_text(encoding="utf-8")


def test_several_runs_of_the_mutants_are_joined_by_the_largest_share() -> None:
    one = MutantRecord(mutant="a", kills=2, largest_share={"float32": 3.0, "float16": None})
    two = MutantRecord(mutant="a", numerical=True, largest_share={"float32": 2.0, "float16": 7.0})
    (both,) = joined([[one], [two]])
    assert (both.kills, both.numerical) == (2, True)
    assert both.largest_share == {"float32": 3.0, "float16": 7.0}
