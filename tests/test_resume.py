"""``gqa run --resume``: a run that was cut off goes on, and ends as if it had run through."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from as_user import Desk, Done, Gqa, wait_for
from case_files import entries, write

from conformance.results.reader import Run, read

#: Twenty cases.
TWENTY = entries(
    """
    - name: many
      matrix:
        sequence_length: [1, 2]
        seed: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    """
)


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory, shared_cache: Path) -> Desk:
    made = Desk(tmp_path_factory.mktemp("desk"), shared_cache)
    write(made.folder, TWENTY, "twenty.yaml")
    return made


@pytest.fixture
def whole(gqa: Gqa, tmp_path: Path) -> list[bytes]:
    """The lines of a run that was not cut off."""
    file = tmp_path / "whole.jsonl"
    assert gqa("run", "twenty.yaml", "--results", str(file)).status == 0
    return file.read_bytes().splitlines(keepends=True)


def judged(run: Run) -> dict[tuple[str, str], Any]:
    return {(r.case, r.target): (r.verdict, r.errors, r.reproduce) for r in run.results}


def no_other_files(file: Path) -> bool:
    return [each.name for each in file.parent.glob(f"{file.name}*")] == [file.name]


@pytest.mark.parametrize("lines", [1, 2, 3, 4, 17, 40, 41, 42])
@pytest.mark.parametrize("broken", [b"", b'{"kind":"result","case":"twe'])
def test_a_run_goes_on_where_it_was_cut_off(
    gqa: Gqa, tmp_path: Path, whole: list[bytes], lines: int, broken: bytes
) -> None:
    file = tmp_path / "r.jsonl"
    file.write_bytes(b"".join(whole[:lines]) + (broken if lines < len(whole) else b""))
    there = read(file)
    done = gqa("run", "twenty.yaml", "--resume", str(file))
    assert done.status == 0, done.both
    assert f"{len(there.results)} result" in done.out
    assert "20 results, 0 unexpected" in done.out
    run = read(file)
    assert run.problems == ()
    assert run.footer is not None
    assert run.footer.complete
    assert run.header == there.header
    (tmp_path / "all.jsonl").write_bytes(b"".join(whole))
    assert judged(run) == judged(read(tmp_path / "all.jsonl"))
    assert run.results[: len(there.results)] == there.results  # kept, not run again
    assert no_other_files(file)


@pytest.mark.slow
def test_a_run_that_was_killed_goes_on(desk: Desk, tmp_path: Path) -> None:
    file = tmp_path / "r.jsonl"
    arguments = ["run", "twenty.yaml", "--resume", str(file)]
    process = desk.start("gqa", *arguments, start_new_session=True)
    wait_for(lambda: file.exists() and file.read_bytes().count(b"\n") > 4)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    done: Done = desk.gqa(*arguments)
    assert done.status == 0, done.both
    assert "20 results, 0 unexpected" in done.out
    assert read(file).problems == ()
    assert no_other_files(file)


def test_a_file_that_is_not_there_is_begun(gqa: Gqa, tmp_path: Path) -> None:
    for name in ("new.jsonl", "empty.jsonl"):
        file = tmp_path / name
        if name == "empty.jsonl":
            file.touch()
        assert gqa("run", "three.yaml", "--resume", str(file)).status == 0
        assert read(file).problems == ()


def test_a_shard_goes_on(gqa: Gqa, tmp_path: Path) -> None:
    file = tmp_path / "r.jsonl"
    arguments = ["run", "twenty.yaml", "--shard", "2/3", "--resume", str(file)]
    assert gqa(*arguments).status == 0
    before = read(file)
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:5]))
    assert gqa(*arguments).status == 0
    after = read(file)
    assert after.problems == ()
    assert after.header == before.header
    assert judged(after) == judged(before)
    done = gqa(*arguments[:3], "1/3", *arguments[4:])
    assert done.status == 2
    assert "Repeat the command of that run." in done.err


def test_what_failed_for_the_infrastructure_runs_again(
    gqa: Gqa, tmp_path: Path, whole: list[bytes]
) -> None:
    file = tmp_path / "r.jsonl"
    first = json.loads(whole[2])
    trouble = {
        "kind": "infrastructure",
        "target": first["target"],
        "case": first["case"],
        "message": "The disk was full.",
    }
    file.write_bytes(b"".join(whole[:2]) + json.dumps(trouble).encode() + b"\n")
    done = gqa("run", "twenty.yaml", "--resume", str(file))
    assert done.status == 0, done.both
    assert read(file).infrastructure == ()
    assert read(file).problems == ()


def refused(done: Done, file: Path, content: bytes) -> str:
    assert done.status == 2, done.both
    assert done.err.count("\n") == 1
    assert file.read_bytes() == content  # nothing is lost
    assert no_other_files(file)
    return done.err


def test_another_run_is_refused(gqa: Gqa, tmp_path: Path, whole: list[bytes]) -> None:
    file = tmp_path / "r.jsonl"
    part = b"".join(whole[:9])
    file.write_bytes(part)
    err = refused(gqa("run", "three.yaml", "--resume", str(file)), file, part)
    assert "which these arguments do not select. Repeat the command" in err
    fewer = gqa("run", "twenty.yaml", "-k", "many", "--ep", "cpu-noflash", "--resume", str(file))
    assert "the target is cpu-noflash@" in refused(fewer, file, part)
    both = gqa("run", "twenty.yaml", "--ep", "cpu", "--ep", "cpu-noflash", "--resume", str(file))
    assert "it has 1 targets" in refused(both, file, part)
    for field, value, says in (
        ("suite", "0.0.1", "the suite is "),
        ("corpus", "0123456789abcdef", "the corpus is "),
    ):
        header = json.dumps({**json.loads(whole[0]), field: value}).encode() + b"\n"
        other = header + b"".join(whole[1:9])
        file.write_bytes(other)
        assert says in refused(gqa("run", "twenty.yaml", "--resume", str(file)), file, other)


def test_a_newer_release_under_the_same_name_is_refused(
    gqa: Gqa, tmp_path: Path, whole: list[bytes]
) -> None:
    header = json.loads(whole[0])
    header["targets"][0]["describe"]["versions"]["numpy"] = "1.0.0"
    header["targets"][0]["describe"]["device"] = "another machine"
    part = json.dumps(header).encode() + b"\n" + b"".join(whole[1:9])
    file = tmp_path / "r.jsonl"
    file.write_bytes(part)
    err = refused(gqa("run", "twenty.yaml", "--resume", str(file)), file, part)
    assert "is another target: its version of numpy is" in err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--results", "other.jsonl"], "leave out --results"),
        (["--lf"], "--lf"),
    ],
)
def test_options_that_contradict_it(gqa: Gqa, arguments: list[str], says: str) -> None:
    done = gqa("run", "three.yaml", "--resume", "r.jsonl", *arguments)
    assert (done.status, says in done.err) == (2, True)


def test_a_file_that_no_run_can_go_on_in(gqa: Gqa, tmp_path: Path) -> None:
    (tmp_path / "r").write_text("something else\n")
    done = gqa("run", "three.yaml", "--resume", str(tmp_path / "r"))
    assert done.status == 2
    assert "not a record of a results file" in done.err or "not a line of JSON" in done.err
    done = gqa("run", "three.yaml", "--resume", "r.jsonl.xz")
    assert (done.status, "packed" in done.err) == (2, True)
