"""The harness with faulty runners: what no run of theirs shows (tests/transcripts)."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from as_user import MARK, living
from onnx import numpy_helper
from spoken_runner import files_in
from tables import tables

from conformance.harness.jobs import Job
from conformance.harness.outcomes import (
    Crashed,
    InfrastructureFailure,
    Outcome,
    Ran,
    Rejected,
    TimedOut,
    Unavailable,
)
from conformance.harness.protocol import DescribedAnswer, StepFiles, UnavailableAnswer
from conformance.harness.runner import Command, ProcessLimits, RunnerFailed, default_memory_bytes
from conformance.harness.session import Session

TABLES = tables(__file__)

FAULTY = Path(__file__).parents[1] / "support" / "faulty"
STEP = StepFiles(files={"query": "test_data_set_0/input_0.pb"})
linux = pytest.mark.skipif(sys.platform != "linux", reason="/proc and RLIMIT_DATA are Linux's")


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bundles ``good``, ``faulty`` and ``fine``: one step, one output."""
    folder = tmp_path_factory.mktemp("bundles")
    value = numpy_helper.from_array(np.arange(6, dtype=np.float32).reshape(2, 3), "output")
    for name in ("good", "faulty", "fine"):
        step = folder / name / "test_data_set_0"
        step.mkdir(parents=True)
        onnx.save_tensor(value, step / "output_0.pb")
    return folder


@pytest.fixture(autouse=True)
def _nothing_is_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """After each test all processes that it started have ended, and no file is left."""
    files = tmp_path_factory.mktemp("outputs")
    monkeypatch.setenv(MARK, str(files))
    monkeypatch.setenv("TMPDIR", str(files))
    monkeypatch.setattr("tempfile.tempdir", None)  # tempfile caches the folder there
    yield
    assert not living(str(files))
    assert not list(files.iterdir())


def pool(name: str, env: dict[str, str] | None = None, **limits: Any) -> Session:
    """A session with the miniature ``name``, a file or a lie; without `site`, which is slow."""
    file = FAULTY / f"{name}.py"
    argv = (sys.executable, "-S", str(file if file.exists() else FAULTY / "lies.py"))
    limits = {"case_seconds": 20, "start_seconds": 20, **limits}
    command = Command(name, argv, {"LIE": name, **(env or {})})
    return Session(command, ProcessLimits(**limits))


def job(
    bundles: Path, key: str, seconds: float | None = None, steps: tuple[StepFiles, ...] = (STEP,)
) -> Job:
    """A job on the bundle whose key starts with ``key``."""
    name = key.split("-")[0]
    return Job(key, files_in(bundles / name), steps, seconds=seconds, folder=name)


def trio(bundles: Path, seconds: float | None = None) -> list[Job]:
    """A job, the faulty one (the only one with ``seconds``), and another."""
    return [job(bundles, "good"), job(bundles, "faulty", seconds), job(bundles, "fine")]


def outcomes(runner: Session, jobs: list[Job]) -> dict[str, Outcome]:
    with runner:
        return {each.case: runner.run(each) for each in jobs}


# Correct runners


def test_a_runner_describes_itself() -> None:
    with pool("correct") as runner:
        answer = runner.start()
        assert isinstance(answer, DescribedAnswer)
        assert (answer.runtime, answer.version) == ("miniature", "1.0")
        assert runner.start() is answer


def test_a_case_that_ran_comes_with_its_files(bundles: Path) -> None:
    with pool("correct") as runner:
        outcome = runner.run(job(bundles, "good"))
        assert isinstance(outcome, Ran)
        assert [len(run) for run in outcome.runs] == [1, 1]
        for (files,) in outcome.runs:
            tensor = onnx.load_tensor_from_string(files["output"])
            assert numpy_helper.to_array(tensor).tolist() == [[0, 1, 2], [3, 4, 5]]
        assert outcome.placement == "NoExecutionProvider"
        assert (outcome.load_ms, outcome.run_ms) == (0.25, 0.125)
        assert outcome.total_ms > 0
        (outputs,) = Path(os.environ["TMPDIR"]).iterdir()
        assert not list(outputs.iterdir())
        assert outputs.stat().st_mode & 0o777 == 0o700


# Failures in a case


def test_a_rejection_has_all_that_the_runner_says_of_it(bundles: Path) -> None:
    found = outcomes(pool("rejects"), trio(bundles))
    rejected = found["faulty"]
    assert isinstance(rejected, Rejected)
    assert (rejected.stage, rejected.step, rejected.code) == ("load", 0, "INVALID")
    assert (rejected.message, rejected.changed) == ("query has rank 2", ("past_key",))
    assert rejected.stderr == "E: bad shape\n"
    for key in ("good", "fine"):
        assert isinstance(found[key], Ran)
        assert found[key].stderr == ""


def test_a_compiling_runner_gets_more_time(bundles: Path) -> None:
    slow = {"FAULT_SECONDS": "3"}
    jobs = [*trio(bundles, seconds=2), job(bundles, "faulty-2", seconds=2)]
    found = outcomes(pool("compiles", env=slow, compile_seconds=20), jobs)
    assert all(isinstance(outcome, Ran) for outcome in found.values())
    assert found["faulty"].total_ms > 3000
    late = outcomes(pool("waits", env=slow), trio(bundles, seconds=2))
    assert isinstance(late["faulty"], TimedOut)


@pytest.mark.parametrize(("name", "seconds"), [("hangs", 1), ("compiles", 3)])
def test_a_case_has_a_time_limit(bundles: Path, name: str, seconds: float) -> None:
    runner = pool(name, env={"FAULT_SECONDS": "600"}, compile_seconds=2)
    found = outcomes(runner, trio(bundles, seconds=1))
    late = found["faulty"]
    assert isinstance(late, TimedOut)
    assert late.seconds == seconds
    assert 1000 * seconds <= late.total_ms < 60_000
    assert isinstance(found["fine"], Ran)


def test_a_process_is_replaced_where_that_is_asked_for(bundles: Path) -> None:
    with pool("correct") as runner:
        for key in ("good", "faulty"):
            assert runner.run(job(bundles, key)).before is None
            runner.renew()
    found = [outcome.before for outcome in outcomes(pool("correct"), trio(bundles)).values()]
    assert [before and before.case for before in found] == [None, "good", "faulty"]


@pytest.mark.parametrize(("name", "words"), TABLES["between cases"])
def test_what_happens_between_cases_does_not_count(bundles: Path, name: str, words: str) -> None:
    """What a runner does between two cases does not count for the next."""
    with pool(name) as runner:
        assert isinstance(runner.run(job(bundles, "faulty")), Ran)
        time.sleep(1.5)
        after = runner.run(job(bundles, "good"))
        assert isinstance(after, Ran)
        assert words in after.stderr
        assert "(the case before in this process: faulty)" in after.stderr
        assert (after.unrepeated is not None) == (name == "dies_while_idle")
        assert isinstance(runner.run(job(bundles, "fine")), Ran)


def test_the_time_of_a_case_does_not_include_the_start(bundles: Path) -> None:
    found = outcomes(pool("slow_start"), [job(bundles, "good", seconds=2)])
    assert isinstance(found["good"], Ran)


def test_a_request_larger_than_a_pipe_and_a_runner_that_does_not_read_it(bundles: Path) -> None:
    files = {f"input_{number}": "test_data_set_0/input_0.pb" for number in range(20_000)}
    large = job(bundles, "good", steps=(StepFiles(files=files),))
    with pool("correct") as runner:
        assert isinstance(runner.run(large), Ran)
    with pool("deaf") as runner:
        found = runner.run(replace(large, seconds=0.3))
        assert isinstance(found, InfrastructureFailure)
        assert "did not read its request" in found.message
        # A request that fits into the pipe looks like a hang.
        assert isinstance(runner.run(job(bundles, "good", seconds=0.3)), TimedOut)


@pytest.mark.push
def test_floods_and_huge_files_take_no_time(bundles: Path) -> None:
    begun = time.monotonic()
    found = outcomes(pool("floods_stderr", stderr_bytes=1000), trio(bundles))
    assert isinstance(found["faulty"], Ran)
    text = found["faulty"].stderr
    assert text.endswith("xxx\nthe end\n")
    assert text.startswith("[99999")
    assert len(text) < 1100
    assert found["fine"].stderr == ""
    # The output may come with the answer or after it, while the other process is working.
    assert isinstance(outcomes(pool("floods_when_idle"), trio(bundles)[:2])["good"], Ran)
    for lie in ("floods_stdout", "sparse", "three_gigabytes", "link_to_zeros", "fifo", "grows"):
        assert isinstance(outcomes(pool(lie), trio(bundles))["faulty"], InfrastructureFailure)
    assert time.monotonic() - begun < 60


def test_leftover_files_are_removed(bundles: Path) -> None:
    assert isinstance(outcomes(pool("leaves_litter"), trio(bundles))["faulty"], Crashed)


@linux
def test_memory_is_limited(bundles: Path) -> None:
    def message(**limits: Any) -> str:
        found = outcomes(pool("hungry", env=asked, **limits), [job(bundles, "faulty")])["faulty"]
        assert isinstance(found, Rejected)
        return found.message

    asked = {"FAULT_BYTES": str(100 << 20)}
    assert message(memory_bytes=90 << 20) == "not enough memory"
    assert message(memory_bytes=None) == "there was enough memory"
    asked = {}  # 64 GiB
    assert message() == "not enough memory"
    assert 0 < default_memory_bytes() <= 8 << 30


# Runners that do not start


def test_a_runner_that_does_not_start_is_not_tried_again(bundles: Path) -> None:
    with pool("never_described", start_seconds=0.3) as runner:
        with pytest.raises(RunnerFailed) as caught:
            runner.start()
        assert str(caught.value).startswith("never_described: the runner ")
        assert "did not describe itself within 0.3 s" in caught.value.sentence
        with pytest.raises(RunnerFailed) as again:
            runner.run(job(bundles, "good"))
        assert again.value is not caught.value  # which would accumulate
        assert again.value.args == caught.value.args


def test_an_unavailable_target_keeps_no_process(bundles: Path) -> None:
    with pool("unavailable") as runner:
        answer = runner.start()
        assert isinstance(answer, UnavailableAnswer)
        assert (answer.reason, answer.fix) == ("there is no device", "pip install miniature")
        assert not living(os.environ[MARK])
        assert runner.run(job(bundles, "good")) == Unavailable(reason="there is no device")


def test_a_target_that_fails_repeatedly_is_abandoned(bundles: Path) -> None:
    order = ["faulty-1", "faulty-2", "good", "faulty-3", "faulty-4", "faulty-5", "faulty-6", "fine"]
    with pool("exits") as runner:
        ran = [isinstance(runner.run(job(bundles, key)), Ran) for key in order[:6]]
        for words in ("given up after 3 infrastructure failures in a row", "ended with status 0"):
            with pytest.raises(RunnerFailed, match=words):
                runner.run(job(bundles, order[6]))
    assert ran == [key == "good" for key in order[:6]]


# Output files


def test_output_files_have_a_limit_together(bundles: Path) -> None:
    size = len((bundles / "good" / "test_data_set_0" / "output_0.pb").read_bytes())
    for limit, kind in ((2 * size, Ran), (2 * size - 1, InfrastructureFailure)):
        limited = replace(job(bundles, "good"), most_output_bytes=limit)
        with pool("correct") as runner:
            found = runner.run(limited)
        assert isinstance(found, kind)
        if isinstance(found, InfrastructureFailure):
            assert f"the output files have more than {limit} bytes" in found.message


# Descriptions


def test_all_processes_must_describe_themselves_alike(bundles: Path) -> None:
    with pool("version_of_each_process") as runner:
        first = runner.start()
        assert isinstance(first, DescribedAnswer)
        runner.renew()
        with pytest.raises(RunnerFailed, match=f"version is 1.*, not {first.version};"):
            runner.run(job(bundles, "good"))
