"""A folder as an ``.xz`` archive in parts with a manifest, for machines that files come to singly.

``split_archive.py PARTS FOLDER`` checks the parts and unpacks them. Standard library only: the
machine that unpacks them has nothing else yet.
"""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import os
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final, cast

MANIFEST: Final = "manifest.json"
FORMAT: Final = "gqa-gpu-pack/1"

_PIECE: Final = 1 << 20


class PartsError(ValueError):
    """Parts that cannot be used; the message says which and why."""


def write_parts(
    folder: Path, out: Path, part_bytes: int, about: Mapping[str, Any]
) -> dict[str, Any]:
    """Pack ``folder`` as ``out/part-00`` … of at most ``part_bytes`` each; the manifest.

    ``about`` is put into the manifest, which is written last: without it, parts are incomplete.
    Raises :class:`OSError`.
    """
    out.mkdir(parents=True, exist_ok=True)
    for old in (out / MANIFEST, *out.glob("part-*")):
        old.unlink(missing_ok=True)
    with (
        _Split(out, part_bytes) as split,
        lzma.open(cast("IO[bytes]", split), "wb", preset=9 | lzma.PRESET_EXTREME) as packed,
        tarfile.open(fileobj=packed, mode="w|") as archive,
    ):
        for file in sorted(folder.rglob("*")):
            archive.add(file, file.relative_to(folder), recursive=False, filter=_without_owner)
    manifest = {
        "format": FORMAT,
        **about,
        "sha256": split.whole.hexdigest(),
        "bytes": sum(part["bytes"] for part in split.parts),
        "unpacked_bytes": sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()),
        "parts": split.parts,
    }
    (out / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    return manifest


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of the parts in ``folder``. Raises `PartsError`."""
    file = folder / MANIFEST
    try:
        manifest: dict[str, Any] = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise PartsError(f"{file} is missing; .ci/gpu-pack writes it.") from None
    except (OSError, ValueError) as error:
        raise PartsError(f"{file} cannot be read: {error}.") from None
    needed = {"python", "machine", "sha256", "parts"}
    known = isinstance(manifest, dict) and manifest.get("format") == FORMAT
    if not known or not needed <= manifest.keys():
        raise PartsError(f"{file} is not a manifest of .ci/gpu-pack ({FORMAT}).")
    return manifest


def check_parts(folder: Path, manifest: Mapping[str, Any]) -> list[Path]:
    """The parts in their order. Raises `PartsError`, which names every missing or damaged part."""
    whole = hashlib.sha256()
    paths, wrong = [], []
    for part in manifest["parts"]:
        path = folder / part["name"]
        paths.append(path)
        digest = hashlib.sha256()
        try:
            with path.open("rb") as file:
                while piece := file.read(_PIECE):
                    digest.update(piece)
                    whole.update(piece)
        except FileNotFoundError:
            wrong.append(f"{part['name']} is missing")
        except OSError as error:
            wrong.append(f"{part['name']} cannot be read ({error.strerror})")
        else:
            if digest.hexdigest() != part["sha256"]:
                size = path.stat().st_size
                short = size != part["bytes"]
                about = f"has {size:,} of {part['bytes']:,} bytes" if short else "is damaged"
                wrong.append(f"{part['name']} {about}")
    if wrong:
        raise PartsError(f"{folder}: {', '.join(wrong)}; copy it again.")
    if whole.hexdigest() != manifest["sha256"]:
        raise PartsError(
            f"{folder}: the parts are not those of {MANIFEST}; copy all of them again."
        )
    return paths


def unpack_parts(paths: list[Path], into: Path) -> None:
    """Unpack the checked parts into the folder ``into``. Raises `PartsError`."""
    try:
        with (
            _Joined(paths) as joined,
            lzma.open(io.BufferedReader(joined, _PIECE)) as packed,
            tarfile.open(fileobj=packed, mode="r|") as archive,
        ):
            archive.extractall(into, filter="data")
    except (OSError, EOFError, lzma.LZMAError, tarfile.TarError) as error:
        raise PartsError(f"The parts cannot be unpacked into {into}: {error}.") from None


def _without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


class _Split(io.RawIOBase):
    """Writes ``part-00``, ``part-01`` … of at most ``most`` bytes each into ``folder``."""

    def __init__(self, folder: Path, most: int) -> None:
        self.parts: list[dict[str, Any]] = []
        self.whole = hashlib.sha256()
        self._folder = folder
        self._most = most
        self._file: IO[bytes] | None = None
        self._digest = hashlib.sha256()
        self._size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        rest = memoryview(data).cast("B")
        size = len(rest)
        self.whole.update(rest)
        while rest:
            if self._file is None:
                self._file = (self._folder / f"part-{len(self.parts):02}").open("wb")
            piece = rest[: self._most - self._size]
            self._file.write(piece)
            self._digest.update(piece)
            self._size += len(piece)
            rest = rest[len(piece) :]
            if self._size == self._most:
                self._finish()
        return size

    def close(self) -> None:
        self._finish()
        super().close()

    def _finish(self) -> None:
        if self._file is None:
            return
        self._file.close()
        name = Path(self._file.name).name
        self.parts.append({"name": name, "sha256": self._digest.hexdigest(), "bytes": self._size})
        self._file, self._digest, self._size = None, hashlib.sha256(), 0


class _Joined(io.RawIOBase):
    """Reads several files one after the other."""

    def __init__(self, paths: list[Path]) -> None:
        self._paths = list(paths)
        self._file: IO[bytes] | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            if self._file is None:
                if not self._paths:
                    return 0
                self._file = self._paths.pop(0).open("rb", buffering=0)
            if size := self._file.readinto(buffer):  # type: ignore[attr-defined]
                return int(size)
            self._file.close()
            self._file = None


def main(arguments: Sequence[str]) -> int:
    """Unpack parts for this Python; 0 if the folder is there, 3 if they cannot be used."""
    parts, into = map(Path, arguments)
    try:
        manifest = read_manifest(parts)
        packed = manifest["python"], manifest["machine"]
        if packed != (f"{sys.version_info.major}.{sys.version_info.minor}", os.uname().machine):
            raise PartsError(
                f"{parts} is for Python {packed[0]} on {packed[1]}; start .ci/gpu-day with "
                f"PYTHON=python{packed[0]}."
            )
        unpack_parts(check_parts(parts, manifest), into)
    except PartsError as error:
        print(error, file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
