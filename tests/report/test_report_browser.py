"""The report in a real browser: every way to use it, and what must never happen."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pytest
from browsing import SIZE, Open
from report_page import CUT, asked, cases, cell, rows, settle, violations, words
from reported import HOSTILE, run_of
from synthetic_runs import START, case, error, expected, of_results, result, small
from tables import tables

from conformance.base.paths import ROOT
from conformance.case.contract import Contract
from conformance.report.error_picture import picture, text_of
from conformance.report.html import render
from conformance.results.compare import changes
from conformance.results.reader import Run, read
from conformance.results.records import ErrorMap, RelationRecord
from conformance.results.table import tabulate, with_shared_cases
from conformance.results.verdicts import VERDICTS, Verdict

TABLES = tables(__file__)


def of(run: Run, verdicts: Sequence[str]) -> list[str]:
    """Cases with one of these verdicts on some target, in the order of the file."""
    those = {result.case for result in run.results if result.verdict in verdicts}
    return [id for id in run.cases if id in those]


def opened(show: Open, folder: Path, verdict: str = "wrong", **fields: Any) -> Any:
    """A page of one case with this result, and the details of it."""
    tab = show(render(tabulate([small(folder / "a", verdict, **fields)])))
    cell(tab, case().id).click()
    return tab


# ── The table ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.night
def test_themes_unfold_into_rows_and_rows_into_cases(show: Open, real: Run, real_page: str) -> None:
    tab = show(real_page)
    assert rows(tab, "theme") == ["shared_kv", "decode", "presents", "ground"]
    assert tab.get_by_role("columnheader", name="cpu@1.31.1").count() == 1
    theme = "May a layer borrow another layer's cache, as Gemma's shared layers do?"
    assert "shared_kv/zero_length_kv" in rows(tab, "group")  # few rows are unfolded at once
    tab.get_by_role("button", name=theme).click()
    assert "shared_kv/zero_length_kv" not in rows(tab, "group")
    tab.get_by_role("button", name=theme).click()
    fold = tab.locator('tr[id="shared_kv/zero_length_kv"] .fold')
    assert fold.get_attribute("aria-expanded") == "false"
    fold.click()
    fold = tab.locator('tr[id="shared_kv/zero_length_kv"] .fold')
    assert fold.get_attribute("aria-expanded") == "true"
    inside = [id for id in real.cases if id.startswith("shared_kv/zero_length_kv[")]
    assert [id for id in cases(tab) if id in inside] == inside


@pytest.mark.night
def test_a_row_shows_its_worst_verdict_and_its_counts(show: Open, tmp_path: Path) -> None:
    run = run_of(tmp_path / "a", "pass", "wrong", "pass", "skip", "wrong", unexpected=False)
    tab = show(render(tabulate([run])))
    tally = cell(tab, "shared_kv/zero_length_kv")
    assert words(tally) == "wrong 2 of 4 tried · 1 not tried"
    assert tally.get_attribute("title") == "2 wrong, 2 pass, 1 skip"
    assert (
        tab.locator("#matrix .bar rect").evaluate_all(
            "parts => parts.map(part => part.getAttribute('class') + part.getAttribute('width'))"
        )
        == ["wrong2", "pass2", "skip1"] * 2
    )
    tab = show(render(tabulate([run_of(tmp_path / "b", "pass", "pass", "pass")])))
    assert words(cell(tab, "shared_kv/zero_length_kv")) == "pass all 3 cases"
    tab = show(render(tabulate([run_of(tmp_path / "c", "wrong", "pass", vague=True)])))
    assert (
        words(cell(tab, "shared_kv/zero_length_kv"))
        == "wrong 1 of 2 cases · 1 vague · 1 unexpected"
    )
    tab = show(
        render(tabulate([run_of(tmp_path / "d", "pass", "pass", hazard="output[0] is nan.")]))
    )
    assert words(cell(tab, "shared_kv/zero_length_kv")) == "pass all 2 cases · 2 hazards"


@pytest.mark.night
def test_axes_are_a_small_table(show: Open, real: Run, real_page: str) -> None:
    tab = show(real_page, "#decode/several_tokens")
    grid = tab.locator("#matrix tr.grid table").nth(1)
    assert words(grid.locator("caption")) == "cuda@1.26.0 by sequence_length"
    assert grid.locator("thead th").all_inner_texts() == ["dtype, rotary", "2", "5", "33"]
    assert grid.locator("tbody th").all_inner_texts()[:2] == ["float32, none", "float32, yes"]
    button = grid.get_by_role("button", name="timeout, unexpected: float32, none, 5")
    button.click()
    id = "decode/several_tokens[dtype=float32,sequence_length=5,rotary=none]"
    assert words(tab.locator("#panel .case")) == id


def test_worst_first(show: Open, tmp_path: Path) -> None:
    verdicts = {"a/y": "unsupported", "b/z": "wrong", "b/u": "crash"}
    results = [result("a/x", verdict="timeout", unexpected=True)]
    results += [result(id, verdict=word, unexpected=False) for id, word in verdicts.items()]
    tab = show(render(tabulate([of_results(tmp_path / "a", results)])))
    assert cases(tab) == ["a/x", "a/y", "b/z", "b/u"]
    tab.locator("#sort").select_option("worst first")
    assert cases(tab) == ["a/x", "a/y", "b/u", "b/z"]
    assert asked(tab) == "#?sort=worst"


# ── Filters and the address ─────────────────────────────────────────────────────────────────────


def test_filtering_by_verdict_by_words_and_by_mark(show: Open, real: Run, real_page: str) -> None:
    tab = show(real_page)
    tab.get_by_role("button", name="Expand all").click()
    everything = rows(tab, "theme", "group", "single")
    chips = tab.locator(".chips")
    chips.get_by_text("wrong").click()
    assert cases(tab) == of(real, ["wrong"])
    number = sum(result.verdict == "wrong" for result in real.results)
    told = f"{len(of(real, ['wrong']))} of {len(real.cases)} cases, {number} results"
    assert words(tab.locator("#shown")) == told
    chips.get_by_text("timeout").click()
    assert set(cases(tab)) <= set(of(real, ["wrong", "timeout"]))
    chips.get_by_text("wrong").click()
    tab.locator("#search").fill("FLOAT16 rotary=yes")
    wanted = [id for id in of(real, ["timeout"]) if "float16" in id and "rotary=yes" in id]
    assert cases(tab) == wanted != []
    tab.get_by_role("button", name="Show all").click()
    assert rows(tab, "theme", "group", "single") == everything
    chips.get_by_text("only unexpected").click()
    assert set(cases(tab)) == {result.case for result in real.results if result.unexpected}
    # Its unexpected results are timeouts: a pass beside them is not a reason to show a row.
    chips.get_by_text("pass").click()
    assert cases(tab) == []
    assert tab.locator("#nothing").is_visible()


def test_search_finds_words_and_messages(show: Open, tmp_path: Path) -> None:
    about = [
        case("a/x", title="Gemma 4 lends"),
        case("a/y", title="Gemma 3, batch of 4", tags=("phi",)),
        case("a/z"),
        case("a/u"),
    ]
    said = result("a/u", verdict="unsupported", message="The Kernel has no SOFTCAP at all.")
    others = [result(one.id, reason="Fine.", expectation=None) for one in about[:3]]
    tab = show(render(tabulate([of_results(tmp_path / "a", [*others, said], about)])))
    for text, found in TABLES["searches"]:
        tab.locator("#search").fill(text)
        assert cases(tab) == found, text


def test_back_and_forward_go_through_cases_searches_and_filters(show: Open, tmp_path: Path) -> None:
    about = [case("a/x", title="Gemma lends"), case("a/y", title="Phi")]
    results = [result("a/x", verdict="wrong", unexpected=False), result("a/y")]
    tab = show(render(tabulate([of_results(tmp_path / "a", results, about)])))
    panel = tab.locator("#panel")
    before = tab.evaluate("history.length")
    tab.locator("#search").press_sequentially("gemma")
    assert cases(tab) == ["a/x"]
    tab.locator(".chips").get_by_text("wrong").click()
    cell(tab, "a/x").click()
    assert tab.evaluate("history.length") == before + 3  # the search, the filter, the case
    opened, found = asked(tab), "#?q=gemma&verdict=wrong"
    tab.go_back()
    panel.wait_for(state="hidden")
    assert asked(tab) == found
    assert cases(tab) == ["a/x"]
    tab.go_forward()
    panel.wait_for()
    assert asked(tab) == opened
    panel.get_by_role("button", name="Close").click()
    tab.go_back()
    panel.wait_for()
    for address in (found, "#?q=gemma", ""):
        tab.go_back()
        assert asked(tab) == address
    assert cases(tab) == ["a/x", "a/y"]
    assert tab.locator("#search").input_value() == ""
    tab.go_forward()
    assert asked(tab) == "#?q=gemma"
    assert cases(tab) == ["a/x"]


#: The visible texts with a backtick of ours, or with a label that is cut or leaves its box.
LOOK = """() => {
  const found = new Set();
  const labels = ".v, .n, button, th, td, small, label, a, code, dt, dd, p, h1, h2, h3";
  for (const element of document.querySelectorAll("body *")) {
    if (!element.checkVisibility() || element.closest("pre, .said, .unseen")) continue;
    const text = element.innerText?.slice(0, 80);
    const own = [...element.childNodes].filter((node) => node.nodeType === Node.TEXT_NODE);
    if (own.some((node) => node.data.includes("`"))) found.add(`backtick: ${text}`);
    const scrolls = ["auto", "scroll"].includes(getComputedStyle(element).overflowX);
    const isCut = element.clientWidth && element.scrollWidth > element.clientWidth + 1;
    if (isCut && !scrolls && element.matches(labels)) found.add(`cut: ${text}`);
    const box = element.parentElement.closest(".v, .n, button")?.getBoundingClientRect();
    const { left, right, width } = element.getBoundingClientRect();
    const isOutside = box && width && (right > box.right + 1 || left < box.left - 1);
    if (isOutside) found.add(`outside: ${text}`);
  }
  return [...found];
}"""


@pytest.mark.night
def test_no_label_is_cut_and_no_backtick_is_seen(show: Open) -> None:
    recorded = ROOT / "reports" / "recorded" / "history"
    files = [recorded / f"{name}.jsonl.xz" for name in ("cpu", "webgpu")]
    if not all(file.is_file() for file in files):
        pytest.skip("no recorded results here")
    rows = "".join(f"&open={name}" for name in ("models", "models/llama32_1b", "bounds_lengths"))
    tab = show(render(tabulate(with_shared_cases(map(read, files)))), f"#?{rows}")
    tab.evaluate("for (const box of document.querySelectorAll('details')) box.open = true")
    quoting = "bounds_attributes/negative_scale[dtype=float32,feature=sink,call=prompt]"
    for width in (1500, 390):
        tab.set_viewport_size({"width": width, "height": 900})
        tab.evaluate(f"location.hash = '#?{rows}'")
        settle(tab)
        tab.locator("#matrix[aria-busy=false]").wait_for(timeout=60_000)
        assert tab.evaluate(LOOK) == []
        tab.evaluate(f"location.hash = '#{quote(quoting)}@cpu@1.32.0'")
        tab.locator("#panel code").first.wait_for()
        assert tab.evaluate(LOOK) == []


@pytest.mark.night
def test_filtering_by_tag_dtype_and_target(show: Open, tmp_path: Path) -> None:
    about = [
        case("a/x[dtype=float32]", tags=("one",)),
        case("a/y[dtype=float16]", tags=("one", "two")),
    ]
    results = [result(one.id, name) for one in about for name in ("cpu@1", "tract@2", "webgpu@3")]
    tab = show(render(tabulate([of_results(tmp_path / "a", results, about)])))
    tab.get_by_label("tag").select_option("two")
    assert cases(tab) == ["a/y[dtype=float16]"]
    tab.get_by_label("tag").select_option("any")
    tab.get_by_label("dtype").select_option("float32")
    assert cases(tab) == ["a/x[dtype=float32]"]
    for name in ("webgpu@3", "cpu@1"):
        tab.get_by_role("button", name=name, exact=True).click()
    heads = tab.locator("#matrix > thead th").all_inner_texts()
    assert heads == ["Call", "cpu@1", "webgpu@3"]
    assert cell(tab, "a/x[dtype=float32]", 1).get_attribute("data-column") == "2"
    assert asked(tab) == "#?target=webgpu@3&target=cpu@1&dtype=float32"


@pytest.mark.night
def test_silent_failures_and_those_only_in_presents_differ(show: Open, tmp_path: Path) -> None:
    presents, both = (error(output="present_key"),), (error(), error(output="present_key"))
    known: dict[str, Any] = {"unexpected": False, "expectation": expected()}
    results = [
        result("a/wrong", verdict="wrong", **known),
        result("a/silent", verdict="accepted", values_right=False),
        result("a/harmless", verdict="accepted", values_right=True),
        result("a/unknown", verdict="accepted", values_right=None),
        result("b/beside[n=1]", verdict="wrong", errors=presents, **known),
        result("b/beside[n=2]", verdict="wrong", errors=presents, **known),
        result("b/both", verdict="wrong", errors=both, **known),
        result("b/scores", verdict="wrong", errors=(error(output="output_qk"),), **known),
        result("b/loud", verdict="wrong", errors=presents),
    ]
    tab = show(render(tabulate([of_results(tmp_path / "a", results)])), "#?open=b/beside")
    assert {one.case: words(cell(tab, one.case)) for one in results} == {
        "a/wrong": "wrong known",
        "a/silent": "accepted wrong values",
        "a/harmless": "accepted correct values",
        "a/unknown": "accepted",
        "b/beside[n=1]": "wrong only in presents known",
        "b/beside[n=2]": "wrong only in presents known",
        "b/both": "wrong known",
        "b/scores": "wrong only in output_qk known",
        "b/loud": "wrong only in presents unexpected",
    }
    assert words(cell(tab, "b/beside")) == "wrong all 2 cases · only in presents · 2 known"
    # The drawing differs, not only the colour.
    assert cell(tab, "b/loud").locator("use").get_attribute("href") == "#presents"
    assert cell(tab, "b/both").locator("use").get_attribute("href") == "#wrong"
    beside = ["b/beside[n=1]", "b/beside[n=2]"]
    for value, found in (
        ("output", ["a/wrong", "b/both"]),
        ("presents", [*beside, "b/both", "b/loud"]),
        ("output_qk", ["b/scores"]),
        ("only presents", [*beside, "b/loud"]),
    ):
        tab.locator("select[data-list=wrong]").select_option(value)
        assert cases(tab) == found
    tab.locator("#reset").click()
    tab.get_by_role("button", name="only silent failures").click()
    assert cases(tab)[:2] == ["a/wrong", "a/silent"]
    tab.locator("#reset").click()
    # The score counts them apart, and a cause leads to exactly its cases.
    tab.locator(".score a[href*='score=presents']").click()
    assert cases(tab) == [*beside, "b/loud"]
    tab.locator("#reset").click()
    cause = tab.locator(".causes a", has_text="2 cases").first
    cause.evaluate("link => { for (let up = link; up; up = up.parentElement) up.open = true }")
    cause.click()
    assert cases(tab) == beside
    cell(tab, beside[0]).click()
    assert "The output is right" in words(tab.locator("#panel"))


@pytest.mark.night
def test_only_what_changed(show: Open, tmp_path: Path) -> None:
    old = of_results(tmp_path / "old", [result("a/x"), result("a/y")])
    new = of_results(tmp_path / "new", [result("a/x", verdict="wrong"), result("a/y")])
    tab = show(render(tabulate([new]), changes(tabulate([new]), tabulate([old]))))
    tab.get_by_role("button", name="only what changed").click()
    assert cases(tab) == ["a/x"]
    tab.locator(".changes ol a").first.click()
    tab.locator("#panel").wait_for()
    assert "broken" in words(tab.locator("#panel .note").nth(1))


@pytest.mark.night
def test_the_rest_of_a_filtered_row_can_be_shown(show: Open, real: Run, real_page: str) -> None:
    tab = show(real_page)
    tab.locator(".chips").get_by_text("timeout").click()
    row = "decode/several_tokens"
    inside = [id for id in real.cases if id.startswith(f"{row}[")]
    if tab.locator(f'tr[id="{row}"] .fold').get_attribute("aria-expanded") == "false":
        tab.locator(f'tr[id="{row}"] .fold').click()
    shown = [id for id in cases(tab) if id in inside]
    assert 0 < len(shown) < len(inside)
    tab.get_by_role("button", name=f"Show the other {len(inside) - len(shown)} case").click()
    assert sorted(id for id in cases(tab) if id in inside) == sorted(inside)


@pytest.mark.night
def test_the_address_restores_the_view(show: Open, real: Run, real_page: str) -> None:
    tab = show(real_page)
    tab.locator("#search").fill("one_token float16")
    tab.locator(".chips").get_by_text("pass").click()
    tab.get_by_role("button", name="cuda@1.26.0", exact=True).click()
    tab.locator("#sort").select_option("worst first")
    tab.locator('tr[id="decode/one_token"] .fold').click()
    seen = rows(tab, "theme", "group", "single", "member")
    heads = tab.locator("#matrix > thead th").all_inner_texts()
    again = show(real_page, tab.evaluate("location.hash"))
    assert rows(again, "theme", "group", "single", "member") == seen
    assert again.locator("#matrix > thead th").all_inner_texts() == heads
    assert again.locator("#search").input_value() == "one_token float16"
    assert again.locator("#sort").input_value() == "worst"
    pressed = again.locator("[aria-pressed=true]").all_inner_texts()
    assert pressed == ["pass", "cuda@1.26.0"]


@pytest.mark.night
def test_addresses_lead_to_rows_and_cells(show: Open, real: Run, real_page: str) -> None:
    id = "shared_kv/omitted_kv_with_past[dtype=float16,batch_size=2,heads=8:1]"
    tab = show(real_page, f"#{quote(id)}")
    row = tab.locator(f'tr[id="{id}"]')
    assert 0 < row.bounding_box()["y"] < SIZE["height"]
    assert not tab.locator("#panel").is_visible()
    cell(tab, id, 1).click()
    address = tab.evaluate("location.hash")
    assert unquote(address).startswith(f"#{id}@cuda@1.26.0")
    again = show(real_page, address)
    assert words(again.locator("#panel .case")) == id
    assert cell(again, id, 1).get_attribute("aria-current") == "true"
    again.get_by_role("button", name="Close").click()
    assert asked(again).startswith(f"#{id}")
    assert "@" not in asked(again)
    for anchor, told in (("decode", "decode"), ("decode/one_token", "decode/one_token")):
        tab = show(real_page, f"#{anchor}")
        fold = tab.locator(f'tr[id="{told}"] .fold')
        assert fold.get_attribute("aria-expanded") == "true"
    # An invalid address does no harm.
    tab = show(real_page, "#nobody/knows[it=1]")
    told = words(tab.locator("#unknown"))
    assert told.startswith("This report has nothing with the name nobody/knows[it=1]")
    tab.locator("#search").fill("x")
    assert not tab.locator("#unknown").is_visible()
    show(real_page, "#%E0%A4%A")
    show(real_page, "#?verdict=none&target=nobody&open=x&sort=y&%zz")


@pytest.mark.night
def test_an_address_works_even_if_a_filter_hides_its_row(show: Open, real_page: str) -> None:
    tab = show(real_page)
    tab.locator("#search").fill("nothing like this")
    tab.evaluate("location.hash = '#ground/prefill'")
    tab.locator('tr[id="ground/prefill"]').wait_for()
    tab.locator(".findings ol a").first.click()
    tab.locator("#panel").wait_for()
    assert cell(tab, words(tab.locator("#panel .case")), 1).is_visible()


@pytest.mark.night
def test_counts_link_to_the_cases_they_count(show: Open, real: Run, real_page: str) -> None:
    tab = show(real_page)
    tab.get_by_text("Results by verdict").click()
    tab.locator('.summary a[href="#?target=cuda%401.26.0&verdict=timeout"]').click()
    tab.locator("#reset").wait_for()
    assert cases(tab) == [
        r.case for r in real.results if (r.target, r.verdict) == ("cuda@1.26.0", "timeout")
    ]
    assert 0 <= tab.locator(".tools").bounding_box()["y"] < 400


# ── The panel ───────────────────────────────────────────────────────────────────────────────────


def test_a_click_opens_the_details_of_a_cell(show: Open, real_page: str) -> None:
    id = "presents/omitted_with_past_and_new_kv[dtype=float32,past_sequence_length=7,batch_size=1]"
    tab = show(real_page, f"#{quote(id)}")
    panel = tab.locator("#panel")
    button = cell(tab, id)
    button.scroll_into_view_if_needed()
    before = button.bounding_box()["y"]
    button.click()
    text = words(panel)
    for told in (*TABLES["details"], f"gqa run --ep cpu@1.31.1 -k '{id}'"):
        assert told in text
    assert {"position_ids", "head_sink"} <= set(panel.locator("s").all_inner_texts())
    # The row stays where it is.
    assert abs(button.bounding_box()["y"] - before) < 2
    tab.get_by_role("button", name="Close").click()
    assert abs(button.bounding_box()["y"] - before) < 2


@pytest.mark.parametrize(
    ("verdict", "fields", "told"),
    [
        (
            "unsupported",
            {"message": "first line\n  second line", "vague": True, "stderr": "the end"},
            ("Message at run, INVALID_ARGUMENT", "it names none of key, value", "the end"),
        ),
        ("pass", {"hazard": "It is nan."}, ("Hazard: It is nan.", "basis specified: a released")),
        ("pass", {"kernels": ("flash",)}, ("kernel flash",)),
        (
            "wrong",
            {"relation": RelationRecord(name="packed", what="with packed inputs", share=3.0,
                                        identical=False, sentence="Off at 3.")},
            ("The same call with packed inputs must agree: it differs. Off at 3.",),
        ),
    ],
)  # fmt: skip
@pytest.mark.night
def test_the_panel_has_what_only_some_results_have(
    show: Open, tmp_path: Path, verdict: str, fields: dict[str, Any], told: Sequence[str]
) -> None:
    panel = opened(show, tmp_path, verdict, **fields).locator("#panel")
    for text in told:
        assert text in words(panel)
    if message := fields.get("message"):
        assert panel.locator("pre").first.evaluate("pre => pre.textContent") == message


def test_what_is_not_demanded_or_not_asked_is_told(show: Open, tmp_path: Path) -> None:
    results = [
        result("a/b[n=1]"),
        result("a/b[n=2]", verdict="fallback", other_kernel=True, kernels=("math",)),
    ]
    contract = Contract(demands="either", source="x", readings=("scale_of_zero",))
    about = [case(one.case, contract=contract) for one in results]
    tab = show(render(tabulate([of_results(tmp_path / "a", results, about)])), "#?open=a/b")
    assert words(cell(tab, "a/b[n=2]")) == "fallback another kernel"
    assert words(cell(tab, "a/b")) == "pass 1 of 1 tried · 1 not tried"
    cell(tab, "a/b[n=1]").click()
    panel = words(tab.locator("#panel"))
    assert "other readings scale_of_zero" in panel
    assert "basis specified" not in panel


def test_a_theme_s_cell_is_drawn_as_the_calls_that_it_counts(show: Open, tmp_path: Path) -> None:
    requested = Contract(basis="requested", source="https://example.org/1")
    about = [case("t/a"), case("t/b"), case("t/c", contract=requested)]
    results = [result("t/a"), result("t/b"), result("t/c", verdict="unsupported", unexpected=False)]
    tally = cell(show(render(tabulate([of_results(tmp_path / "a", results, about)]))), "t")
    assert words(tally).startswith("pass 2 of 2 right")
    assert "pass" in (tally.get_attribute("class") or "").split()


def test_from_a_cell_with_failures_one_steps_through_these(show: Open, tmp_path: Path) -> None:
    verdicts = ["pass", "pass", "wrong", "pass", "unsupported"]
    results = [result(f"a/b[n={n}]", verdict=verdict) for n, verdict in enumerate(verdicts)]
    tab = show(render(tabulate([of_results(tmp_path / "a", results)])))
    cell(tab, "a/b").click()
    panel = tab.locator("#panel")
    assert words(panel.locator(".case")) == "a/b[n=2]"
    assert "case 1 of 2 that fail" in words(panel.locator(".steps"))
    panel.get_by_role("button", name="Next").click()
    assert words(panel.locator(".case")) == "a/b[n=4]"


@pytest.mark.night
def test_a_row_s_cell_opens_the_case_to_look_at_and_steps_on(show: Open, real_page: str) -> None:
    tab = show(real_page)
    cell(tab, "decode/several_tokens", 1).click()
    panel = tab.locator("#panel")
    assert "timeout unexpected" in words(panel.locator(".top"))
    assert panel.get_by_role("button", name="Previous").is_disabled()
    first = words(panel.locator(".case"))
    panel.get_by_role("button", name="Next").click()
    assert words(panel.locator(".case")) != first
    tab.keyboard.press("k")
    assert words(panel.locator(".case")) == first
    for _ in range(20):
        tab.keyboard.press("j")
    assert "6 of 6 that fail" in words(panel.locator(".steps"))


def test_errors_are_listed_worst_first(show: Open, tmp_path: Path) -> None:
    numbers = (
        error(share=0.5, output="present_key"),
        error(got=0.026869399, want=0.026869401, absolute=5.0, undefined=3),
        error(share=0.1, output="present_value", step=1),
        error(share=0.2, output="output", step=1),
        error(share=float("inf"), got=float("nan"), output="output", step=2),
    )
    tab = opened(show, tmp_path, errors=numbers)
    found = tab.locator("#panel table").first.locator("tbody tr").all_inner_texts()
    assert [" ".join(row.split()) for row in found[1:]] == [
        "output of step 2 [0, 0, 17] nan 0.25 0.0371 0.001 inf × 0.0371",
        "output of step 0 [0, 0, 17] 0.026869399 0.026869401 2e-9 0.001 37 × 0.0371",
        "present_key of step 0 [0, 0, 17] 0.2871 0.25 0.0371 0.001 0.5 × 0.0371",
    ]
    text = tab.locator("#panel").inner_text()
    assert "2 more, all within budget" in text
    assert "1,280 elements compared, 3 not compared because" in text
    assert tab.locator("#panel .steps").count() == 0  # there is no next case


def test_a_picture_shows_where_it_is_wrong(show: Open, tmp_path: Path) -> None:
    where = ErrorMap(rows=("0039.", "00000"), heads=4, positions=5)
    wrong = error(where=where)
    tab = opened(show, tmp_path, errors=(wrong,))
    shown = tab.get_by_role("region", name="Where output is wrong")
    lines = [line.rstrip() for line in shown.evaluate("pre => pre.textContent").splitlines()]
    assert lines == [*text_of(picture(wrong))]
    assert shown.locator("b").all_inner_texts() == ["39"]


@pytest.mark.night
def test_the_finding_and_another_can_be_read_in_the_panel(show: Open, tmp_path: Path) -> None:
    known = expected(link="docs/findings/webgpu-attributes.md")
    tab = opened(show, tmp_path, unexpected=False, expectation=known)
    finding = tab.locator("#panel .finding")
    finding.locator("summary").click()
    assert "Workaround" in words(finding)
    finding.locator("a[href^='#page:']").first.click()
    assert finding.count() == 2
    assert asked(tab).startswith(f"#{case().id}@")


@pytest.mark.night
def test_a_finding_opens_its_first_case_which_can_be_copied(show: Open, real_page: str) -> None:
    """A finding opens its first case whose reproduction can be copied."""
    tab = show(real_page, permissions=["clipboard-read", "clipboard-write"])
    tab.locator(".findings ol a").first.click()
    tab.locator("#panel").wait_for()
    assert "timeout" in tab.locator("#panel .top").inner_text()
    box = tab.locator("#matrix tr.member > td > [aria-current]").bounding_box()
    assert 0 < box["y"] < SIZE["height"]
    tab.get_by_text("Bug report", exact=True).click()
    tab.get_by_text("Without this suite").click()
    for what in ("command", "script", "bug report"):
        tab.get_by_role("button", name=f"Copy {what}").click()
        text = tab.get_by_role("region", name=what).evaluate("pre => pre.textContent")
        tab.wait_for_function(
            "async text => (await navigator.clipboard.readText()) === text", arg=text
        )
    id = words(tab.locator("#panel .case"))
    assert words(tab.get_by_role("region", name="command")) == f"gqa run --ep cuda@1.26.0 -k '{id}'"
    assert id in text  # the bug report


# ── Keys, paper, phones and everybody's eyes ────────────────────────────────────────────────────


@pytest.mark.night
def test_everything_works_by_keyboard(show: Open, real_page: str) -> None:
    tab = show(real_page)
    keys = tab.keyboard

    here = """[document.activeElement.closest("td, th")?.cellIndex,
               document.activeElement.closest("tr")?.id]"""
    keys.press("/")
    keys.type("several_tokens sequence_length=33,rotary=none")
    keys.press("ArrowDown")
    assert tab.evaluate(here) == [0, "decode"]
    keys.press("ArrowDown")
    if tab.evaluate("document.activeElement.getAttribute('aria-expanded')") == "false":
        keys.press("Enter")
    assert tab.evaluate(here) == [0, "decode/several_tokens"]
    keys.press("End")
    assert tab.evaluate(here) == [2, "decode/several_tokens"]
    keys.press("ArrowLeft")
    wanted = "decode/several_tokens[dtype=float16,sequence_length=33,rotary=none]"
    for _ in range(6):
        keys.press("ArrowDown")
        if tab.evaluate(here) == [1, wanted]:
            break
    keys.press("Enter")
    assert tab.evaluate("document.activeElement.id") == "panel"
    assert cell(tab, wanted).get_attribute("aria-current") == "true"
    keys.press("Escape")
    assert not tab.locator("#panel").is_visible()
    assert tab.evaluate(here) == [1, wanted]
    keys.press("Home")
    assert tab.evaluate(here) == [0, wanted]
    keys.press("?")
    assert tab.locator("#help").is_visible()
    keys.press("Escape")
    assert not tab.locator("#help").is_visible()
    keys.press("/")
    keys.press("Escape")
    assert tab.locator("#search").input_value() == ""
    tab.locator(".jump").focus()
    keys.press("Enter")
    assert tab.evaluate("Boolean(document.activeElement.closest('#matrix'))")


@pytest.mark.night
@pytest.mark.parametrize(
    ("scheme", "width"), [(scheme, width) for scheme in ("light", "dark") for width in (1400, 390)]
)
def test_axe_finds_no_violation(
    show: Open, real_page: str, packages: Path, scheme: str, width: int, tmp_path: Path
) -> None:
    tab = show(real_page, color_scheme=scheme, bypass_csp=True)
    tab.set_viewport_size({"width": width, "height": 900})
    page_colour = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert page_colour == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 22, 26)"}[scheme]
    tab.locator("#unfold").click()
    tab.locator('tr[id="decode/several_tokens"] .fold').click()
    for summary in tab.locator("main details > summary").all():
        if summary.is_visible():  # those that fold only on a phone are open elsewhere
            summary.click()
    cell(tab, "decode/several_tokens", 1).click()
    assert violations(tab, packages) == []
    tab.keyboard.press("?")
    assert violations(tab, packages) == []
    tab = show(on_targets(tmp_path / "a", 1), color_scheme=scheme, bypass_csp=True)
    tab.locator("#unfold").click()  # the colours of every verdict
    assert violations(tab, packages) == []


NAMES = [f"cp{letter}@1.20.0" for letter in "abcdefghi"]


def on_targets(path: Path, number: int) -> str:
    """A page of so many targets, with all verdicts and a wide row of numbers."""
    results = [
        result(f"shared_kv/zero_length_kv{n % 9}[n={n}]", name, verdict, unexpected=n % 3 == 0)
        for n, verdict in enumerate(VERDICTS * 9)
        for name in NAMES[:number]
    ]
    return render(tabulate([of_results(path, results)]))


@pytest.mark.night
@pytest.mark.parametrize("number", [1, 3, 9])
@pytest.mark.parametrize("width", [1280, 1500, 1920])
def test_width_is_used_without_cuts(show: Open, tmp_path: Path, width: int, number: int) -> None:
    """The width is used and nothing is cut off."""
    tab = show(on_targets(tmp_path / "a", number))
    tab.set_viewport_size({"width": width, "height": 900})
    tab.reload()
    tab.wait_for_selector("html.ready")
    tab.evaluate("document.querySelectorAll('.more > details').forEach((box) => (box.open = true))")
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.evaluate(CUT) == []
    for table in ("#matrix", ".score"):
        box = tab.locator(table).bounding_box()
        assert box["width"] >= 0.9 * width, table
        assert box["x"] + box["width"] <= width


@pytest.mark.night
@pytest.mark.parametrize("width", [1500, 390])
def test_heads_of_many_releases_stay_on_the_screen(show: Open, tmp_path: Path, width: int) -> None:
    names = [f"cpu@1.{release}.0" for release in range(20)]
    results = [result(f"a/x{n}", name) for name in names for n in range(60)]
    tab = show(render(tabulate([of_results(tmp_path / "a", results)])), "#?releases=cpu&open=a")
    tab.set_viewport_size({"width": width, "height": 800})
    assert tab.locator("#matrix > thead th").count() == 21
    tab.locator('tr[id="a/x50"] > td').last.evaluate("cell => cell.scrollIntoView()")
    tab.wait_for_timeout(100)
    places = """heads => heads.map(head => head.getBoundingClientRect())
      .map(({ top, left }) => [Math.round(top), Math.round(left)])"""
    heads = tab.locator("#matrix > thead th").evaluate_all(places)
    assert {top for top, _ in heads} == {0}
    firsts = tab.locator("#matrix tr > th:first-child").evaluate_all(places)
    assert all(0 <= left < 100 for _, left in firsts)
    assert 100 < heads[-1][1] < width
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    tab.evaluate("scrollTo(0, 0)")
    tab.wait_for_timeout(100)
    assert tab.locator("#matrix > thead th").first.bounding_box()["y"] > 100


@pytest.mark.night
@pytest.mark.parametrize("number", [1, 3, 9])
def test_a_phones_first_screen_has_a_result(show: Open, tmp_path: Path, number: int) -> None:
    """The first result is on the first screen of a phone."""
    html = on_targets(tmp_path / "a", number)
    tab = show(html, is_mobile=True)
    tab.set_viewport_size({"width": 390, "height": 844})
    tab.reload()
    tab.wait_for_selector("html.ready")
    first = tab.locator("#matrix > tbody > tr > td > button").first.bounding_box()
    assert first["y"] + first["height"] <= 844
    tab.locator("#matrix > tbody > tr > td > button").first.click()
    assert tab.locator("#panel").bounding_box()["width"] <= 390
    tab.get_by_role("button", name="Close").click()
    assert tab.locator(".score a").first.is_visible()
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    assert not tab.locator("#search").is_visible()
    tab.get_by_text("Search and filter").click()
    assert tab.locator("#search").is_visible()
    assert not tab.locator(".findings ol").first.is_visible()
    tab.locator(".findings .roomy > summary").click()
    assert tab.locator(".findings ol").first.is_visible()
    tab.get_by_text("Search and filter").click()
    tab.keyboard.press("/")
    assert tab.evaluate("document.activeElement.id") == "search"


@pytest.mark.night
def test_a_link_to_the_view_can_be_copied(show: Open, real_page: str) -> None:
    tab = show(real_page, permissions=["clipboard-read", "clipboard-write"])

    def copied() -> str:
        tab.wait_for_function("() => document.querySelector('#said').textContent === 'Copied'")
        text = unquote(tab.evaluate("navigator.clipboard.readText()"))
        tab.wait_for_function("() => document.querySelector('#said').textContent === ''")
        return text

    address = tab.evaluate("location.href").rstrip("#")
    tab.locator(".chips").get_by_text("timeout").click()
    tab.locator("#copy-link").click()
    assert copied() == f"{address}#?verdict=timeout"
    tab.locator("#reset").click()
    tab.locator('tr[id="decode/several_tokens"] .fold').click()
    tab.keyboard.press("c")
    assert copied().startswith(f"{address}#decode/several_tokens?open=")
    cell(tab, "decode/several_tokens", 1).click()
    tab.get_by_role("button", name="Copy link").last.click()
    assert copied().startswith(f"{address}#{words(tab.locator('#panel .case'))}@cuda@1.26.0")


@pytest.mark.night
def test_a_link_can_be_copied_without_a_clipboard(show: Open, real_page: str) -> None:
    tab = show(real_page, "#?verdict=timeout")
    tab.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    tab.evaluate("document.execCommand = (name) => (window.asked = [name, String(getSelection())])")
    tab.locator("#copy-link").click()
    tab.wait_for_function("() => window.asked")
    assert tab.evaluate("asked") == ["copy", tab.evaluate("location.href")]
    assert tab.locator("#copy-link").inner_text() == "Copied"


@pytest.mark.night
def test_many_crashes_with_one_symptom_are_one_row(show: Open, tmp_path: Path) -> None:
    ids = [f"a/x[n={n}]" for n in range(30)]
    died = "The runner died of SIGSEGV, and again when it was tried alone; the last it wrote: row "
    results = [result(id, verdict="crash", message=f"{died}{n}.") for n, id in enumerate(ids[:20])]
    html = render(tabulate([of_results(tmp_path / "a", results + [result(id) for id in ids[20:]])]))
    tab = show(html, "#a/x")
    row = tab.locator("#matrix tr.symptom")
    told = "20 cases: crash, SIGSEGV: row N crash SIGSEGV · all 20 cases · 20 unexpected"
    assert words(row) == told
    assert cases(tab) == ids[20:]
    assert tab.locator("tr.grid").count() == 0  # it has no two axes
    row.locator(".fold").click()
    again = show(html, tab.evaluate("location.hash"))
    assert sorted(cases(again)) == sorted(cases(tab)) == sorted(ids)
    # A link to one of them unfolds them.
    tab = show(html, f"#{quote(ids[3])}@cpu@1.31.1")
    assert cell(tab, ids[3]).get_attribute("aria-current") == "true"


@pytest.mark.night
def test_the_score_links_to_what_it_counts(show: Open, tmp_path: Path) -> None:
    requested = Contract(basis="requested", source="https://example.org/1")
    verdicts: dict[str, Verdict] = {
        "a/right": "pass", "a/no": "unsupported", "a/ran": "accepted", "a/bad": "wrong",
        "a/dead": "timeout", "a/skip": "skip", "b/asked": "pass", "b/no": "wrong",
    }  # fmt: skip
    about = [case(id, contract=requested) if id.startswith("b/") else case(id) for id in verdicts]
    results = [
        result(id, verdict=verdict, unexpected=verdict == "unsupported", values_right=None)
        for id, verdict in verdicts.items()
    ]
    html = render(tabulate([of_results(tmp_path / "a", results, about)]))
    tab = show(html)
    numbers = words(tab.locator(".score tbody tr"))
    assert numbers == "cpu@1.31.1 AMD EPYC 7R13, 2 cores 20 % 1 of 5 1 1 0 1 1 1 50 % 1 of 2 1 0"
    links = tab.locator(".score a").evaluate_all("all => all.map((a) => a.hash)")
    distinct = dict.fromkeys(href for href in links if "score=" in href)
    assert [cases(show(html, href)) for href in distinct][:6] == [
        ["a/right"], ["a/no"], ["a/ran"], ["a/bad"], ["a/dead"], ["b/asked"]
    ]  # fmt: skip
    tab.locator("[data-list=score]").select_option("silently wrong")
    assert cases(tab) == ["a/bad", "b/no"]


@pytest.mark.night
def test_it_prints(show: Open, real_page: str) -> None:
    tab = show(real_page, "#decode")
    cell(tab, "decode/several_tokens", 1).click()
    tab.emulate_media(media="print")
    for gone in ("#panel", ".tools", "#help"):
        assert not tab.locator(gone).is_visible()
    assert cell(tab, "decode/several_tokens", 1).is_visible()
    assert len(tab.pdf()) > 20_000


def test_without_scripts_the_page_explains_what_to_do(show: Open, real_page: str) -> None:
    tab = show(real_page, java_script_enabled=False)
    assert tab.get_by_text("The table needs JavaScript").is_visible()
    assert tab.get_by_text("Unexpected: 10 of").is_visible()
    assert not tab.locator("#search").is_visible()


def test_hostile_text_is_harmless(show: Open, hostile: Run) -> None:
    tab = show(render(tabulate([hostile])))
    before = tab.title()
    tab.locator("#unfold").click()
    for button in tab.locator("#matrix td button").all():
        button.click()
    panel = tab.locator("#panel")
    assert "<img src=x onerror=" in panel.locator("pre").first.inner_text()
    assert "THE END" in panel.locator("pre").first.inner_text()
    for summary in panel.locator("summary").all():
        summary.click()
    assert tab.locator("img, #panel script, #panel pre :not(b)").count() == 0
    schemes = panel.locator("a").evaluate_all("links => links.map(link => link.protocol)")
    assert set(schemes) <= {"https:"}
    tab.locator("#search").fill(HOSTILE[:40])
    assert rows(tab, "group") != []
    assert show(render(tabulate([hostile])), tab.evaluate("location.hash")).title() == before
    assert tab.title() == before
    # A message does not make the page wider than the window.
    assert tab.evaluate("document.querySelector('#panel').scrollWidth <= innerWidth")


# ── A published page ────────────────────────────────────────────────────────────────────────────


@pytest.mark.night
@pytest.mark.parametrize(("days", "says"), [(2.9, ""), (4.1, "Out of date: "), (-1, "")])
def test_a_published_page_turns_stale(browser: Any, tmp_path: Path, days: float, says: str) -> None:
    page = tmp_path / "page.html"
    page.write_text(render(tabulate([small(tmp_path / "a")]), stale_after=3), encoding="utf-8")
    tab = browser.new_page()
    tab.clock.install(time=START + timedelta(days=days))
    tab.goto(page.as_uri())
    banner = tab.locator("#stale")
    assert words(banner).startswith(f"{says}these results were taken 4 days ago" if says else "")
    assert banner.is_visible() == bool(says)
    tab.clock.fast_forward(timedelta(days=5).total_seconds() * 1000)  # it stays open
    assert banner.is_visible()
    tab.close()
    assert 'id="stale"' not in render(tabulate([small(tmp_path / "a")]))
