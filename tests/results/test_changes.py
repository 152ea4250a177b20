"""Changes between two runs: each kind of change, unchanged results, and the Markdown."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from synthetic_runs import (
    HOSTILE,
    beyond,
    error,
    expected,
    of_results,
    only_own_markup,
    result,
    target,
)
from tables import tables

from conformance.report.markdown import (
    MOST_BYTES,
    changes_markdown,
    report_markdown,
    summary_markdown,
)
from conformance.results.compare import RunDifferences, changes
from conformance.results.differences import difference
from conformance.results.messages import normal
from conformance.results.records import (
    InfrastructureRecord,
    ResultRecord,
    RunsDiffer,
    TargetRecord,
    WrongShape,
)
from conformance.results.table import Table, tabulate
from conformance.results.verdicts import VERDICTS, verdict_word

TABLES = tables(__file__)

OLD, NEW = "cpu@1.30.0", "cpu@1.31.1"
NAN = "output[0] is nan."
REJECTED = {"outcome": "rejected", "message": "no", "errors": (), "share": None, "stage": "load"}


def run(folder: Path, results: Sequence[ResultRecord], **fields: Any) -> Table:
    """A run with these results, joined."""
    return tabulate(
        [of_results(folder / f"{len(list(folder.iterdir()))}.jsonl", results, **fields)]
    )


def compared(
    folder: Path, before: Sequence[ResultRecord], after: Sequence[ResultRecord]
) -> RunDifferences:
    return changes(run(folder, after), run(folder, before))


def one(folder: Path, before: ResultRecord | None, after: ResultRecord | None) -> RunDifferences:
    """A result before and after, beside another that does not change."""
    olds, news = [result("other/stays", OLD), before], [result("other/stays", NEW), after]
    return compared(folder, [*filter(None, olds)], [*filter(None, news)])


def kinds(found: RunDifferences) -> list[str]:
    return [change.kind for change in found.all()]


def was(verdict: str, **fields: Any) -> ResultRecord:
    return result("t/c", OLD, verdict, **fields)


def now(verdict: str, **fields: Any) -> ResultRecord:
    return result("t/c", NEW, verdict, **fields)


#: The verdict before and now, ``-`` for no result, by the kind of change.
CHANGED = {
    "broken": "pass wrong, wrong crash, unsupported accepted",
    "fixed": "wrong pass, unsupported pass",
    "changed": "crash wrong, wrong unsupported",
    "vanished": "pass skip, crash skip, pass -, wrong -",
    "new": "skip pass, skip crash, - pass, - skip",
    "": ", ".join(["skip -", *(f"{verdict} {verdict}" for verdict in VERDICTS)]),
}


@pytest.mark.parametrize(
    ("kind", "verdicts"),
    [(kind, pair) for kind, pairs in CHANGED.items() for pair in pairs.split(", ")],
)
def test_a_changed_verdict(tmp_path: Path, kind: str, verdicts: str) -> None:
    before, after = (None if verdict == "-" else verdict for verdict in verdicts.split())
    found = one(tmp_path, was(before) if before else None, now(after) if after else None)
    assert kinds(found) == [kind] * bool(kind)
    for change in found.all():
        assert (change.case, change.target) == ("t/c", NEW)
        assert (change.before is None, change.after is None) == (before is None, after is None)
        for verdict in filter(None, (before, after)):
            assert verdict_word(verdict) in change.sentence or verdict == "skip"
        assert found.cases.keys() == {"t/c"}
    # A new crash is unexpected, and a result less is a smaller total.
    assert found.worse == (kind in ("broken", "vanished") or verdicts in ("skip crash", "skip -"))


def test_a_call_that_another_kernel_ran_counts_as_not_tried(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"verdict": "fallback", "other_kernel": True, "kernels": ("math",)}
    assert kinds(one(tmp_path, was("pass"), now(**fields))) == ["vanished"]
    assert kinds(one(tmp_path, was(**fields), None)) == []
    (change,) = one(tmp_path, was(**fields), now("pass")).all()
    assert (change.kind, change.sentence.partition(" (")[0]) == ("new", "fallback before")


def test_a_known_defect_is_told_and_one_that_is_no_longer_expected_is_worse(tmp_path: Path) -> None:
    def known(of: Callable[..., ResultRecord]) -> ResultRecord:
        return of("wrong", unexpected=False, expectation=expected())

    found = one(tmp_path, known(was), now("wrong"))
    (change,) = found.by_kind["changed"]
    assert change.sentence.startswith("still wrong, now unexpected: ")
    assert "1 result is unexpected and not in the baseline" in " ".join(found.reasons)
    (change,) = one(tmp_path, was("wrong"), known(now)).by_kind["changed"]
    assert change.sentence.startswith("still wrong, now expected. This is a known defect")
    found = one(tmp_path, was("pass"), known(now))
    assert found.by_kind["broken"][0].known
    assert found.reasons == ("1 result is newly broken, 1 of them covered by expectations.",)


# The same fault in other words


@pytest.mark.parametrize(("before", "after"), TABLES["same"])
def test_details_that_vary_between_runs_are_no_change(before: str, after: str) -> None:
    assert difference(was("unsupported", message=before), now("unsupported", message=after)) is None


@pytest.mark.parametrize(("before", "after"), TABLES["other"])
def test_another_message_is_a_change(before: str, after: str) -> None:
    pair = was("unsupported", message=before), now("unsupported", message=after)
    told = f"still refused, with another message: {after}."
    assert difference(*pair) == ("changed", told)


def test_a_megabyte_is_compared_quickly() -> None:
    for text in ("1" * 10**6, "-1.1.1" * 10**5, "0x" * 10**6, "\x1b[" * 10**6, "a" * 10**6):
        assert len(normal(text)) < 100_000


KEY, VALUE = ((error(output=f"present_{each}"),) for each in ("key", "value"))
SHAPE = WrongShape(output="output", got=(1, 2), want=(1, 3))
WIDER = WrongShape(output="output", got=(1, 4), want=(1, 3))
DIFFER = RunsDiffer(output="output")


@pytest.mark.parametrize("wrong", [("output",), ("output", "present_key"), ("output_qk",)])
def test_it_is_worse_if_more_than_the_presents_is_wrong(tmp_path: Path, wrong: Any) -> None:
    more = tuple(error(output=name) for name in wrong)
    known = {"unexpected": False, "expectation": expected()}
    worse = one(tmp_path, was("wrong", errors=KEY, **known), now("wrong", errors=more, **known))
    (change,) = worse.by_kind["broken"]
    assert change.sentence.startswith("wrong only in presents before, now wrong ")
    assert worse.worse
    better = one(tmp_path, was("wrong", errors=more, **known), now("wrong", errors=KEY, **known))
    (change,) = better.by_kind["changed"]
    assert ", now wrong only in presents, which is better" in change.sentence
    assert not better.worse


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ({"share": 37.0}, {"share": 300.0}, None),
        ({"share": 37.0}, {"share": 3.8}, None),
        ({"share": 37.0}, {"share": 400.0}, "400 times the error budget, not 37"),
        ({"share": 400.0}, {"share": 37.0}, "37 times the error budget, not 400"),
        ({"share": 37.0}, {"share": float("inf")}, "inf times the error budget, not 37"),
        ({"share": float("nan")}, {"share": float("nan")}, None),
        ({"reason": "0.7567 at [0, 1]"}, {"reason": "0.1312 at [2, 3]"}, None),
        ({"errors": KEY}, {"errors": VALUE}, "worst in present_value now, not in present_key"),
        (
            {"errors": (error(), error(output="present_key", share=0.5))},
            {"errors": (error(), *KEY)},
            "wrong in output before, now wrong in output and presents",
        ),
        ({"errors": KEY}, {"errors": ()}, "another reason"),  # a file does not say where
        ({}, {"errors": (error(index=None, share=None),)}, "worst in output now"),
        ({"errors": ()}, {"errors": (), "reason": "Two runs differ."}, None),  # sentences alone
        ({"errors": (), "faults": (SHAPE,)}, {"errors": (), "faults": (DIFFER,)}, "another reason"),
        ({"faults": (SHAPE,)}, {"faults": (WIDER,)}, "another reason"),
        ({"faults": (SHAPE,)}, {"faults": (SHAPE, DIFFER)}, None),  # beyond the budget anyway
        ({"faults": (SHAPE,)}, {"faults": (SHAPE,), "of_variant": True}, "another reason"),
        ({"errors": ()}, {}, "another reason"),
        ({"faults": (beyond(got=0.25),)}, {"faults": (beyond(got=0.5),)}, None),
    ],
)
def test_wrong_numbers(before: dict[str, Any], after: dict[str, Any], says: str | None) -> None:
    """Wrong numbers are compared by place and magnitude."""
    pair = was("wrong", **before), now("wrong", **after)
    assert str(says) in (difference(*pair) or ("", "None"))[1]


@pytest.mark.parametrize(
    ("verdict", "before", "after", "says"),
    [
        ("accepted", {"values_right": True}, {"values_right": False}, "its values are wrong now"),
        # A pass is a pass, however close to the budget.
        ("pass", {}, {"share": 0.9, "reason": "Right; at most 0.9 of the budget."}, None),
        ("pass", {}, {"hazard": NAN}, f"still pass, now with a hazard: {NAN}"),
        ("pass", {"hazard": NAN}, {}, "still pass, without the hazard of before"),
        ("pass", {"hazard": NAN}, {"hazard": "Another."}, None),
        ("pass", REJECTED, {**REJECTED, "vague": True}, "now names none of the contract's words"),
        ("pass", REJECTED, {**REJECTED, "stage": "run"}, "at load before, now refused at run"),
    ],
)
def test_a_verdict_stays_and_another_thing_changes(
    verdict: str, before: dict[str, Any], after: dict[str, Any], says: str | None
) -> None:
    pair = was(verdict, **before), now(verdict, **after)
    kind, told = difference(*pair) or (None, "None")
    assert kind == ("changed" if says else None)
    assert str(says) in told


# Matching columns


def names(found: RunDifferences) -> list[tuple[str | None, str | None]]:
    columns = [(pair.before, pair.after) for pair in found.targets]
    return [(b.label if b else None, a.label if a else None) for b, a in columns]


@pytest.mark.parametrize(("before", "after", "matched"), TABLES["columns"])
def test_columns_are_matched(
    tmp_path: Path, before: str, after: str, matched: list[tuple[str | None, str]]
) -> None:
    found = compared(
        tmp_path, *([result("t/c", name) for name in names.split()] for names in (before, after))
    )
    assert [[*pair] for pair in names(found)] == matched
    gone = [name for name, other in matched if other is None]
    assert [reason for reason in found.reasons if "is missing" in reason] == [
        f"{name} is missing, with 1 result." for name in gone
    ]
    assert found.worse == bool(gone)
    # Columns without a counterpart are not changes of their cases.
    assert kinds(found) == []


@pytest.mark.parametrize(("before", "after", "left_out"), TABLES["left out"])
def test_equal_releases(tmp_path: Path, before: list[str], after: list[str], left_out: str) -> None:
    """Of several releases only equal ones are compared."""
    found = compared(
        tmp_path,
        [result("t/c", name) for name in [*before, "tract@1"]],
        [result("t/c", name, "wrong") for name in [*after, "tract@2"]],
    )
    broken = {change.target for change in found.by_kind["broken"]}
    assert broken == {*before} & {*after} | {"tract@2"}
    (reason,) = [each for each in found.reasons if "cpu@1" in each]
    assert reason.startswith(f"{left_out} are not compared: ")
    assert not any("is missing" in each for each in found.reasons)


def test_a_pinned_release_is_compared_with_another_one(tmp_path: Path) -> None:
    """As ``--ep cpu``, ``--ep cpu@1.32.0`` and ``--name mine`` write them."""

    def of(name: str, ep: str) -> Table:
        return run(tmp_path, [result("t/c", name)], targets=[target(name, ep=ep)])

    own = of("cpu@1.31.1", "cpu")
    for other in (of("cpu@1.32.0", "cpu@1.32.0"), of("cpu@1.30.0", "cpu@1.30.0")):
        for found in (changes(other, own), changes(own, other)):
            ((was, now),) = names(found)
            assert found.notes == (f"{was} in the baseline is compared with {now}.",)
            assert not found.worse
    assert changes(own, of("mine@1.31.1", "cpu")).worse


# Whole runs


def test_new_infrastructure_failures(tmp_path: Path) -> None:
    def troubled(*messages: str) -> Table:
        problems = [InfrastructureRecord(target="cpu@1.31.1", message=text) for text in messages]
        return run(tmp_path, [result()], problems=problems)

    old = troubled("The runner died, pid 5.")
    assert changes(old, old).reasons == ()
    assert changes(troubled("The runner died, pid 6."), old).reasons == ()
    twice = changes(troubled("The runner died, pid 6.", "The runner died, pid 7."), old)
    assert twice.reasons == ("Infrastructure failure, cpu@1.31.1: The runner died, pid 7.",)


# As Markdown


def test_a_long_summary_is_cut_and_counts_the_rest(tmp_path: Path) -> None:
    number = 1_000
    ids = [f"t{n}/é{n}" for n in range(number)]
    before = run(tmp_path, [result(id, OLD) for id in ids])
    causes = ((id, expected(line=line)) for line, id in enumerate(ids, 1))
    after = run(tmp_path, [result(id, NEW, "wrong", expectation=known) for id, known in causes])
    found = changes(after, before)
    for text, noun in (
        (changes_markdown(found), "more groups"),
        (summary_markdown(after), "other causes"),
        (report_markdown(after, found), "more groups"),
    ):
        assert MOST_BYTES * 0.9 < len(text.encode()) <= MOST_BYTES
        (left,) = re.findall(rf"… and ([\d,]+) {noun} omitted\.", text)
        heading = "Unexpected results" if noun == "other causes" else "Newly broken"
        part = text.split(f"## {heading}: {number:,}\n")[1].split("\n## ")[0]
        shown = len(re.findall("^- ", part.split("\n# ")[0], re.M))
        assert shown > 50
        assert shown + int(left.replace(",", "")) == number


def test_no_text_escapes_its_code_span(tmp_path: Path) -> None:
    """What is printed of a single run is tested with the other forms."""
    for text in HOSTILE:
        columns = [TargetRecord(name=f"x{text}", ep="x", unavailable=text, fix=text), target("y@1")]
        known = expected(link=text, why=text, file=text)
        told = {"reason": text, "message": text, "reproduce": text, "expectation": known}
        old, new = (
            run(tmp_path, [result(f"t/{text}", f"x{text}", v, **told)], targets=columns)
            for v in ("pass", "wrong")
        )
        page = changes_markdown(changes(new, old))
        only_own_markup(page)
        page.encode()
