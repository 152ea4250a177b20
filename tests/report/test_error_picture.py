"""The maps of an error as lines of text."""

from __future__ import annotations

from typing import Any

import pytest
from synthetic_runs import case, error, result

from conformance.report.error_picture import picture, text_of
from conformance.report.terminal import tell
from conformance.results.records import ErrorMap, HeadMap

RAGGED = {"lengths": (4, 9), "edges": {"end": (2, 5), "window": (1, 0)}}


def lines_of(output: str = "output", worst: HeadMap | None = None, **fields: Any) -> list[str]:
    where = ErrorMap(worst=worst, **fields)
    return list(text_of(picture(error(output=output, where=where))))


def test_a_map_of_an_older_file_has_the_heads_alone() -> None:
    assert lines_of(rows=("0039.", "00000"), heads=4, positions=5) == [
        "output, heads by 2 × queries:",
        "head 0  0039.",
        "head 2  00000",
        "0 within the budget, 1 to 9 up to 10, 100, … times the budget, . undefined.",
    ]


def test_a_ruler_shows_the_window_and_each_length() -> None:
    worst = HeadMap(batch=0, head=0, rows=("00", "0X", "..", "..", ".."), tokens=5, elements=4)
    rows = ("0X...", "00000")
    assert lines_of(rows=rows, heads=2, positions=5, worst=worst, **RAGGED) == [
        "output, heads × queries:",
        "sequence 0, head 0  0X...",
        "sequence 1, head 0  00000",
        "sequence 0           ^|    4 tokens, | ends before query 2, ^ window from query 1",
        "sequence 1          ^      9 tokens, ^ window from query 0",
        "worst, sequence 0, head 0, queries × elements by 2:",
        "query 0             00",
        "query 1             0X  ^ window from query 1",
        "query 2             ..  | ends before query 2",
        "query 3             ..",
        "query 4             ..",
        "0 within the budget, X the worst, . undefined.",
    ]


def test_sequences_that_are_alike_have_one_ruler_and_a_mark_is_in_its_block() -> None:
    edges = {"new": (5, 5), "end": (8, 8)}
    made = lines_of(
        "present_key", rows=("000X", "0000"), heads=2, positions=8, lengths=(8, 8), edges=edges
    )
    assert made[0] == "present_key, heads × rows by 2:"
    assert made[3:-1] == ["sequence 0            +   8 tokens, + new from row 5"]


def test_scores_are_drawn_by_queries_and_keys() -> None:
    worst = HeadMap(batch=0, head=1, rows=("-0X", "!#0"), tokens=2, elements=3)
    made = lines_of("output_qk", worst, rows=("000", "!#X"), heads=2, positions=3, lengths=(3,))
    assert made == [
        "output_qk, heads × keys:",
        "head 0   000",
        "head 1   !#X",
        "              3 tokens",
        "worst, head 1, queries × keys:",
        "query 0  -0X",
        "query 1  !#0",
        "0 within the budget, X the worst, ! not finite, # wrong at a hidden key, - hidden.",
    ]


def test_the_terminal_draws_the_worst_output_and_the_scores() -> None:
    where = ErrorMap(rows=("X",), heads=1, positions=1)
    names = ("present_key", "output_qk", "output")
    errors = [error(output=name, where=where, share=n + 2.0) for n, name in enumerate(names)]
    one = case()
    lines = [*tell(one, result(one.id, verdict="wrong", errors=errors))]
    titles = [line for line in lines if line.startswith("  where")]
    assert titles == [
        "  where     output, heads × queries:",
        "  where     output_qk, heads × keys:",
    ]
    right = [*tell(one, result(one.id, verdict="pass", errors=errors))]
    assert not any(line.startswith("  where") for line in right)


@pytest.mark.parametrize("rows", [(), ("",)])
def test_an_empty_map_has_no_lines(rows: tuple[str, ...]) -> None:
    assert lines_of(rows=rows, heads=1, positions=0) == []


def test_a_map_that_contradicts_itself_is_drawn() -> None:
    worst = HeadMap(batch=7, head=0, rows=("0", ""), tokens=0, elements=0)
    assert lines_of(rows=("0", "00"), heads=0, positions=9, worst=worst, **RAGGED)
