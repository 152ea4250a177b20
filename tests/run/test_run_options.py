"""``gqa run`` as it is used for work on a kernel: stopped early, and in a terminal."""

from __future__ import annotations

import re

import pytest
from as_user import Desk, Done, Gqa, in_terminal

from conformance.results.reader import read

ALL = {"FAULT_ON": "/"}


def closing(done: Done) -> str:
    """The line with the totals."""
    return next(line for line in reversed(done.out.splitlines()) if " unexpected" in line)


# Stop early


def test_a_run_stops_when_its_time_is_over_and_goes_on(gqa: Gqa, desk: Desk) -> None:
    """Files run in the order in which they are given, so that what matters most is there."""
    desk.runner("correct")
    file = "minutes.jsonl"
    here = ("--ep", "exec:programs/correct", "--jobs", "3")
    arguments = ("run", "twenty.yaml", "three.yaml", *here)
    done = gqa(*arguments, "--minutes", "1e-5", "--resume", file)
    assert done.status == 0
    assert ", stopped: " in closing(done)
    first = read(desk.folder / file)
    assert 0 < len(first.results) < 20
    assert {result.case.partition("/")[0] for result in first.results} == {"twenty"}
    assert any(one.startswith("Stopped: ") for one in first.problems)
    done = gqa(*arguments, "--minutes", "60", "--resume", file)
    assert (done.status, closing(done)) == (0, "23 results, 0 unexpected")
    whole = read(desk.folder / file)
    assert (len(whole.results), whole.problems) == (23, ())
    assert whole.results[: len(first.results)] == first.results


# Terminals


@pytest.mark.push
@pytest.mark.parametrize(
    ("columns", "no_color"),
    [(20, False), (60, True), pytest.param(200, False, marks=pytest.mark.night)],
)
def test_no_word_of_counts_is_cut_in_a_terminal(desk: Desk, columns: int, no_color: bool) -> None:
    environment = {"COLUMNS": str(columns), **ALL, **({"NO_COLOR": "1"} if no_color else {})}
    targets = ("--ep", desk.runner("rejects"), "--ep", desk.runner("correct"))
    status, text = in_terminal(desk, "run", "three.yaml", *targets, **environment)
    assert status == 1
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\r", "")
    start = re.search(r"\b(theme|three) ", plain)
    assert start
    table = plain[start.start() :].partition("reason")[0]
    assert "…" not in table
    for word in ("three", "refused", "pass", "unexpected", "all"):
        assert word in table, word
    assert bool(re.search(r"\x1b\[(?:\d+;)*3\dm", text)) is not no_color
    assert "6 results, 3 unexpected" in plain


def test_in_ci_the_output_is_plain(desk: Desk) -> None:
    arguments = ("run", "three.yaml", "--ep", desk.runner("rejects"))
    done = desk.gqa(*arguments, environment={"CI": "1", "COLUMNS": "40", "TERM": "dumb"})
    assert "\x1b" not in done.both
    assert "theme  ○ refused  ✓ pass  unexpected" in done.out
    progress = done.err.splitlines()
    assert len(progress) <= 10
    assert progress[-1] == "3/3  1 refused, 2 pass"


# gqa diff


@pytest.mark.night
def test_diff_as_table_and_markdown(desk: Desk, gqa: Gqa, monkeypatch: pytest.MonkeyPatch) -> None:
    """Diff is a table in a terminal and Markdown elsewhere."""
    for name, fault in (("old", "nothing"), ("new", "/")):
        monkeypatch.setenv("FAULT_ON", fault)
        gqa("run", "three.yaml", "--ep", desk.runner("rejects"), "--results", f"{name}.jsonl")
    piped = gqa("diff", "old.jsonl", "new.jsonl")
    assert piped.out.startswith("# Worse than the baseline\n")
    assert "three.yaml::one" in piped.out
    gqa("diff", "old.jsonl", "new.jsonl", "--markdown", "d.md")
    status, text = in_terminal(desk, "diff", "old.jsonl", "new.jsonl", COLUMNS="40")
    plain = re.sub(r"\x1b\[[0-9;?]*m", "", text).replace("\r", "")
    assert status == 1
    assert re.match(r"\s*Worse than the baseline\s+• 3 results are newly broken\.\s", plain)
    assert "3 → 0" in " ".join(plain.split())
    assert not re.search(r"^\||^#|`", plain, re.M)
    assert (desk.folder / "d.md").read_text() == piped.out
