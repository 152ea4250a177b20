"""Reads from the file of ONNX Runtime's CUDA provider which libraries and GPUs it needs.

It reads only the headers, a few hundred small pieces of a file of hundreds of megabytes. Standard
library only.
"""

from __future__ import annotations

import mmap
import os
import re
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

NAME = "libonnxruntime_providers_cuda.so"

# A section of an ELF file: name, type, flags, address, offset, size, link, info, align, item size.
_SECTION = struct.Struct("<IIQQQQIIQQ")
_DYNAMIC = 6  # the type of the section that names the needed libraries
_NEEDED = 1  # the tag of a needed library

# A fat binary is a header (magic, version, size of the header, size of the rest) and, behind it,
# entries: kind, version, size of the entry's header, size of the code behind that, …, architecture.
_FATBIN = struct.Struct("<IHHQ")
_MAGIC = struct.pack("<I", 0xBA55ED50)
_ENTRY = struct.Struct("<HHIQ12xI")
_PTX, _MACHINE_CODE = 1, 2


class Code(NamedTuple):
    """The architectures, as numbers like 90, for which there is machine code, and for which PTX."""

    machine: frozenset[int]
    ptx: frozenset[int]

    def runs_on(self, capability: tuple[int, int]) -> bool:
        """Whether a GPU of this compute capability can run it.

        Machine code runs on GPUs of the same major architecture with the same or a higher minor
        one; from PTX the driver makes machine code for every GPU that is not older.
        """
        major, minor = capability
        exact = any(sm // 10 == major and sm % 10 <= minor for sm in self.machine)
        return exact or any(sm <= 10 * major + minor for sm in self.ptx)

    def words(self) -> str:
        """The architectures, such as "sm_80 sm_90 compute_90"; the word compute marks PTX."""
        machine = [f"sm_{sm}" for sm in sorted(self.machine)]
        return " ".join([*machine, *(f"compute_{sm}" for sm in sorted(self.ptx))])


class Library(NamedTuple):
    """The libraries that the loader needs for this one, in its order, and the code for GPUs."""

    needed: tuple[str, ...] = ()
    code: Code = Code(frozenset(), frozenset())

    @property
    def cuda(self) -> int | None:
        """The major version of CUDA that it needs; None if it does not need CUDA's runtime."""
        versions = [re.fullmatch(r"libcudart\.so\.(\d+)(?:\..*)?", name) for name in self.needed]
        return next((int(found[1]) for found in versions if found), None)


def path_in(onnxruntime: Any) -> str:
    """The path of the library in the package; it need not exist."""
    return os.path.join(os.path.dirname(onnxruntime.__file__), "capi", NAME)


def read(path: str) -> Library:
    """The needs of the library; empty if the file cannot be read or is not a 64-bit ELF file."""
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as it:
            sections = _sections(it)
            return Library(tuple(_needed(it, sections)), _code(it, sections))
    except (OSError, ValueError, OverflowError, IndexError, struct.error):
        return Library()


class _Section(NamedTuple):
    name: str
    kind: int
    offset: int
    size: int
    link: int  # the number of the section that has its texts


def _sections(content: Any) -> list[_Section]:
    if content[:6] != b"\x7fELF\x02\x01":  # 64 bits, little-endian
        return []
    (start,) = struct.unpack_from("<Q", content, 40)
    item_size, count, names = struct.unpack_from("<HHH", content, 58)
    rows = [_SECTION.unpack_from(content, start + item_size * n) for n in range(count)]
    return [
        _Section(_text(content, rows[names][4] + name), kind, offset, size, link)
        for name, kind, _, _, offset, size, link, *_ in rows
    ]


def _needed(content: Any, sections: list[_Section]) -> Iterator[str]:
    for section in sections:
        if section.kind == _DYNAMIC:
            texts = sections[section.link].offset
            items = content[section.offset : section.offset + section.size]
            for tag, value in struct.iter_unpack("<QQ", items):
                if tag == _NEEDED:
                    yield _text(content, texts + value)


def _code(content: Any, sections: list[_Section]) -> Code:
    found: dict[int, set[int]] = {_PTX: set(), _MACHINE_CODE: set()}
    for section in sections:
        if section.name == ".nv_fatbin":
            for kind, sm in _entries(content, section.offset, section.offset + section.size):
                found.setdefault(kind, set()).add(sm)
    return Code(frozenset(found[_MACHINE_CODE]), frozenset(found[_PTX]))


def _text(content: Any, at: int) -> str:
    return bytes(content[at : content.find(b"\0", at)]).decode(errors="replace")


def _entries(content: Any, at: int, end: int) -> Iterator[tuple[int, int]]:
    """Kind and architecture of each entry of each fat binary in this part of the file."""
    while (at := content.find(_MAGIC, at, end)) >= 0:
        _, _, header_size, size = _FATBIN.unpack_from(content, at)
        entry = at + header_size
        at = entry + size
        while entry < min(at, end):
            kind, _, header_size, size, architecture = _ENTRY.unpack_from(content, entry)
            yield kind, architecture
            if header_size == 0:
                break
            entry += header_size + size
