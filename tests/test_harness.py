"""Tests the harness with faulty runners (tests/faulty)."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from conformance.base import interrupts
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
from conformance.harness.pool import FAILED_TWICE, Pool, _last_words, _Slot
from conformance.harness.process import (
    Command,
    Died,
    Limits,
    RunnerFailed,
    RunnerProcess,
    default_memory_bytes,
)
from conformance.harness.protocol import DescribedAnswer, StepFiles, UnavailableAnswer

FAULTY = Path(__file__).parent / "faulty"
STEP = StepFiles(files={"query": "test_data_set_0/input_0.pb"})
MARK = "GQA_TEST_MARK"
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


def living(mark: str) -> list[str]:
    """The command lines of all processes but this one that have ``mark`` in their environment."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if entry.name != str(os.getpid()) and mark.encode() in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_bytes().decode())
        except OSError:
            continue  # ended, or another
    return found


def pool(name: str, jobs: int = 1, env: dict[str, str] | None = None, **limits: Any) -> Pool:
    """A pool of the miniature ``name``, started without `site`, whose import takes longer."""
    argv = (sys.executable, "-S", str(FAULTY / f"{name}.py"))
    limits = {"case_seconds": 20, "start_seconds": 20, **limits}
    return Pool(Command(name, argv, env or {}, fix="mend it"), jobs, Limits(**limits))


def job(bundles: Path, key: str, seconds: float | None = None) -> Job:
    """A job on the bundle whose key starts with ``key``."""
    return Job(key, bundles / key.split("-")[0], (STEP,), seconds=seconds)


def trio(bundles: Path, seconds: float | None = None) -> list[Job]:
    """A job, the faulty one (the only one with ``seconds``), and another."""
    return [job(bundles, "good"), job(bundles, "faulty", seconds), job(bundles, "fine")]


def outcomes(runner: Pool, jobs: list[Job]) -> dict[str, Outcome]:
    with runner:
        found = [(each.key, outcome) for each, outcome in runner.run(jobs)]
    assert len(dict(found)) == len(found)
    return dict(found)


def growth_kib(check: Callable[[Path], None], bundles: Path) -> int:
    """By how many KiB ``check(bundles)`` raises the peak of a process's memory.

    In a process of its own: the peak of this one may be that of an earlier test.
    """
    code = (
        "import sys; from pathlib import Path; from memory import peak_kib; import test_harness\n"
        "check, bundles = getattr(test_harness, sys.argv[1]), Path(sys.argv[2])\n"
        "before = peak_kib(); check(bundles); print(peak_kib() - before)\n"
    )
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", code, check.__name__, bundles],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


# Correct runners


def test_a_runner_describes_itself() -> None:
    with pool("correct") as runner:
        answer = runner.start()
        assert isinstance(answer, DescribedAnswer)
        assert (answer.runtime, answer.version) == ("miniature", "1.0")
        assert runner.start() is answer
        assert runner.started == 1
        assert 0 < runner.start_seconds < 20


def test_a_case_that_ran_comes_with_its_files(bundles: Path) -> None:
    with pool("correct") as runner:
        for case, outcome in runner.run([job(bundles, "good")]):
            assert isinstance(outcome, Ran)
            assert case.key == "good"
            assert [len(run) for run in outcome.runs] == [1, 1]
            for (files,) in outcome.runs:
                tensor = onnx.load_tensor_from_string(files["output"])
                assert numpy_helper.to_array(tensor).tolist() == [[0, 1, 2], [3, 4, 5]]
            assert not list(outputs().iterdir())
            assert outcome.placement == "NoExecutionProvider"
            assert (outcome.load_ms, outcome.run_ms) == (0.25, 0.125)
            assert outcome.total_ms > 0
        assert outputs().stat().st_mode & 0o777 == 0o700


def outputs() -> Path:
    """The folder of the folders that runners write their outputs to."""
    (folder,) = Path(os.environ["TMPDIR"]).iterdir()
    return folder


def test_a_case_can_be_run_alone(bundles: Path) -> None:
    with pool("dies") as runner:
        assert isinstance(runner.run_one(job(bundles, "good")), Ran)
        assert not list(outputs().iterdir())
        assert isinstance(runner.run_one(job(bundles, "faulty")), Crashed)
        assert isinstance(runner.run_one(job(bundles, "fine")), Ran)


def test_a_rejection_with_its_message(bundles: Path) -> None:
    found = outcomes(pool("rejects"), trio(bundles))
    refused = found["faulty"]
    assert isinstance(refused, Rejected)
    assert (refused.stage, refused.step, refused.code) == ("load", 0, "INVALID")
    assert refused.message == "query has rank 2"
    assert refused.changed == ("past_key",)
    assert refused.stderr == "E: bad shape\n"
    assert isinstance(found["good"], Ran)
    assert isinstance(found["fine"], Ran)
    assert found["good"].stderr == found["fine"].stderr == ""  # it belongs to one case only


def test_a_case_that_is_unavailable(bundles: Path) -> None:
    found = outcomes(pool("skips"), trio(bundles))["faulty"]
    assert isinstance(found, Unavailable)
    assert found.reason == "this adapter has no float16"


def test_several_processes_share_the_jobs(bundles: Path) -> None:
    jobs = [job(bundles, f"faulty-{number}") for number in range(6)]
    with pool("waits", jobs=2) as runner:
        runner.start()
        begun = time.monotonic()
        done = [case.key for case, outcome in runner.run(jobs) if isinstance(outcome, Ran)]
        assert time.monotonic() - begun < 6 * 0.2
        assert runner.started == 2
    assert sorted(done) == [each.key for each in jobs]


def test_a_quick_case_does_not_wait_for_a_slow_one(bundles: Path) -> None:
    jobs = [job(bundles, "faulty"), *(job(bundles, f"good-{number}") for number in range(5))]
    with pool("waits", jobs=2, env={"FAULT_SECONDS": "0.5"}) as runner:
        assert [case.key for case, _ in runner.run(jobs)][-1] == "faulty"


def test_no_more_processes_start_than_there_are_jobs(bundles: Path) -> None:
    with pool("correct", jobs=4) as runner:
        assert len(list(runner.run([job(bundles, "good")]))) == 1
        assert runner.started == 1


@pytest.mark.parametrize("seconds", [0.0, 0.2])
def test_the_next_case_runs_while_the_caller_handles_the_last(
    bundles: Path, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the runner is faster than the pool, so that the first case ends before the next one
    is drawn."""
    turn = Pool._turn

    def later(pool: Pool, patience: float) -> None:
        time.sleep(seconds)
        turn(pool, patience)

    monkeypatch.setattr(Pool, "_turn", later)
    with pool("correct") as runner:
        for case, outcome in runner.run([job(bundles, f"good-{number}") for number in range(4)]):
            assert isinstance(outcome, Ran)
            until = time.monotonic() + 5
            while case.key != "good-3" and not list(outputs().glob("*/1_0_output.pb")):
                assert time.monotonic() < until, "the next case does not run"
                time.sleep(0.005)


def test_jobs_are_taken_one_ahead(bundles: Path) -> None:
    drawn = []

    def jobs() -> Iterator[Job]:
        for number in range(5):
            drawn.append(number)
            yield job(bundles, f"good-{number}")

    with pool("correct") as runner:
        for number, _ in enumerate(runner.run(jobs())):
            # One is with the caller, one with the runner, and one is waiting.
            assert len(drawn) <= number + 3


def test_few_jobs_are_taken_ahead_of_a_slow_caller(bundles: Path) -> None:
    """Each keeps its bundle in memory, which a whole corpus has gigabytes of."""
    drawn = []

    def jobs() -> Iterator[Job]:
        for number in range(30):
            drawn.append(number)
            yield job(bundles, f"good-{number}")

    with pool("correct", jobs=2) as runner:
        for number, _ in enumerate(runner.run(jobs())):
            time.sleep(0.02)
            # One is with the caller; two each are done, with the runners, and waiting.
            assert len(drawn) <= number + 7


def test_an_error_among_the_jobs_reaches_the_caller(bundles: Path) -> None:
    def jobs() -> Iterator[Job]:
        yield job(bundles, "good")
        raise KeyError("no such bundle")

    with pool("correct") as runner:
        with pytest.raises(KeyError, match="no such bundle"):
            list(runner.run(jobs()))
        assert isinstance(runner.run_one(job(bundles, "fine")), Ran)


def test_a_run_can_be_abandoned(bundles: Path) -> None:
    with pool("waits", jobs=2) as runner:
        for _ in runner.run([job(bundles, f"faulty-{number}") for number in range(9)]):
            break
        assert [case.key for case, _ in runner.run([job(bundles, "fine")])] == ["fine"]


def test_an_interrupt_while_a_pool_is_closed_leaves_nothing(
    bundles: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = pool("correct")
    runner.run_one(job(bundles, "good"))
    assert runner._folder is not None
    path = Path(runner._folder.path)
    assert path.is_dir()
    drop = _Slot.drop

    def interrupted(slot: _Slot) -> None:
        interrupts.interrupt()
        drop(slot)

    monkeypatch.setattr(_Slot, "drop", interrupted)
    with pytest.raises(KeyboardInterrupt):
        runner.close()
    assert not path.exists()


def test_a_pool_runs_one_thing_at_a_time(bundles: Path) -> None:
    with pool("correct") as runner:
        running = runner.run([job(bundles, "good"), job(bundles, "fine")])
        next(running)
        with pytest.raises(RuntimeError, match="running other jobs"):
            runner.run_one(job(bundles, "good"))
        running.close()


def test_two_pools_at_once(bundles: Path) -> None:
    with pool("correct") as one, pool("dies") as other:
        pairs = list(zip(one.run(trio(bundles)), other.run(trio(bundles)), strict=True))
    assert all(isinstance(outcome, Ran) for (_, outcome), _ in pairs)
    assert [type(outcome) for _, (_, outcome) in pairs] == [Ran, Crashed, Ran]


def test_a_request_larger_than_a_pipe(bundles: Path) -> None:
    files = {f"input_{number}": "test_data_set_0/input_0.pb" for number in range(20_000)}
    large = Job("good", bundles / "good", (StepFiles(files=files),))
    with pool("correct") as runner:
        assert isinstance(runner.run_one(large), Ran)


# Failures in a case


@pytest.mark.parametrize(
    ("name", "env", "words"),
    [
        ("exits", {}, "ended with status 0 during the case; the last it wrote: bye"),
        ("exits", {"FAULT_STATUS": "1"}, "ended with status 1 during the case"),
        ("exits", {"FAULT_STATUS": "143"}, "died of SIGTERM during the case"),
        ("is_ended", {}, "died of SIGTERM during the case"),
        ("floods_stdout", {}, "more than 1048576 bytes in one line, which starts: xxxx"),
        ("floods_lines", {}, "step 0: everything is going very well indeed"),
        ("half_line", {"FAULT_STATUS": "0"}, 'status 0 during the case, after the start'),
        ("not_json", {}, r"the line is not JSON: {'id': 3, 'outcome': 'ran'} \x1b[31m"),
        ("prints_from_c", {}, "kernel: using 4 threads"),
        ("other_id", {}, "the answer has id 4 where 3 was sent"),
        ("answers_twice", {}, "wrote more than one line"),
        ("wrong_type", {}, 'ms.load is "0.25"'),
        ("wrong_count", {}, "1 runs where 2 were requested"),
        ("no_placement", {}, "NoExecutionProvider was requested, and the answer has no placement"),
        ("no_file", {}, "the file 0_0_output.pb of output is not there"),
        ("one_file", {}, "names the file 0_0_output.pb twice"),
        ("outside", {}, 'an output file "../../../../../../../../etc/passwd", not a plain name'),
        ("links", {}, "the file 0_0_output.pb of output is not a regular file"),
        ("closes_stdout", {}, "closed its standard output and did not end"),
        (
            "compiles",
            {"FAULT_TIMES": "2", "FAULT_SECONDS": "600"},
            "it says more than once that it is compiling",
        ),
        (
            "compiles_at_once",
            {"FAULT_ORDER": "compiling compiling unavailable"},
            'wrote more than one line: {"id": 3, "outcome": "compiling"}, then {"id": 3, "outcome"',
        ),
        (
            "compiles_at_once",
            {"FAULT_ORDER": "unavailable compiling"},
            'then {"id": 3, "outcome": "compiling"}',
        ),
        ("compiles_another", {}, "it says that it is compiling for id 4 where 3 was sent"),
    ],
)  # fmt: skip
def test_a_runners_error_says_nothing_about_the_runtime(
    bundles: Path, name: str, env: dict[str, str], words: str
) -> None:
    begun = time.monotonic()
    found = outcomes(pool(name, env=env), trio(bundles))
    assert isinstance(found["faulty"], InfrastructureFailure)
    assert words in found["faulty"].message
    assert "(the case before in this process: good)" in found["faulty"].message
    assert isinstance(found["good"], Ran)
    assert isinstance(found["fine"], Ran)
    assert time.monotonic() - begun < 10  # none of these reaches the time limit


def test_compiling_and_the_answer_may_come_in_one_write(bundles: Path) -> None:
    found = outcomes(pool("compiles_at_once"), trio(bundles))
    assert isinstance(found["faulty"], Unavailable)
    assert [isinstance(found[name], Ran) for name in ("good", "fine")] == [True, True]


def test_a_compiling_runner_gets_more_time(bundles: Path) -> None:
    slow = {"FAULT_SECONDS": "0.8"}
    with pool("compiles", env=slow, compile_seconds=20) as runner:
        jobs = [*trio(bundles, seconds=0.5), job(bundles, "faulty-2", seconds=0.5)]
        found = {case.key: outcome for case, outcome in runner.run(jobs)}
        assert runner.started == 1
    assert all(isinstance(outcome, Ran) for outcome in found.values())
    assert found["faulty"].total_ms > 800
    late = outcomes(pool("waits", env=slow), trio(bundles, seconds=0.5))
    assert isinstance(late["faulty"], TimedOut)


def test_a_compiling_runner_still_has_a_time_limit(bundles: Path) -> None:
    runner = pool("compiles", env={"FAULT_SECONDS": "600"}, compile_seconds=0.5)
    found = outcomes(runner, trio(bundles, seconds=0.3))
    late = found["faulty"]
    assert isinstance(late, TimedOut)
    assert late.seconds == 0.8
    assert 800 <= late.total_ms < 5000
    assert isinstance(found["fine"], Ran)


def test_compiling_after_the_answer_is_unexpected_output(bundles: Path) -> None:
    with pool("compiles_afterwards") as runner:
        assert isinstance(runner.run_one(job(bundles, "faulty")), Ran)
        time.sleep(0.2)
        after = runner.run_one(job(bundles, "good"))
        assert isinstance(after, Ran)
        assert "compiling" in after.stderr
        assert "(the case before in this process: faulty)" in after.stderr


def test_a_crash_that_repeats(bundles: Path) -> None:
    with pool("dies") as runner:
        found = {case.key: outcome for case, outcome in runner.run(trio(bundles))}
        assert runner.started == 3  # the retry has its own process
    crash = found["faulty"]
    assert isinstance(crash, Crashed)
    assert (crash.signal, crash.repeated) == ("SIGSEGV", True)
    assert crash.message == (
        "The runner died of SIGSEGV, and again when it was tried alone; "
        "the last it wrote: reading past the end."
    )
    assert crash.stderr == "reading past the end\n"
    assert isinstance(found["good"], Ran)
    assert isinstance(found["fine"], Ran)


def test_a_crash_contains_the_runners_message(bundles: Path) -> None:
    crash = outcomes(pool("gives_up"), trio(bundles))["faulty"]
    assert isinstance(crash, Crashed)
    assert (crash.signal, crash.repeated) == ("SIGABRT", True)
    assert crash.message.endswith("; the last it wrote: Aborted(memory access out of bounds).")


PANIC = "thread 'main' (7) panicked at dim.rs:1:2:\nattempt to divide by zero\n"
BACKTRACE = "stack backtrace:\n   0: rust_begin_unwind\n"


@pytest.mark.parametrize(
    ("stderr", "words"),
    [
        ("", ""),
        ("\n \n", ""),
        ("one\ntwo.\n\n", "; the last it wrote: two"),
        ("\x1b[31mred", "; the last it wrote: \\x1b[31mred"),
        ("x" * 500, f"; the last it wrote: {'x' * 300}… (500 in all)"),
        (PANIC, "; it panicked at dim.rs:1:2: attempt to divide by zero"),
        (PANIC + BACKTRACE, "; it panicked at dim.rs:1:2: attempt to divide by zero"),
        (
            "a warning\n" + PANIC + PANIC.replace("attempt to divide by zero", "cannot unwind"),
            "; it panicked at dim.rs:1:2: attempt to divide by zero",
        ),
        (
            "panicked at a.rs:1:2:\nassertion `left == right` failed\n  left: 1\n right: 2\n\nbye",
            "; it panicked at a.rs:1:2: assertion `left == right` failed left: 1 right: 2",
        ),
    ],
)
def test_the_last_line_of_standard_error(stderr: str, words: str) -> None:
    assert _last_words(stderr) == words


def test_a_crash_that_does_not_repeat_alone_is_not_the_cases_own(bundles: Path) -> None:
    alone = outcomes(pool("dies_after_another"), trio(bundles))["faulty"]
    assert isinstance(alone, Ran)
    assert alone.before is None
    crash = alone.unrepeated
    assert crash is not None
    assert crash.before is not None
    assert (crash.signal, crash.before.key) == ("SIGABRT", "good")
    assert crash.message == "The runner died of SIGABRT; the last it wrote: heap is broken."
    assert alone.stderr.startswith(f"[{crash.message} This is the outcome of a second try")


def test_the_outcome_names_the_case_before(bundles: Path) -> None:
    with pool("correct") as runner:
        found = [outcome.before for _, outcome in runner.run(trio(bundles))]
    assert [before and before.key for before in found] == [None, "good", "faulty"]


def test_a_pool_replaces_its_processes_when_it_is_told_to(bundles: Path) -> None:
    with pool("correct") as runner:
        for key in ("good", "faulty"):
            assert runner.run_one(job(bundles, key)).before is None
            runner.renew()
        assert runner.started == 2
        found = []
        for _, outcome in runner.run(trio(bundles)):
            found.append(outcome.before)
            if len(found) == 1:
                runner.renew()  # while the second case runs, which may end there
    assert [before and before.key for before in found] == [None, "good", None]


STICKY = {"crashed": Crashed, "rejected": Rejected}


@pytest.mark.parametrize("answer", STICKY)
@pytest.mark.parametrize("jobs", [1, 2])
def test_no_case_runs_in_a_process_whose_device_has_failed(
    bundles: Path, answer: str, jobs: int
) -> None:
    """Or else each later case of the process would fail as well."""
    many = [*trio(bundles), *(job(bundles, f"good-{number}") for number in range(5))]
    with pool("poisons_its_context", jobs, {"FAULT_STICKY": answer}) as runner:
        found = {case.key: outcome for case, outcome in runner.run(many)}
        if jobs == 1:
            assert runner.started == 3
    failed = found.pop("faulty")
    assert isinstance(failed, STICKY[answer])
    assert failed.damaged
    assert failed.unrepeated is None
    assert all(isinstance(outcome, Ran) for outcome in found.values())
    assert not any("used after its failure" in outcome.stderr for outcome in found.values())


@pytest.mark.parametrize("answer", STICKY)
def test_a_failure_of_the_device_is_recorded_as_repeated_alone(bundles: Path, answer: str) -> None:
    failed = outcomes(pool("poisons_its_context", env={"FAULT_STICKY": answer}), trio(bundles))[
        "faulty"
    ]
    assert failed.before is None
    if isinstance(failed, Crashed):
        assert (failed.signal, failed.repeated) == ("cudaErrorIllegalAddress", True)
        assert failed.message == (
            "The call ended in cudaErrorIllegalAddress: CUDA failure 700: an illegal memory "
            f"access was encountered {FAILED_TWICE}"
        )
    else:
        assert isinstance(failed, Rejected)
        assert failed.message == "CUDA failure 700: an illegal memory access was encountered"
        assert failed.stderr == f"{FAILED_TWICE}\n"


def test_a_rejection_by_the_device_in_the_first_case_is_not_tried_again(bundles: Path) -> None:
    with pool("poisons_its_context", env={"FAULT_STICKY": "rejected"}) as runner:
        assert isinstance(runner.run_one(job(bundles, "faulty")), Rejected)
        assert runner.started == 1
        assert isinstance(runner.run_one(job(bundles, "good")), Ran)
        assert runner.started == 2


@pytest.mark.parametrize("answer", STICKY)
def test_a_failure_of_the_device_that_does_not_repeat_alone(bundles: Path, answer: str) -> None:
    with pool("poisons_the_next", env={"FAULT_STICKY": answer}) as runner:
        found = {case.key: outcome for case, outcome in runner.run(trio(bundles))}
    assert all(isinstance(outcome, Ran) for outcome in found.values())
    failure = found["fine"].unrepeated
    assert failure is not None
    assert failure.before is not None
    assert failure.before.key == "faulty"
    assert failure.message == (
        "The call ended in cudaErrorLaunchFailure."
        if answer == "crashed"
        else "It was rejected with an error after which its process was replaced: CUBLAS failure "
        "13: CUBLAS_STATUS_EXECUTION_FAILED"
    )
    assert found["good"].unrepeated is found["faulty"].unrepeated is None


@pytest.mark.parametrize(("status", "name"), [(139, "SIGSEGV"), (134, "SIGABRT"), (137, "SIGKILL")])
def test_a_crash_that_a_shell_reports(bundles: Path, status: int, name: str) -> None:
    crash = outcomes(pool("exits", env={"FAULT_STATUS": str(status)}), trio(bundles))["faulty"]
    assert isinstance(crash, Crashed)
    assert (crash.signal, crash.repeated) == (name, True)
    assert ("out of memory" in crash.message) == (name == "SIGKILL")


def test_a_crash_with_several_processes_affects_one_case(bundles: Path) -> None:
    jobs = [*trio(bundles), *(job(bundles, f"good-{number}") for number in range(5))]
    found = outcomes(pool("dies", jobs=2), jobs)
    assert {key for key, outcome in found.items() if isinstance(outcome, Crashed)} == {"faulty"}
    assert sum(isinstance(outcome, Ran) for outcome in found.values()) == 7


def test_a_crash_between_two_cases_does_not_count_for_the_next(bundles: Path) -> None:
    with pool("dies_while_idle") as runner:
        assert isinstance(runner.run_one(job(bundles, "faulty")), Ran)
        time.sleep(0.2)
        idle = runner.run_one(job(bundles, "good"))
        assert isinstance(idle, Ran)
        assert "died of SIGSEGV before it was given the case" in idle.stderr
        assert idle.unrepeated is not None
        assert idle.unrepeated.before == job(bundles, "faulty")
        assert "(the case before in this process: faulty)" in idle.stderr
        assert isinstance(runner.run_one(job(bundles, "fine")), Ran)


def test_a_runner_that_exits_after_its_answer(bundles: Path) -> None:
    with pool("one_shot") as runner:
        assert isinstance(runner.run_one(job(bundles, "faulty")), Ran)
        time.sleep(0.2)
        after = runner.run_one(job(bundles, "good"))
        assert isinstance(after, Ran)
        assert "ended with status 0 before it was given the case" in after.stderr


def test_an_unsolicited_line(bundles: Path) -> None:
    with pool("speaks_unasked") as runner:
        assert isinstance(runner.run_one(job(bundles, "faulty")), Ran)
        time.sleep(0.2)
        after = runner.run_one(job(bundles, "good"))
        assert isinstance(after, Ran)
        assert "by the way" in after.stderr
        assert "(the case before in this process: faulty)" in after.stderr
        assert isinstance(runner.run_one(job(bundles, "fine")), Ran)


def test_a_case_that_hangs(bundles: Path) -> None:
    found = outcomes(pool("hangs"), trio(bundles, seconds=0.3))
    late = found["faulty"]
    assert isinstance(late, TimedOut)
    assert late.seconds == 0.3
    assert 300 <= late.total_ms < 2000
    assert isinstance(found["good"], Ran)
    assert isinstance(found["fine"], Ran)


def test_the_time_of_a_case_does_not_include_the_start(bundles: Path) -> None:
    found = outcomes(pool("slow_start"), [job(bundles, "good", seconds=0.3)])
    assert isinstance(found["good"], Ran)


def test_an_answer_that_waits_for_a_busy_caller_is_in_time(bundles: Path) -> None:
    jobs = [job(bundles, f"good-{number}", seconds=0.15) for number in range(2)]
    with pool("correct") as runner:
        for _, outcome in runner.run(jobs):
            assert isinstance(outcome, Ran)
            time.sleep(0.3)


def test_a_long_answer_that_waits_for_a_busy_caller_is_in_time(bundles: Path) -> None:
    with pool("long_message") as runner:
        for case, outcome in runner.run([job(bundles, "good"), job(bundles, "faulty", 0.2)]):
            time.sleep(0.4)
            if case.key == "faulty":
                assert isinstance(outcome, Rejected)
                assert len(outcome.message) == 300_000


def test_half_an_answer_and_then_silence_is_the_runners_error(bundles: Path) -> None:
    found = outcomes(pool("half_line"), trio(bundles, seconds=0.3))
    assert isinstance(found["faulty"], InfrastructureFailure)
    assert 'did not end it in time: {"id": ' in found["faulty"].message
    assert isinstance(found["fine"], Ran)


def test_a_runner_that_does_not_read_its_input(bundles: Path) -> None:
    files = {f"input_{number}": "test_data_set_0/input_0.pb" for number in range(20_000)}
    large = Job("large", bundles / "good", (StepFiles(files=files),), seconds=0.3)
    with pool("deaf") as runner:
        found = runner.run_one(large)
        assert isinstance(found, InfrastructureFailure)
        assert "did not read its request" in found.message
        # A request that fits into the pipe looks like a hang.
        assert isinstance(runner.run_one(job(bundles, "good", seconds=0.3)), TimedOut)


def check_floods(bundles: Path) -> None:
    found = outcomes(pool("floods_stderr", stderr_bytes=1000), trio(bundles))
    assert isinstance(found["faulty"], Ran)
    text = found["faulty"].stderr
    assert text.endswith("xxx\nthe end\n")
    assert text.startswith("[99999")
    assert len(text) < 1100
    assert found["fine"].stderr == ""
    assert isinstance(
        outcomes(pool("floods_stdout"), trio(bundles))["faulty"], InfrastructureFailure
    )
    # The output may come with the answer or after it, while the other process is working.
    assert isinstance(outcomes(pool("floods_when_idle", jobs=2), trio(bundles)[:2])["good"], Ran)


def test_floods_take_neither_memory_nor_time(bundles: Path) -> None:
    assert growth_kib(check_floods, bundles) < 30 << 10


def test_a_child_that_holds_the_pipes_open(bundles: Path) -> None:
    begun = time.monotonic()
    found = outcomes(pool("leaves_child"), trio(bundles))
    assert isinstance(found["faulty"], Crashed)
    assert isinstance(found["fine"], Ran)
    assert time.monotonic() - begun < 10


def test_leftover_files_are_removed(bundles: Path) -> None:
    linked = bundles / "faulty"
    before = linked.stat()
    found = outcomes(pool("leaves_litter"), trio(bundles))
    assert isinstance(found["faulty"], Crashed)
    assert (linked / "test_data_set_0" / "output_0.pb").exists()
    assert linked.stat().st_mode == before.st_mode


def test_wrong_files_are_left_to_the_judge(bundles: Path) -> None:
    for name in ("short_file", "other_dtype"):
        assert isinstance(outcomes(pool(name), trio(bundles))["faulty"], Ran)


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


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no_module", "ended with status 1 before it described itself; the last it wrote: Module"),
        ("not_described", 'does not describe itself: in the answer, dtypes.0 is "fp16"'),
        ("never_described", "did not describe itself within 0.3 s"),
        ("compiles_at_start", 'the answer to describe has outcome "compiling"'),
    ],
)
def test_a_runner_that_does_not_start(bundles: Path, name: str, words: str) -> None:
    seconds = 0.3 if name == "never_described" else 20
    with pool(name, start_seconds=seconds) as runner:
        with pytest.raises(RunnerFailed) as caught:
            runner.start()
        assert str(caught.value).startswith(f"{name}: the runner ")
        assert words in caught.value.sentence
        assert caught.value.fix == "mend it"
        with pytest.raises(RunnerFailed) as again:
            list(runner.run(trio(bundles)))
        assert again.value is not caught.value  # which would accumulate
        assert again.value.args == caught.value.args
        with pytest.raises(RunnerFailed):
            runner.run_one(job(bundles, "good"))


def test_the_last_words_of_a_process_that_ended_before_it_was_asked() -> None:
    with selectors.DefaultSelector() as selector:
        command = Command("no_module", (sys.executable, "-S", str(FAULTY / "no_module.py")))
        process = RunnerProcess(command, Limits(), selector)
        os.waitid(os.P_PID, process._popen.pid, os.WEXITED | os.WNOWAIT)
        process.ask(b"{}\n", 20)
        assert isinstance(process.news(), Died)
        assert "No module named" in process.stderr()
        process.kill()


def test_a_program_that_the_system_cannot_start(tmp_path: Path) -> None:
    def failure(*argv: str, cwd: Path | None = None) -> RunnerFailed:
        with Pool(Command("exec", argv, cwd=cwd)) as runner, pytest.raises(RunnerFailed) as caught:
            runner.start()
        return caught.value

    def written(name: str, text: str, mode: int = 0o755) -> str:
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(mode)
        return str(tmp_path / name)

    assert str(failure("/no/such")) == "exec: the runner /no/such does not exist."
    assert "no-such-program is not found in PATH" in str(failure("no-such-program"))
    assert "is a folder, not a program" in str(failure(str(tmp_path)))
    assert "which is not a folder" in str(failure("true", cwd=tmp_path / "none"))
    assert "names an interpreter that does not exist: #!/no/such" in str(
        failure(written("script", "#!/no/such\n"))
    )
    assert "names no interpreter" in str(failure(written("text", "hello\n")))
    plain = failure(written("it's", "#!/bin/sh\n", 0o644))
    assert "is not executable" in str(plain)
    subprocess.run(["sh", "-c", str(plain.fix)], check=True)
    assert os.access(tmp_path / "it's", os.X_OK)
    assert "ended with status 0 before it described itself" in str(failure("true"))


def test_an_unavailable_target_keeps_no_process(bundles: Path) -> None:
    with pool("unavailable") as runner:
        answer = runner.start()
        assert isinstance(answer, UnavailableAnswer)
        assert (answer.reason, answer.fix) == ("there is no device", "pip install miniature")
        assert not living(os.environ[MARK])
        found = [outcome for _, outcome in runner.run(trio(bundles))]
        assert found == [Unavailable(reason="there is no device")] * 3
        assert runner.run_one(job(bundles, "good")) == Unavailable(reason="there is no device")


def until_failure(runner: Pool, jobs: list[Job]) -> tuple[dict[str, Outcome], RunnerFailed]:
    done = {}
    try:
        for case, outcome in runner.run(jobs):
            done[case.key] = outcome
    except RunnerFailed as failure:
        return done, failure
    raise AssertionError("it did not fail")


def test_a_device_that_is_lost(bundles: Path, tmp_path: Path) -> None:
    with pool("unavailable_later", env={"FAULT_MARK": str(tmp_path / "mark")}) as runner:
        done, failure = until_failure(runner, trio(bundles))
    assert "is no longer available: the device is lost" in str(failure)
    assert list(done) == ["good", "faulty"]
    assert isinstance(done["faulty"], InfrastructureFailure)
    assert done["faulty"].message == (
        "The runner died of SIGABRT. Whether it does so alone is not known: it could not be "
        "started again."
    )


def test_a_target_that_fails_repeatedly_is_abandoned(bundles: Path) -> None:
    order = ["faulty-1", "faulty-2", "good", "faulty-3", "faulty-4", "faulty-5", "faulty-6", "fine"]
    with pool("exits") as runner:
        done, failure = until_failure(runner, [job(bundles, key) for key in order])
        with pytest.raises(RunnerFailed):
            runner.run_one(job(bundles, "good"))
    assert "given up after 3 infrastructure failures in a row" in str(failure)
    assert "ended with status 0 during the case" in str(failure)
    assert failure.stderr == "bye\n"
    assert list(done) == order[:6]
    assert [key for key, outcome in done.items() if isinstance(outcome, Ran)] == ["good"]


def test_running_cases_finish_before_a_target_is_abandoned(bundles: Path) -> None:
    with pool("slow_and_broken", jobs=2, failures_in_a_row=1) as runner:
        done, _ = until_failure(runner, trio(bundles))
    assert [type(outcome) for outcome in done.values()] == [InfrastructureFailure, Ran]


def test_no_room_for_output_files(bundles: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/no/such/folder")
    with pool("correct") as runner, pytest.raises(RunnerFailed, match="no folder for output files"):
        runner.run_one(job(bundles, "good"))


# Shutdown

DRIVER = """
import sys
from conformance.harness.jobs import Job
from conformance.harness.pool import *
from conformance.harness.protocol import StepFiles
import conformance.harness.pool
argv, bundle = tuple(sys.argv[2:]), sys.argv[1]
with Pool(Command("x", argv), jobs=2) as pool:
    jobs = (Job(str(n), bundle, (StepFiles(files={}),)) for n in range(9))
    pool.start()
    print("started", flush=True)
    for _ in pool.run(jobs):
        print("done", flush=True)
"""


def driver(bundles: Path, name: str, bundle: str) -> subprocess.Popen[str]:
    """Another Python that runs jobs on ``name``; returns once they have started."""
    command = [sys.executable, "-c", DRIVER, str(bundles / bundle), sys.executable, "-S"]
    root = str(FAULTY.parent.parent)
    process = subprocess.Popen(
        [*command, str(FAULTY / f"{name}.py")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": root},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    return process


def gone(mark: str, seconds: float = 5) -> bool:
    """Whether all processes with ``mark`` end within ``seconds``."""
    until = time.monotonic() + seconds
    last_seen = time.monotonic()
    # A process that is being started has no environment for a moment, and is not seen.
    while time.monotonic() - last_seen < 0.2:
        if living(mark):
            last_seen = time.monotonic()
            if last_seen > until:
                return False
        time.sleep(0.02)
    return True


@linux
@pytest.mark.parametrize("delay", [0.0, 0.3])
def test_ctrl_c_leaves_nothing_behind(bundles: Path, delay: float) -> None:
    with driver(bundles, "hangs", "faulty") as process:
        time.sleep(delay)
        assert living(os.environ[MARK])
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == -signal.SIGINT
    assert not living(os.environ[MARK])


@linux
def test_runners_end_when_their_parent_is_killed(bundles: Path) -> None:
    with driver(bundles, "waits", "faulty") as process:
        process.kill()
        process.wait(10)
    assert gone(os.environ[MARK])
    for left in Path(os.environ[MARK]).iterdir():  # no process was left
        subprocess.run(["rm", "-r", left], check=True)


def test_a_runner_that_does_not_end_is_killed(bundles: Path) -> None:
    with pool("deaf") as runner:
        runner.start()
        begun = time.monotonic()
    assert time.monotonic() - begun < 3


@linux
def test_the_end_of_a_process_is_noticed_without_pidfd(
    bundles: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(pid: int, flags: int = 0) -> int:
        raise OSError("no pidfd here")

    monkeypatch.setattr("os.pidfd_open", missing)
    found = outcomes(pool("leaves_child"), trio(bundles))
    assert [type(outcome) for outcome in found.values()] == [Ran, Crashed, Ran]
    found = outcomes(pool("exits"), trio(bundles))
    assert isinstance(found["faulty"], InfrastructureFailure)


# Output files


def lying(lie: str, mark: Path | None = None, jobs: int = 1) -> Pool:
    """A pool of the runner that tells ``lie``, with the dtypes of the bundles here."""
    return pool("lies", jobs, {"LIE": lie, "FAULT_MARK": str(mark)})


def test_output_files_have_a_limit_together(bundles: Path) -> None:
    size = len((bundles / "good" / "test_data_set_0" / "output_0.pb").read_bytes())
    for limit, kind in ((2 * size, Ran), (2 * size - 1, InfrastructureFailure)):
        limited = replace(job(bundles, "good"), most_output_bytes=limit)
        with pool("correct") as runner:
            found = runner.run_one(limited)
        assert isinstance(found, kind)
        if isinstance(found, InfrastructureFailure):
            assert f"the output files have more than {limit} bytes" in found.message


def check_huge_files(bundles: Path) -> None:
    for lie in ("sparse", "three_gigabytes", "link_to_zeros", "fifo", "grows"):
        assert isinstance(outcomes(lying(lie), trio(bundles))["faulty"], InfrastructureFailure)


def test_a_huge_output_file_takes_neither_memory_nor_time(bundles: Path) -> None:
    begun = time.monotonic()
    assert growth_kib(check_huge_files, bundles) < 40 << 10
    assert time.monotonic() - begun < 20


# Descriptions


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        ("version_later", "version is 2.0, not 1.0"),
        ("device_later", "device is another, not none"),
        ("adapter_later", "adapter is another, not null"),
        ("dtypes_later", "dtypes is float32, int32, not float32, float16,"),
        ("provider_later", "execution_provider is null, not NoExecutionProvider"),
        ("name_later", "name is another, not null"),
        ("runtime_later", "runtime is another, not miniature"),
        ("features_later", "features is shared_buffer, not empty"),
        ("versions_later", "versions is driver 2, not empty"),
        ("threads_later", "threads is 2, not null"),
    ],
)
def test_a_restarted_runner_must_describe_itself_as_before(
    bundles: Path, tmp_path: Path, lie: str, words: str
) -> None:
    with lying(lie, tmp_path / "mark") as runner:
        done, failure = until_failure(runner, trio(bundles))
    assert f"the runner describes itself in another way than before: {words}" in str(failure)
    # The crash is not known to repeat, and nothing comes after it.
    assert [type(outcome) for outcome in done.values()] == [Ran, InfrastructureFailure]


def test_all_processes_must_describe_themselves_alike(bundles: Path) -> None:
    jobs = [job(bundles, f"faulty-{number}") for number in range(9)]
    with lying("version_of_each_process", jobs=2) as runner:
        done, failure = until_failure(runner, jobs)
        first = runner._answer
    assert isinstance(first, DescribedAnswer)
    assert "describes itself in another way than before: version is 1." in str(failure)
    assert f"not {first.version};" in str(failure)
    assert len(done) < 9
