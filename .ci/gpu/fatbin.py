"""The machine code in a CUDA library: which GPU architectures it is for, and how to drop some.

nvcc puts all machine code of a library into its section ``.nv_fatbin``, as a series of containers.
Each has a header and then an entry for each architecture, with a header of its own.
"""

from __future__ import annotations

import mmap
import struct
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final, NamedTuple

SECTION: Final = b".nv_fatbin"

_CONTAINER: Final = struct.Struct("<IHHQ")  # magic, version, bytes of this header, of the entries
_MAGIC: Final = 0xBA55ED50
_ENTRY: Final = struct.Struct("<HHIQ12xI")  # kind, version, header's and content's bytes, sm


class Entry(NamedTuple):
    """The code for one architecture: ``sm`` as 90, and where its content is in the file."""

    sm: int
    start: int
    end: int


class NoMachineCode(ValueError):
    """The file is no library with CUDA code as this module knows it; the message says why."""


def entries(content: mmap.mmap | bytes) -> Iterator[Entry]:
    """Every entry of a library. Raises `NoMachineCode`."""
    place, end = _section(content)
    while place < end:
        magic, _, header, size = _CONTAINER.unpack_from(content, place)
        if magic != _MAGIC or place + header + size > end:
            raise NoMachineCode(f"there is no container at byte {place:,}")
        at, place = place + header, place + header + size
        while at < place:
            _, _, header, size, sm = _ENTRY.unpack_from(content, at)
            if not header or at + header + size > place:
                raise NoMachineCode(f"there is no entry at byte {at:,}")
            yield Entry(sm, at + header, at + header + size)
            at += header + size
        place += -place % 8


def keep_only(library: Path, architectures: Collection[int]) -> Counter[int]:
    """Zero the code of all other architectures; bytes of code by architecture, as before.

    Headers stay, and so do all sizes and offsets. Raises `NoMachineCode`, also if the library has
    no code for one of ``architectures``; it is then unchanged.
    """
    sizes: Counter[int] = Counter()
    with library.open("r+b") as file, mmap.mmap(file.fileno(), 0) as content:
        found = list(entries(content))
        for entry in found:
            sizes[entry.sm] += entry.end - entry.start
        missing = sorted(set(architectures) - sizes.keys())
        if missing:
            raise NoMachineCode(
                f"it has code for {', '.join(map(str, sorted(sizes)))} and none for "
                f"{', '.join(map(str, missing))}"
            )
        for entry in found:
            if entry.sm not in architectures:
                content[entry.start : entry.end] = bytes(entry.end - entry.start)
    return sizes


def _section(content: mmap.mmap | bytes) -> tuple[int, int]:
    """First byte and end of the section, by the headers of a 64-bit ELF file."""
    if content[:6] != b"\x7fELF\x02\x01":
        raise NoMachineCode("it is no 64-bit ELF library")
    try:
        table, size, count, names = struct.unpack_from("<Q10xHHH", content, 0x28)
        headers = [
            struct.unpack_from("<I20xQQ", content, table + number * size) for number in range(count)
        ]
        _, names_start, names_size = headers[names]
        words = bytes(content[names_start : names_start + names_size])
        for name, start, length in headers:
            if words[name : words.index(b"\0", name)] == SECTION:
                return start, start + length
    except (struct.error, IndexError, ValueError) as error:
        raise NoMachineCode("its section headers cannot be read") from error
    raise NoMachineCode(f"it has no section {SECTION.decode()}")
