"""Full disks, runs that are killed, and two runs at once: no results are lost."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from as_user import Desk, Done, Gqa, wait_for
from case_files import entries, write
from endings import check_ending
from synthetic_runs import case, realistic, result
from synthetic_runs import write as write_results
from tables import tables

from conformance.cli.report import FORMS
from conformance.results.reader import read

TABLES = tables(__file__)

#: Of each test README's command runs one example, see support/tiers.py.
ONE_EXAMPLE = True

SLOW = entries(
    """
    - name: slow
      time_limit_seconds: 120
      matrix:
        seed: [1, 2, 3, 4, 5, 6]
    """
)


@pytest.fixture
def desk(tmp_path: Path, shared_cache: Path) -> Desk:
    """A folder of its own, with results in ``keep.jsonl`` and a case file for `held_run`."""
    made = Desk(tmp_path, shared_cache)
    write(tmp_path, SLOW, "slow.yaml")
    write_results(tmp_path / "keep.jsonl", [case()], [result()])
    return made


@pytest.fixture
def before(desk: Desk) -> bytes:
    """The earlier results."""
    return (desk.folder / "keep.jsonl").read_bytes()


def allow(desk: Desk, results: int) -> None:
    """Let `held_run` have so many results."""
    (desk.folder / "gate").write_bytes(b"." * results)


def held_run(desk: Desk, results: str = "--results=keep.jsonl") -> subprocess.Popen[str]:
    """A run of six cases, which waits for `allow` before each result."""
    allow(desk, 0)
    desk.runner("waits")
    command = ("run", "slow.yaml", "--ep", "exec:programs/waits", results)
    return desk.start(
        *(sys.executable, "-P", "-m", "conformance", *command),
        environment={"FAULT_ON": "/", "FAULT_GATE": str(desk.folder / "gate")},
    )


def ended(process: subprocess.Popen[str]) -> Done:
    out, err = process.communicate(timeout=60)
    done = Done(process.returncode, out, err)
    check_ending(done)
    return done


def has_begun(desk: Desk) -> bool:
    """Whether `held_run` has locked its results file and written its header."""
    file = desk.folder / "keep.jsonl.part"
    return file.exists() and file.read_bytes().endswith(b"\n")


def has_results(desk: Desk, number: int) -> bool:
    file = desk.folder / "keep.jsonl.part"
    return file.exists() and file.read_bytes().count(b"slow/slow[seed=") >= 2 * number


def sentence(done: Done) -> str:
    """The only line of what the command said."""
    check_ending(done)
    (line,) = done.both.splitlines()
    return line


def names(desk: Desk) -> set[str]:
    """Files of results, and what a command left beside them."""
    return {name for name in os.listdir(desk.folder) if "keep" in name or name.startswith(".")}


def complete_run(desk: Desk, results: str = "keep.jsonl") -> tuple[str, ...]:
    return ("run", "three.yaml", "--ep", desk.runner("correct"), "--results", results)


# Earlier results


def test_a_run_without_a_result_keeps_the_earlier_ones(desk: Desk, gqa: Gqa, before: bytes) -> None:
    command = ("run", "three.yaml", "--ep", "exec:./gone", "--html", "x.html")
    done = gqa(*command, "--results", "keep.jsonl")
    check_ending(done)
    assert (desk.folder / "keep.jsonl").read_bytes() == before
    assert names(desk) == {"keep.jsonl"}
    assert done.status == 3
    assert "Results: none; keep.jsonl keeps those from before." in done.out.splitlines()
    assert (desk.folder / "x.html").exists()


def test_a_complete_run_replaces_the_earlier_results(desk: Desk, gqa: Gqa) -> None:
    (desk.folder / "keep.jsonl").chmod(0o640)
    done = gqa(*complete_run(desk))
    assert (done.status, done.out.splitlines()[-1]) == (0, "Results: keep.jsonl")
    assert len(read(desk.folder / "keep.jsonl").results) == 3
    assert (desk.folder / "keep.jsonl").stat().st_mode & 0o777 == 0o640
    assert names(desk) == {"keep.jsonl"}


def test_a_killed_run_leaves_its_results_and_the_earlier_ones(desk: Desk, before: bytes) -> None:
    process = held_run(desk)
    allow(desk, 2)
    wait_for(lambda: has_results(desk, 2))
    process.kill()
    process.communicate(timeout=60)
    assert (desk.folder / "keep.jsonl").read_bytes() == before
    run = read(desk.folder / "keep.jsonl.part")
    assert "4 of 6 results are missing." in run.problems
    assert "It has no footer: the run was cut short." in run.problems
    # It can go on there.
    process = held_run(desk, "--resume=keep.jsonl.part")
    allow(desk, 6)
    assert ended(process).status == 0
    assert len(read(desk.folder / "keep.jsonl.part").results) == 6
    assert (desk.folder / "keep.jsonl").read_bytes() == before


@pytest.mark.push
def test_a_run_stopped_before_its_first_result_changes_nothing(desk: Desk, before: bytes) -> None:
    for number in (signal.SIGINT, signal.SIGKILL):
        process = held_run(desk)
        wait_for(lambda: has_begun(desk))
        process.send_signal(number)
        out, _ = process.communicate(timeout=60)
        if number == signal.SIGINT:
            assert out.splitlines()[-1] == "Results: none; keep.jsonl keeps those from before."
            assert (process.returncode, names(desk)) == (130, {"keep.jsonl"})
    assert (desk.folder / "keep.jsonl").read_bytes() == before
    # What it left is in nobody's way.
    assert desk.gqa(*complete_run(desk)).status == 0
    assert names(desk) == {"keep.jsonl"}


PART = "Results: keep.jsonl.part, of a run that is not whole; keep.jsonl keeps those from before."


def test_a_runner_given_up_keeps_the_earlier_results(desk: Desk, gqa: Gqa, before: bytes) -> None:
    """A run whose runner is given up keeps the earlier results."""
    done = gqa(*complete_run(desk), "--ep", "exec:./gone")
    assert (done.status, done.out.splitlines()[-1]) == (3, PART)
    run = read(desk.folder / "keep.jsonl.part")
    assert not run.footer.complete
    assert (desk.folder / "keep.jsonl").read_bytes() == before


@pytest.mark.push
def test_stopped_runs_leave_earlier_results_until_one_is_whole(desk: Desk, before: bytes) -> None:
    for number in (2, 1):
        process = held_run(desk)
        allow(desk, number)
        wait_for(partial(has_results, desk, number))
        process.send_signal(signal.SIGINT)
        assert ended(process).out.splitlines()[-1] == PART
        part = desk.folder / "keep.jsonl.part"
        assert len(read(part).results) == number
        part.write_text(part.read_text().replace("slow/slow", "old/old"))
        assert (desk.folder / "keep.jsonl").read_bytes() == before
    assert desk.gqa(*complete_run(desk)).status == 0
    assert names(desk) == {"keep.jsonl"}


# Two runs


def test_a_second_run_into_one_file_is_refused_at_once(desk: Desk, gqa: Gqa) -> None:
    first = held_run(desk)
    wait_for(lambda: has_begun(desk))
    for number in (0, 1):
        allow(desk, number)
        wait_for(lambda number=number: has_results(desk, number))
        done = gqa(*complete_run(desk))
        assert done.status == 3
        says = "Another run is writing results to keep.jsonl; name another file."
        assert sentence(done) == says
    first.send_signal(signal.SIGINT)
    assert ended(first).status == 130
    assert len(read(desk.folder / "keep.jsonl.part").results) == 1


# Full disks


@pytest.fixture
def small_disk(desk: Desk) -> Iterator[Path]:
    """A disk of 256 KiB."""
    folder = desk.folder / "disk"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "none", folder], capture_output=True
    )
    if made.returncode:
        pytest.skip("only root can mount a disk")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.parametrize("form", [form.option for form in FORMS if not form.folder])
def test_a_full_disk_keeps_the_old_file(desk: Desk, gqa: Gqa, small_disk: Path, form: str) -> None:
    realistic(desk.folder / "many.jsonl")
    old = small_disk / "out"
    old.write_text("the old report\n")
    (small_disk / "rest").write_bytes(b"x" * (256 * 1024 - 4096))
    done = gqa("report", "many.jsonl", f"--{form}", "disk/out")
    assert done.status == 3
    assert sentence(done).endswith(" to disk/out: No space left on device.")
    assert old.read_text() == "the old report\n"
    assert sorted(os.listdir(small_disk)) == ["out", "rest"]


@pytest.mark.parametrize("size", [2_500, pytest.param(20_000, marks=pytest.mark.night)])
def test_a_limit_on_the_size_of_files(desk: Desk, before: bytes, size: int) -> None:
    """Without root: the system refuses to write files beyond ``size``."""
    desk.gqa("run", "three.yaml", "--ep", desk.runner("correct"))  # fills the cache
    process = desk.start(
        *(sys.executable, "-P", "-m", "conformance", *complete_run(desk), "--html", "keep.html"),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)),
    )
    done = ended(process)
    assert done.status == 3
    if "Cannot write results" in done.both:
        assert (desk.folder / "keep.jsonl").read_bytes() == before
    else:  # the page alone was too large
        assert read(desk.folder / "keep.jsonl").problems == ()
    assert not (desk.folder / "keep.html").exists()


# An output that is an input or another output


@pytest.mark.parametrize("arguments", TABLES["overwriting"])
def test_an_output_that_is_in_use_is_refused(desk: Desk, gqa: Gqa, arguments: str) -> None:
    """An output that is read or written already is refused."""
    desk.runner("correct")
    shutil.copy(desk.folder / "keep.jsonl", desk.folder / "other.jsonl")
    shutil.copy(desk.folder / "keep.jsonl", desk.folder / "report.html")
    (desk.folder / "link.jsonl").symlink_to("keep.jsonl")
    before = {path: path.read_bytes() for path in desk.folder.rglob("*") if path.is_file()}
    done = gqa(*arguments.split())
    assert done.status == 2
    assert " would overwrite " in sentence(done) or " name one file, " in done.err
    assert {p: p.read_bytes() for p in desk.folder.rglob("*") if p.is_file()} == before


@pytest.mark.push
def test_pipes_of_the_shell_work(desk: Desk) -> None:
    """What a shell passes for ``<(…)`` and ``>(…)``, and its redirections."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not installed")
    for command, said in (
        ("cat keep.jsonl | gqa report /dev/stdin --csv >(wc -l) --json /dev/null", "2"),
        ("gqa diff <(cat keep.jsonl) /dev/stdin < keep.jsonl --markdown m", "Markdown: m"),
        ("echo old > log; gqa report keep.jsonl --csv /dev/stdout >> log; cat log", "old"),
    ):
        done = desk.run(bash, "-c", f"{command}; wait; sleep 0.1")
        assert done.err == "", (command, done.err)
        assert said in [line.strip() for line in done.out.splitlines()], (command, done.out)
