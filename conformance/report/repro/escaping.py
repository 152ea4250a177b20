"""Escapes untrusted text for comments of programs and for Markdown.

A results file can come from anybody. Its text must not end the comment or the code block around it,
or be read as markup.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

from conformance.base.text import one_line

_COLUMNS: Final = 100


def comment(lines: Sequence[str], mark: str) -> list[str]:
    """The lines as a comment: wrapped at `_COLUMNS`, each after ``mark``."""
    wrapped = (part for line in lines for part in _wrapped(line))
    return [f"{mark} {line}".rstrip() for line in wrapped]


@lru_cache(1 << 12)
def _wrapped(line: str) -> list[str]:
    if len(line) <= _COLUMNS:
        return [line]
    indent = re.match(r"(\w+: +)?", line)
    return textwrap.wrap(
        line,
        _COLUMNS,
        subsequent_indent=" " * len(indent[0] if indent else ""),
        break_long_words=False,
        break_on_hyphens=False,
    ) or [""]


#: cmark supports fences of up to 80 backticks; longer runs of backticks are replaced.
_MOST_BACKTICKS: Final = 8
# An address that is safe between < and >: it has no characters that end it, and no @.
_ADDRESS = re.compile(r"https://[A-Za-z0-9.-]{1,100}(?:/[A-Za-z0-9._~/?=&%+#:-]{0,400})?")
_MARKUP = re.compile(r"[\\`*_{}\[\]<>|~!&$]|[@#](?=\w)")


def _escaped(match: re.Match[str]) -> str:
    # Bug trackers turn @name and #1 into links even if they are escaped.
    return f"{match[0]}<!-- -->" if match[0] in "@#" else f"\\{match[0]}"


@lru_cache(1 << 12)  # many results have the same text
def inline(text: str, most: int = 600) -> str:
    """Untrusted text as one line of Markdown without markup."""
    return _MARKUP.sub(_escaped, one_line(text, most))


def link(text: str, other: Callable[[str], str]) -> str:
    """An address as a link, if it is safe; any other text as ``other`` writes it."""
    return f"<{text}>" if _ADDRESS.fullmatch(text) else other(text)


# What is code in a sentence: what is between backticks, and each word with a character that could
# be markup, a mention or a link.
_CODE = re.compile(
    r"`([^`]+)`|(\[[^\[\]`]+\]|[^\s`“(]*(?:[_@<>\[\]\\!&*~#{}$|`]|https?:|://|www\.)[^\s`]*?)"
    r"(?=[.,:;)”]*(?:[\s`]|$))",
    re.IGNORECASE,
)


def prose(text: str, most: int = 600) -> str:
    """A sentence of ours, which may quote untrusted text, as one line of Markdown."""
    line, made, at = one_line(text, most), "", 0
    for match in _CODE.finditer(line):
        made += line[at : match.start()].replace("`", "ˋ")
        made += " " * made.endswith("`") + code(match[1] or match[2])  # spans that touch are one
        at = match.end()
    return made + line[at:].replace("`", "ˋ")


def code(text: str, most: int = 400) -> str:
    """``text`` on one line as a code span that it cannot break out of, also in a table."""
    text = one_line(text, most)
    # A | ends a table cell even in a code span, and renderers differ in how it is escaped.
    text = text.replace("|", "¦")
    text = re.sub(f"`{{{_MOST_BACKTICKS + 1},}}", lambda run: "ˋ" * len(run[0]), text)
    fence = "`" * (1 + _longest_fence(text))
    space = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{space}{text}{space}{fence}" if text else "(nothing)"


def fence_around(text: str) -> str:
    """The backticks that delimit a code block with this text."""
    return "`" * max(3, _longest_fence(text) + 1)


def _longest_fence(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0) if "`" in text else 0
