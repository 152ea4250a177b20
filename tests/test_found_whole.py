"""Bundles that were found whole are not read again while nothing in them has changed."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import conformance.bundle.cache as bundles
from conformance.bundle import found_whole
from conformance.bundle.cache import Bundle, bundle_for, guard, keep_found_whole
from conformance.case.call import Call

Read = Callable[[], set[str]]


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    """A bundle that another process has made, and found whole later."""
    monkeypatch.setattr(found_whole, "_SAME_TIME", 0)
    made = bundle_for(Call(), tmp_path)
    monkeypatch.setattr(bundles, "_own", {})
    time.sleep(0.02)  # more than a tick of the clock of files
    assert bundle_for(Call(), tmp_path).path == made.path
    keep_found_whole(tmp_path)
    time.sleep(0.02)
    return made


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Read:
    """Opens the bundle as another process would, and gives the names of the files it has read."""
    content, names = bundles._content, set[str]()

    def noted(name: str, size: int, folder: int) -> tuple[bytes, os.stat_result]:
        names.add(name)
        return content(name, size, folder)

    def opened() -> set[str]:
        names.clear()
        bundles._found_whole.cache_clear()
        assert bundle_for(Call(), tmp_path).expected[0]["output"].value.any()
        return set(names)

    monkeypatch.setattr(bundles, "_content", noted)
    return opened


MODEL = {"model.onnx", "case.json", "test_data_set_0/input_0.pb"}


@pytest.mark.parametrize("name", ["model.onnx", "test_data_set_0/input_0.pb", "oracle.f64"])
def test_a_change_is_noticed_whatever_its_times(old: Bundle, read: Read, name: str) -> None:
    file = old.path / name
    content, stat = file.read_bytes(), file.stat()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert name in read()
    assert file.read_bytes() == content  # made anew


@pytest.mark.parametrize("name", ["model.onnx", "test_data_set_0"])
def test_what_takes_the_place_of_a_file_is_compared(
    old: Bundle, read: Read, tmp_path: Path, name: str
) -> None:
    other = bundle_for(Call(seed=1), tmp_path / "other")
    place = old.path / name
    place.rename(tmp_path / "aside")
    shutil.move(other.path / name, place)
    assert read() >= MODEL


def test_what_was_noted_since_the_first_runner_started_is_not_trusted(
    old: Bundle, read: Read, tmp_path: Path
) -> None:
    guard(tmp_path)
    assert not read() & MODEL
    time.sleep(0.02)
    for file in (tmp_path / "kept" / "whole").iterdir():
        file.write_bytes(file.read_bytes())
    assert read() >= MODEL


def test_a_bundle_that_has_just_changed_is_not_noted(tmp_path: Path, read: Read) -> None:
    """A further change could have the same time."""
    bundle_for(Call(), tmp_path)
    bundles._own.clear()
    read()
    keep_found_whole(tmp_path)
    assert not (tmp_path / "kept").exists()


@pytest.mark.parametrize("text", ["", "[]", '{"a": 1}', "\xff"])
def test_damaged_notes_are_ignored(old: Bundle, read: Read, tmp_path: Path, text: str) -> None:
    (file,) = (tmp_path / "kept" / "whole").iterdir()
    file.write_text(text, encoding="latin-1")
    assert read() >= MODEL
    keep_found_whole(tmp_path)
    assert not read() & MODEL
