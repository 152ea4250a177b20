"""What a GPU machine without a network gets: a wheel in parts."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from conformance.base.paths import ROOT
from conformance.case.corpus import shipped_files
from conformance.results.reader import read
from conformance.targets.tools import ONNXRUNTIME_GPU_VERSION

SCRIPTS = ROOT / ".ci" / "gpu"

pytestmark = pytest.mark.skipif(not SCRIPTS.is_dir(), reason="not a checkout")
sys.path.insert(0, str(SCRIPTS))

pack = pytest.importorskip("pack")
split_archive = pytest.importorskip("split_archive")


# ── Parts ────────────────────────────────────────────────────────────────────────────────────────

ABOUT = {"python": "3.12", "machine": "x86_64", "packages": {"onnxruntime-gpu": "1.0"}}


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder as pip makes it; its bytes cannot be packed."""
    folder = tmp_path / "site"
    (folder / "one" / "capi").mkdir(parents=True)
    (folder / "one" / "capi" / "lib.so").write_bytes(os.urandom(100_000))
    (folder / "one" / "capi" / "lib.so").chmod(0o755)
    (folder / "one" / "LICENSE").write_text("as you like")
    return folder


@pytest.fixture
def packed(site: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "parts"
    split_archive.write_parts(site, folder, 30_000, ABOUT)
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file()
    }


def test_parts_hold_the_folder(site: Path, packed: Path, tmp_path: Path) -> None:
    manifest = split_archive.read_manifest(packed)
    paths = split_archive.check_parts(packed, manifest)
    assert [path.name for path in paths] == ["part-00", "part-01", "part-02", "part-03"]
    sizes = [path.stat().st_size for path in paths]
    assert sizes[:-1] == [30_000] * 3
    assert 0 < sizes[-1] < 30_000
    assert (manifest["bytes"], manifest["unpacked_bytes"]) == (sum(sizes), 100_011)
    split_archive.unpack_parts(paths, tmp_path / "again")
    assert content(tmp_path / "again") == content(site)
    assert os.access(tmp_path / "again" / "one" / "capi" / "lib.so", os.X_OK)


def spoil(packed: Path, what: str) -> None:
    first, third = packed / "part-00", packed / "part-02"
    manifest = packed / "manifest.json"
    match what:
        case "missing":
            first.unlink()
            third.unlink()
        case "short":
            third.write_bytes(third.read_bytes()[:100])
        case "damaged":
            data = bytearray(third.read_bytes())
            data[500] ^= 1
            third.write_bytes(data)
        case "another whole":
            manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "sha256": "0"}))


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("missing", "part-00 is missing, part-02 is missing; copy it again."),
        ("short", "part-02 has 100 of 30,000 bytes; copy it again."),
        ("damaged", "part-02 is damaged; copy it again."),
        ("another whole", "the parts are not those of manifest.json; copy all of them again."),
    ],
)
def test_what_is_wrong_with_parts_is_said(packed: Path, what: str, said: str) -> None:
    spoil(packed, what)
    with pytest.raises(split_archive.PartsError, match=f"^{packed}") as caught:
        split_archive.check_parts(packed, split_archive.read_manifest(packed))
    assert said in str(caught.value)


def test_an_archive_cannot_write_elsewhere(tmp_path: Path) -> None:
    file = tmp_path / "part-00"
    with tarfile.open(file, "w:xz") as archive:
        member = tarfile.TarInfo("../outside")
        member.size = 1
        archive.addfile(member, io.BytesIO(b"x"))
    with pytest.raises(split_archive.PartsError, match="cannot be unpacked"):
        split_archive.unpack_parts([file], tmp_path / "into")
    assert not (tmp_path / "outside").exists()


# ── The command ──────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What pip is asked to install; it installs a wheel of its own."""
    asked = []

    def install(site: Path, what: list[str], options: object) -> None:
        asked.append(what)
        (site / "onnxruntime").mkdir()
        (site / "onnxruntime" / "__init__.py").write_text("import this")
        about = site / "onnxruntime_gpu-1.2.3.dist-info" / "METADATA"
        about.parent.mkdir()
        about.write_text("Name: onnxruntime-gpu\nVersion: 1.2.3\n\nSome text.\n")

    monkeypatch.setattr(pack, "_install", install)
    return asked


def unpacked(folder: Path, into: Path) -> Mapping[str, bytes]:
    split_archive.unpack_parts(
        split_archive.check_parts(folder, split_archive.read_manifest(folder)), into
    )
    return content(into)


def test_the_pack_has_the_pinned_release(
    tmp_path: Path, pip: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    import tomllib

    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert pack.main([str(tmp_path / "out")]) == 0
    assert pip == [[*project["dependencies"], f"onnxruntime-gpu=={ONNXRUNTIME_GPU_VERSION}"]]
    files = unpacked(tmp_path / "out", tmp_path / "into")
    assert files["onnxruntime/__init__.py"] == b"import this"
    manifest = split_archive.read_manifest(tmp_path / "out")
    assert (manifest["python"], manifest["machine"]) == ("3.12", "x86_64")
    assert manifest["packages"] == {"onnxruntime-gpu": "1.2.3"}
    assert capsys.readouterr().out.endswith("for Python 3.12 on x86_64: onnxruntime-gpu 1.2.3\n")


def test_parts_are_unpacked_by_the_python_that_they_are_for(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    here = {"python": version, "machine": os.uname().machine}
    for about, status in ((here, 0), ({**here, "python": "3.2"}, 3)):
        split_archive.write_parts(site, tmp_path / "parts", 30_000, about)
        words = [str(tmp_path / "parts"), str(tmp_path / "into")]
        assert split_archive.main(words) == status
    assert content(tmp_path / "into") == content(site)
    assert " is for Python 3.2 on " in capsys.readouterr().err


# ── The day ──────────────────────────────────────────────────────────────────────────────────────


def test_every_theme_has_a_place_and_a_reason() -> None:
    lines = (SCRIPTS / "themes.txt").read_text().splitlines()
    found = [line.split(maxsplit=1) for line in lines if not line.startswith("#")]
    assert sorted(theme for theme, _ in found) == sorted(shipped_files())


def day(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(ROOT / ".ci" / "gpu-day"), *arguments],
        env={**os.environ, "EP": "cpu", "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.slow
def test_a_day_records_the_target_and_its_variants(tmp_path: Path) -> None:
    """Here without a GPU; the second time there is nothing left to do."""
    pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    for _ in range(2):
        done = day(str(tmp_path), "--minutes", "4", "-k", "smoke and float32")
        assert done.returncode == 0, done.stderr
        run = read(tmp_path / "results.jsonl.xz")
        names = [target.ep for target in run.header.targets]
        assert names == ["cpu", "cpu-noflash", "cpu-threads"]
        assert len(run.results) == 3 * len({result.case for result in run.results})
    assert " has " in done.stdout
    assert "; 0 are left." in done.stdout
