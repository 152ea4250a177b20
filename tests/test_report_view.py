"""The data of the page: headings, causes, problems, and the cells with their details."""

from __future__ import annotations

import json
import math
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from synthetic_runs import case, error, expected, result, small, target, write

from conformance.report.changes import changes
from conformance.report.html import render
from conformance.report.view import page
from conformance.results.errors import ResultsError
from conformance.results.join import join
from conformance.results.reader import Run, read
from conformance.results.records import (
    ErrorMap,
    InfrastructureRecord,
    Milliseconds,
    RelationRecord,
    WrongShape,
)
from conformance.results.verdicts import VERDICTS, Verdict


def counted(data: dict[str, Any]) -> Counter[tuple[str, str]]:
    """The page's cells by target and verdict."""
    counts: Counter[tuple[str, str]] = Counter()
    for one in data["cases"]:
        for about, cell in zip(data["targets"], one["results"], strict=True):
            if cell:
                counts[about["label"], cell["verdict"]] += 1
    return counts


def test_themes_rows_and_cases_follow_the_file(real: Run) -> None:
    _, data, _ = page(join([real]))
    about = list(real.cases.values())
    assert [(theme["name"], theme["question"]) for theme in data["themes"]] == list(
        dict.fromkeys((case.theme, case.question) for case in about)
    )
    rows = list(dict.fromkeys((case.theme, case.name) for case in about))
    assert [group["id"] for group in data["groups"]] == [f"{theme}/{name}" for theme, name in rows]
    assert [one["id"] for one in data["cases"]] == list(real.cases)
    for one, described in zip(data["cases"], about, strict=True):
        group = data["groups"][one["group"]]
        assert (group["name"], group["why"]) == (described.name, described.why)
        assert data["themes"][group["theme"]]["name"] == described.theme
        assert one["axes"] == described.axes


def test_counts_are_those_of_the_file(real: Run) -> None:
    shown, data, _ = page(join([real]))
    assert {head.label: dict(head.counts) for head in shown.heads} == {
        name: {verdict: counts[verdict] for verdict in VERDICTS}
        for name, counts in real.counts().items()
    }
    assert (shown.cases, shown.results) == (len(real.cases), len(real.results))
    unexpected = [result for result in real.results if result.unexpected]
    known = [result for result in real.results if result.expectation and not result.unexpected]
    assert sum(cause.number for cause in shown.unexpected) == len(unexpected)
    assert sum(cause.number for cause in shown.known) == len(known)
    assert sum(head.unexpected for head in shown.heads) == len(unexpected)
    assert sum(head.known for head in shown.heads) == len(known)
    assert (
        sum(one.number for one in shown.skipped)
        == shown.heads[0].counts["skip"] + (shown.heads[1].counts["skip"])
    )
    assert counted(data) == Counter((result.target, result.verdict) for result in real.results)


NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    cells=st.dictionaries(
        st.tuples(st.integers(0, 20), NAMES.map(str.strip).filter(bool)),
        st.tuples(st.sampled_from(VERDICTS), st.booleans(), st.booleans()),
        max_size=30,
    ),
    describe=st.integers(0, 21),
)
def test_counts_are_those_of_any_file(
    tmp_path_factory: pytest.TempPathFactory,
    cells: dict[tuple[int, str], tuple[Verdict, bool, bool]],
    describe: int,
) -> None:
    """Cases without a description and any names among them."""
    results = [
        result(
            f"theme{n % 3}/entry{n % 7}[n={n}]",
            name,
            verdict,
            unexpected=unexpected,
            expectation=expected() if known else None,
        )
        for (n, name), (verdict, unexpected, known) in cells.items()
    ]
    ids = list(dict.fromkeys(one.case for one in results))[:describe]
    path = tmp_path_factory.mktemp("any") / "a.jsonl"
    run = read(write(path, [case(id) for id in ids], results))
    shown, data, _ = page(join([run]))
    assert sum(counted(data).values()) == shown.results == len(results)
    by_verdict = Counter(one.verdict for one in results)
    assert Counter({v: sum(head.counts[v] for head in shown.heads) for v in VERDICTS}) == by_verdict
    assert Counter(verdict for _, verdict in counted(data).elements()) == by_verdict
    assert sum(cause.number for cause in shown.unexpected) == sum(r.unexpected for r in results)


def test_a_row_has_its_title_where_there_is_one(tmp_path: Path) -> None:
    cases = [case("a/x[n=1]", title="Borrow a cache"), case("a/y", why="")]
    _, data, _ = page(join([read(write(tmp_path / "a", cases, [result(c.id) for c in cases]))]))
    assert [(g["title"], g["name"]) for g in data["groups"]] == [
        ("Borrow a cache", "x"),
        ("y", "y"),
    ]


def test_why_is_a_row_s_where_all_its_cases_have_it(tmp_path: Path) -> None:
    cases = [case("a/x[n=1]", why="one"), case("a/x[n=2]", why="two"), case("a/y", why="three")]
    _, data, _ = page(join([read(write(tmp_path / "a", cases, [result(c.id) for c in cases]))]))
    assert [group["why"] for group in data["groups"]] == ["", "three"]


def test_unexpected_results_are_listed_by_symptom_worst_first(tmp_path: Path) -> None:
    cases = [case(id) for id in ("a/x[n=1]", "a/x[n=2]", "a/y", "a/z", "a/u")]
    other = WrongShape(output="output", got=(1,), want=(2,))
    results = [
        result("a/x[n=1]", verdict="wrong"),
        result("a/x[n=2]", verdict="wrong"),
        result("a/y", verdict="crash"),
        result("a/z", verdict="wrong", unexpected=False, expectation=expected()),
        result("a/u", verdict="wrong", faults=(other,)),
    ]
    shown, *_ = page(join([read(write(tmp_path / "a.jsonl", cases, results))]))
    assert [(c.verdict, c.first, c.number) for c in shown.unexpected] == [
        ("crash", "a/y", 1),
        ("wrong", "a/x[n=1]", 2),
        ("wrong", "a/u", 1),
    ]
    assert [(c.verdict, c.first, c.reason) for c in shown.known] == [
        ("wrong", "a/z", "Reads past the end of the cache.")
    ]


def test_many_crashes_with_one_symptom_are_one_cause(tmp_path: Path) -> None:
    ids = [f"a/x{n % 3}[n={n}]" for n in range(40)]
    died = "The runner died of {}, and again when it was tried alone; the last it wrote: row {}."
    results = [
        result(id, verdict="crash", message=died.format("SIGABRT" if n == 7 else "SIGSEGV", n))
        for n, id in enumerate(ids)
    ]
    shown, data, _ = page(join([read(write(tmp_path / "a", [case(id) for id in ids], results))]))
    assert [(c.symptom, c.number, c.rows) for c in shown.unexpected] == [
        ("SIGSEGV: row N", 39, (("a/x0", 14), ("a/x2", 13), ("a/x1", 12))),
        ("SIGABRT: row N", 1, (("a/x1", 1),)),
    ]
    symptoms = [data["pool"][one["results"][0]["symptom"]] for one in data["cases"]]
    assert Counter(symptoms) == {"SIGSEGV: row N": 39, "SIGABRT: row N": 1}


def test_known_results_are_grouped_by_cause(tmp_path: Path) -> None:
    cases = [case(f"{theme}/x[n={n}]") for n in range(3) for theme in "ab"]
    why = ("No softcap.", "No sinks.", "No softcap.", "No softcap.", "No sinks.", "No softcap.")
    results = [
        result(one.id, verdict="wrong", unexpected=False, expectation=expected(why=each))
        for one, each in zip(cases, why, strict=True)
    ]
    shown, *_ = page(join([read(write(tmp_path / "a.jsonl", cases, results))]))
    assert [(c.reason, c.number, c.first) for c in shown.known] == [
        ("No softcap.", 4, "a/x[n=0]"),
        ("No sinks.", 2, "b/x[n=0]"),
    ]


def test_findings_that_are_linked_are_named(tmp_path: Path) -> None:
    link = "docs/findings/tract-nan-beyond-a-tile.md"
    run = small(tmp_path / "a", "wrong", unexpected=False, expectation=expected(link=link))
    assert page(join([run]))[0].findings == (link,)
    assert page(join([small(tmp_path / "b")]))[0].findings == ()


def test_why_cases_were_not_tried_is_counted(tmp_path: Path) -> None:
    cases = [case(f"a/x[n={n}]") for n in range(4)]
    reasons = ["no float16", "no float16", "no time"]
    results = [
        result(one.id, verdict="skip", reason=why) for one, why in zip(cases, reasons, strict=False)
    ]
    shown, *_ = page(join([read(write(tmp_path / "a", cases, [*results, result(cases[3].id)]))]))
    assert [(one.number, one.reason) for one in shown.skipped] == [
        (2, "no float16"),
        (1, "no time"),
    ]


def test_several_files_give_columns_side_by_side(tmp_path: Path) -> None:
    old = read(write(tmp_path / "old.jsonl", [case()], [result(verdict="wrong")]))
    new = read(write(tmp_path / "new.jsonl", [case(), case("a/b")], [result(), result("a/b")]))
    _, data, _ = page(join([old, new]))
    labels = [about["label"] for about in data["targets"]]
    assert labels == ["cpu@1.31.1 (old.jsonl)", "cpu@1.31.1 (new.jsonl)"]
    verdicts = [[cell and cell["verdict"] for cell in one["results"]] for one in data["cases"]]
    assert verdicts == [["wrong", "pass"], [None, "pass"]]


def test_an_adapter_or_version_in_the_name_is_not_repeated(tmp_path: Path) -> None:
    name = "webgpu@1.30.0+lavapipe"
    run = read(write(tmp_path / "a.jsonl", [case()], [result(target=name)], targets=[target(name)]))
    (head,) = page(join([run]))[0].heads
    assert (head.label, head.version, head.adapter) == (name, "", "")
    bare = target("webgpu").model_copy(
        update={"describe": target(name).describe.model_copy(update={"version": "1.30.0"})}  # type: ignore[union-attr]
    )
    run = read(write(tmp_path / "b.jsonl", [case()], [result(target="webgpu")], targets=[bare]))
    (head,) = page(join([run]))[0].heads
    assert (head.version, head.adapter) == ("1.30.0", "lavapipe")


def test_an_empty_list_of_files_is_rejected() -> None:
    with pytest.raises(ResultsError):
        join([])


def test_cells_contain_all_fields_of_a_result(tmp_path: Path) -> None:
    where = ErrorMap(rows=("09",), heads=1, positions=2)
    judged = result(
        verdict="accepted",
        message="ran",
        code="FAIL",
        stage="run",
        stderr="last words",
        expectation=expected("accepted"),
        errors=(error(where=where), error(output="present_key", step=1, got=math.nan)),
        relation=RelationRecord(
            name="packed", what="packed", share=2.0, identical=False, sentence="They differ."
        ),
        vague=True,
    )
    run = read(write(tmp_path / "a.jsonl", [case()], [judged]))
    _, data, _ = page(join([run]))
    pool = data["pool"]
    (one,) = data["cases"]
    (cell,) = one["results"]
    about = run.cases[case().id]
    assert pool[one["contract"]] == about.contract.model_dump(mode="json")
    assert pool[one["why"]] == about.why
    assert pool[one["links"]] == list(about.links)
    assert one["dtype"] == "float16"
    call = pool[one["call"]]
    assert pool[call["inputs"][0]]["shape"] == [1, 1, 256]
    assert pool[call["inputs"][2]] == {"name": "position_ids", "state": "omitted"}
    assert call["attributes"] == {"num_heads": 8, "kv_num_heads": 4, "scale": 0.125}
    assert pool[cell["message"]] == "ran"
    assert pool[cell["stderr"]] == "last words"
    assert pool[cell["expectation"]]["line"] == 12
    assert pool[cell["relation"]]["sentence"] == "They differ."
    assert (cell["code"], cell["stage"], cell["vague"], cell["values_right"]) == (
        "FAIL",
        "run",
        True,
        False,
    )
    first, second = (
        dict(zip(data["error_fields"], values, strict=True)) for values in pool[cell["errors"]]
    )
    assert first == error(where=where).model_dump(mode="json") | {"index": [0, 0, 17]}
    assert (second["output"], second["step"], second["got"]) == ("present_key", 1, "nan")
    assert cell["reproduce"] == judged.reproduce
    assert cell["ms"] == {"load": 0.31, "run": 0.09, "total": 1.2}


def test_a_cell_has_its_script_and_its_bug_report(tmp_path: Path) -> None:
    _, data, told = page(join([small(tmp_path / "a", "wrong")]))
    number = data["cases"][0]["results"][0]["report"]
    for blocks in told["reports"][number]:
        assert len("\n\n".join(told["pool"][block] for block in blocks)) > 200
    assert data["targets"][0]["script"] == "repro.py"
    for verdict in ("pass", "skip"):
        _, data, told = page(join([small(tmp_path / "b", verdict)]))
        assert "report" not in data["cases"][0]["results"][0]
        assert told["reports"] == []
    _, data, _ = page(join([small(tmp_path / "d", "pass", vague=True)]))
    assert "report" in data["cases"][0]["results"][0]


def test_a_cell_shows_its_previous_result(tmp_path: Path) -> None:
    cases = [case("a/x"), case("a/y"), case("a/z")]
    old = read(write(tmp_path / "old", cases, [result(one.id) for one in cases]))
    results = [result("a/x", verdict="wrong"), result("a/y")]
    new = read(write(tmp_path / "new", cases[:2], results, targets=[target()]))
    _, data, _ = page(join([new]), changes(join([new]), join([old])))
    cells = {one["id"]: one["results"][0] for one in data["cases"]}
    assert cells["a/x"]["change"]["kind"] == "broken"
    assert "change" not in cells["a/y"]


def test_a_broken_and_slower_case_is_listed_as_broken(tmp_path: Path) -> None:
    old = read(write(tmp_path / "old", [case()], [result(ms=Milliseconds(run=1.0))]))
    slow = result(verdict="wrong", ms=Milliseconds(run=30.0))
    new = read(write(tmp_path / "new", [case()], [slow]))
    _, data, _ = page(join([new]), changes(join([new]), join([old])))
    assert data["cases"][0]["results"][0]["change"]["kind"] == "broken"


def test_the_largest_number_is_no_infinity(tmp_path: Path) -> None:
    run = small(tmp_path / "a", "wrong", errors=(error(absolute=sys.float_info.max),))
    json.dumps(page(join([run]))[1:], allow_nan=False)


@pytest.mark.parametrize("name", ["a" * 300, "a" * 300 + ".md", "../../README.md", "none.md"])
def test_a_link_to_no_finding_is_harmless(tmp_path: Path, name: str) -> None:
    link = f"docs/findings/{name}"
    run = small(tmp_path / "a", "wrong", unexpected=False, expectation=expected(link=link))
    assert "<template" not in render([run])


def test_a_long_reason_is_handled_quickly(tmp_path: Path) -> None:
    start = time.process_time()
    page(join([small(tmp_path / "a", "wrong", reason="a" * 200_000)]))
    assert time.process_time() - start < 2


def test_texts_shared_by_many_cases_are_stored_once(real: Run) -> None:
    _, data, _ = page(join([real]))
    said = "Input 'key' and 'value' shall be both present, or both absent."
    assert data["pool"].count(said) == 1


def test_problems_have_their_fix(tmp_path: Path) -> None:
    cuda = target("cuda", unavailable="No NVIDIA driver.", fix="apt-get install driver")
    problem = InfrastructureRecord(
        target="cpu@1.31.1", case="a/b", message="Half a line.", fix="look"
    )
    run = read(
        write(
            tmp_path / "a.jsonl", [case()], [result()], targets=[target(), cuda], problems=[problem]
        )
    )
    shown, data, _ = page(join([run]))
    assert ("cuda", "Not tried: No NVIDIA driver.", "apt-get install driver") in [
        (one.where, one.sentence, one.fix) for one in shown.troubles
    ]
    assert ("cpu@1.31.1, a/b", "Half a line.", "look") in [
        (one.where, one.sentence, one.fix) for one in shown.troubles
    ]
    assert [about["unavailable"] for about in data["targets"]] == [False, True]


def test_results_without_a_case_record_are_included(tmp_path: Path) -> None:
    results = [result(), result("lost/case", verdict="wrong")]
    _, data, _ = page(join([read(write(tmp_path / "a.jsonl", [case()], results))]))
    lost = data["cases"][1]
    assert (lost["id"], lost["results"][0]["verdict"]) == ("lost/case", "wrong")
    theme = data["themes"][data["groups"][lost["group"]]["theme"]]
    assert theme["question"] == "Cases without a description in the file"
