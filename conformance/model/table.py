"""The answers for a model as one table."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Final

from conformance.base.words import plural
from conformance.model.answers import (
    WORDS,
    Answer,
    Kind,
    at_fault,
    short,
    verdict_on_model,
    workaround,
)
from conformance.model.groups import Group, layers_of, ranges
from conformance.model.known import Similar
from conformance.model.stages import Stage
from conformance.model.subject import Subject
from conformance.report.model_table import ModelCause, ModelCell, ModelRow, ModelTable
from conformance.results.faults import fault_text
from conformance.results.records import BeyondBudget, ResultRecord
from conformance.results.verdicts import Verdict
from conformance.results.wrong_outputs import is_beyond

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


_INSENSITIVE: Final = re.compile(r"cannot show a fault in ([^:]+):")


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
        notes=(*subject.notes, *_insensitive(answers)),
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


def _insensitive(answers: Mapping[str, Sequence[Answer]]) -> Iterator[str]:
    """What some calls could not show a fault in, with the number of these calls."""
    parts: dict[str, set[str]] = {}
    for one in chain.from_iterable(answers.values()):
        for _, record in chain.from_iterable(part.results for part in one.parts):
            for part in _INSENSITIVE.findall(record.insensitive):
                parts.setdefault(part, set()).add(record.case)
    for part, cases in parts.items():
        yield f"{plural(len(cases), 'call')} could hardly show a fault in {part}: {min(cases)}."


def _reason(group: Group, record: ResultRecord) -> str:
    """What is wrong; of presents that nothing reads only if nothing else is."""
    if group.form.reads_presents:
        return record.reason
    for error in record.errors:
        if error.output == "output" and is_beyond(error) and error.index is not None:
            fields = error.model_dump(include={"output", "index", "got", "want", "budget", "share"})
            return f"It ran, but {fault_text(BeyondBudget(**fields))}."
    return record.reason


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
        layers = layers_of(at_fault(each, [found]) for each, _, found in everywhere[key])
        made = merged.get(key) or ModelCause(
            target,
            _DRAWN[kind],
            "",
            short(record.message) if record.message else _reason(group, record),
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
