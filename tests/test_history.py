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

from conformance.base.paths import ROOT, data_path
from conformance.report.history import (
    CaseHistory,
    histories,
    history_json,
    sentence,
    series_of,
)
from conformance.report.markdown import summary_markdown
from conformance.report.support import support
from conformance.results.join import Joined, join, with_shared_cases
from conformance.results.reader import Run
from conformance.results.records import FlakyRecord, InfrastructureRecord, InstabilityRecord

RIGHT_AGAIN, WRONG = "right since 1.23", "wrong since 1.23"
RELEASES = ("1.20.1", "1.21.0", "1.22.0", "1.23.0", "1.24.0")


def joined(folder: Path, **verdicts: Sequence[str]) -> Joined:
    """A run of each release. A case has its verdicts in the releases; ``-`` is no result, and
    ``unstable`` a pass that did not repeat."""
    runs = []
    for number in range(max(map(len, verdicts.values()))):
        name = f"cpu@{RELEASES[number]}"
        states = {f"t/{one}": those[number] for one, those in verdicts.items()}
        found = [
            result(id, name, "pass" if state == "unstable" else state)
            for id, state in states.items()
            if state != "-"
        ]
        shaken = [
            InstabilityRecord(target=name, case=id, verdict="crash", message="It died once.")
            for id, state in states.items()
            if state == "unstable"
        ]
        fields = {"targets": [target(name)], "instability": shaken}
        runs.append(of_results(folder / f"{number}.jsonl", found, [*map(case, states)], **fields))
    return join(runs)


def only(*runs: Run) -> CaseHistory:
    """The history of the only case."""
    (history,) = histories(join(runs))
    return history.cases["t/c"]


def one(folder: Path, *verdicts: str) -> CaseHistory:
    return only(*joined(folder, c=verdicts).runs)


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
    found = one(tmp_path, *verdicts.split())
    assert found.since == since
    assert (" ".join(found.broken_in), " ".join(found.fixed_in)) == (broken, fixed)
    assert sentence(found) == said
    breaks, fixes = broken.split(), fixed.split()
    assert found.regressed == (len(breaks) > len(fixes) or breaks[-1:] > fixes[-1:])


def test_a_change_names_the_releases_that_are_not_known(tmp_path: Path) -> None:
    (change,) = one(tmp_path, "pass", "-", "unstable", "wrong").changes
    assert (change.last, change.skipped, change.version) == (
        "1.20.1",
        ("1.21.0", "1.22.0"),
        "1.23.0",
    )
    assert (change.before.verdict, change.after.verdict) == ("pass", "wrong")


def test_of_two_results_in_one_release_the_worst_counts(tmp_path: Path) -> None:
    tried = (("cpu@1.0", "pass"), ("cpu@1.1", "pass"), ("cpu@1.1", "wrong"))
    runs = [
        of_results(tmp_path / f"{number}.jsonl", [result("t/c", name, verdict)])
        for number, (name, verdict) in enumerate(tried)
    ]
    assert only(*runs).broken_in == ("1.1",)


def test_a_flaky_result_is_unstable(tmp_path: Path) -> None:
    flaky = FlakyRecord(verdicts=("crash", "pass"), failed=1, runs=4)
    known = expected("crash", flaky=flaky)
    results = [
        result("t/c", "cpu@1.0"),
        result("t/c", "cpu@1.1", "crash", unexpected=False, expectation=known),
        result("t/c", "cpu@1.2"),
    ]
    found = only(of_results(tmp_path / "r.jsonl", results))
    assert (found.states, found.broken_in) == (("pass", "unstable", "pass"), ())


def test_an_infrastructure_failure_is_unknown(tmp_path: Path) -> None:
    names = ("cpu@1.0", "cpu@1.1", "cpu@1.2")
    failed = InfrastructureRecord(target="cpu@1.1", case="t/c", message="No space left.")
    results = [result("t/c", names[0]), result("t/c", names[2])]
    fields = {"targets": [*map(target, names)], "problems": [failed]}
    found = only(of_results(tmp_path / "r.jsonl", results, **fields))
    assert found.states == ("pass", None, "pass")


def test_runs_share_the_records_of_equal_cases_alone(tmp_path: Path) -> None:
    runs = [
        of_results(tmp_path / f"{number}", [result("t/c")], [case("t/c", why=why)])
        for number, why in enumerate(("Why.", "Why.", "Another reason."))
    ]
    first, second, third = (run.cases["t/c"] for run in with_shared_cases(runs))
    assert second is first
    assert third.why == "Another reason."


# ── Releases ────────────────────────────────────────────────────────────────────────────────────


def test_releases_are_ordered_as_versions_by_target_and_adapter(tmp_path: Path) -> None:
    names = ["cpu@1.10.0", "webgpu@1.9.0+lavapipe", "cpu@1.9.0", "webgpu@1.10.0+lavapipe"]
    gone = [target(name, unavailable="No wheel.") for name in ("cpu@1.8.0", "webgpu@1.8.0", "x")]
    results = [result("t/c", name) for name in names]
    run = of_results(tmp_path / "r.jsonl", results, targets=[*map(target, names), *gone])
    found = {
        series.name: [(release.version, release.unavailable) for release in series.releases]
        for series in series_of(join([run]).columns)
    }
    releases = [("1.8.0", "No wheel."), ("1.9.0", ""), ("1.10.0", "")]
    assert found == {"cpu": releases, "webgpu+lavapipe": releases}


# ── Groups ──────────────────────────────────────────────────────────────────────────────────────


def of_group(folder: Path, **verdicts: Sequence[str]) -> Any:
    (history,) = histories(joined(folder, **{f"c[n={n}]": v for n, v in verdicts.items()}))
    (entry,) = history.entries
    return entry


def test_an_entry_is_right_since_all_its_cases_are(tmp_path: Path) -> None:
    entry = of_group(tmp_path, a=("wrong", "pass", "pass"), b=("wrong", "wrong", "pass"))
    assert [(span.state, span.since) for span in entry.spans] == [
        ("none", "≤1.20.1"),
        ("partly", "1.21.0"),
        ("full", "1.22.0"),
    ]
    assert entry.since.since == "1.22.0"
    assert {v: len(those) for v, those in entry.changed("fixed").items()} == {
        "1.21.0": 1,
        "1.22.0": 1,
    }


def test_an_entry_with_an_untried_or_unstable_case_is_not_called_right(tmp_path: Path) -> None:
    entry = of_group(tmp_path, a=("pass", "pass", "pass"), b=("skip", "unstable", "pass"))
    assert [group.state for group in entry.tried] == ["unknown", "unknown", "full"]
    assert entry.since.since == "1.22.0"


def test_a_regression_in_an_entry_that_never_was_right_is_found(tmp_path: Path) -> None:
    entry = of_group(tmp_path, a=("pass", "wrong"), b=("wrong", "wrong"), c=("wrong", "pass"))
    assert [one.case for one in entry.regressed] == ["t/c[n=a]"]
    assert entry.since.state == "partly"


def test_as_json(tmp_path: Path) -> None:
    runs = joined(tmp_path, a=("pass", "wrong"), b=("-", "pass"))
    found = histories(runs)
    document = json.loads(json.dumps(history_json(runs, found, {"t/a": {"softcap": "given"}})))
    assert document["format"] == "gqa-history/1"
    cpu = document["targets"]["cpu"]
    assert [(r["version"], r["broken"], r["score"]["right"]) for r in cpu["releases"]] == [
        ("1.20.1", 0, 1),
        ("1.21.0", 1, 1),
    ]
    assert cpu["cases"]["t/a"] == {
        "since": None,
        "broken_in": ["1.21.0"],
        "fixed_in": [],
        "spans": [
            {"state": "pass", "first": "≤1.20.1", "last": "1.20.1"},
            {"state": "wrong", "first": "1.21.0", "last": "1.21.0"},
        ],
    }
    assert cpu["cases"]["t/b"]["since"] == "≤1.21.0"
    assert cpu["entries"]["t/a"]["regressed"] == ["t/a"]
    assert cpu["features"]["softcap=given"]["broken_in"] == {"1.21.0": ["t/a"]}


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


def test_support_of_an_unstable_case_is_unknown(tmp_path: Path) -> None:
    document = support(joined(tmp_path, a=("pass", "unstable")))
    statement = document["t"]["a"]["__compat"]["support"]["cpu"]
    note = "In 1.21.0 1 of 1 cases had another result that did not repeat."
    assert statement == {"version_added": "≤1.20.1", "notes": [note]}


def test_the_summary_has_what_regressed(tmp_path: Path) -> None:
    text = summary_markdown(joined(tmp_path, a=("pass", "wrong"), b=("wrong", "pass")))
    assert "## Releases of `cpu`" in text
    assert "| `1.21.0` | 1 of 2 | 1 | 1 | 0 |" in text
    assert "## Regressed on `cpu`: 1" in text
    assert "- `t/a`: 1 of 1; the first is `t/a`: `right until 1.20.1, wrong since 1.21`" in text
    assert "## Regressed" not in summary_markdown(joined(tmp_path, a=("wrong", "pass")))


# ── gqa history ─────────────────────────────────────────────────────────────────────────────────

RECORDED = ROOT / "reports" / "recorded" / "history" / "cpu.jsonl.xz"


def released(desk: Desk, *releases: str) -> list[str]:
    """The ``--ep`` of each release of a runtime."""
    launch = (sys.executable, "-S", str(LAUNCH), "released")
    return [
        word
        for release in releases
        for word in (
            "--ep",
            f"exec:{desk.program(f'released-{release}', 'env', f'RELEASE={release}', *launch)}",
        )
    ]


def lines(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_the_releases_of_a_runtime_are_run(gqa: Gqa, desk: Desk) -> None:
    eps = released(desk, "1.0", "2.0", "3.0", "4.0", "5.0")
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
    told = json.loads((desk.folder / "h.json").read_text())["targets"]["released"]["cases"]
    assert told["three/faulty"]["since"] == "4.0"
    assert told["three/one"] == {
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


def test_regressions_come_first(gqa: Gqa, desk: Desk) -> None:
    done = gqa("history", "three.yaml", *released(desk, "2.0", "3.0"))
    assert done.status == 0
    place = done.out.index("Regressions: right in an earlier release")
    assert "three/faulty" in done.out[place:].splitlines()[2]
    assert place < done.out.index("nothing broke")


@pytest.mark.parametrize("number", [2, 6])
def test_of_many_releases_few_runners_live(gqa: Gqa, desk: Desk, number: int) -> None:
    """A runner counts those that are alive: of many releases four are."""
    place = desk.folder / f"peers-{number}"
    place.mkdir()
    launch = (sys.executable, "-S", str(LAUNCH), "counts_peers")
    eps = []
    for n in range(number):
        environment = (f"PEERS={place}", f"RELEASE=1.{n}")
        eps += ["--ep", f"exec:{desk.program(f'peer-{number}-{n}', 'env', *environment, *launch)}"]
    assert gqa("history", "three.yaml", *eps).status == 0
    counts = [int(file.read_text()) for file in place.glob("*.alive")]
    assert len(counts) == number
    assert max(counts) == min(number, 4)


@pytest.mark.slow
@pytest.mark.skipif(not RECORDED.exists(), reason="not a checkout")
def test_the_history_of_recorded_results(gqa: Gqa, desk: Desk) -> None:
    done = gqa("history", "-k", "zero_length_kv_present_omitted", "--from", str(RECORDED))
    assert (done.status, done.err) == (0, "")
    assert ["1.31.1", "8", "of", "8", "·", "·", "·", "8", "·"] in lines(done.out)
    assert ["1.27.0", "0", "of", "8", "8", "·", "·", "·", "·"] in lines(done.out)


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


def test_bad_input(gqa: Gqa, desk: Desk) -> None:
    write(desk.folder / "one.jsonl", [case("t/c")], [result("t/c")])
    for arguments, said in (
        (("--from", "one.jsonl", "--ep", "cpu"), "--from runs nothing"),
        (("--from", "nowhere.jsonl"), "Cannot read results from nowhere.jsonl"),
        (("--from", "one.jsonl", "--json", "one.jsonl"), "--json would overwrite one.jsonl"),
        (("three.yaml", "--from", "one.jsonl"), "have no result of the selected cases"),
    ):
        done = gqa("history", *arguments)
        assert done.status == 2
        assert said in done.err
    done = gqa("history", "--from", "one.jsonl")
    assert "at least two releases of one target" in done.out


def test_a_range_is_asked_for_before_anything_runs(gqa: Gqa, desk: Desk) -> None:
    done = gqa("history", "three.yaml", "--ep", desk.runner("correct"))
    assert (done.status, done.out) == (2, "")
    assert done.err.strip() == "A history takes two releases or more; name a range: cpu@1.25.."
