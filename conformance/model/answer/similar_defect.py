"""What the corpus and its expectations say about calls like those of a model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from conformance.case.case import Case
from conformance.case.nearest import nearest
from conformance.expectations.match import Expectation
from conformance.operator.features import BY_NAME
from conformance.results.records import ResultRecord

#: The number of nearest cases that are searched for a known defect …
_LOOKED_AT: Final = 400
#: … and a case that differs in more features says nothing about the result.
_MOST_DIFFERENT: Final = 3
#: Features that say little about the work of a kernel.
_OF_ANY_MODEL: Final = ("dtype", "dims", "head_size", "heads", "batch")


class Similar(NamedTuple):
    """A known defect like that of a result: its case, its description, and its link."""

    case: str
    why: str
    link: str


def similar_defect(
    case: Case, record: ResultRecord, lines: Sequence[Expectation], corpus: Iterable[Case]
) -> Similar | None:
    """The known defect of the nearest case of ``corpus`` with a result like ``record``.

    ``lines`` are the target's expectations; the first that covers a case is for it.
    The results have the same verdict, and ``record`` has the fault, or of a refusal the message,
    that the expectation names, if it names one.

    The case has no feature that ``case`` lacks, since the defect could be due to that feature.
    Features of ``case`` that change nothing, such as a window longer than the sequence, do not
    count as a difference.
    """
    own = {*_telling(case)}
    ignored = {*_OF_ANY_MODEL, *_without_effect(case)}
    for near in nearest(case.call, case.steps, corpus, _LOOKED_AT):
        if len(near.features.keys() - ignored) > _MOST_DIFFERENT:
            continue
        if not own >= {each for each in _telling(near.case) if each[0] != "phase"}:
            continue
        if bool(near.case.call.loop) != bool(case.call.loop):
            continue
        line = next((one for one in lines if one.covers(near.case)), None)
        if line is None or line.known.verdict != record.verdict:
            continue
        if record.message and not line.known.message:
            continue  # it may be refused for another reason
        if line.differs(record) is None:
            return Similar(near.case.id, line.known.why, line.known.link)
    return None


def _without_effect(case: Case) -> Iterator[str]:
    """The features of a case that change none of its results."""
    if ("window", "longer") in case.features.items():
        yield "window"
    scale = case.call.scale
    if scale and math.isclose(scale * math.sqrt(case.call.head_size), 1, rel_tol=1e-6):
        yield "scale"


def _telling(case: Case) -> Iterator[tuple[str, str]]:
    """The features of a case that are not plain, except for those that any model has."""
    for name, value in case.features.items():
        plain = name != "phase" and value == BY_NAME[name].plain
        if value is not None and not plain and name not in _OF_ANY_MODEL:
            yield name, value
