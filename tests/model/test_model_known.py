"""What the corpus knows about the calls of a model: similar defects."""

from __future__ import annotations

from pathlib import Path

import pytest
from case_files import entries, write
from tables import tables

from conformance.case.case import Case
from conformance.case.load import load_file
from conformance.expectations.match import Expectation
from conformance.expectations.read import load_pinned
from conformance.model.answer.similar_defect import similar_defect
from conformance.results.records import ResultRecord

TABLES = tables(__file__)


@pytest.fixture
def corpus(tmp_path: Path) -> dict[str, Case]:
    file = write(tmp_path, entries(TABLES["corpus"]), "corpus.yaml")
    return {case.name: case for case in load_file(file)}


@pytest.fixture
def cpu(tmp_path: Path) -> list[Expectation]:
    file = tmp_path / "known.yaml"
    file.write_text(TABLES["known"])
    return load_pinned([file])


@pytest.mark.parametrize(("call", "kind", "found"), TABLES["similar"])
def test_a_known_defect_of_a_similar_call_is_found_and_no_other(
    tmp_path: Path,
    corpus: dict[str, Case],
    cpu: list[Expectation],
    call: str,
    kind: str,
    found: str | None,
) -> None:
    past = "" if "past" in call else "past_sequence_length: 40, "
    (case,) = load_file(write(tmp_path, entries(f"- {{name: mine, {past}{call}}}"), "mine.yaml"))
    result = ResultRecord(kind="result", **TABLES["result"] | TABLES["results"][kind])
    similar = similar_defect(case, result, cpu, corpus.values())
    assert (similar and similar[0]) == found
    if similar:
        assert [*similar[1:]] == TABLES["known of"][similar.case]
