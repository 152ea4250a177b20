"""A report of many targets begins with what each of them does with each theme."""

from __future__ import annotations

from pathlib import Path

import pytest
from browsing import Open
from report_page import CUT, asked, cases, words
from synthetic_runs import case, of_results, result, target

from conformance.report.html import render
from conformance.report.markdown import report_markdown
from conformance.results.score import Score, ScorePart, in_words
from conformance.results.table import Table, tabulate

TARGETS = ("cpu@1.31.1", "node@1.30.0", "tract@0.23.9", "wasm@1.30.0", "webgpu@1.30.0+lavapipe")
#: The verdicts of each target, in the same order.
VERDICTS = {
    "window/a": ("pass", "pass", "unsupported", "wrong", "skip"),
    "window/b": ("pass", "unsupported", "unsupported", "crash", "skip"),
    "models/a": ("pass",) * 5,
    "triples/a": ("pass", "wrong", "pass", "pass", "pass"),  # a generated theme
}


def of(folder: Path, number: int = len(TARGETS)) -> Table:
    """A table of the first targets."""
    results = [
        result(id, name, verdict, unexpected=False)
        for id, verdicts in VERDICTS.items()
        for name, verdict in zip(TARGETS[:number], verdicts, strict=False)
    ]
    targets = [target(name) for name in TARGETS[:number]]
    about = [case(id) for id in VERDICTS]
    return tabulate([of_results(folder / "r.jsonl", results, about, targets=targets)])


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ((), []),
        (["right"] * 1200, [("right", "all 1,200")]),
        (["rejected", "right"], [("refused", "1 of 2, else right")]),
        (["rejected"], [("refused", "all 1")]),
        (["rejected", "silent", "right"], [("silently wrong", "1 of 3"), ("refused", "1 of 3")]),
    ],
)
def test_a_score_in_words(parts: list[ScorePart], told: list[tuple[str, str]]) -> None:
    assert in_words(Score.of(parts)) == told


def test_a_page_of_many_targets_begins_with_themes(show: Open, tmp_path: Path) -> None:
    tab = show(render(of(tmp_path)))
    assert words(tab.locator("main > section:visible h2").first) == "Which calls work where"
    rows = tab.locator(".glances").first.locator("tbody tr")
    assert rows.locator("th .id").all_inner_texts() == ["models", "window"]  # as in the table
    cells = [" ".join(text.split()) for text in rows.nth(1).locator("td").all_inner_texts()]
    assert cells == [
        "right all 2",
        "refused 1 of 2, else right",
        "refused all 2",
        "no result 1 of 2",
        "not tried",
    ]
    dead = rows.nth(1).locator("td a").nth(3)
    assert dead.get_attribute("title") == "no result: 1 of 2; silently wrong: 1 of 2"
    dead.click()
    assert cases(tab) == ["window/a", "window/b"]
    assert asked(tab).startswith("#?target=wasm@1.30.0&theme=window&")
    assert not tab.locator(".glances").nth(1).is_visible()
    tab.get_by_text("Combinations of features: 1 generated theme").click()
    assert tab.locator(".glances").nth(1).locator("th .id").all_inner_texts() == ["triples"]
    assert "silently wrong" in tab.locator(".glances").nth(1).inner_text()


def test_a_page_of_few_targets_has_the_shares_instead(show: Open, tmp_path: Path) -> None:
    tab = show(render(of(tmp_path, 4)))
    assert tab.locator(".glances").count() == 0
    assert tab.get_by_text("Score by theme").count() == 1
    tab = show(render(of(tmp_path, 5)))
    assert tab.get_by_text("Score by theme").count() == 0


@pytest.mark.parametrize("width", [1280, 400])
def test_the_themes_fit(show: Open, tmp_path: Path, width: int) -> None:
    tab = show(render(of(tmp_path)))
    tab.set_viewport_size({"width": width, "height": 800})
    assert tab.evaluate("document.documentElement.scrollWidth") == width
    if width == 1280:
        assert tab.evaluate(CUT) == []
    heads = tab.locator(".glances th").first.bounding_box()
    assert heads["x"] + heads["width"] < width / 3


def test_markdown_of_many_targets_begins_with_themes(tmp_path: Path) -> None:
    many, few = (report_markdown(of(tmp_path, number)) for number in (5, 4))
    row = (
        "| `window` | right: all 2 | refused: 1 of 2, else right | refused: all 2 | "
        "no result: 1 of 2; silently wrong: 1 of 2 | not tried |"
    )
    assert row in many
    assert many.index("## Score by theme") < many.index("## Score\n")
    assert "| `window` | 2 of 2 | 1 of 2 | 0 of 2 | 0 of 2 |" in few
    assert few.index("## Score\n") < few.index("## Score by theme")
