"""What is run on a GPU machine in a day; a transcript has what such a machine gets."""

from __future__ import annotations

import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conformance.base.paths import ROOT
from conformance.case.corpus import shipped_files
from conformance.results.reader import read

SCRIPTS = ROOT / ".ci" / "gpu"

pytestmark = pytest.mark.skipif(not SCRIPTS.is_dir(), reason="not a checkout")


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module that makes and unpacks parts."""
    monkeypatch.syspath_prepend(SCRIPTS)
    import parts

    return parts


def eventually(is_so: Callable[[], bool], seconds: float = 120) -> bool:
    """Whether it is so within this time."""
    end = time.monotonic() + seconds
    while not (so := is_so()) and time.monotonic() < end:
        time.sleep(0.05)
    return so


def test_every_theme_has_a_place_and_a_reason() -> None:
    lines = (SCRIPTS / "themes.txt").read_text().splitlines()
    found = [line.split(maxsplit=1) for line in lines if not line.startswith("#")]
    assert sorted(theme for theme, _ in found) == sorted(shipped_files())


def test_a_part_and_the_repository_travel_together(parts: Any) -> None:
    """A borrowed machine may take 64 MiB at a time, and what git does not ignore each time."""
    listed = ["git", "-C", str(ROOT), "ls-files", "-z"]
    done = subprocess.run(listed, capture_output=True, check=False)
    if done.returncode:
        pytest.skip("not a git checkout")
    names = filter(None, done.stdout.decode().split("\0"))
    tracked = sum((ROOT / name).stat().st_size for name in names if (ROOT / name).is_file())
    assert tracked + parts.PART_MB * 1e6 < 64 << 20
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert {"/parts/", "/gpu/"} <= set(ignored)


@pytest.mark.parametrize("name", ["../outside", "/outside", "inside/../../outside"])
@pytest.mark.parametrize("has_filters", [True, False])
def test_parts_write_nothing_outside(
    tmp_path: Path, parts: Any, monkeypatch: pytest.MonkeyPatch, name: str, has_filters: bool
) -> None:
    """Python 3.11.2, which Debian has, does not know the filters of tarfile."""
    if not has_filters:
        monkeypatch.delattr(tarfile, "data_filter", raising=False)
    for member, message in (("inside", ""), (name, "outside' is in them")):
        (folder := tmp_path / "parts").mkdir(exist_ok=True)
        with tarfile.open(folder / "part-00", "w:xz") as archive:
            archive.addfile(tarfile.TarInfo(member), io.BytesIO())
        content = (folder / "part-00").read_bytes()
        sha256 = hashlib.sha256(content).hexdigest()
        manifest = {
            "format": parts.FORMAT,
            "python": f"3.{sys.version_info.minor}",
            "machine": os.uname().machine,
            "parts": [{"name": "part-00", "bytes": len(content), "sha256": sha256}],
        }
        (folder / "manifest.json").write_text(json.dumps(manifest))
        if message:
            with pytest.raises(parts.PartsError, match=message):
                parts.unpack(folder)
        else:
            assert (parts.unpack(folder) / "inside").is_file()
    assert os.listdir(tmp_path) == ["parts"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_pack_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    for name in ("pip", "temporary"):
        (tmp_path / name).mkdir()
    (tmp_path / "pip" / "__init__.py").touch()
    (tmp_path / "pip" / "__main__.py").write_text(
        "import os, tempfile, time\n"
        "tempfile.mkstemp()\n"
        "open(os.environ['STARTED'], 'w').write(str(os.getpid()))\n"
        "time.sleep(600)\n"
    )
    started = tmp_path / "started"
    environment = {
        **os.environ,
        "PYTHON": sys.executable,
        "PYTHONPATH": str(tmp_path),
        "STARTED": str(started),
        "TMPDIR": str(tmp_path / "temporary"),
    }
    out = tmp_path / "parts"
    process = subprocess.Popen([ROOT / ".ci" / "gpu-pack", out], env=environment)
    assert eventually(lambda: started.is_file() and started.read_text() != "")
    process.send_signal(number)
    process.wait()
    assert eventually(lambda: not os.listdir(out))
    assert not os.listdir(tmp_path / "temporary")
    assert eventually(lambda: not Path(f"/proc/{started.read_text()}/exe").exists())


def start_day(out: Path, *arguments: str, ep: str = "cpu") -> subprocess.Popen[str]:
    """Record a day without a GPU."""
    return subprocess.Popen(
        [ROOT / ".ci" / "gpu-day", *arguments[:2], out, *arguments[2:]],
        env={**os.environ, "EP": ep, "PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.push
def test_a_day_without_the_device_ends_at_once(tmp_path: Path) -> None:
    """No variant is tried, and no skipped case is taken for a result when the day goes on."""
    day = start_day(tmp_path, "--minutes", "4", "-k", "smoke and prompt", ep="cuda")
    said, _ = day.communicate(timeout=200)
    assert day.returncode == 3, said
    assert "every case was skipped" in said
    assert "cuda-flash" not in said
    assert not os.listdir(tmp_path)


@pytest.mark.night
def test_a_day_records_the_target_and_its_variants(tmp_path: Path) -> None:
    """Here without a GPU; the second time there is nothing left to do."""
    pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    for _ in range(2):
        day = start_day(tmp_path, "--minutes", "4", "-k", "smoke and float32")
        said, _ = day.communicate(timeout=300)
        assert day.returncode == 0, said
        assert sorted(os.listdir(tmp_path)) == ["cpu.jsonl.xz", "variants-1.jsonl.xz"]
        for name, targets in (("cpu", ["cpu"]), ("variants-1", ["cpu-noflash", "cpu-threads"])):
            run = read(tmp_path / f"{name}.jsonl.xz")
            assert [target.ep for target in run.header.targets] == targets
            assert len(run.results) == len(targets) * len({result.case for result in run.results})
            assert run.footer.complete
    assert said.count("; 0 are left.") == 2


@pytest.mark.night
def test_a_day_keeps_to_its_time_and_goes_on_after_it_was_killed(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    packed = tmp_path / "cpu.jsonl.xz"
    day = start_day(tmp_path, "--minutes", "4", "--no-variants")
    assert eventually(packed.exists)
    assert day.poll() is None
    day.kill()
    day.communicate()
    (tmp_path / "cpu.jsonl").unlink()  # too large to come back from the machine
    there = len(read(packed).results)
    began = time.monotonic()
    day = start_day(tmp_path, "--minutes", "0.5")
    said, _ = day.communicate(timeout=300)
    assert time.monotonic() - began < 90
    assert day.returncode == 0, said
    assert f"cpu.jsonl has {there} results; " in said
    assert "cpu-noflash, cpu-threads: no time was left.\n" in said
    assert os.listdir(tmp_path) == [packed.name]
    assert there < len(read(packed).results)
