"""Messages of runtimes, without parts that differ between two runs with the same defect."""

from __future__ import annotations

import re
from typing import Final

from conformance.base.text import clean

#: Of a longer message, only the beginning and the end are compared, this many characters together.
COMPARED: Final = 8_000

# Each pattern is anchored or bounded, so that a megabyte takes linear time.
_CHANGING: Final = tuple(
    (re.compile(pattern), put)
    for pattern, put in (
        # Dates, times of day, and random identifiers.
        (r"(?<!\d)\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:[.,]\d{1,9})?)?Z?", "<time>"),
        (r"(?<![\d:])\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?!\d)", "<time>"),
        (r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b", "<id>"),
        # Addresses, but not error codes such as 0xC0000005.
        (r"\b0x(?![89cCeE][0-9a-fA-F]{7}\b)[0-9a-fA-F]{4,}", "<address>"),
        (r"\b(?=[0-9]{0,15}[a-f])[0-9a-f]{12,16}\b", "<address>"),
        # Temporary files.
        (r"(?:/private)?/(?:tmp|var/tmp|var/folders|dev/shm)/[^\s'\"`:,;()\[\]<>]*", "<file>"),
        # Processes and threads.
        (r"==\d+==", "==<pid>=="),
        (r"(?i)\b(pid|tid|process|thread)([ =:#]{1,3})\d+", r"\1\2<pid>"),
        (r"(thread '[^'\n]{0,80}' )\(\d+\)", r"\1(<pid>)"),
        # Line numbers of source files, which change when a line is inserted above.
        (
            r"(\.(?:cc|cpp|cxx|cu|cuh|c|hpp|hh|h|rs|py|mjs|js|ts|wgsl))(?::\d+){1,2}(?!\d)",
            r"\1:<line>",
        ),
        (r"\b(line )\d+", r"\1<line>"),
        (r"(wasm-function\[)\d+", r"\1<number>"),
        # Durations, then versions and fractions. Integers are kept: they are shapes, lengths and
        # indices, which follow from the case.
        (r"(?<![\w.])\d+(?:\.\d+)? ?(?:ns|us|µs|ms|s|seconds?)\b", "<time>"),
        (r"(?<![\d.])\d+(?:\.\d+)+(?:[eE][-+]?\d+)?", "<number>"),
        (r"(?<![\w.])\d+[eE][-+]?\d+", "<number>"),
        (r"-<number>", "<number>"),
    )
)


def normal(text: str, target: str = "") -> str:
    """``text`` with placeholders for parts that differ between two runs with the same defect.

    ``target`` is the target's name. It contains a version, so it is replaced, too.
    """
    text = clean(text, COMPARED)
    if target:
        text = text.replace(clean(target), "<target>")
    for pattern, put in _CHANGING:
        text = pattern.sub(put, text)
    return " ".join(text.split())
