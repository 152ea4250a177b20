"""``-k`` expressions, the same in ``gqa`` and in pytest: words, and, or, not, parentheses.

A word selects a case if one of its names contains it, ignoring case, from the start of a word of
the name on: ``soft`` finds ``softcap=30`` and ``window`` finds ``local_window_size``, but
``float16`` does not find ``bfloat16``. A number is matched whole: ``window_size=5`` does not find
``window_size=50``. `conformance.case.corpus.names_of` says what the names of a case are.

pytest's own ``-k`` would find a word anywhere in a name; for cases the plugin takes this module
instead. In addition to pytest's words, any part of an id without spaces and parentheses is a word:
``dtype=float16``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final

_TOKEN = re.compile(r"\s*(?:(?P<paren>[()])|(?P<word>[^\s()]+))")
_DIGITS = re.compile(r"\.?\d")

#: The limits of an expression. Each word is compared with every name of every case.
MOST_WORDS: Final = 1_000
DEEPEST: Final = 50

Matcher = Callable[[Iterable[str]], bool]
#: Whether an expression holds for the names of a test: lower case, one a line.
_Test = Callable[[str], bool]


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
    test = parser.alternatives()
    parser.expect_end()
    return lambda names: test("\n".join(names).lower())


def none_selected(text: str, cases: int) -> SelectionError:
    """The error of an expression that selects none of so many cases."""
    return SelectionError(f"-k '{_short(text)}' selects none of {cases} cases.")


def _finds(word: str, names: str) -> bool:
    """Whether one of ``names`` contains ``word`` as the module's docstring says."""
    at = names.find(word)
    while at >= 0:
        end = at + len(word)
        inside_word = word[0].isalnum() and names[at - 1 : at].isalnum()
        inside_number = word[-1].isdigit() and _DIGITS.match(names, end)
        if not inside_word and not inside_number:
            return True
        at = names.find(word, at + 1)
    return False


class _Parser:
    def __init__(self, text: str, tokens: list[str]) -> None:
        self.text = text
        self.tokens = tokens
        self.at = 0
        self.words = 0
        self.depth = 0

    def error(self, sentence: str) -> SelectionError:
        return SelectionError(f"-k '{_short(self.text)}': {sentence}")

    def found(self) -> str:
        more = self.at < len(self.tokens)
        return f"found '{_short(self.tokens[self.at])}'" if more else "found the end"

    def take(self, token: str) -> bool:
        found = self.at < len(self.tokens) and self.tokens[self.at] == token
        self.at += found
        return found

    def expect_end(self) -> None:
        if self.at < len(self.tokens):
            raise self.error(f"expected 'and' or 'or', {self.found()}")

    def alternatives(self) -> _Test:
        parts = [self.conjunction()]
        while self.take("or"):
            parts.append(self.conjunction())
        return parts[0] if len(parts) == 1 else lambda names: any(part(names) for part in parts)

    def conjunction(self) -> _Test:
        parts = [self.negation()]
        while self.take("and"):
            parts.append(self.negation())
        return parts[0] if len(parts) == 1 else lambda names: all(part(names) for part in parts)

    def negation(self) -> _Test:
        negated = False
        while self.take("not"):
            negated = not negated
        inner = self.group() if self.take("(") else self.word()
        return (lambda names: not inner(names)) if negated else inner

    def group(self) -> _Test:
        self.depth += 1
        if self.depth > DEEPEST:
            raise self.error(f"more than {DEEPEST} parentheses inside one another")
        inner = self.alternatives()
        if not self.take(")"):
            raise self.error("a ')' is missing")
        self.depth -= 1
        return inner

    def word(self) -> _Test:
        if self.at >= len(self.tokens) or self.tokens[self.at] in (")", "and", "or"):
            raise self.error(f"expected a word, 'not' or '(', {self.found()}")
        word = self.tokens[self.at].lower()
        self.at += 1
        self.words += 1
        if self.words > MOST_WORDS:
            raise self.error(f"more than {MOST_WORDS} words; name the cases as arguments instead")
        return lambda names: _finds(word, names)


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:79]}…"
