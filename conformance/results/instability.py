"""Sentences about results of a target that did not repeat, for every view."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from conformance.base.text import one_line
from conformance.base.words import listed
from conformance.results.records import InstabilityRecord
from conformance.results.verdicts import VERDICTS, verdict_word

#: The number of results that are described one by one.
_EXAMPLES: Final = 3


#: What a number of unstable results with a verdict is called.
_NOUNS: Final = {"wrong": "wrong result", "accepted": "accepted call", "unsupported": "refusal"}


def _counted(number: int, verdict: str) -> str:
    noun = _NOUNS.get(verdict, verdict)
    return f"{number:,} {noun}" + ("" if number == 1 else "es" if noun.endswith("sh") else "s")


def instability_text(records: Sequence[InstabilityRecord]) -> str:
    """A sentence with the number of results of a target that did not recur, by verdict."""
    verdicts = Counter(record.verdict for record in records)
    counts = [_counted(verdicts[verdict], verdict) for verdict in VERDICTS if verdicts[verdict]]
    text = f"{listed(counts)} did not recur when run alone."
    known = {(one.expectation.why, one.expectation.link) for one in records if one.expectation}
    return " ".join([text, *(f"Known: {why} {link}" for why, link in sorted(known))])


def instability_lines(records: Sequence[InstabilityRecord]) -> Iterator[str]:
    """Lines about results that did not recur, by target, each after an empty one."""
    for target in dict.fromkeys(record.target for record in records):
        those = [record for record in records if record.target == target]
        yield f"\n{target}: {instability_text(those)}"
        yield from (f"  {text}" for text in instability_examples(those))


def is_unstable(records: Sequence[InstabilityRecord]) -> bool:
    """Whether there is a result that did not repeat and that no expectation covers."""
    return any(record.unexpected for record in records)


def instability_examples(records: Sequence[InstabilityRecord]) -> Iterator[str]:
    """A line for each of the first results that did not repeat, and the number of the others."""
    for record in records[:_EXAMPLES]:
        after = f", after {record.before}" if record.before else ""
        said = one_line(record.message, 500)
        yield f"{verdict_word(record.verdict)} in {record.case}{after}: {said}"
    if len(records) > _EXAMPLES:
        yield f"and {len(records) - _EXAMPLES:,} more; the results file has all"
