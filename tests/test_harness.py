"""Tests the harness with faulty runners (tests/faulty)."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from spoken_runner import files_in

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
from conformance.harness.protocol import DescribedAnswer, StepFiles, UnavailableAnswer
from conformance.harness.runner import (
    Command,
    Limits,
    RunnerFailed,
    default_memory_bytes,
)
from conformance.harness.session import FAILED_TWICE, Session, _last_words

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


def pool(name: str, env: dict[str, str] | None = None, **limits: Any) -> Session:
    """A session with the miniature ``name``, a file or a lie; without `site`, which is slow."""
    file = FAULTY / f"{name}.py"
    argv = (sys.executable, "-S", str(file if file.exists() else FAULTY / "lies.py"))
    limits = {"case_seconds": 20, "start_seconds": 20, **limits}
    command = Command(name, argv, {"LIE": name, **(env or {})}, fix="mend it")
    return Session(command, Limits(**limits))


def job(bundles: Path, key: str, seconds: float | None = None) -> Job:
    """A job on the bundle whose key starts with ``key``."""
    return case_of(bundles, key.split("-")[0], seconds=seconds, key=key)


def case_of(
    bundles: Path,
    name: str,
    steps: tuple[StepFiles, ...] = (STEP,),
    *,
    seconds: float | None = None,
    key: str = "",
) -> Job:
    """A job with the files of a bundle."""
    return Job(key or name, files_in(bundles / name), steps, seconds=seconds, folder=name)


def trio(bundles: Path, seconds: float | None = None) -> list[Job]:
    """A job, the faulty one (the only one with ``seconds``), and another."""
    return [job(bundles, "good"), job(bundles, "faulty", seconds), job(bundles, "fine")]


def run_all(runner: Session, jobs: Iterable[Job]) -> Iterator[tuple[Job, Outcome]]:
    return ((job, runner.run(job)) for job in jobs)


def outcomes(runner: Session, jobs: list[Job]) -> dict[str, Outcome]:
    with runner:
        found = [(each.case, outcome) for each, outcome in run_all(runner, jobs)]
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


def test_a_case_that_ran_comes_with_its_files(bundles: Path) -> None:
    with pool("correct") as runner:
        for case, outcome in run_all(runner, [job(bundles, "good")]):
            assert isinstance(outcome, Ran)
            assert case.case == "good"
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


def test_an_interrupt_while_a_session_is_closed_leaves_nothing(
    bundles: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = pool("correct")
    runner.run(job(bundles, "good"))
    assert runner._folder is not None
    path = Path(runner._folder.path)
    assert path.is_dir()
    renew = Session.renew

    def interrupted(session: Session) -> None:
        interrupts.interrupt()
        renew(session)

    monkeypatch.setattr(Session, "renew", interrupted)
    with pytest.raises(KeyboardInterrupt):
        runner.close()
    assert not path.exists()


def test_a_request_larger_than_a_pipe(bundles: Path) -> None:
    files = {f"input_{number}": "test_data_set_0/input_0.pb" for number in range(20_000)}
    large = case_of(bundles, "good", (StepFiles(files=files),))
    with pool("correct") as runner:
        assert isinstance(runner.run(large), Ran)


# Failures in a case


@pytest.mark.parametrize(
    ("name", "env", "words"),
    [
        ("exits", {"FAULT_STATUS": "1"}, "ended with status 1 during the case"),
        ("exits", {"FAULT_STATUS": "143"}, "died of SIGTERM during the case"),
        ("floods_lines", {}, "step 0: everything is going very well indeed"),
        ("half_line", {"FAULT_STATUS": "0"}, 'status 0 during the case, after the start'),
        ("not_json", {}, r"{'id': 3, 'outcome': 'ran'} ⟨U+001B⟩[31m"),
        ("answers_twice", {}, "wrote more than one line"),
        ("wrong_type", {}, 'ms.load is "0.25"'),
        ("wrong_count", {}, "1 runs where 2 were requested"),
        ("no_placement", {}, "NoExecutionProvider was requested, and the answer has no placement"),
        ("one_file", {}, "names the file 0_0_output.pb twice"),
        ("file_with_slash", {}, 'output is "../1/0_0_output.pb": string should match'),
        ("links", {}, "the file 0_0_output.pb of output cannot be read: "),
        ("closes_stdout", {}, "closed its standard output and did not end"),
        ("compiles", {"FAULT_TIMES": "2"}, "compiling"),
        (
            "compiles_twice_at_once",
            {},
            'wrote more than one line: {"id": 3, "outcome": "compiling"}, then {"id": 3, "outcome"',
        ),
        ("compiles_after_its_answer", {}, 'then {"id": 3, "outcome": "compiling"}'),
        ("compiles_another", {}, "it says that it is compiling for id 13 where 3 was sent"),
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


ILLEGAL = "CUDA failure 700: an illegal memory access was encountered"


@pytest.mark.parametrize(
    ("name", "env", "fields"),
    [
        (
            "rejects",
            {},
            {
                **{"stage": "load", "step": 0, "code": "INVALID", "message": "query has rank 2"},
                **{"changed": ("past_key",), "stderr": "E: bad shape\n"},
            },
        ),
        ("skips", {}, {"reason": "this adapter has no float16"}),
        ("compiles_at_once", {}, {"reason": "this adapter has no float16"}),
        (
            "dies",
            {},
            {
                "signal": "SIGSEGV",
                "stderr": "reading past the end\n",
                "message": "The runner died of SIGSEGV, and again when it was tried alone; "
                "the last it wrote: reading past the end.",
            },
        ),
        (
            "gives_up",
            {},
            {
                "signal": "SIGABRT",
                "message": "The runner died of SIGABRT, and again when it was tried alone; "
                "the last it wrote: Aborted(memory access out of bounds).",
            },
        ),
        ("exits", {"FAULT_STATUS": "139"}, {"signal": "SIGSEGV"}),
        (
            "exits",
            {"FAULT_STATUS": "137"},
            {
                "signal": "SIGKILL",
                "message": "The runner died of SIGKILL (the system may have been out of memory), "
                "and again when it was tried alone; the last it wrote: bye.",
            },
        ),
        (
            "poisons_its_context",
            {},
            {
                "signal": "cudaErrorIllegalAddress",
                "before": None,
                "message": f"The call ended in cudaErrorIllegalAddress: {ILLEGAL} {FAILED_TWICE}",
            },
        ),
        (
            "poisons_its_context",
            {"FAULT_STICKY": "rejected"},
            {"message": ILLEGAL, "stderr": f"{FAILED_TWICE}\n", "before": None},
        ),
        ("leaves_child", {}, {"signal": "SIGABRT"}),
        ("dies_at_length", {}, {"signal": "SIGABRT"}),
        ("short_file", {}, {"unrepeated": None}),
        ("other_dtype", {}, {"unrepeated": None}),
    ],
)
def test_what_a_runner_does_is_the_outcome_of_its_case_alone(
    bundles: Path, name: str, env: dict[str, str], fields: dict[str, Any]
) -> None:
    begun = time.monotonic()
    found = outcomes(pool(name, env=env), trio(bundles))
    assert {field: getattr(found["faulty"], field, None) for field in fields} == fields
    for key in ("good", "fine"):
        assert isinstance(found[key], Ran)
        assert found[key].stderr == ""
    assert time.monotonic() - begun < 10


def test_a_compiling_runner_gets_more_time(bundles: Path) -> None:
    slow = {"FAULT_SECONDS": "0.8"}
    with pool("compiles", env=slow, compile_seconds=20) as runner:
        jobs = [*trio(bundles, seconds=0.5), job(bundles, "faulty-2", seconds=0.5)]
        found = {case.case: outcome for case, outcome in run_all(runner, jobs)}
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


PANIC = "thread 'main' (7) panicked at dim.rs:1:2:\nattempt to divide by zero\n"
BACKTRACE = "stack backtrace:\n   0: rust_begin_unwind\n"


@pytest.mark.parametrize(
    ("stderr", "words"),
    [
        ("", ""),
        ("one\ntwo.\n\n", "; the last it wrote: two"),
        ("\x1b[31mred", "; the last it wrote: red"),
        ("x" * 500, f"; the last it wrote: {'x' * 299}…"),
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


def test_a_process_is_replaced_where_that_is_asked_for(bundles: Path) -> None:
    with pool("correct") as runner:
        for key in ("good", "faulty"):
            assert runner.run(job(bundles, key)).before is None
            runner.renew()
        found = [outcome.before for _, outcome in run_all(runner, trio(bundles))]
    assert [before and before.case for before in found] == [None, "good", "faulty"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("dies_while_idle", "died of SIGSEGV before it was given the case"),
        ("one_shot", "ended with status 0 before it was given the case"),
        ("speaks_unasked", "by the way"),
        ("compiles_afterwards", "compiling"),
    ],
)
def test_what_a_runner_does_between_two_cases_does_not_count_for_the_next(
    bundles: Path, name: str, words: str
) -> None:
    with pool(name) as runner:
        assert isinstance(runner.run(job(bundles, "faulty")), Ran)
        time.sleep(0.2)
        after = runner.run(job(bundles, "good"))
        assert isinstance(after, Ran)
        assert words in after.stderr
        assert "(the case before in this process: faulty)" in after.stderr
        assert (after.unrepeated is not None) == (name == "dies_while_idle")
        assert isinstance(runner.run(job(bundles, "fine")), Ran)


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


def test_half_an_answer_and_then_silence_is_the_runners_error(bundles: Path) -> None:
    found = outcomes(pool("half_line"), trio(bundles, seconds=0.3))
    assert isinstance(found["faulty"], InfrastructureFailure)
    assert 'did not end it in time: {"id": ' in found["faulty"].message
    assert isinstance(found["fine"], Ran)


def test_a_runner_that_does_not_read_its_input(bundles: Path) -> None:
    files = {f"input_{number}": "test_data_set_0/input_0.pb" for number in range(20_000)}
    large = case_of(bundles, "good", (StepFiles(files=files),), seconds=0.3)
    with pool("deaf") as runner:
        found = runner.run(large)
        assert isinstance(found, InfrastructureFailure)
        assert "did not read its request" in found.message
        # A request that fits into the pipe looks like a hang.
        assert isinstance(runner.run(job(bundles, "good", seconds=0.3)), TimedOut)


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
    assert isinstance(outcomes(pool("floods_when_idle"), trio(bundles)[:2])["good"], Ran)


def test_floods_take_neither_memory_nor_time(bundles: Path) -> None:
    assert growth_kib(check_floods, bundles) < 30 << 10


def test_leftover_files_are_removed(bundles: Path) -> None:
    found = outcomes(pool("leaves_litter"), trio(bundles))
    assert isinstance(found["faulty"], Crashed)


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
        ("compiles_at_start", "'compiling' found using 'outcome'"),
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
            list(run_all(runner, trio(bundles)))
        assert again.value is not caught.value  # which would accumulate
        assert again.value.args == caught.value.args
        with pytest.raises(RunnerFailed):
            runner.run(job(bundles, "good"))


def test_a_program_that_the_system_cannot_start(tmp_path: Path) -> None:
    def failure(*argv: str) -> RunnerFailed:
        with Session(Command("exec", argv)) as runner, pytest.raises(RunnerFailed) as caught:
            runner.start()
        return caught.value

    def written(name: str, text: str, mode: int = 0o755) -> str:
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(mode)
        return str(tmp_path / name)

    assert "/no/such cannot be started: No such file or directory" in str(failure("/no/such"))
    assert "the interpreter that its first line names does not exist" in str(
        failure(written("script", "#!/no/such\n"))
    )
    assert "cannot be started: Exec format error" in str(failure(written("text", "hello\n")))
    plain = failure(written("it's", "#!/bin/sh\n", 0o644))
    assert "cannot be started: Permission denied" in str(plain)
    subprocess.run(["sh", "-c", str(plain.fix)], check=True)
    assert os.access(tmp_path / "it's", os.X_OK)
    assert "ended with status 0 before it described itself" in str(failure("true"))


def test_an_unavailable_target_keeps_no_process(bundles: Path) -> None:
    with pool("unavailable") as runner:
        answer = runner.start()
        assert isinstance(answer, UnavailableAnswer)
        assert (answer.reason, answer.fix) == ("there is no device", "pip install miniature")
        assert not living(os.environ[MARK])
        found = [outcome for _, outcome in run_all(runner, trio(bundles))]
        assert found == [Unavailable(reason="there is no device")] * 3
        assert runner.run(job(bundles, "good")) == Unavailable(reason="there is no device")


def until_failure(runner: Session, jobs: list[Job]) -> tuple[dict[str, Outcome], RunnerFailed]:
    done = {}
    try:
        for case, outcome in run_all(runner, jobs):
            done[case.case] = outcome
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
            runner.run(job(bundles, "good"))
    assert "given up after 3 infrastructure failures in a row" in str(failure)
    assert "ended with status 0 during the case" in str(failure)
    assert list(done) == order[:6]
    assert [key for key, outcome in done.items() if isinstance(outcome, Ran)] == ["good"]


def test_no_room_for_output_files(bundles: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/no/such/folder")
    with (
        pool("correct") as runner,
        pytest.raises(RunnerFailed, match="the files of a case cannot be written"),
    ):
        runner.run(job(bundles, "good"))


# Shutdown


def test_a_runner_that_does_not_end_is_killed(bundles: Path) -> None:
    with pool("deaf") as runner:
        runner.start()
        begun = time.monotonic()
    assert time.monotonic() - begun < 3


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


def check_huge_files(bundles: Path) -> None:
    for lie in ("sparse", "three_gigabytes", "link_to_zeros", "fifo", "grows"):
        assert isinstance(outcomes(pool(lie), trio(bundles))["faulty"], InfrastructureFailure)


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
        ("adapter_later", "adapter is another, not None"),
        ("dtypes_later", "dtypes is ('float32', 'int32'), not ('float32', 'float16',"),
        ("provider_later", "execution_provider is None, not NoExecutionProvider"),
        ("name_later", "name is another, not None"),
        ("runtime_later", "runtime is another, not miniature"),
        ("features_later", "features is ('shared_buffer',), not ()"),
        ("versions_later", "versions is {'driver': '2'}, not {}"),
        ("threads_later", "threads is 2, not None"),
    ],
)
def test_a_restarted_runner_must_describe_itself_as_before(
    bundles: Path, tmp_path: Path, lie: str, words: str
) -> None:
    with pool(lie, env={"FAULT_MARK": str(tmp_path / "mark")}) as runner:
        done, failure = until_failure(runner, trio(bundles))
    assert f"the runner describes itself in another way than before: {words}" in str(failure)
    # The crash is not known to repeat, and nothing comes after it.
    assert [type(outcome) for outcome in done.values()] == [Ran, InfrastructureFailure]


def test_all_processes_must_describe_themselves_alike(bundles: Path) -> None:
    with pool("version_of_each_process") as runner:
        first = runner.start()
        runner.renew()
        _, failure = until_failure(runner, [job(bundles, "good")])
    assert isinstance(first, DescribedAnswer)
    assert "describes itself in another way than before: version is 1." in str(failure)
    assert f"not {first.version};" in str(failure)
