"""Text from outside, made safe to show; every form of output cleans its text with this module.

The messages of runtimes can contain terminal colours, NUL, characters that reverse the reading
direction, and a megabyte of text. Characters that have a meaning in an output format (markup,
formulas, comments) are escaped where that format is written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from operator import methodcaller
from typing import Final

# Controls other than tab and line feed, characters that are invisible or change the direction, and
# those that XML cannot hold.
_UNSEEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb\ufffe\uffff"
    "\ud800-\udfff\U000e0000-\U000e0fff]"
)
# The control sequences of ECMA-48 (colours, cursor, titles). Each ends at the latest where the next
# one begins, so that a megabyte of unterminated ones takes linear time.
_ANSI: Final = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x90\x98\x9c-\x9f]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-Z\\-~]"
)

#: Gives a text with code points for the characters that begin another line; it is not cleaned.
unbroken: Final = methodcaller("translate", {10: "⟨U+000A⟩", 13: "⟨U+000D⟩"})
#: The most characters of a name in a model; exporters write up to about 200.
_LONGEST_NAME: Final = 400


def printable(text: str) -> str:
    """``text`` with code points (``⟨U+202E⟩``) for characters that a terminal obeys or hides."""
    return _UNSEEN.sub(lambda match: f"⟨U+{ord(match[0]):04X}⟩", text)


def printable_json(text: str) -> str:
    """The same JSON value as ``text``, with the characters that `printable` replaces escaped."""
    return _UNSEEN.sub(lambda match: json.dumps(match[0])[1:-1], text)


def clean(text: str, limit: int = 16_000) -> str:
    """``text`` cleaned by `printable`, without terminal sequences, of about ``limit`` characters.

    A longer text keeps its beginning and its end, with a note between them.
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


def one_line(text: str, most: int = 600) -> str:
    """``text`` cleaned by `clean`, on one line of at most ``most`` characters."""
    text = " ".join(clean(text).split())
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"


def exact_line(text: str, most: int = 120) -> str:
    """Like `one_line`, but terminal sequences are shown, not removed: names stay distinct."""
    return one_line(printable(text), most)


def visible(text: str) -> str:
    """Like `printable`, also for the characters that begin another line or column."""
    return printable(unbroken(text)).replace("\t", "⟨U+0009⟩")


def safe_name(name: str) -> str:
    """``name`` on one line, as `visible` writes it; a long one is cut, and gets a digest."""
    line = visible(name)
    if len(line) <= _LONGEST_NAME:
        return line
    import hashlib  # loads OpenSSL, and almost no name is long

    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()
    return f"{line[:_LONGEST_NAME]}…{digest[:8]}"


def deep_clean(value: object, how: Callable[[str], str] = clean) -> object:
    """A JSON value with ``how`` applied to every text in it, including keys."""
    if isinstance(value, str):
        return how(value)
    if isinstance(value, list):
        return [deep_clean(item, how) for item in value]
    if isinstance(value, dict):
        return {how(key): deep_clean(item, how) for key, item in value.items()}
    return value
