"""Since when, broken in, fixed in: derived from runs of several releases, and ``gqa history``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from synthetic_runs import case, expected, of_results, result, target
from tables import tables

from conformance.report.history import sentence
from conformance.results.records import FlakyRecord, InstabilityRecord
from conformance.results.table import Table, tabulate
from conformance.results.timeline import CHANGE_KINDS, CaseHistory, histories, series_of

TABLES = tables(__file__)

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


@pytest.mark.parametrize(("verdicts", "since", "broken", "fixed", "said"), TABLES["cases"])
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
