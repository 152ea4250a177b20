"""Sentences about results of a target that did not repeat, for every view."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from conformance.base.text import one_line
from conformance.results.records import InstabilityRecord
from conformance.results.verdicts import VERDICTS

#: The number of results that are described one by one.
_EXAMPLES: Final = 3


def instability_text(records: Sequence[InstabilityRecord]) -> str:
    """A sentence with the number of results of a target that did not repeat, by verdict."""
    verdicts = Counter(record.verdict for record in records)
    counts = ", ".join(
        f"{verdicts[verdict]} {verdict}" for verdict in VERDICTS if verdicts[verdict]
    )
    what = "1 result" if len(records) == 1 else f"{len(records):,} results"
    text = f"Unstable: {what} ({counts}) did not repeat when the case was run alone."
    known = {(one.expectation.why, one.expectation.link) for one in records if one.expectation}
    return " ".join([text, *(f"Known: {why} {link}" for why, link in sorted(known))])


def is_unstable(records: Sequence[InstabilityRecord]) -> bool:
    """Whether there is a result that did not repeat and that no expectation covers."""
    return any(record.unexpected for record in records)


def instability_examples(records: Sequence[InstabilityRecord]) -> Iterator[str]:
    """A line for each of the first results that did not repeat, and the number of the others."""
    for record in records[:_EXAMPLES]:
        after = f", after {record.before}" if record.before else ""
        yield f"{record.verdict} in {record.case}{after}: {one_line(record.message, 500)}"
    if len(records) > _EXAMPLES:
        yield f"and {len(records) - _EXAMPLES:,} more; the results file has all"
