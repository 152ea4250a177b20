"""Files that come from outside: plain ones only, bounded, and replaced only by whole ones."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from conformance.base.files import TOO_LARGE, read_plain, replacing, writing


def test_a_plain_file_is_read_and_a_link_only_if_wanted(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"12345")
    (tmp_path / "link").symlink_to("plain")
    for name in ("plain", "link"):
        assert read_plain(tmp_path / name, 5) == b"12345"
    assert read_plain(tmp_path / "plain", 5, follow_links=False) == b"12345"
    assert error_of(tmp_path / "link", follow_links=False) == errno.ELOOP


def test_what_is_too_large_or_no_plain_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    assert error_of(tmp_path / "sparse", words="larger than 1000 bytes") == TOO_LARGE
    assert error_of(tmp_path / "fifo") == errno.EINVAL
    assert error_of(tmp_path) == errno.EISDIR
    error_of(Path("/dev/zero"), words="not a regular file")


def error_of(path: Path, *, follow_links: bool = True, words: str | None = None) -> int | None:
    """The number of the error that reading a file ends with."""
    with pytest.raises(OSError, match=words) as error:
        read_plain(path, 1000, follow_links=follow_links)
    return error.value.errno


def test_a_file_is_replaced_once_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(0o640)
    with replacing(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert os.listdir(tmp_path) == ["file"]


def test_a_failure_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    stopped = replacing(path)
    stopped.__enter__().write(b"half")
    stopped.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_link_to_a_replaced_file_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("file")
    with replacing(tmp_path / "link") as file:
        file.write(b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_bytes() == b"new"


def test_a_device_and_an_open_descriptor_are_written_directly(tmp_path: Path) -> None:
    with writing(Path("/dev/null")) as file:
        file.write(b"x")
    log = os.open(tmp_path / "log", os.O_RDWR | os.O_CREAT | os.O_APPEND)
    os.write(log, b"old ")
    with writing(Path(f"/dev/fd/{log}")) as file:
        file.write(b"new")
    assert (tmp_path / "log").read_bytes() == b"old new"
    os.close(log)
    assert os.listdir(tmp_path) == ["log"]
