"""The maps of an error as lines of text."""

from __future__ import annotations

from goldens import check_golden
from synthetic_runs import case, error, result
from tables import tables

from conformance.report.error_picture import picture, text_of
from conformance.report.terminal import tell
from conformance.results.records import ErrorMap


def test_the_pictures_of_maps() -> None:
    told = []
    for name, (output, fields) in tables(__file__)["pictures"].items():
        wrong = error(output=output, where=ErrorMap(**fields))
        told += [f"=== {name}", *(line.rstrip() for line in text_of(picture(wrong)))]
    check_golden("pictures.txt", "\n".join(told) + "\n")


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
