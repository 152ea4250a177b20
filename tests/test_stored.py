"""Results files of any size, read in flat memory: as they are read as a whole."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from as_user import Gqa
from synthetic_runs import case, header, realistic, result, target

from conformance.results import store as module
from conformance.results.errors import ResultsError
from conformance.results.reader import read
from conformance.results.records import InfrastructureRecord
from conformance.results.store import stored
from conformance.results.table import Table, tabulate
from conformance.results.writer import Writer

NEW, OLD = "cpu@1.31.1", "cpu@1.26.0"
IDS = tuple(f"decode/one_token[seed={number}]" for number in range(5))


@pytest.fixture
def in_memory(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets how many records stay in memory."""
    return lambda number: monkeypatch.setattr(module, "MOST_IN_MEMORY", number)


def odd(path: Path, footer: bool = False) -> Path:
    """A file with all that can be odd: replaced and repeated results, and others that are missing.

    It has a case that is described twice, a target without results, and ends too early, or has a
    ``footer`` that counts something else.
    """
    targets = [target("tract@0.23.8"), target(OLD), target(NEW)]
    with Writer(path, header(targets, 9, 9)) as writer:
        for id in IDS[:-1]:
            writer.case(case(id))
        writer.case(case(IDS[0], why="Another one."))
        for judged in (
            result(IDS[2], NEW),
            result(IDS[0], NEW),
            result(IDS[0], NEW, "wrong"),
            result(IDS[0], NEW, "wrong", reason="It is as wrong, for another reason."),
            result(IDS[2], NEW),
            result(IDS[0], NEW),
            result(IDS[1], NEW),
            result(IDS[1], NEW, "wrong"),
            result(IDS[2], OLD, "wrong"),
            result(IDS[2], OLD),
            result(IDS[3], OLD, "wrong"),
            result(IDS[3], OLD),
            result(IDS[3], OLD, "crash"),
            result(IDS[4], OLD),
            result(IDS[4], "tract@0.23.9"),
        ):
            writer.result(judged)
        writer.infrastructure(InfrastructureRecord(target=NEW, case=IDS[4], message="It is gone."))
        if footer:
            writer.finish(True)
    if footer:
        path.write_text(re.sub(r'"(pass|wrong)":\d', r'"\1":9', path.read_text()))
    return path


def as_a_whole(path: Path, alone: Table) -> None:
    whole = tabulate([read(path)])
    assert dict(alone.cases) == whole.cases
    assert list(alone.cases) == list(whole.cases)
    assert dict(alone.results) == whole.results
    assert len(alone.results) == len(whole.results)
    assert alone.totals == whole.totals
    assert alone.problems == whole.problems
    assert alone.infrastructure == whole.infrastructure
    assert alone.instability == whole.instability
    assert [(c.label, c.target) for c in alone.columns] == [
        (c.label, c.target) for c in whole.columns
    ]


@pytest.mark.parametrize("number", [0, 1, 4, 999])
@pytest.mark.parametrize("write", [odd, partial(odd, footer=True), realistic])
def test_a_file_is_as_it_is_read_as_a_whole(
    tmp_path: Path,
    in_memory: Callable[[int], None],
    write: Callable[[Path], object],
    number: int,
) -> None:
    path = tmp_path / "run.jsonl"
    write(path)
    in_memory(number)
    with stored(path) as alone:
        as_a_whole(path, alone)
        assert not isinstance(alone.cases, dict) | isinstance(alone.results, dict)
    assert len(tabulate([read(path)]).results) > 4


def test_a_comparison_does_not_depend_on_the_memory(
    gqa: Gqa, tmp_path: Path, in_memory: Callable[[int], None]
) -> None:
    old, new = odd(tmp_path / "old.jsonl"), tmp_path / "new.jsonl"
    realistic(new)
    said = []
    for number in (0, 3, 999):
        in_memory(number)
        said.append(gqa("diff", str(old), str(new)))
    assert said[0] == said[1] == said[2]
    assert "decode/one_token" in said[0].out


def test_a_database_without_room_gives_one_sentence(
    gqa: Gqa,
    tmp_path: Path,
    in_memory: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = odd(tmp_path / "run.jsonl")
    in_memory(0)
    monkeypatch.setattr(module, "_TABLES", f"PRAGMA max_page_count = 4; {module._TABLES}")
    done = gqa("diff", str(path), str(path))
    assert done.status == 3
    assert done.err == (
        f"Cannot compare {path} and {path}: database or disk is full, in the folder for temporary"
        " files; TMPDIR can name another one.\n"
    )


def test_only_large_files_need_a_database(
    tmp_path: Path, in_memory: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = odd(tmp_path / "run.jsonl")
    monkeypatch.setitem(sys.modules, "sqlite3", None)
    with stored(path) as alone:
        as_a_whole(path, alone)
    in_memory(3)
    with pytest.raises(ResultsError, match="without SQLite"), stored(path):
        pass
