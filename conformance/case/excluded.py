"""The cases that paths and an expression select, or why an expression selects none."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from conformance.base.explain import did_you_mean
from conformance.base.text import one_line
from conformance.case.case import Case
from conformance.case.corpus import Corpus, find, names_of
from conformance.case.properties import VOCABULARY, nearest_sizes, why_meaningless
from conformance.case.selection import Expression, SelectionError, Term, compile_expression

#: An expression with more parts is not explained; of more words, only the first are.
_MOST: Final = 20

#: The names of a case, and the case.
NamedCase = tuple[Sequence[str], Case]


@dataclass(frozen=True)
class PartCount:
    """How many cases one part of an expression selects, and how many all other parts select."""

    text: str
    alone: int
    without: int | None
    """None if the other parts need not hold, too."""


def selected_cases(paths: Sequence[str], expression: str) -> tuple[Corpus, list[Case]]:
    """The corpus that ``paths`` load, and the cases that ``paths`` and ``-k`` select from it.

    Raises :class:`SelectionError` if there are none, and the errors of
    `conformance.case.corpus.find`.
    """
    corpus = find(paths)
    selects = compile_expression(expression)
    subjects: list[NamedCase] = [(names_of(case, None), case) for case in corpus.named]
    chosen = [case for names, case in subjects if selects(names, case)]
    if not chosen:
        raise none_selected(selects, subjects)
    return corpus, chosen


def none_selected(expression: Expression, subjects: Sequence[NamedCase]) -> SelectionError:
    """The error for a ``-k`` that selects none of the cases, in one line."""
    sentence = f"-k '{one_line(expression.text, 80)}' selects none of {len(subjects)} cases"
    counted = ", ".join(f"{part.text} {part.alone}" for part in counts(expression, subjects))
    parts = f" ({counted})" if counted else ""
    return SelectionError(" ".join((f"{sentence}{parts}.", *hints(expression, subjects))))


def counts(expression: Expression, subjects: Sequence[NamedCase]) -> list[PartCount]:
    """The counts of the operands of the outermost ``and`` or ``or``; empty for one, or too many."""
    whole = expression.whole
    if whole is None or not whole.joined or len(whole.operands) > _MOST:
        return []
    held = [[_holds(part, subject) for part in whole.operands] for subject in subjects]
    found = []
    for index, part in enumerate(whole.operands):
        alone = sum(row[index] for row in held)
        others = sum(all(row[:index]) and all(row[index + 1 :]) for row in held)
        text = one_line(f"({part.text})" if part.joined else part.text, 80)
        found.append(PartCount(text, alone, others if whole.joined == "and" else None))
    return found


def hints(expression: Expression, subjects: Sequence[NamedCase]) -> list[str]:
    """A sentence for each word that no case has, if something similar may be meant."""
    words = {part.text: part for part in itertools.islice(expression.words(), _MOST)}
    unknown = (
        word for word, part in words.items() if not any(_holds(part, one) for one in subjects)
    )
    return [*filter(None, (_hint(word, subjects) for word in unknown))]


def _holds(part: Term, subject: NamedCase) -> bool:
    names, case = subject
    return part.test("\n".join(names).lower(), case)


def _hint(word: str, subjects: Sequence[NamedCase]) -> str:
    no_case = f"No case has '{one_line(word, 80)}'"
    if sizes := nearest_sizes(word, (case for _, case in subjects)):
        verb = "is" if len(sizes) == 1 else "are"
        return f"{no_case}; the nearest {verb} {' and '.join(f'{size:g}' for size in sizes)}."
    why = why_meaningless(word)
    if why.endswith("?"):
        return f"{no_case}: {why}"
    known = _names_in(subjects)
    if word not in known and (near := did_you_mean(word, known)):
        return no_case + near
    return f"{no_case}: {why}." if why else ""


def _names_in(subjects: Sequence[NamedCase]) -> set[str]:
    """The words that select something: words for calls, tags, files, entries and axes."""
    found = set(VOCABULARY)
    for _, case in subjects:
        axes = (f"{axis}={value}" for axis, value in case.axes.items())
        found.update((*case.tags, case.theme, case.name, *axes))
    return found
