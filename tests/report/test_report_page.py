"""The generated page: what it shows at once, and what it must not let through."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

from reported import Parsed, run_of
from synthetic_runs import expected, of_results, result, small, target

from conformance.base.paths import data_path
from conformance.report.finding_pages import alone
from conformance.report.html import SCRIPTS, render
from conformance.report.model_pages import load_models
from conformance.results.compare import changes
from conformance.results.reader import Run, read
from conformance.results.records import InfrastructureRecord
from conformance.results.table import tabulate

PAGE = data_path("reports") / "page"


def test_unexpected_results_come_first(tmp_path: Path) -> None:
    results = [
        result("a/x", verdict="wrong"),
        result("a/y", verdict="crash"),
        result("a/z", verdict="wrong", unexpected=False, expectation=expected()),
    ]
    words = Parsed(render(tabulate([of_results(tmp_path / "a.jsonl", results)]))).words
    assert "Unexpected: 2 of 3 results" in words
    assert words.index("SIGSEGV") < words.index("37 times") < words.index("with a known defect")
    assert "wrong : 1 result, 1 cause" in words


def test_a_run_without_unexpected_results_says_so(tmp_path: Path) -> None:
    parsed = Parsed(render(tabulate([small(tmp_path / "a.jsonl")])))
    text = parsed.text
    assert "wrong" not in {one.get("data-list") for one in parsed.attributes("select")}
    assert "Nothing unexpected" in text
    assert "in the results that there are" not in text
    assert "Incomplete: some results" not in text


def test_a_linked_finding_is_included(tmp_path: Path) -> None:
    link = "docs/findings/tract-nan-beyond-a-tile.md"
    run = small(tmp_path / "a", "wrong", unexpected=False, expectation=expected(link=link))
    html = render(tabulate([run]))
    assert f'<template id="page:{link}">' in html
    assert "<h1>tract" in html
    for name in ("../../README.md", "none.md", "a" * 300, "a" * 300 + ".md"):
        known = expected(link=f"docs/findings/{name}")
        run = small(tmp_path / "b", "wrong", unexpected=False, expectation=known)
        assert "<template" not in render(tabulate([run]))


def test_a_run_that_is_not_whole_is_marked_before_what_was_found(tmp_path: Path) -> None:
    run = small(tmp_path / "a.jsonl")
    run.path.write_bytes(run.path.read_bytes()[:-9])
    words = Parsed(render(tabulate([read(run.path)]))).words
    assert "It has no footer: the run was cut short." in words
    assert "Nothing unexpected in the results that there are" in words
    order = ("Score: calls", "Incomplete: some results", "Nothing unexpected")
    places = [words.index(told) for told in order]
    assert places == sorted(places)
    assert "ended unknown: the run was cut short" in words


def test_problems_are_shown_with_their_fix(tmp_path: Path) -> None:
    cuda = target("cuda", unavailable="No NVIDIA driver.", fix="apt-get install driver")
    broken = InfrastructureRecord(target="cpu@1.31.1", case="a/b", message="A line.", fix="look")
    targets = [target(), cuda]
    run = of_results(tmp_path / "a.jsonl", [result()], targets=targets, problems=[broken])
    words = Parsed(render(tabulate([run]))).words
    assert "cuda : Not tried: No NVIDIA driver. Fix: apt-get install driver" in words
    assert "cpu@1.31.1, a/b : A line. Fix: look" in words


def test_changes_are_shown_first(tmp_path: Path) -> None:
    verdicts = {"a/x": "pass", "a/y": "wrong", "a/z": "pass"}
    old = of_results(tmp_path / "old", [result(id, verdict=v) for id, v in verdicts.items()])
    new = of_results(tmp_path / "new", [result("a/x", verdict="crash"), result("a/y")])
    words = Parsed(render(tabulate([new]), changes(tabulate([new]), tabulate([old])))).words
    order = ("Worse than the baseline", "Newly broken: 1", "Vanished: 1", "Fixed: 1")
    places = [words.index(told) for told in order]
    assert places == sorted(places)
    assert places[-1] < words.index("result, no error")
    assert "only what changed" in words
    assert "only what changed" not in Parsed(render(tabulate([new]))).words


# ── One safe file ───────────────────────────────────────────────────────────────────────────────


def test_text_is_never_markup(hostile: Run, tmp_path: Path) -> None:
    plain = Parsed(render(tabulate([run_of(tmp_path / "a.jsonl", "pass", "wrong", "unsupported")])))
    html = render(tabulate([hostile]))
    parsed = Parsed(html)
    extra = {"ul", "select", "option", "label", "section", "i", "small"}
    assert {tag for tag, _ in parsed.elements} <= {tag for tag, _ in plain.elements} | extra
    assert len(parsed.scripts) == len(SCRIPTS) + 4  # messages.js, models.js, and two of data
    assert "<img" not in html
    assert re.fullmatch(r"[A-Za-z0-9+/=]+", parsed.packed)
    assert "THE END" in str(parsed.cells)
    for text in (html, str(parsed.cells)):
        assert not re.search("[\x00\x1b\u202a-\u202e\u2066-\u2069\u200b\u2028]", text)
    for _, attributes in parsed.elements:
        assert not [name for name in attributes if name.startswith("on")]
    assert len(html) < 200_000


def test_only_fragments_are_linked_without_the_script(hostile: Run, real: Run) -> None:
    """Besides them, only known defects of the recorded models are."""
    runtimes = [on for row in load_models().rows for on in row.runtimes.values()]
    recorded = {cause.link for on in runtimes for cause in on.causes}
    for run in (hostile, real):
        for link in Parsed(render(tabulate([run]))).attributes("a"):
            assert link["href"].startswith("#") or link["href"] in recorded


def test_the_content_policy_allows_only_its_own_scripts_and_style(real: Run) -> None:
    parsed = Parsed(render(tabulate([real])))
    policy = next(
        meta["content"]
        for meta in parsed.attributes("meta")
        if meta.get("http-equiv") == "Content-Security-Policy"
    )

    def digest(text: str) -> str:
        return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

    scripts = " ".join(f"'sha256-{digest(script)}'" for script in parsed.scripts[:-2])
    assert policy == (
        f"default-src 'none'; style-src 'sha256-{digest(parsed.style)}'; "
        f"script-src {scripts}; base-uri 'none'; form-action 'none'"
    )


def test_the_scripts_never_parse_text_as_markup() -> None:
    assert {file.stem for file in PAGE.glob("*.js")} == set(SCRIPTS)
    markup = r"(inner|outer)HTML|insertAdjacent|document\.write|eval\(|Function\("
    for file in PAGE.glob("*.js"):
        assert not re.search(markup, file.read_text(encoding="utf-8"))


def test_the_same_run_gives_the_same_page(real: Run) -> None:
    assert render(tabulate([real])) == render(tabulate([real]))


def test_a_finding_can_be_read_without_the_other_pages() -> None:
    text = alone("docs/findings/webgpu-borrowed-window.md") or ""
    assert "**Workaround** Leave out the window" in text
    for missing in ("# ONNX Runtime", "on_webgpu", "](wasm", "Reproduce"):
        assert missing not in text
    assert alone("docs/findings/../tolerance.md") is None
