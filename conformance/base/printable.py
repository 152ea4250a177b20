"""Text from outside, as it may be shown: a terminal and a reader see every character of it."""

from __future__ import annotations

import json
import re
from typing import Final

# Controls other than tab and line feed, and characters that are invisible or change the direction.
_UNSEEN: Final = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e0fff"
)
_IN_TEXT: Final = re.compile(f"[{_UNSEEN}]")
_IN_LINE: Final = re.compile(f"[\t\n{_UNSEEN}]")
#: Characters of the longest line that is shown whole.
_LONG: Final = 2_000


def printable(text: str) -> str:
    """``text`` with code points (``⟨U+202E⟩``) for characters that a terminal obeys or hides."""
    return _IN_TEXT.sub(_code_point, text)


def one_line(text: str) -> str:
    """``text`` as `printable` has it, on one line, and cut to the length of a long sentence."""
    cut = text if len(text) <= _LONG else f"{text[: _LONG - 1]}…"
    return _IN_LINE.sub(_code_point, cut)


def printable_json(text: str) -> str:
    """The same JSON value as ``text``, with escapes for the characters that `printable` marks."""
    return _IN_TEXT.sub(lambda match: json.dumps(match[0])[1:-1], text)


def _code_point(match: re.Match[str]) -> str:
    return f"⟨U+{ord(match[0]):04X}⟩"
