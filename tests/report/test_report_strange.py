"""Results files that are valid and strange, in a real browser: the page shows all their rows."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from browsing import Open
from reported import HOSTILE
from synthetic_runs import case, error, expected, of_results, result, target

from conformance.report.html import render
from conformance.results.records import (
    CallRecord,
    CaseRecord,
    ErrorMap,
    InfrastructureRecord,
    ResultRecord,
    TargetRecord,
)
from conformance.results.table import tabulate
from conformance.results.verdicts import VERDICTS

LONG = "x" * 200_000
NAMES = (
    "", " ", "a b", "a/b/c", "a/", "/b", "[", "a[b", "a[b=]", "a@b", "#", "%", "%2", "?q=x&y",
    "a,b", "a=b", "'", '"', "\\", "`", "<b>", "&amp;", "\u202e", "\u200b", "\t", "\n", "😀",
    "0", "é", "-1", "__proto__", "constructor", "toString", "null", "undefined", "NaN", HOSTILE,
    "nothing", "matrix", "search", "shown", "cells",  # ids that the page uses itself
)  # fmt: skip
BARE = CallRecord(inputs=(), outputs=())


def about(*names: str) -> list[CaseRecord]:
    return [case(id="a/" + name, theme="a", name=name) for name in names]


def bare(id: str, **fields: Any) -> CaseRecord:
    """A case whose texts and lists are empty."""
    empty: dict[str, Any] = {"file": "", "tags": (), "links": (), "why": "", "call": BARE}
    return case(id, "", **{"theme": "", "name": "", "axes": {}} | empty | fields)


def silent(id: str, verdict: str, **fields: Any) -> ResultRecord:
    """A result that says nothing beside its verdict."""
    empty: dict[str, Any] = {"reason": "", "message": None, "stderr": "", "reproduce": ""}
    less: dict[str, Any] = {"errors": (), "share": None, "placement": None, "ms": None}
    return result(id, verdict=verdict, **empty | less | fields)


class File(NamedTuple):
    """What a results file has."""

    cases: Sequence[CaseRecord] = ()
    results: Sequence[ResultRecord] = ()
    targets: Sequence[TargetRecord] = ()
    problems: Sequence[InfrastructureRecord] = ()


def of_every_verdict(**fields: Any) -> File:
    return File(about(*VERDICTS), [silent(f"a/{each}", each, **fields) for each in VERDICTS])


NO_ROWS = ErrorMap(rows=(), heads=0, positions=0)
STRANGE: dict[str, File] = {
    "no_text": of_every_verdict(unexpected=True, expectation=expected("crash")),
    "empty_text": of_every_verdict(message="", stderr="", code="", placement=""),
    "many_silent_crashes": File(
        [case(f"a/x[n={n}]") for n in range(20)],
        [silent(f"a/x[n={n}]", "crash") for n in range(20)],
    ),
    "empty_case": File([bare("")], [silent("", "crash")]),
    "no_case": File((), [silent("a/x", "wrong"), silent("", "crash")]),
    "no_results": File(about("x", "y"), (), [target()]),
    "nothing": File((), (), [target()]),
    "no_target": File(about("x")),
    "only_infrastructure": File(
        targets=[target()],
        problems=[InfrastructureRecord(target="cpu@1.31.1", message="")] * 2
        + [InfrastructureRecord(target="another", case="a/x", message=HOSTILE, fix="")],
    ),
    "unavailable": File(about("x"), (), [target(unavailable="", fix="")]),
    "huge_texts": File(
        [case(f"a/{LONG}", LONG, title=LONG, why=LONG, name=LONG, axes={LONG: LONG, "b": ""})],
        [silent(f"a/{LONG}", "crash", reason=LONG, message=LONG, stderr=LONG, target=LONG)],
        [target(LONG)],
    ),
    "odd_names": File(
        about(*NAMES),
        [silent(f"a/{n}", "wrong", target=t) for n in NAMES for t in ("", HOSTILE)],
        [target(t) for t in ("", HOSTILE)],
    ),
    "odd_themes": File(
        [bare(f"{n}/x", theme=n, name="x", axes={n: n}, tags=(n,)) for n in NAMES],
        [silent(f"{n}/x", "unsupported", message=n) for n in NAMES],
    ),
    "odd_numbers": File(
        about("x", "y", "z", "u"),
        [
            result("a/x", verdict="wrong", share=math.inf, errors=(error(got=math.nan),)),
            result("a/y", verdict="wrong", share=math.nan, errors=(error(index=()),)),
            result("a/z", verdict="wrong", errors=(error(where=NO_ROWS, index=None),)),
            result("a/u", verdict="wrong", errors=(error(absolute=sys.float_info.max),)),
        ],
    ),
}


@pytest.mark.parametrize(
    "name",
    [
        name if number % 8 == 0 else pytest.param(name, marks=pytest.mark.night)
        for number, name in enumerate(STRANGE)
    ],
)
def test_a_strange_file_blanks_no_page(show: Open, tmp_path: Path, name: str) -> None:
    """All rows are there, and each opens the details; `show` fails on an error of the page."""
    cases, results, targets, problems = STRANGE[name]
    run = of_results(tmp_path / "run", results, cases, targets=targets, problems=problems)
    tab = show(render(tabulate([run])))
    tab.locator("#matrix[aria-busy=false]").wait_for()
    tab.locator("#unfold").click()
    tab.locator("#matrix[aria-busy=false]").wait_for()
    while (shut := tab.locator("#matrix .fold[aria-expanded=false]")).count():
        shut.first.click()
    rows = tab.locator("#matrix > tbody > :is(.single, .member)")
    assert rows.count() == len({*run.cases, *(result.case for result in results)})
    cells = tab.locator("#matrix > tbody > :is(.single, .member) > td > button")
    assert cells.count() == len(results)
    for number in range(cells.count()):
        cells.nth(number).click()
        assert tab.locator("#panel .case").count() == 1
