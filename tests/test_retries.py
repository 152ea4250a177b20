"""A case is tried again alone: no case has a verdict of what another one did to its process."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from as_user import Desk, Done, Gqa
from case_files import entries, write

from conformance.bundle.prepare import digest_of
from conformance.case.load import load_file
from conformance.harness.runner import Runner
from conformance.harness.session import FAILED_TWICE
from conformance.results.reader import Run, read

#: Twelve small cases.
TWELVE = entries(
    "\n".join(f"- {{name: c{n}, seed: {n}, time_limit_seconds: 3}}" for n in range(12))
)
NAMES = [f"c{n}" for n in range(12)]


class Bench:
    """A desk with twelve cases, of which runners fail on or after ``faulty``."""

    def __init__(
        self,
        desk: Desk,
        folder: Path,
        gqa: Gqa,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        self.desk = desk
        self._gqa = gqa
        self.file = write(folder, TWELVE, "twelve.yaml")
        self.results = folder / "results.jsonl"
        on = next(digest_of(case.call) for case in load_file(self.file) if case.name == "c4")
        self.environment = {
            "FAULT_ON": on,
            "FAULT_MARK": str(folder / "mark"),
            "FAULT_SHARE": "0.1",
        }
        for name, value in (desk.environment | self.environment).items():
            monkeypatch.setenv(name, value)

    def run(self, runner: str, *options: str) -> tuple[Done, Run]:
        done = self._gqa(*self.command(runner, *options))
        assert "Traceback" not in done.both
        return done, read(self.results)

    def command(self, runner: str, *options: str) -> tuple[str, ...]:
        program = self.desk.runner(runner)
        return ("run", str(self.file), "--ep", program, "--results", str(self.results), *options)


@pytest.fixture
def bench(
    desk: Desk,
    tmp_path: Path,
    gqa: Gqa,
    monkeypatch: pytest.MonkeyPatch,
) -> Bench:
    return Bench(desk, tmp_path, gqa, monkeypatch)


def verdicts(run: Run) -> dict[str, str]:
    """By the case's name; each has one."""
    assert not run.problems
    found = {run.cases[result.case].name: result.verdict for result in run.results}
    assert list(found) == NAMES
    assert len(run.results) == len(NAMES)
    return found


ALL_RIGHT = dict.fromkeys(NAMES, "pass")


@pytest.mark.parametrize(
    ("runner", "verdict"),
    [("breaks_heap", "crash"), ("spoils", "wrong"), ("dies_in_the_end", "crash")],
)
@pytest.mark.parametrize("jobs", ["1", "3"])
def test_what_a_case_does_to_the_next_is_the_targets_instability(
    bench: Bench, runner: str, verdict: str, jobs: str
) -> None:
    done, run = bench.run(runner, "-j", jobs)
    assert done.status == 1
    assert not run.problems
    found = {run.cases[result.case].name: result.verdict for result in run.results}
    assert found == ALL_RIGHT
    assert {record.verdict for record in run.instability} == {verdict}
    first = run.instability[0]
    assert first.before == "twelve/c4"
    if jobs == "1":
        assert first.case == "twelve/c5"


@pytest.mark.parametrize("answer", ["crashed", "rejected"])
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_failure_of_the_device_after_another_case(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, jobs: str, answer: str
) -> None:
    monkeypatch.setenv("FAULT_STICKY", answer)
    done, run = bench.run("poisons_the_next", "-j", jobs)
    assert done.status == 1
    found = {run.cases[result.case].name: result.verdict for result in run.results}
    assert found == ALL_RIGHT
    (record,) = run.instability
    assert (record.verdict, record.before) == ("crash", "twelve/c4")
    assert record.message == (
        "The call ended in cudaErrorLaunchFailure."
        if answer == "crashed"
        else "It was rejected with an error after which its process was replaced: CUBLAS failure "
        "13: CUBLAS_STATUS_EXECUTION_FAILED"
    )


@pytest.mark.parametrize(("answer", "verdict"), [("crashed", "crash"), ("rejected", "unsupported")])
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_failure_of_the_device_is_of_its_case_alone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, jobs: str, answer: str, verdict: str
) -> None:
    monkeypatch.setenv("FAULT_STICKY", answer)
    _, run = bench.run("poisons_its_context", "-j", jobs)
    found = {run.cases[result.case].name: result.verdict for result in run.results}
    assert found == {**ALL_RIGHT, "c4": verdict}
    assert not run.instability
    failed = next(result for result in run.results if result.verdict == verdict)
    where = failed.message if verdict == "crash" else failed.stderr
    assert where is not None
    assert FAILED_TWICE in where or jobs == "2"  # it may have been a process's first case


def test_a_crash_after_another_case(bench: Bench) -> None:
    done, run = bench.run("dies_after_another")
    assert verdicts(run) == ALL_RIGHT
    (record,) = run.instability
    assert (record.verdict, record.case, record.before) == ("crash", "twelve/c4", "twelve/c3")
    assert record.message == "The runner died of SIGABRT; the last it wrote: heap is broken."
    assert done.status == 1
    assert "Unstable: 1 result (1 crash) did not repeat when the case was run alone." in done.out
    assert "  crash in twelve/c4, after twelve/c3: The runner died of SIGABRT" in done.out
    assert "12 results, 0 unexpected, 1 not repeated" in done.out


@pytest.mark.parametrize(("runner", "kind"), [("dies_at_random", "crash"), ("flips_bits", "wrong")])
def test_what_comes_at_random_is_the_targets_instability(
    bench: Bench, runner: str, kind: str
) -> None:
    done, run = bench.run(runner)
    assert verdicts(run) == ALL_RIGHT
    assert {record.verdict for record in run.instability} == {kind}
    assert run.footer is not None
    assert run.footer.instability == len(run.instability) >= 2
    assert done.status == 1
    assert f"{len(run.instability)} not repeated" in done.out
    assert {record.target for record in run.instability} == {run.header.targets[0].name}
    marks = Path(bench.environment["FAULT_MARK"]).stat().st_size
    assert marks <= 12 + 2 * len(run.instability)  # each alone


def test_a_target_that_always_crashes_costs_no_more_than_its_crashes(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAULT_SHARE", "1")
    done, run = bench.run("dies_at_random")
    assert verdicts(run) == dict.fromkeys(NAMES, "crash")
    assert not run.instability
    assert done.status == 1
    assert Path(bench.environment["FAULT_MARK"]).stat().st_size == 2 * 12


@pytest.mark.parametrize(("runner", "ran"), [("breaks_heap", 6), ("dies_after_another", 5)])
def test_x_stops_at_instability(bench: Bench, runner: str, ran: int) -> None:
    done, run = bench.run(runner, "-x")
    assert done.status == 1
    assert len(run.results) == ran
    assert f"stopped with {12 - ran} cases left" in done.out


def test_a_wrong_result_that_repeats_alone_is_the_cases_own(bench: Bench) -> None:
    done, run = bench.run("wrong_alone")
    assert done.status == 1
    assert verdicts(run) == {**ALL_RIGHT, "c4": "wrong"}
    assert not run.instability


def test_only_so_many_unexpected_results_are_tried_alone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the reason of a result says that it was not."""
    monkeypatch.setattr("conformance.run.instability.RETRIES", {"wrong": 3})
    monkeypatch.setenv("FAULT_ON", "/")
    _, run = bench.run("wrong_alone")
    assert verdicts(run) == dict.fromkeys(NAMES, "wrong")
    told = "It was not tried alone, since 3 unexpected results of this target with this verdict"
    assert [told in result.reason for result in run.results] == [False] * 3 + [True] * 9


def test_of_results_that_are_alike_only_two_are_tried_alone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = [("wrong", "t", "a"), ("wrong", "t", "a"), ("wrong", "t", "b"), ("wrong", "t", "b")]
    given = iter([*kinds, *[("wrong", "t", "a")] * 8])
    monkeypatch.setattr("conformance.run.instability._kind", lambda case, record: next(given))
    starts = []
    monkeypatch.setattr(
        "conformance.harness.session.Runner", lambda *of: starts.append(of) or Runner(*of)
    )
    monkeypatch.setenv("FAULT_ON", "/")
    _, run = bench.run("wrong_alone")
    assert verdicts(run) == dict.fromkeys(NAMES, "wrong")
    assert len(starts) == 1 + 4


def test_a_timeout_in_company_alone_is_the_targets(bench: Bench) -> None:
    _, run = bench.run("hangs_after_another")
    assert verdicts(run) == ALL_RIGHT
    (record,) = run.instability
    assert (record.verdict, record.case, record.before) == ("timeout", "twelve/c4", "twelve/c3")
    assert record.message.startswith("No answer within 3 s")


def test_a_crash_that_the_runner_reports_is_tried_again(bench: Bench) -> None:
    _, run = bench.run("reports_a_crash_once")
    assert verdicts(run) == ALL_RIGHT
    (record,) = run.instability
    assert (record.verdict, record.case, record.before) == ("crash", "twelve/c4", None)
    assert record.message == "The runtime's process died of SIGSEGV."


# pytest


class Pytest:
    """A session of pytest over the twelve cases, with its JUnit file."""

    def __init__(self, bench: Bench, runner: str, *options: str) -> None:
        junit = bench.file.parent / "junit.xml"
        done = bench.desk.run(
            *(sys.executable, "-m", "pytest", str(bench.file), f"--rootdir={bench.file.parent}"),
            *("--ep", bench.desk.runner(runner), f"--junitxml={junit}", *options),
            environment=bench.environment,
        )
        self.status, self.out = done.status, done.out
        self.tests = [
            (test.get("name", "").partition("[")[0], test.find("failure") is not None)
            for test in ElementTree.parse(junit).iter("testcase")
        ]


def test_pytest_tells_instability_and_fails(bench: Bench) -> None:
    session = Pytest(bench, "dies_after_another", "-n1")
    assert session.status == 1
    assert "12 passed" in session.out
    assert "failed" not in session.out
    assert ": Unstable: 1 result (1 crash) did not repeat when the case was" in session.out
    assert "  crash in twelve/c4, after twelve/c3: The runner died of SIGABRT" in session.out
