"""Messages of runtimes, without parts that differ between two runs with the same defect, and the
words by which a message is found among those of other calls."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

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


# What a message is wrapped in; it is compared from the end of the last of these on.
_WRAPPED: Final = re.compile(
    r"^.*(?:status message:|error_message:|error in execution:|\[onnxruntimeerror\] : \d+ : \w+ :"
    r"|\) ?, error |caused by:(?:.*\s\d+:(?=\s))?)",
    re.ASCII | re.DOTALL,
)
# Names of nodes, types of templates, and what is in quotes.
_OF_ONE_CALL: Final = re.compile(
    r"""\b(?:node|name)\b[ :#]*(?:\([^()]*\)|\S+)|\[(?:with )?t\w* = [^\]]*\]"""
    r"""|(?<!\w)'(?!s\b)[^'\n]{0,300}'(?!\w)|"[^"\n]{0,300}"|`[^`\n]{0,300}`""",
    re.ASCII,
)
# A word without digits that is no part of a path or of a C++ name, and that does not differ between
# the messages of releases and execution providers.
_WORD: Final = re.compile(
    r"(?<![\w/.:])(?!(?:the|must|shall|should|cpu|cuda|webgpu|wasm|jsep|hip|rocm|qnn|dml)(?!\w))"
    r"[a-z][a-z_]{2,}(?![\w/]|\.\w|::)",
    re.ASCII,
)
#: A message of fewer words is not compared.
_FEWEST: Final = 3


class MessageWords(NamedTuple):
    """The words by which a message is recognised in another one that has the same cause: all, and
    those after what it is wrapped in.

    Numbers, names of nodes and what is in quotes belong to one call, and are left out.
    ``reports/messages.js`` has the same rule.
    """

    every: frozenset[str]
    core: frozenset[str]

    def is_like(self, other: MessageWords) -> bool:
        """Whether one of the messages, without its wrapping, is a part of the other."""
        pairs = (self.core, other.every), (other.core, self.every)
        return any(len(core) >= _FEWEST and core <= every for core, every in pairs)


def message_words(text: str) -> MessageWords:
    """The words of a message."""
    text = clean(text, COMPARED).lower()
    parts = text, _WRAPPED.sub("", text)
    return MessageWords(*(frozenset(_WORD.findall(_OF_ONE_CALL.sub(" ", each))) for each in parts))
