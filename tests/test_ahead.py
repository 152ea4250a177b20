"""Cases of pytest run ahead: the next one while the last is judged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, cast

import pytest

from conformance.harness.process import RunnerFailed
from conformance.results.records import InfrastructureRecord, InstabilityRecord
from conformance.run.ahead import Ahead


class Run:
    """A target's run whose records are strings; of each case it draws one more in advance.

    ``late``: a case whose record comes after that of the next. ``fails``: a case that cannot be
    drawn. ``skipped``: one that the target cannot take.
    """

    def __init__(self, late: str = "", fails: str = "", skipped: str = "") -> None:
        self.late, self.fails, self.skipped = late, fails, skipped
        self.did: list[str] = []
        self.aside: list[tuple[Any, Any]] = []
        self.ready = self

    def cannot_take(self, case: str) -> str | None:
        return "no" if case == self.skipped else None

    def run_one(self, case: str) -> str:
        self.did.append(f"{case} alone")
        return f"{case} alone"

    def run_possible(self, cases: Iterable[str]) -> Iterator[tuple[str, Any]]:
        try:
            before = ""
            for case in cases:
                if case == self.fails:
                    raise RunnerFailed("It failed.")
                self.did.append(case)
                if before:
                    yield before, f"record of {before}"
                before = case
                if case == self.late:
                    before = ""
            yield before, f"record of {before}"
        finally:
            self.did.append("end")


def ahead(run: Run) -> Ahead:
    return Ahead(cast("Any", run))


def records(runs: Ahead, asked: str, following: str) -> list[Any]:
    """The records of ``asked``, one after the other; of each, ``following`` come next at first."""
    order = asked + following
    return [
        runs.record(cast("Any", case), lambda at=at: cast("Any", order[at + 1 :]))
        for at, case in enumerate(asked)
    ]


def test_the_next_case_has_begun_when_a_record_comes() -> None:
    run = Run()
    runs = ahead(run)
    assert records(runs, "a", "bc") == ["record of a"]
    assert run.did == ["a", "b"]
    assert records(runs, "bc", "") == ["record of b", "record of c"]
    assert run.did == ["a", "b", "c", "end"]


def test_another_case_than_expected_begins_anew() -> None:
    run = Run()
    runs = ahead(run)
    assert records(runs, "a", "bc") == ["record of a"]
    assert records(runs, "a", "bc") == ["record of a"]
    assert run.did == ["a", "b", "end", "a", "b"]
    runs.close()
    assert run.did[5:] == ["end"]


def test_a_case_that_cannot_be_taken_is_left_out() -> None:
    run = Run(skipped="b")
    assert records(ahead(run), "abc", "") == ["record of a", "b alone", "record of c"]
    assert run.did == ["a", "c", "b alone", "end"]


@pytest.mark.parametrize("what", [{"late": "a"}, {"fails": "b"}])
def test_a_record_that_does_not_come_in_its_turn_is_that_of_the_case_alone(
    what: dict[str, str],
) -> None:
    run = Run(**what)
    assert records(ahead(run), "a", "bc") == ["a alone"]
    assert run.did[-2:] == ["end", "a alone"]


def test_what_is_about_others_is_kept_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run()
    unstable = InstabilityRecord.model_construct()
    other = InstabilityRecord.model_construct()

    def reported(cases: Iterable[str]) -> Iterator[tuple[str, Any]]:
        first, second = cases
        yield first, unstable
        yield first, "record"
        yield first, other
        yield second, InfrastructureRecord.model_construct()

    monkeypatch.setattr(run, "run_possible", reported)
    runs, (a, b) = ahead(run), cast("Any", ["a", "b"])
    found = [runs.record(a, lambda: [b])]
    assert run.aside == [(a, unstable)]
    found.append(runs.record(b, lambda: ()))
    assert found == ["record", InfrastructureRecord.model_construct()]
    assert run.aside == [(a, unstable), (a, other)]
