"""The workarounds of the findings: tried, on their pages, and with a warning where they do harm."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from goldens import check_text
from synthetic_runs import result
from tables import tables

from conformance.base.findings import Workaround, finding_facts, workaround
from conformance.base.paths import ROOT
from conformance.base.words import listed
from conformance.bundle.prepare import prepare
from conformance.case.case import Case
from conformance.case.corpus import find
from conformance.maintain.workarounds import broken_on, main, recorded, state_of, worse_on
from conformance.report.model_pages import FILE, models_of

TABLES = tables(__file__)

_CASES = ROOT / "docs" / "findings" / "workarounds.yaml"
_PARAGRAPH = re.compile(r"^\*\*Workaround\*\* (.*?)\n\n", re.DOTALL | re.MULTILINE)


_HEAD = """\
# Workarounds

The advice of the [findings](../../docs/findings/README.md). It was tried by a call before and after
it, on each [recorded release](README.md) of cpu, tract, wasm and webgpu (on lavapipe),
and on webgpu-jsep if the call is not one of the corpus. cuda was not tried.
`python -m conformance.maintain.workarounds` says what became of each call.

The table is made from [findings.yaml](../../docs/findings/findings.yaml) by
`pytest tests/results/test_workarounds.py --rewrite-transcripts`.

| finding | advice | right after it on | worse after it on |
| --- | --- | --- | --- |
"""


@cache
def cases() -> Mapping[str, Case]:
    return {case.id: case for case in find([str(_CASES)]).named}


def test_each_workaround_holds_and_warns(capsys: pytest.CaptureFixture[str]) -> None:
    """Each workaround holds and names the releases that it makes worse."""
    status = main()
    said = capsys.readouterr().out
    assert status == 0, said
    advice = sum(len(facts.workarounds) for facts in finding_facts().values())
    assert said.count("  cuda: not tried\n") == advice


def test_a_page_has_the_advice_with_its_warnings() -> None:
    pages = {f"docs/findings/{page.name}": page for page in _CASES.parent.glob("*.md")}
    on_pages = {
        link: " ".join(paragraph[1].split())
        for link, page in pages.items()
        if (paragraph := _PARAGRAPH.search(page.read_text(encoding="utf-8")))
    }
    assert on_pages == {link: workaround(link) for link in pages if workaround(link)}
    assert workaround("https://example.org/") == ""


def test_the_table_of_all_workarounds() -> None:
    lines = [_HEAD]
    for link, facts in finding_facts().items():
        page = f"../../{link}"
        for each in facts.workarounds:
            holds = listed([f"{target} {within}".strip() for target, within in each.holds.items()])
            row = f"[{Path(page).stem}]({page})", each.advice, holds, listed(each.worse) or "–"
            lines.append(f"| {' | '.join(row)} |\n")
    check_text(ROOT / "reports" / "recorded" / "workarounds.md", "".join(lines))


def test_every_workaround_was_tried_and_is_for_a_target() -> None:
    every = [each for facts in finding_facts().values() for each in facts.workarounds]
    assert [
        each.advice for each in every if not each.holds or bool(each.calls) == bool(each.tried)
    ] == []


def test_leaving_out_presents_of_a_borrowed_cache_is_known_to_crash() -> None:
    # The advice that led here: it is right on WebGPU, and no finding gives it any more.
    before, after = (
        f"workarounds/borrowed[borrower={which},tokens=decode]"
        for which in ("with_presents", "without_presents")
    )
    old = Workaround(advice="Leave both out.", calls={before: after}, holds={"webgpu": ">=1.29"})
    results = recorded()
    assert broken_on(old, results) == []
    assert {"cpu 1.27.0–1.30.0 (crash)", "wasm 1.27.0–1.30.0 (silently wrong)"} < {
        *worse_on(old, results)
    }


def test_a_release_is_named_only_if_a_call_is_worse_there() -> None:
    given = Workaround(advice="Do so.", calls={"a": "b", "c": "d"}, holds={"cpu": ">=2"})
    states = {
        "1.0": {"a": "refused", "b": "crash", "c": "right", "d": "right"},
        "1.1": {"a": "right", "b": "crash", "c": "refused", "d": "refused"},
        "2.0": {"a": "silently wrong", "b": "right", "c": "right", "d": "right"},
        "3.0": {"a": "silently wrong", "b": "silently wrong"},
        "4.0": {"a": "silently wrong"},
    }
    assert worse_on(given, {"cpu": states}) == ["cpu 1.0–1.1 (crash)"]
    assert broken_on(given, {"cpu": states}) == ["cpu 3.0"]
    assert broken_on(given, {}) == ["cpu"]
    warned = replace(given, worse=("cpu 1.0–1.1 (crash)",))
    assert warned.text == "Do so. This makes the call worse on cpu 1.0–1.1 (crash)."


@pytest.mark.parametrize(("state", "fields"), TABLES["states"])
def test_a_result_has_a_state(state: str, fields: Mapping[str, object]) -> None:
    assert state_of(result("a/b", **fields)) == state


@pytest.mark.parametrize(
    "ids",
    [
        [
            f"borrowed[borrower={each},tokens=decode]"
            for each in ("without_presents", "with_presents")
        ],
        [
            f"borrowed_window[window={each}]"
            for each in ("attribute", "finite_bias", "infinite_bias")
        ],
        [f"borrowed_window_of_a_step[window={each}]" for each in ("attribute", "last_rows")],
        [f"gelu[gelu={each}]" for each in ("attribute", "fast", "formula")],
        [f"rotated_before[rotation={each},tokens=decode]" for each in ("contributed", "standard")],
    ],
    ids=lambda ids: ids[0].partition("[")[0],
)
def test_the_way_round_computes_the_same(ids: list[str]) -> None:
    first, *others = [prepare(cases()[f"workarounds/{each}"].call).expected[0] for each in ids]
    name = "borrower_output" if "borrower_output" in first else "output"
    for other in others:
        assert np.allclose(other[name].value, first[name].value, rtol=0, atol=1e-6)


def test_recorded_answers_have_the_advice_of_today() -> None:
    causes = [
        cause
        for row in models_of(json.loads((ROOT / "reports" / FILE).read_text(encoding="utf-8"))).rows
        for there in row.runtimes.values()
        for cause in there.causes
    ]
    assert any("let nothing read them: pass on" in cause.workaround for cause in causes)
    assert {cause.workaround for cause in causes} == {workaround(cause.link) for cause in causes}
