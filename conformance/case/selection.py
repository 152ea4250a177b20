"""``-k`` expressions, the same in ``gqa`` and in pytest: words, comparisons, and, or, not, ( ).

A word selects a case if one of its names contains it, ignoring case, at the start of a word of the
name: ``soft`` finds ``softcap=30`` and ``window`` finds ``local_window_size``, but ``float16`` does
not find ``bfloat16``. A number is matched whole: ``window_size=5`` does not find
``window_size=50``. `conformance.case.corpus.names_of` lists the names of a case. A word also
selects the calls with the property that it names, and a comparison selects only by properties
(`conformance.case.properties`).

pytest's own ``-k`` would find a word anywhere in a name; for cases the plugin uses this module
instead. In addition to pytest's words, any part of an id without spaces and parentheses is a word:
``heads=mha]``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from conformance.base.text import one_line
from conformance.case.properties import (
    OPERATORS,
    ComparisonError,
    Described,
    comparison_test,
    word_test,
)

_TOKEN = re.compile(r"\s*(?:(?P<paren>[()])|(?P<word>[^\s()]+))")
_DIGITS = re.compile(r"\.?\d")

#: The words that join others.
JOINING: Final = frozenset({"and", "or", "not"})
#: The limits of an expression. Each word is compared with every name of every case.
MOST_WORDS: Final = 1_000
DEEPEST: Final = 50

#: Whether an expression holds for the names of a test: lower case, one a line; and for its call.
_Test = Callable[[str, Described | None], bool]


class SelectionError(ValueError):
    """The expression is invalid; the message gives the place of the error."""


@dataclass(frozen=True)
class Term:
    """A part of an expression: a word, a negation, or operands joined by ``and`` or ``or``."""

    text: str
    test: _Test
    operands: tuple[Term, ...] = ()
    joined: str = ""

    def words(self) -> Iterator[Term]:
        """The words in it, and itself if it is one."""
        if not self.operands:
            yield self
        for operand in self.operands:
            yield from operand.words()


@dataclass(frozen=True)
class Expression:
    """An expression; called with a test's names and call, it returns whether it selects the test.

    Without a call, only the names count. ``whole`` is None if the expression is empty, which
    selects everything.
    """

    text: str
    whole: Term | None = None

    def __call__(self, names: Iterable[str], case: Described | None = None) -> bool:
        """Whether it selects a test with these names."""
        return self.whole is None or self.whole.test("\n".join(names).lower(), case)

    def words(self) -> Iterator[Term]:
        """The words and comparisons of the expression."""
        return iter(()) if self.whole is None else self.whole.words()


def compile_expression(text: str, label: str = "-k ") -> Expression:
    """The expression ``text``. Raises :class:`SelectionError`, which begins with ``label``."""
    tokens = [match["paren"] or match["word"] for match in _TOKEN.finditer(text.strip())]
    if not tokens:
        return Expression(text)
    parser = _Parser(f"{label}'{one_line(text, 80)}'", tokens)
    whole = parser.alternatives()
    parser.expect_end()
    return Expression(text, whole)


def _finds(word: str, names: str) -> bool:
    """Whether one of ``names`` contains ``word``, by the rules in the module's docstring."""
    at = names.find(word)
    while at >= 0:
        end = at + len(word)
        inside_word = word[0].isalnum() and names[at - 1 : at].isalnum()
        inside_number = word[-1].isdigit() and _DIGITS.match(names, end)
        if not inside_word and not inside_number:
            return True
        at = names.find(word, at + 1)
    return False


def _test_of(word: str) -> _Test:
    """The test of a word or a comparison, in lower case. Raises :class:`ComparisonError`."""
    compare = comparison_test(word)
    if compare is not None:
        axis = re.compile(rf"[\[,]{re.escape(word)}[,\]]")
        return lambda names, case: (
            axis.search(names) is not None or (case is not None and compare(case))
        )
    describes = word_test(word)
    if describes is not None:
        return lambda names, case: _finds(word, names) or (case is not None and describes(case))
    return lambda names, case: _finds(word, names)


class _Parser:
    def __init__(self, named: str, tokens: list[str]) -> None:
        self.named = named
        self.tokens = tokens
        self.at = 0
        self.words = 0
        self.depth = 0

    def error(self, sentence: str) -> SelectionError:
        return SelectionError(f"{self.named}: {sentence}")

    def found(self) -> str:
        more = self.at < len(self.tokens)
        return f"found '{one_line(self.tokens[self.at], 80)}'" if more else "found the end"

    def take(self, token: str) -> bool:
        found = self.at < len(self.tokens) and self.tokens[self.at] == token
        self.at += found
        return found

    def expect_end(self) -> None:
        if self.at < len(self.tokens):
            raise self.error(f"expected 'and' or 'or', {self.found()}")

    def text(self, start: int) -> str:
        return " ".join(self.tokens[start : self.at]).replace("( ", "(").replace(" )", ")")

    def alternatives(self) -> Term:
        return self.operands("or", self.conjunction, any)

    def conjunction(self) -> Term:
        return self.operands("and", self.negation, all)

    def operands(
        self, joined: str, operand: Callable[[], Term], holds: Callable[[Iterable[bool]], bool]
    ) -> Term:
        start = self.at
        parts = [operand()]
        while self.take(joined):
            parts.append(operand())
        if len(parts) == 1:
            return parts[0]
        tests = [part.test for part in parts]
        return Term(
            self.text(start),
            lambda names, case: holds(test(names, case) for test in tests),
            tuple(parts),
            joined,
        )

    def negation(self) -> Term:
        start = self.at
        negated = False
        while self.take("not"):
            negated = not negated
        inner = self.group() if self.take("(") else self.word()
        if not negated:
            return inner
        return Term(self.text(start), lambda names, case: not inner.test(names, case), (inner,))

    def group(self) -> Term:
        self.depth += 1
        if self.depth > DEEPEST:
            raise self.error(f"more than {DEEPEST} parentheses inside one another")
        inner = self.alternatives()
        if not self.take(")"):
            raise self.error("a ')' is missing")
        self.depth -= 1
        return inner

    def word(self) -> Term:
        if self.at >= len(self.tokens) or self.tokens[self.at] in (")", "and", "or"):
            raise self.error(f"expected a word, 'not' or '(', {self.found()}")
        word = self.tokens[self.at].lower()
        self.at += 1
        if self.at < len(self.tokens) and self.tokens[self.at] in OPERATORS:
            word += self.tokens[self.at]
            self.at += 1
            if self.at >= len(self.tokens) or self.tokens[self.at] in ("(", ")", "and", "or"):
                raise self.error(f"expected a value after '{one_line(word, 80)}', {self.found()}")
            word += self.tokens[self.at].lower()
            self.at += 1
        self.words += 1
        if self.words > MOST_WORDS:
            raise self.error(f"more than {MOST_WORDS} words; name the cases as arguments instead")
        try:
            return Term(word, _test_of(word))
        except ComparisonError as error:
            raise self.error(str(error)) from None
