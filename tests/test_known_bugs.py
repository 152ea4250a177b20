"""The known bugs: a valid file, with valid links and cases for each entry."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from shipped import shipped_cases

from conformance.base.yaml_source import InputError
from conformance.case.case import Case
from conformance.maintain.known_bugs import FILE, ListedBug, load_known_bugs, uncovered

BUG: dict[str, Any] = {
    "id": "A1",
    "runtime": "some runtime",
    "what": "It is wrong.",
    "right": "It is right.",
    "link": "https://github.com/microsoft/onnxruntime/issues/28318",
    "cases": ["omitted_kv/*"],
}


@pytest.fixture(scope="module")
def shipped() -> list[ListedBug]:
    return load_known_bugs()


@pytest.fixture(scope="module")
def corpus() -> list[Case]:
    return list(shipped_cases())


def written(folder: Path, *bugs: dict[str, Any]) -> Path:
    file = folder / "known_bugs.yaml"
    file.write_text(yaml.safe_dump({"format": "gqa-known-bugs/1", "bugs": list(bugs)}))
    return file


def complaints(folder: Path, *bugs: dict[str, Any]) -> str:
    with pytest.raises(InputError) as caught:
        load_known_bugs(written(folder, *bugs))
    return "\n".join(map(str, caught.value.problems))


def test_every_known_bug_has_a_case_with_its_link_or_a_reason(
    shipped: list[ListedBug], corpus: list[Case]
) -> None:
    assert len(shipped) >= 70
    assert [str(problem) for problem in uncovered(shipped, corpus)] == []


def test_entries_are_sorted(shipped: list[ListedBug]) -> None:
    keys = [(entry.bug.id[0], int(entry.bug.id[1:])) for entry in shipped]
    assert keys == sorted(keys)


def test_every_case_of_the_theme_belongs_to_a_known_bug(
    shipped: list[ListedBug], corpus: list[Case]
) -> None:
    """So each case has a documented reason."""
    links = {entry.bug.link for entry in shipped}
    for case in corpus:
        if case.theme == "known_bugs":
            assert links & set(case.links), case.id


def test_each_entry_has_its_line_number(shipped: list[ListedBug]) -> None:
    lines = FILE.read_text().split("\n")
    for entry in shipped:
        assert lines[entry.line - 1] == f"  - id: {entry.bug.id}"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"link": "http://github.com/microsoft/onnxruntime/issues/1"}, "link"),
        ({"link": "https://github.com/microsoft/onnxruntime"}, "link"),
        ({"cases": []}, "expected either cases or not_covered"),
        ({"not_covered": "It has both."}, "expected either cases or not_covered"),
        ({"versions": "1.27"}, "is not a range of versions"),
        ({"what": "no full stop"}, "what"),
        ({"id": "a1"}, "id"),
        ({"wrong": 1}, "unknown field 'wrong'"),
    ],
)
def test_an_invalid_entry_is_reported(
    tmp_path: Path, change: dict[str, Any], sentence: str
) -> None:
    assert sentence in complaints(tmp_path, BUG | change)


def test_an_id_is_unique(tmp_path: Path) -> None:
    assert re.search(r":\d+:\d+: the id 'A1' is taken", complaints(tmp_path, BUG, BUG))


def test_a_pattern_without_a_case_and_a_case_without_the_link_are_reported(
    tmp_path: Path, corpus: list[Case]
) -> None:
    bug = BUG | {"cases": ["nowhere/*", "prefill/batch[*", "omitted_kv/omitted_kv[*"]}
    problems = [str(p) for p in uncovered(load_known_bugs(written(tmp_path, bug)), corpus)]
    assert len(problems) == 5
    assert "A1: no case matches 'nowhere/*'" in problems[0]
    for problem in problems[1:]:
        assert "prefill/batch[" in problem
        assert problem.endswith(f"has no link to {BUG['link']}")
