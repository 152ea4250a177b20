"""The answers for a model as one table."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from conformance.base.words import plural
from conformance.model.answers import WORDS, Answer, Kind, short, verdict_on_model, workaround
from conformance.model.groups import Group, layers_of, ranges
from conformance.model.known import Similar
from conformance.model.stages import Stage
from conformance.model.subject import Subject
from conformance.report.model_table import ModelCause, ModelCell, ModelRow, ModelTable
from conformance.results.records import ResultRecord
from conformance.results.verdicts import Verdict

#: The verdict that has the drawing and the colours of each kind.
_DRAWN: Final[Mapping[Kind, Verdict]] = {
    "wrong": "wrong",
    "crash": "crash",
    "timeout": "timeout",
    "fallback": "fallback",
    "refused": "unsupported",
    "untried": "skip",
    "right": "pass",
}


#: What a reason says of an expectation that does not hold: a user has none for the call.
_OTHER_LINE: Final = re.compile(r" \S+:\d+ has another expectation .*", re.DOTALL)


def table_of(
    subject: Subject,
    answers: Mapping[str, Sequence[Answer]],
    similar: Callable[[ResultRecord], Similar | None] = lambda record: None,
) -> ModelTable:
    """The table of ``answers``, those for each target in the order of the subject's groups.

    ``similar`` looks for a known defect like that of a result which no expectation covers.
    """
    model, groups = subject.model, subject.groups
    single = [group for group in groups if group.graph is None]
    nodes = plural(sum(len(group.nodes) for group in single), "attention node")
    by = f", made by {model.producer}" if model.producer else ""
    kinds = "all the same call" if len(single) == 1 else f"{len(single)} different calls"
    return ModelTable(
        heading=f"{model.path}{by}: {nodes}, {kinds}",
        notes=tuple(subject.notes),
        sentences=tuple(
            (_worst(those), verdict_on_model(those, len(subject.faults)))
            for those in answers.values()
        ),
        targets=tuple(answers),
        rows=tuple(
            ModelRow(
                ranges(group.layers),
                group.what,
                tuple(_cell(those[number]) for those in answers.values()),
            )
            for number, group in enumerate(groups)
        ),
        causes=tuple(
            cause for target, those in answers.items() for cause in _causes(target, those, similar)
        ),
        faults=tuple(f"{name} was not checked: {why}" for name, why in subject.faults.items()),
    )


def _worst(answers: Sequence[Answer]) -> Verdict:
    order = list(_DRAWN)
    return _DRAWN[min((one.kind for one in answers), key=order.index)]


def _cell(one: Answer) -> ModelCell:
    expected = " (expected)" if one.pinned else ""
    first = next((record for part in (*one.bad, *one.parts) for _, record in part.results), None)
    return ModelCell(_DRAWN[one.kind], one.sentence + expected, first.case if first else "")


def _causes(
    target: str,
    answers: Sequence[Answer],
    similar: Callable[[ResultRecord], Similar | None],
) -> Iterator[ModelCause]:
    """What is not right on a target, by kind and cause."""
    found: dict[tuple[Kind, str], list[tuple[Group, Stage, ResultRecord]]] = {}
    for one in answers:
        for part in one.bad:
            for cause, results in part.causes.items():
                members = found.setdefault((part.kind, cause), [])
                members += ((one.group, stage, record) for stage, record in results)
    merged: dict[tuple[Kind, str], ModelCause] = {}
    everywhere: dict[tuple[Kind, str], list[tuple[Group, Stage, ResultRecord]]] = {}
    for (kind, cause), members in found.items():
        record = members[0][2]
        near = None if record.known else similar(record)
        known = record.known or near
        key = kind, known.link if known else cause
        everywhere.setdefault(key, []).extend(members)
        group, stage, _ = everywhere[key][0]
        layers = layers_of(each for each, _, _ in everywhere[key])
        made = merged.get(key) or ModelCause(
            target,
            _DRAWN[kind],
            "",
            short(record.message) if record.message else _OTHER_LINE.sub("", record.reason),
            f"{layers_of([group])}, {stage.words}",
            record.case,
            known.why if known else "",
            known.link if known else "",
            workaround(known.link) if known else "",
            near.case if near else "",
        )
        calls = plural(len(everywhere[key]), "call")
        merged[key] = replace(made, what=f"{WORDS[kind]} in {layers} ({calls})")
    yield from merged.values()
