"""Results files name the cases of the corpus by their digests."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.synthetic_runs import result, write

from conformance.case.contract import Contract
from conformance.case.corpus import find
from conformance.cli.common import BadArgument
from conformance.cli.one_result import taken
from conformance.expectations.observed import observed
from conformance.results.compare import changes
from conformance.results.descriptions import case_record
from conformance.results.merge import merge
from conformance.results.reader import read
from conformance.results.records import AnyCaseRecord
from conformance.results.results_error import ResultsError
from conformance.results.shipped import shipped_record
from conformance.results.table import tabulate

DEMANDS = {"demands": "computes", "basis": "specified", "source": "https://a.b/c", "why": "So."}


def named(*arguments: str) -> list[AnyCaseRecord]:
    return [shipped_record(case) for case in find(arguments).named]


def file_of(path: Path, cases: list[AnyCaseRecord]) -> Path:
    return write(path, cases, [result(case.id) for case in cases])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "results.jsonl"


def merged(path: Path) -> Path:
    with (out := path.with_name("merged.jsonl")).open("wb") as file:
        merge([path], file)
    return out


@pytest.mark.parametrize("theme", ["smoke", "bounds_values", "blocks", "loop", "exports"])
@pytest.mark.parametrize("form", [read, lambda path: read(path, bounded=False)])
def test_the_corpus_describes_its_cases(
    path: Path, theme: str, form: Callable[[Path], object]
) -> None:
    cases = find([theme]).named
    run = form(file_of(path, named(theme)))
    assert run.problems == ()
    assert len(run.cases) == len(cases)
    assert all(run.cases[case.id] == case_record(case) for case in cases)


def test_a_case_that_changed_since_is_not_described(path: Path) -> None:
    first, second, third = named("smoke")[:3]
    other = second.model_copy(update={"digest": "0" * 12})
    gone = third.model_copy(update={"id": "gone/case"})
    run = read(file_of(path, [first, other, gone]))
    assert list(run.cases) == [first.id]
    assert len(run.results) == 3
    (problem,) = run.problems
    assert problem == (
        f"2 of its cases are not in this suite's corpus as they were run ({second.id}, gone/case), "
        "so their calls and contracts cannot be shown; gqa merge, in the suite that ran them, "
        "writes a file that describes them."
    )
    with pytest.raises(ResultsError, match="2 of its cases are not in this suite's corpus"):
        merged(path)


def test_a_joined_file_describes_each_case(path: Path) -> None:
    cases = find(["smoke"]).named
    lines = merged(file_of(path, named("smoke"))).read_bytes().splitlines()
    kinds = [json.loads(line)["kind"] for line in lines]
    assert kinds.count("case") == len(cases)
    assert "shipped_case" not in kinds


def test_a_file_may_describe_some_cases_and_name_others(path: Path) -> None:
    one, other = find(["smoke"]).named[:2]
    run = read(file_of(path, [case_record(one), shipped_record(other)]))
    assert list(run.cases.values()) == [case_record(one), case_record(other)]


def test_a_case_may_be_named_and_described(path: Path) -> None:
    (case, *_), (other, *_) = find(["smoke"]).named, find(["softcap"]).named
    twice = [shipped_record(case), case_record(case)]
    assert read(write(path, twice, [result(case.id)])).problems == ()
    another = case_record(other).model_copy(update={"id": case.id})
    (problem,) = read(write(path, [twice[0], another], [result(case.id)])).problems
    assert problem == f"Case {case.id} is described twice, differently."


@pytest.mark.parametrize(
    "change",
    [
        {"relation": "packed_qkv"},
        {"written_contract": Contract.model_validate({**DEMANDS, "demands": "rejects"})},
        {"written_call": find(["softcap"]).named[0].call},
    ],
    ids=str,
)
def test_a_digest_is_of_the_call_its_variant_and_its_demands(change: dict[str, Any]) -> None:
    case = replace(find(["smoke"]).named[0], written_contract=Contract.model_validate(DEMANDS))
    assert shipped_record(replace(case, **change)) != shipped_record(case)
    reworded = Contract.model_validate({**DEMANDS, "why": "For another reason."})
    assert shipped_record(replace(case, written_contract=reworded)) == shipped_record(case)


def another(path: Path, verdict: str = "pass") -> Path:
    """Results of two cases on `cpu`, of which the second was another case when it ran."""
    first, second = named("smoke")[:2]
    changed = second.model_copy(update={"digest": "0" * 12})
    results = [result(first.id), result(second.id, verdict=verdict)]
    return write(path, [first, changed], results)


def test_a_comparison_says_that_a_case_has_changed(path: Path, tmp_path: Path) -> None:
    first, second = named("smoke")[:2]
    results = [result(first.id, verdict="wrong"), result(second.id, verdict="wrong")]
    old, new, other = (
        tabulate([read(file)])
        for file in (
            another(path),
            write(tmp_path / "new.jsonl", [first, second], results),
            another(tmp_path / "other.jsonl", "wrong"),
        )
    )
    found = {each.case: each.sentence for each in changes(new, old).all()}
    assert found[second.id].endswith(" The case itself has changed.")
    assert "The case itself" not in found[first.id]
    (change,) = changes(other, old).all()
    assert "The case itself" not in change.sentence


def test_expectations_are_not_made_of_a_case_that_has_changed(path: Path) -> None:
    found = observed("cpu", [another(path)], find(["smoke"]).named)
    first, second = named("smoke")[:2]
    assert {at.case for at in found.at} == {first.id}
    assert found.left_out == (f"Results of {second.id}: the case is another now.",)


def test_a_result_of_a_case_that_has_changed_is_not_exported(path: Path) -> None:
    second = find(["smoke"]).named[1]
    with pytest.raises(BadArgument, match=r"is another call in .* than it is now; run it anew"):
        taken(second, None, another(path))
