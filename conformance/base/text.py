"""Cleaning of untrusted text.

The messages of runtimes can contain terminal colours, NUL, characters that reverse the reading
direction, and a megabyte of text. The HTML template escapes markup; this module does the rest.
"""

from __future__ import annotations

import re

from conformance.base.printable import printable

# The control sequences of ECMA-48 (colours, cursor, titles). Each ends at the latest where the next
# one begins, so that a megabyte of unterminated ones takes linear time.
_ANSI = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x90\x98\x9c-\x9f]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-Z\\-~]"
)
# Characters that `clean` keeps and XML 1.0 cannot hold.
_NOT_XML = re.compile("[\ufffe\uffff]")


def clean(text: str, limit: int = 16_000) -> str:
    """``text`` without terminal sequences and invisible characters, of about ``limit`` characters.

    Invisible characters become code points (``⟨U+202E⟩``). Of longer texts the beginning and the
    end are kept, with a note between them.
    """
    if len(text) <= limit and text.isascii() and text.isprintable():
        return text  # the usual case
    text = _ANSI.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    if len(text) > limit:
        tail = limit // 4
        left_out = len(text) - limit
        text = (
            f"{text[: limit - tail]}\n"
            f"[… {left_out:,} characters omitted; see the results file …]\n"
            f"{text[-tail:]}"
        )
    return printable(text)


def on_one_line(text: str, most: int, limit: int = 16_000) -> str:
    """``text`` as `clean` has it, on one line of about ``most`` characters at most."""
    text = " ".join(clean(text, limit).split())
    return text if len(text) <= most else f"{text[:most].rstrip()} …"


def clean_for_xml(text: str, limit: int = 16_000) -> str:
    """``clean``, and without characters that XML cannot hold. The result is not escaped yet."""
    return _NOT_XML.sub(lambda match: f"⟨U+{ord(match[0]):04X}⟩", clean(text, limit))


def deep_clean(value: object) -> object:
    """``clean`` for every text in a JSON value, keys too."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list):
        return [deep_clean(item) for item in value]
    if isinstance(value, dict):
        return {clean(key): deep_clean(item) for key, item in value.items()}
    return value
