"""What a GPU machine without a network gets: a wheel in parts, and less machine code on demand."""

from __future__ import annotations

import io
import json
import os
import struct
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from conformance.base.paths import ROOT
from conformance.targets.tools import ONNXRUNTIME_GPU_VERSION

SCRIPTS = ROOT / ".ci" / "gpu"

pytestmark = pytest.mark.skipif(not SCRIPTS.is_dir(), reason="not a checkout")
sys.path.insert(0, str(SCRIPTS))

fatbin = pytest.importorskip("fatbin")
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


def test_parts_from_before_are_replaced(site: Path, packed: Path) -> None:
    assert len(split_archive.write_parts(site, packed, 60_000, ABOUT)["parts"]) == 2
    assert sorted(content(packed)) == ["manifest.json", "part-00", "part-01"]


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
        case "a folder":
            third.unlink()
            third.mkdir()
        case "no manifest":
            manifest.unlink()
        case "half a manifest":
            manifest.write_bytes(manifest.read_bytes()[:40])
        case "another manifest":
            manifest.write_text('{"format": "gqa-gpu-pack/1"}')
        case "another whole":
            manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "sha256": "0"}))


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("missing", "part-00 is missing, part-02 is missing; copy it again."),
        ("short", "part-02 has 100 of 30,000 bytes; copy it again."),
        ("damaged", "part-02 is damaged; copy it again."),
        ("a folder", "part-02 cannot be read (Is a directory); copy it again."),
        ("no manifest", "manifest.json is missing; .ci/gpu-pack writes it."),
        ("half a manifest", "manifest.json cannot be read: "),
        ("another manifest", "manifest.json is not a manifest of .ci/gpu-pack (gqa-gpu-pack/1)."),
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


def test_a_part_that_is_no_archive(tmp_path: Path) -> None:
    (tmp_path / "part-00").write_bytes(b"no xz")
    with pytest.raises(split_archive.PartsError, match="cannot be unpacked"):
        split_archive.unpack_parts([tmp_path / "part-00"], tmp_path / "into")


# ── Machine code ─────────────────────────────────────────────────────────────────────────────────


def library(containers: list[dict[int, bytes]]) -> bytes:
    """An ELF file whose .nv_fatbin has these containers: architecture → code."""
    section = b""
    for entries in containers:
        body = b""
        for number, (sm, code) in enumerate(entries.items()):
            header = 64 + 48 * (number % 2)  # they differ in real libraries, too
            body += struct.pack("<HHIQ12xI", 2, 0x101, header, len(code), sm).ljust(header, b"\1")
            body += code
        section += struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body
        section += bytes(-len(section) % 8)
    names = b"\0.nv_fatbin\0.shstrtab\0"
    start = 64
    table = start + len(section) + len(names)

    def row(name: int, at: int, size: int) -> bytes:
        return struct.pack("<IIQQQQIIQQ", name, 1, 0, 0, at, size, 0, 0, 8, 0)

    elf = b"\x7fELF\x02\x01".ljust(40, b"\0") + struct.pack("<Q", table)
    elf += struct.pack("<IHHHHHH", 0, 64, 0, 0, 64, 3, 2)
    rows = row(0, 0, 0) + row(1, start, len(section)) + row(12, start + len(section), len(names))
    return elf + section + names + rows


CODE = {75: b"old code" * 4, 90: b"hopper" * 6, 120: b"blackwell" * 5}


def test_code_of_other_architectures_is_zeroed(tmp_path: Path) -> None:
    file = tmp_path / "lib.so"
    before = library([CODE, {90: b"alone" * 5}, CODE])
    file.write_bytes(before)
    assert fatbin.keep_only(file, [90]) == {75: 64, 90: 97, 120: 90}
    after = file.read_bytes()
    expected = before.replace(CODE[75], bytes(32)).replace(CODE[120], bytes(45))
    assert after == expected != before


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (library([CODE]), "it has code for 75, 90, 120 and none for 89, 100"),
        (b"no library", "it is no 64-bit ELF library"),
        (library([CODE])[:-150], "its section headers cannot be read"),
        (library([]).replace(b".nv_fatbin", b".something"), "it has no section .nv_fatbin"),
        (
            library([CODE]).replace(b"\x50\xed\x55\xba", bytes(4)),
            "there is no container at byte 64",
        ),
    ],
)
def test_a_library_that_cannot_be_reduced_is_unchanged(
    tmp_path: Path, content: bytes, said: str
) -> None:
    file = tmp_path / "lib.so"
    file.write_bytes(content)
    with pytest.raises(fatbin.NoMachineCode) as caught:
        fatbin.keep_only(file, [89, 90, 100])
    assert str(caught.value) == said
    assert file.read_bytes() == content


# ── The command ──────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What pip is asked to install; it installs a wheel of its own."""
    asked = []

    def install(site: Path, what: list[str], options: object) -> None:
        asked.append(what)
        file = site / pack.CUDA_LIBRARY
        file.parent.mkdir(parents=True)
        file.write_bytes(library([CODE]))
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
    assert files[pack.CUDA_LIBRARY] == library([CODE])
    manifest = split_archive.read_manifest(tmp_path / "out")
    assert (manifest["python"], manifest["machine"]) == ("3.12", "x86_64")
    assert (manifest["packages"], manifest["architectures"]) == ({"onnxruntime-gpu": "1.2.3"}, None)
    assert capsys.readouterr().out.endswith("for Python 3.12 on x86_64: onnxruntime-gpu 1.2.3\n")


def test_the_pack_can_be_of_another_release_with_libraries_for_one_architecture(
    tmp_path: Path, pip: list[list[str]]
) -> None:
    arguments = ["--version", "1.30.0", "--libraries", "--architectures", "90"]
    assert pack.main([str(tmp_path / "out"), *arguments]) == 0
    assert pip[0][-1] == "onnxruntime-gpu[cuda,cudnn]==1.30.0"
    files = unpacked(tmp_path / "out", tmp_path / "into")
    assert CODE[90] in files[pack.CUDA_LIBRARY]
    assert CODE[75] not in files[pack.CUDA_LIBRARY]
    assert split_archive.read_manifest(tmp_path / "out")["architectures"] == [90]


def test_a_pack_that_cannot_be_made(
    tmp_path: Path, pip: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert pack.main([str(tmp_path / "out"), "--architectures", "89,90"]) == 3
    assert capsys.readouterr().err == (
        f".ci/gpu-pack: {pack.CUDA_LIBRARY}: it has code for 75, 90, 120 and none for 89.\n"
    )
    (tmp_path / "file").touch()
    assert pack.main([str(tmp_path / "file" / "out")]) == 3
    assert "Not a directory" in capsys.readouterr().err


def test_what_pip_cannot_install_is_said(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert pack.main([str(tmp_path / "out"), "--version", "0", "--pip", "--no-index"]) == 3
    assert capfd.readouterr().err.endswith(
        ".ci/gpu-pack: pip could not install what the pack consists of; it says why above.\n"
    )
    assert not (tmp_path / "out").exists()
