"""The releases of a target in the report: one column that unfolds, in a real browser."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from browsing import Open
from report_page import CUT, asked, cases, cell, violations, words
from synthetic_runs import case, expected, of_results, result, target

from conformance.report.html import render
from conformance.results.records import InstabilityRecord
from conformance.results.table import tabulate

RELEASES = ("1.20.1", "1.21.0", "1.22.0")
LABELS = [f"cpu@{release}" for release in RELEASES]
OF_SERIES = {
    "t/always": ("pass", "pass", "pass"),
    "t/later": ("unsupported", "pass", "pass"),
    "t/regressed": ("pass", "pass", "wrong"),
    "t/mended": ("pass", "crash", "pass"),
    "t/never": ("wrong", "wrong", "wrong"),
}


def page(folder: Path, verdicts: dict[str, Sequence[str]], *others: str, gone: str = "") -> str:
    """A page of three releases of cpu, in no order, and of other targets, which pass."""
    names = [LABELS[1], LABELS[2], LABELS[0]]
    found = [
        result(id, name, states[LABELS.index(name)])
        for id, states in verdicts.items()
        for name in names
    ]
    found += [result(id, other) for other in others for id in verdicts]
    targets = [target(name) for name in (*names, *others)]
    if gone:
        targets.append(target(gone, unavailable="There is no wheel."))
    return render(tabulate([of_results(folder / "r.jsonl", found, targets=targets)]))


def heads(tab: Any) -> list[str]:
    """The targets in the heads of the columns."""
    found: list[str] = tab.locator("#matrix > thead .target").all_inner_texts()
    return found


def test_a_column_stands_for_all_releases_and_unfolds(show: Open, tmp_path: Path) -> None:
    tab = show(page(tmp_path, OF_SERIES, "tract@0.23.9"))
    assert heads(tab) == ["cpu", "tract@0.23.9"]
    told = {id: words(cell(tab, id)) for id in OF_SERIES}
    assert told == {
        "t/always": "pass since ≤1.20.1",
        "t/later": "pass since 1.21",
        "t/regressed": "wrong unexpected right until 1.21, wrong since 1.22",
        "t/mended": "pass crash 1.21, right since 1.22",
        "t/never": "wrong unexpected wrong since ≤1.20.1",
    }
    theme = words(cell(tab, "t"))
    assert theme.startswith("wrong 3 of 5 right ·")
    assert "1 regressed" in theme
    assert "1 broken for a time" in theme
    control = tab.get_by_role("button", name="Show a column for each of the 3 releases of cpu")
    assert control.get_attribute("aria-expanded") == "false"
    control.focus()
    tab.keyboard.press("Enter")
    assert heads(tab) == [*reversed(LABELS), "tract@0.23.9"]
    assert [words(cell(tab, "t/mended", n)) for n in range(3)] == [
        "pass",
        "crash SIGSEGV unexpected",
        "pass",
    ]
    assert "releases=cpu" in asked(tab)
    # The focus is on the button that folds them again, and the address restores the view.
    assert tab.evaluate("document.activeElement.getAttribute('aria-expanded')") == "true"
    assert heads(show(page(tmp_path, OF_SERIES), "#?releases=cpu")) == [*reversed(LABELS)]
    tab.keyboard.press("Enter")
    assert heads(tab) == ["cpu", "tract@0.23.9"]
    assert "releases" not in asked(tab)


@pytest.mark.night
def test_a_row_says_since_when_all_its_cases_are_right(show: Open, tmp_path: Path) -> None:
    verdicts = {"t/c[n=1]": ("pass", "pass", "pass"), "t/c[n=2]": ("wrong", "pass", "pass")}
    tab = show(page(tmp_path, verdicts))
    assert "since 1.21" in words(cell(tab, "t/c"))
    tab = show(page(tmp_path, verdicts | {"t/c[n=3]": ("wrong", "wrong", "wrong")}))
    assert "since" not in words(cell(tab, "t/c"))


@pytest.mark.night
def test_a_link_to_a_cell_of_a_release_unfolds_its_column(show: Open, tmp_path: Path) -> None:
    html = page(tmp_path, OF_SERIES)
    tab = show(html, "#t/mended@cpu@1.21.0")
    assert heads(tab) == [*reversed(LABELS)]
    assert cell(tab, "t/mended", 1).get_attribute("aria-current") == "true"
    assert words(tab.locator("#panel .top .target")) == "cpu@1.21.0"
    tab = show(html, "#t/mended@cpu@1.22.0")  # the newest is shown already
    assert heads(tab) == ["cpu"]
    assert cell(tab, "t/mended").get_attribute("aria-current") == "true"


@pytest.mark.night
def test_the_panel_has_every_release(show: Open, tmp_path: Path) -> None:
    tab = show(page(tmp_path, OF_SERIES | {"t/mended": ("pass", "crash", "pass")}))
    cell(tab, "t/mended").click()
    panel = tab.locator("#panel")
    assert "crash 1.21, right since 1.22" in words(panel)
    strip = panel.locator("ul.releases li")
    assert [words(item) for item in strip.all()] == ["1.22.0 pass", "1.21.0 crash", "1.20.1 pass"]
    strip.nth(1).locator("a").click()
    assert words(panel.locator(".top")).startswith("crash unexpected on cpu@1.21.0")
    assert asked(tab).startswith("#t/mended@cpu@1.21.0")
    assert heads(tab) == ["cpu"]  # looking at a release does not change the table


@pytest.mark.night
def test_regressions_can_be_found(show: Open, tmp_path: Path) -> None:
    tab = show(page(tmp_path, OF_SERIES))
    table = tab.locator("details.history")
    assert words(table.locator("summary")) == (
        "Releases of cpu: 1 case regressed, 1 broken for a time"
    )
    rows = [words(row).split()[:3] for row in table.locator("tbody tr").all()]
    assert rows == [["1.22.0", "1", "1"], ["1.21.0", "1", "1"], ["1.20.1", "0", "0"]]
    table.locator("tbody tr").nth(1).locator("td a").first.click()
    assert cases(tab) == ["t/mended"]
    assert "history=broken:cpu+1.21.0" in asked(tab)
    for value, found in (("fixed:cpu 1.21.0", "t/later"), ("mended", "t/mended")):
        tab.locator("select[data-list=history]").select_option(value)
        assert cases(tab) == [found]
    tab.locator("#reset").click()
    tab.get_by_role("button", name="only what regressed").click()
    assert cases(tab) == ["t/regressed"]
    tab.locator("#reset").click()
    tab.get_by_role("button", name="only what differs between targets or releases").click()
    assert cases(tab) == ["t/later", "t/regressed", "t/mended"]


@pytest.mark.night
def test_filters_name_a_target_or_one_of_its_releases(show: Open, tmp_path: Path) -> None:
    html = page(tmp_path, OF_SERIES, "tract@0.23.9")
    tab = show(html)
    tab.get_by_role("button", name="cpu", exact=True).click()
    assert heads(tab) == ["cpu"]
    tab = show(html, "#?target=cpu@1.21.0&verdict=crash")
    assert heads(tab) == ["cpu@1.21.0"]
    assert cases(tab) == ["t/mended"]


def test_the_newest_release_that_ran_is_shown(show: Open, tmp_path: Path) -> None:
    tab = show(page(tmp_path, OF_SERIES, gone="cpu@1.23.0"))
    assert "1.22.0, the newest" in words(tab.locator("#matrix > thead"))
    tab.get_by_role("button", name="Show a column for each of the 4 releases of cpu").click()
    assert heads(tab) == ["cpu@1.23.0", *reversed(LABELS)]
    assert "not available" in words(tab.locator("#matrix > thead"))


@pytest.mark.night
@pytest.mark.parametrize("width", [1500, 1280, 900, 390])
def test_the_place_stays_whatever_is_opened(show: Open, tmp_path: Path, width: int) -> None:
    rows = {f"t/{row}[n={n}]": ("pass", "wrong", "unsupported") for row in range(60) for n in "12"}
    tab = show(page(tmp_path, rows, "tract@1", "wasm@2", "webgpu@3"))
    tab.set_viewport_size({"width": width, "height": 900})
    row = tab.locator('tr[id="t/40"]')

    def press(control: Any, within: float = 2) -> None:
        """Press a control, and see that the row is where it was when all is laid out again."""
        row.evaluate("row => row.scrollIntoView()")
        before = row.bounding_box()["y"]
        control.evaluate("control => control.click()")
        tab.evaluate("new Promise((laid) => setTimeout(() => requestAnimationFrame(laid), 100))")
        assert abs(row.bounding_box()["y"] - before) <= within

    for _ in range(2):  # without the panel, then with it
        for _ in range(2):
            press(row.locator(".fold"))
            # The first row of the screen stays, which this one is not once others are higher.
            press(tab.locator("thead .releases"), within=200)
        press(row.locator("td > button").first)
    if width > 1200:
        assert [box for box in tab.evaluate(CUT) if not box.startswith("scroll")] == []
    press(tab.get_by_role("button", name="Close"))


@pytest.mark.parametrize(
    ("release", "known", "red"), [(0, True, False), (0, False, True), (2, True, True)]
)
def test_past_instability(show: Open, tmp_path: Path, release: int, known: bool, red: bool) -> None:
    """Only instability that is known and past is no alarm."""
    about = {"unexpected": not known, "expectation": expected("crash") if known else None}
    met = InstabilityRecord(
        target=LABELS[release], case="t/c", verdict="crash", message="It died.", **about
    )
    results = [result("t/c", label) for label in LABELS]
    tab = show(render(tabulate([of_results(tmp_path / "a", results, instability=[met])])))
    assert tab.get_by_text("It died.").is_visible() == red
    if not red:
        tab.get_by_text("Known instability of 1 older release").click()
        assert tab.get_by_text("It died.").is_visible()
    tab.set_viewport_size({"width": 390, "height": 844})  # the address of the defect is longer
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390


def test_targets_are_compared_by_what_all_of_them_tried(show: Open, tmp_path: Path) -> None:
    results = [
        *(result(f"t/{n}", label) for n in range(4) for label in LABELS),
        *(result(f"t/{n}", "wasm@1", "wrong" if n else "pass") for n in range(2)),
        result("t/0", "cuda@1", "skip"),
    ]
    tab = show(render(tabulate([of_results(tmp_path / "a", results)])))
    rows = [words(row) for row in tab.locator(".score").first.locator("tbody tr").all()]
    assert "100 % 4 of 4 100 % 2 of 2" in rows[0]
    assert "50 % 1 of 2 50 % 1 of 2" in rows[1]


def test_a_row_shows_the_dtypes_apart_where_they_differ(show: Open, tmp_path: Path) -> None:
    verdicts = {"float32": "pass", "float16": "pass", "bfloat16": "unsupported", "int8": "skip"}
    about = [
        case(f"t/{name}[dtype={dtype},n={n}]") for name in "ab" for dtype in verdicts for n in "12"
    ]
    results = [
        result(one.id, verdict=verdicts[one.axes["dtype"]] if one.name == "a" else "pass")
        for one in about
    ]
    tab = show(render(tabulate([of_results(tmp_path / "a", results, about)])))
    told = "refused float32 float16 pass · bfloat16 refused · 2 of 6 tried"
    assert words(cell(tab, "t/a")).startswith(told)
    assert words(cell(tab, "t/b")) == "pass all 8 cases"


@pytest.mark.night
def test_axe_finds_no_violation_in_releases(show: Open, tmp_path: Path, packages: Path) -> None:
    tab = show(page(tmp_path, OF_SERIES, "tract@0.23.9"), bypass_csp=True)
    cell(tab, "t/regressed").click()
    for _ in range(2):
        assert violations(tab, packages) == []
        tab.locator("thead .releases").click()
