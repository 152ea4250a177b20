"""The cases of a large file are read once, and again when anything has changed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from case_files import HEAD

from conformance.base import kept as module
from conformance.base.kept import LARGE, is_kept
from conformance.base.paths import CACHE_VARIABLE, cache_root, data_path
from conformance.case import kept_cases as kept_cases_module
from conformance.case.case import Case
from conformance.case.kept_cases import keep_cases, kept_cases
from conformance.case.load import read_file
from conformance.judge.expectations import load_expectations

ENTRY = "  - name: {}\n    sequence_length: 3\n"


class Reader:
    """Reads files, and counts them."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, file: Path) -> list[Case]:
        self.count += 1
        return read_file(file)


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    file = tmp_path / "large.yaml"
    file.write_text(HEAD + ENTRY.format("first") + "#" * LARGE)
    return file


def _kept() -> list[Path]:
    return sorted((cache_root() / "kept").glob("*"))


def test_a_file_is_read_once(large: Path) -> None:
    read = Reader()
    first = kept_cases(large, read)
    again = kept_cases(large, read)
    assert read.count == 1
    assert [case.id for case in first] == ["large/first"]
    assert again == first
    assert again[0] is not first[0]


@pytest.mark.parametrize("whose", ["cache/kept", "cache/kept/*.pickle"])
def test_what_another_user_can_write_is_not_used(large: Path, whose: str) -> None:
    """A pickle is code."""
    read = Reader()
    kept_cases(large, read)
    (place,) = large.parent.glob(whose)
    before = place.stat().st_mode
    assert not before & 0o077
    place.chmod(before | 0o020)
    assert not is_kept(large, read, ("base", "case"))
    kept_cases(large, read)
    assert read.count == 2
    kept_cases(large, read)  # which is this user's alone again
    assert (read.count, place.stat().st_mode) == (2, before)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("whose", ["cache/kept", "cache/kept/*.pickle"])
def test_what_another_user_owns_is_not_used(large: Path, whose: str) -> None:
    read = Reader()
    kept_cases(large, read)
    (place,) = large.parent.glob(whose)
    os.chown(place, 65534, 65534)
    kept_cases(large, read)
    assert read.count == 2


def test_a_changed_file_is_read_again_and_takes_no_more_room(large: Path) -> None:
    read = Reader()
    kept_cases(large, read)
    large.write_text(HEAD + ENTRY.format("second") + "#" * LARGE)
    assert kept_cases(large, read)[0].name == "second"
    assert read.count == 2
    assert len(_kept()) == 1


def test_changed_code_reads_again(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Reader()
    kept_cases(large, read)
    monkeypatch.setattr(module, "_code", lambda packages: "other code")
    kept_cases(large, read)
    assert read.count == 2


def test_a_copy_elsewhere_has_cases_of_its_own(large: Path) -> None:
    read = Reader()
    kept_cases(large, read)
    copy = large.with_name("copy.yaml")
    copy.write_bytes(large.read_bytes())
    assert kept_cases(copy, read)[0].file == copy
    assert read.count == 2


@pytest.mark.parametrize("at", [0, 40, -1])
def test_what_is_kept_is_not_used_when_it_is_damaged(large: Path, at: int) -> None:
    read = Reader()
    first = kept_cases(large, read)
    (place,) = _kept()
    content = bytearray(place.read_bytes())
    content[at] ^= 1
    place.write_bytes(content)
    assert kept_cases(large, read) == first
    assert read.count == 2
    assert kept_cases(large, read) == first
    assert read.count == 2


def test_without_a_cache_the_file_is_read(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Reader()
    monkeypatch.setenv(CACHE_VARIABLE, str(large / "no_folder"))
    assert len(kept_cases(large, read)) == 1
    assert len(kept_cases(large, read)) == 1
    assert read.count == 2


def test_small_and_missing_files_are_only_read(large: Path) -> None:
    read = Reader()
    small = large.with_name("small.yaml")
    small.write_text(HEAD + ENTRY.format("first"))
    kept_cases(small, read)
    with pytest.raises(Exception, match="cannot be read"):
        kept_cases(large.with_name("missing.yaml"), read)
    assert read.count == 2
    assert _kept() == []


@pytest.mark.skipif(sys.platform != "linux", reason="files are read one by one elsewhere")
def test_much_that_is_not_kept_is_read_by_other_processes(
    large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_cases_module, "_MUCH", 2 * LARGE)
    monkeypatch.setattr("os.listdir", lambda path: ["1"])  # whatever threads other tests have left
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1})
    wrong, small = large.with_name("wrong.yaml"), large.with_name("small.yaml")
    wrong.write_text("no mapping" + "#" * LARGE)
    small.write_text(HEAD + ENTRY.format("first"))
    read = Reader()
    keep_cases([large, wrong, small], read)
    assert [case.id for case in kept_cases(large, read)] == ["large/first"]
    assert read.count == 0
    assert len(_kept()) == 1
    keep_cases([large, wrong, small], lambda _: pytest.fail("too little is missing"))


def test_the_lines_of_expectations_are_kept_with_their_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    file = data_path("expectations") / "cpu.yaml"
    first = load_expectations([file])
    monkeypatch.setattr("conformance.judge.expectations.read_yaml", None)  # it is not read again
    assert load_expectations([file]) == first
    texts = file.read_text().splitlines()
    assert all("cases:" in texts[line.line - 1] for line in first)
