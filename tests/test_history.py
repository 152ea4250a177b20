"""Since when, broken in, fixed in: derived from runs of several releases, and ``gqa history``."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from as_user import LAUNCH, Desk, Gqa
from jsonschema import Draft202012Validator
from synthetic_runs import case, expected, of_results, result, target, write

from conformance.base.paths import data_path
from conformance.report.history import sentence
from conformance.report.markdown import summary_markdown
from conformance.report.support import support
from conformance.results.records import FlakyRecord, InstabilityRecord
from conformance.results.table import Table, tabulate
from conformance.results.timeline import CHANGE_KINDS, CaseHistory, histories, series_of

RIGHT_AGAIN, WRONG = "right since 1.23", "wrong since 1.23"
RELEASES = ("1.20.1", "1.21.0", "1.22.0", "1.23.0", "1.24.0")


def joined(folder: Path, **verdicts: Sequence[str]) -> Table:
    """A run of some releases. A case has its verdicts in the releases; ``-`` is no result, and
    ``unstable`` a pass that did not repeat."""
    every = [
        (f"t/{one}", f"cpu@{release}", state)
        for one, states in verdicts.items()
        for release, state in zip(RELEASES, states, strict=False)
    ]
    found = [
        result(id, name, "pass" if state == "unstable" else state)
        for id, name, state in every
        if state != "-"
    ]
    shaken = [
        InstabilityRecord(target=name, case=id, verdict="crash", message="It died once.")
        for id, name, state in every
        if state == "unstable"
    ]
    cases = [case(f"t/{one}") for one in verdicts]
    targets = [target(name) for name in dict.fromkeys(name for _, name, _ in every)]
    fields = {"targets": targets, "instability": shaken}
    return tabulate([of_results(folder / "r.jsonl", found, cases, **fields)])


def only(table: Table) -> CaseHistory:
    """The history of the only case."""
    (history,) = histories(table)
    (found,) = history.cases.values()
    return found


# ── A case ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("verdicts", "since", "broken", "fixed", "said"),
    [
        ("pass pass pass", "≤1.20.1", "", "", "since ≤1.20.1"),
        ("unsupported pass pass", "1.21.0", "", "1.21.0", "since 1.21"),
        ("pass pass wrong", None, "1.22.0", "", "right until 1.21, wrong since 1.22"),
        ("pass wrong wrong pass", "1.23.0", "1.21.0", "1.23.0", "wrong 1.21–1.22, " + RIGHT_AGAIN),
        ("pass crash crash pass", "1.23.0", "1.21.0", "1.23.0", "crash 1.21–1.22, " + RIGHT_AGAIN),
        ("pass wrong pass wrong", None, "1.21.0 1.23.0", "1.22.0", "right until 1.22, " + WRONG),
        ("wrong wrong", None, "", "", "wrong since ≤1.20.1"),
        ("unsupported wrong", None, "", "", "wrong since 1.21"),
        # A release that is unknown is passed over, and never right.
        ("- pass pass", "≤1.21.0", "", "", "since ≤1.21"),
        ("skip pass", "≤1.21.0", "", "", "since ≤1.21"),
        ("wrong - pass", "1.22.0", "", "1.22.0", "since 1.22"),
        ("pass skip wrong", None, "1.22.0", "", "right until 1.20.1, wrong since 1.22"),
        ("pass pass -", "≤1.20.1", "", "", "since ≤1.20.1"),
        ("- -", None, "", "", ""),
        # An instability is a state of its own, and breaks nothing.
        ("pass unstable pass", "1.22.0", "", "", "since 1.22"),
        ("pass pass unstable", None, "", "", "unstable since 1.22"),
        ("pass unstable wrong", None, "1.22.0", "", "right until 1.20.1, wrong since 1.22"),
    ],
)
def test_a_case(
    tmp_path: Path, verdicts: str, since: str | None, broken: str, fixed: str, said: str
) -> None:
    found = only(joined(tmp_path, c=verdicts.split()))
    assert found.since == since
    assert [" ".join(found.changed_in(kind)) for kind in CHANGE_KINDS] == [broken, fixed]
    assert sentence(found) == said
    breaks, fixes = broken.split(), fixed.split()
    assert found.regressed == (len(breaks) > len(fixes) or breaks[-1:] > fixes[-1:])


def test_a_flaky_result_is_unstable(tmp_path: Path) -> None:
    flaky = FlakyRecord(verdicts=("crash", "pass"), failed=1, runs=4)
    known = expected("crash", flaky=flaky)
    crash = result("t/c", "cpu@1.1", "crash", unexpected=False, expectation=known)
    results = [result("t/c", "cpu@1.0"), crash, result("t/c", "cpu@1.2")]
    found = only(tabulate([of_results(tmp_path / "r.jsonl", results)]))
    assert (found.states, found.changed_in("broken")) == (("pass", "unstable", "pass"), [])


# ── Releases ────────────────────────────────────────────────────────────────────────────────────


def test_releases_are_ordered_as_versions_by_target_and_adapter(tmp_path: Path) -> None:
    names = ["cpu@1.10.0", "webgpu@1.9.0+lavapipe", "cpu@1.9.0", "webgpu@1.10.0+lavapipe"]
    gone = [target(name, unavailable="No wheel.") for name in ("cpu@1.8.0", "webgpu@1.8.0", "x")]
    results = [result("t/c", name) for name in names]
    run = of_results(tmp_path / "r.jsonl", results, targets=[*map(target, names), *gone])
    found = {
        series.name: [(release.version, release.unavailable) for release in series.releases]
        for series in series_of(tabulate([run]).columns)
    }
    releases = [("1.8.0", "No wheel."), ("1.9.0", ""), ("1.10.0", "")]
    assert found == {"cpu": releases, "webgpu+lavapipe": releases}


# ── Groups ──────────────────────────────────────────────────────────────────────────────────────


def of_group(folder: Path, **verdicts: Sequence[str]) -> Any:
    (history,) = histories(joined(folder, **{f"c[n={n}]": v for n, v in verdicts.items()}))
    (entry,) = history.entries
    return entry


def test_an_entry_with_an_untried_or_unstable_case_is_not_called_right(tmp_path: Path) -> None:
    entry = of_group(tmp_path, a=("pass", "pass", "pass"), b=("skip", "unstable", "pass"))
    assert [(span.state, span.since) for span in entry.spans] == [("full", "1.22.0")]


def test_a_regression_in_an_entry_that_never_was_right_is_found(tmp_path: Path) -> None:
    entry = of_group(tmp_path, a=("pass", "wrong"), b=("wrong", "wrong"), c=("wrong", "pass"))
    assert [one.case for one in entry.regressed] == ["t/c[n=a]"]
    assert entry.since.state == "partly"


def test_support_data_has_the_history_of_each_case(tmp_path: Path) -> None:
    document = support(joined(tmp_path, a=("pass", "wrong"), b=("-", "pass")))
    schema = json.loads((data_path("reports") / "support.schema.json").read_text())
    Draft202012Validator(schema).validate(document)
    about = document["t"]["a"]["__compat"]
    assert about["support"]["cpu"][0]["version_added"] is False
    assert about["history"]["cpu"]["t/a"]["broken_in"] == ["1.21.0"]
    assert document["t"]["b"]["__compat"]["history"]["cpu"]["t/b"]["since"] == "≤1.21.0"
    # Of one release there is none.
    document = support(joined(tmp_path, a=("pass",)))
    assert "history" not in document["t"]["a"]["__compat"]


def test_the_summary_has_what_regressed(tmp_path: Path) -> None:
    text = summary_markdown(joined(tmp_path, a=("pass", "wrong"), b=("wrong", "pass")))
    assert "## Releases of `cpu`" in text
    assert "| `1.21.0` | 1 of 2 | 1 | 1 | 0 |" in text
    assert "## Regressed on `cpu`: 1" in text
    assert "- `t/a`: 1 of 1; the first is `t/a`: `right until 1.20.1, wrong since 1.21`" in text
    assert "## Regressed" not in summary_markdown(joined(tmp_path, a=("wrong", "pass")))


# ── gqa history ─────────────────────────────────────────────────────────────────────────────────


def releases(desk: Desk, program: str, *environments: str) -> list[str]:
    """The ``--ep`` of each release of a runtime, which its environment makes."""
    launch = (sys.executable, "-S", str(LAUNCH), program)
    commands = (
        desk.program(f"{program}-{n}", "env", *each.split(), *launch)
        for n, each in enumerate(environments)
    )
    return [word for command in commands for word in ("--ep", f"exec:{command}")]


def lines(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_the_releases_of_a_runtime_are_run(gqa: Gqa, desk: Desk) -> None:
    eps = releases(desk, "released", *(f"RELEASE={n}.0" for n in range(1, 6)))
    done = gqa("history", "three.yaml", *eps, "--results", "h.jsonl", "--json", "h.json")
    assert done.status == 3  # 5.0 does not start, and does not end the history
    assert "A library is missing." in done.out
    table = lines(done.out)
    for row in (
        ["1.0", "2", "of", "3", "·", "·", "·", "·", "·"],
        ["2.0", "3", "of", "3", "·", "·", "·", "1", "·"],
        ["3.0", "2", "of", "3", "1", "·", "1", "·", "·"],
        ["4.0", "3", "of", "3", "·", "·", "·", "1", "·"],
    ):
        assert row in table
    assert ["three/faulty", "·", "of", "1", "4.0", "3.0", "2.0,", "4.0", "1", "pass"] in table
    told = json.loads((desk.folder / "h.json").read_text())["targets"]["released"]
    assert [r["broken"] for r in told["releases"] if r["version"] == "3.0"] == [1]
    assert told["entries"]["three/faulty"]["regressed"] == []
    assert told["features"]["phase=prefill"]["broken_in"] == {"3.0": ["three/faulty"]}
    assert told["cases"]["three/faulty"]["since"] == "4.0"
    assert told["cases"]["three/one"] == {
        "since": "≤1.0",
        "broken_in": [],
        "fixed_in": [],
        "spans": [{"state": "pass", "first": "≤1.0", "last": "4.0"}],
    }
    # The command that it prints tells the same from what was recorded.
    more = next(line for line in done.out.splitlines() if "gqa history --from" in line)
    again = gqa(*more.partition("gqa ")[2].split())
    assert (again.status, again.err) == (3, "")
    assert ["three/one", "·", "of", "1", "≤1.0", "·", "·", "1", "pass"] in lines(again.out)


def test_of_many_releases_few_runners_live(gqa: Gqa, desk: Desk) -> None:
    """A runner counts those that are alive: of many releases four are."""
    place = desk.folder / "peers"
    place.mkdir()
    eps = releases(desk, "counts_peers", *(f"PEERS={place} RELEASE=1.{n}" for n in range(6)))
    assert gqa("history", "three.yaml", *eps).status == 0
    counts = [int(file.read_text()) for file in place.glob("*.alive")]
    assert (len(counts), max(counts)) == (6, 4)


def test_a_feature_works_where_calls_that_must_compute_are_right(gqa: Gqa, desk: Desk) -> None:
    """A call that may be rejected and is, is right, and says nothing of the feature."""
    computes = "softcap/prompt[dtype=float32,softcap=2.0]"
    either = "bounds_lengths/seqlens_k_within_the_buffer[dtype=float32,call=softcap]"
    results = [
        result(id, f"cpu@{release}", verdict)
        for id, verdict in ((computes, "unsupported"), (either, "pass"))
        for release in RELEASES[:2]
    ]
    write(desk.folder / "r.jsonl", [case(computes), case(either)], results)
    assert gqa("history", "--from", "r.jsonl", "--json", "h.json").status == 0
    told = json.loads((desk.folder / "h.json").read_text())["targets"]["cpu"]["features"]
    assert (told["softcap=given"]["since"], told["softcap=given"]["partly"]) == (None, False)
