"""``-k`` expressions as in pytest: words, ``and``, ``or``, ``not`` and parentheses.

A word matches if the file's name, the case's name with its axes and target, or a tag contains it,
ignoring case. In addition to pytest's words, any part of an id without spaces and parentheses is a
word: ``dtype=float16``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

_TOKEN = re.compile(r"\s*(?:(?P<paren>[()])|(?P<word>[^\s()]+))")

Matcher = Callable[[Iterable[str]], bool]


class SelectionError(ValueError):
    """The expression is invalid; the message says where."""


def compile_expression(text: str) -> Matcher:
    """A function that takes the names of a test and returns whether ``text`` selects it.

    The empty expression selects everything. Raises :class:`SelectionError`.
    """
    tokens = [match["paren"] or match["word"] for match in _TOKEN.finditer(text.strip())]
    if not tokens:
        return lambda names: True
    parser = _Parser(text, tokens)
    try:
        matcher = parser.alternatives()
    except RecursionError:
        raise SelectionError(f"-k '{text[:40]}…': nested too deeply") from None
    parser.expect_end()
    return matcher


class _Parser:
    def __init__(self, text: str, tokens: list[str]) -> None:
        self.text = text
        self.tokens = tokens
        self.at = 0

    def fail(self) -> SelectionError:
        found = f"'{self.tokens[self.at]}'" if self.at < len(self.tokens) else "the end"
        return SelectionError(f"-k '{self.text}': expected a word, 'not' or '(', found {found}")

    def take(self, token: str) -> bool:
        found = self.at < len(self.tokens) and self.tokens[self.at] == token
        self.at += found
        return found

    def expect_end(self) -> None:
        if self.at < len(self.tokens):
            found = self.tokens[self.at]
            raise SelectionError(f"-k '{self.text}': expected 'and' or 'or', found '{found}'")

    def alternatives(self) -> Matcher:
        parts = [self.conjunction()]
        while self.take("or"):
            parts.append(self.conjunction())
        return parts[0] if len(parts) == 1 else lambda names: any(part(names) for part in parts)

    def conjunction(self) -> Matcher:
        parts = [self.negation()]
        while self.take("and"):
            parts.append(self.negation())
        return parts[0] if len(parts) == 1 else lambda names: all(part(names) for part in parts)

    def negation(self) -> Matcher:
        if self.take("not"):
            inner = self.negation()
            return lambda names: not inner(names)
        if self.take("("):
            inner = self.alternatives()
            if not self.take(")"):
                raise SelectionError(f"-k '{self.text}': a ')' is missing")
            return inner
        if self.at >= len(self.tokens) or self.tokens[self.at] in (")", "and", "or"):
            raise self.fail()
        word = self.tokens[self.at].lower()
        self.at += 1
        return lambda names: any(word in name.lower() for name in names)
