"""Folders in shared memory: they are gone once nobody owns them, and never before."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.base.paths import ROOT
from conformance.harness.folders import OwnedFolder, remove_abandoned, temporary_folder


@pytest.fixture(autouse=True)
def _nothing_removed_yet() -> None:
    remove_abandoned.cache_clear()


def owner(place: Path) -> subprocess.Popen[str]:
    """A process that owns a folder in ``place`` until its input ends; it has printed the path."""
    code = (
        "import sys; from conformance.harness.folders import OwnedFolder;"
        "f = OwnedFolder(sys.argv[1]); f.make(); open(f.path + '/file', 'w').close();"
        "print(f.path, flush=True); sys.stdin.read()"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code, place],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_only_folders_of_dead_processes_are_removed(tmp_path: Path, number: signal.Signals) -> None:
    """The folder of a killed process is removed and that of a living one is not."""
    with owner(tmp_path) as living, owner(tmp_path) as killed:
        kept, abandoned = (Path(one.stdout.readline().strip()) for one in (living, killed))
        remove_abandoned(str(tmp_path))
        assert abandoned.is_dir()  # still owned
        killed.send_signal(number)
        killed.wait()
        remove_abandoned.cache_clear()
        mine = OwnedFolder(str(tmp_path))
        mine.make()
        assert not abandoned.exists()
        assert (kept / "file").is_file()
        mine.remove()
        living.communicate()


def test_the_temporary_folder_of_a_killed_process_is_removed_by_the_next(tmp_path: Path) -> None:
    code = (
        "import sys, time; from conformance.harness.folders import temporary_folder\n"
        "with temporary_folder() as folder:\n"
        "    (folder / 'file').touch(); print('there', flush=True); time.sleep(60)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    killed = subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE)
    assert killed.stdout.readline()
    killed.kill()
    killed.communicate()
    assert len(os.listdir(tmp_path)) == 1
    remove_abandoned.cache_clear()
    with temporary_folder(tmp_path) as folder:
        assert os.listdir(tmp_path) == [folder.name]
    assert os.listdir(tmp_path) == []


def test_what_is_not_such_a_folder_of_this_user_is_kept(tmp_path: Path) -> None:
    name = "gqa-files-" + "0" * 32
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / name).symlink_to("elsewhere")
    (tmp_path / f"{name[:-1]}1").touch()
    (tmp_path / f"{name}0").mkdir()
    names = {name, "elsewhere", f"{name[:-1]}1", f"{name}0"}
    if os.geteuid() == 0:
        (tmp_path / f"{name[:-1]}2").mkdir()
        os.chown(tmp_path / f"{name[:-1]}2", 12345, 12345)
        names.add(f"{name[:-1]}2")
    remove_abandoned(str(tmp_path))
    assert {*os.listdir(tmp_path)} == names


def test_no_folder_of_a_living_process_is_lost_while_many_start_and_remove(tmp_path: Path) -> None:
    code = (
        "import os, sys\n"
        "from conformance.harness.folders import OwnedFolder, remove_abandoned\n"
        "for _ in range(150):\n"
        "    remove_abandoned.cache_clear(); f = OwnedFolder(sys.argv[1]); f.make()\n"
        "    for _ in range(3):\n"
        "        remove_abandoned.cache_clear(); remove_abandoned(sys.argv[1]); os.stat(f.path)\n"
        "    f.remove()\n"
    )
    command = [sys.executable, "-c", code, tmp_path]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    started = [subprocess.Popen(command, env=environment) for _ in range(4)]
    assert [one.wait(60) for one in started] == [0, 0, 0, 0]
    assert list(tmp_path.iterdir()) == []
