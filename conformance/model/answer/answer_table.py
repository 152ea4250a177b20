"""The answers for a model as one table."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Final, NamedTuple

from conformance.base.findings import workaround
from conformance.base.words import plural
from conformance.expectations.known import TODO
from conformance.model.answer.answers import AnswerPart, ModelAnswer, at_fault, short
from conformance.model.answer.headline import (
    ReleaseColumn,
    columns_of,
    headline,
    in_words,
    label_of,
    series_of,
)
from conformance.model.answer.similar_defect import Similar
from conformance.model.calls.groups import Group, layers_of, ranges
from conformance.model.calls.stages import NodeCall
from conformance.model.calls.subject import Subject
from conformance.report.model_table import (
    DRAWN,
    LOADING,
    USES,
    WORDS,
    AnswerKind,
    ModelCause,
    ModelCell,
    ModelLine,
    ModelRow,
    ModelTable,
)
from conformance.results.causes import symptom
from conformance.results.faults import fault_text
from conformance.results.records import BeyondBudget, ResultRecord
from conformance.results.verdicts import Drawn
from conformance.results.wrong_outputs import is_beyond
from conformance.run.target import DescribedTarget

_NUMBER: Final = re.compile(r"\d+")
_INSENSITIVE: Final = re.compile(r"cannot show a fault in ([^:]+):")


def table_of(
    subject: Subject,
    answers: Mapping[str, Sequence[ModelAnswer]],
    targets: Iterable[DescribedTarget],
    similar: Callable[[ResultRecord], Similar | None] = lambda record: None,
    told: Callable[[ModelAnswer], str] | None = None,
) -> ModelTable:
    """The table of ``answers``, those for each target in the order of the subject's groups.

    ``similar`` looks for a known defect like that of a result which no expectation covers. With
    ``told``, which gives the words of a cell, a group is one line, and each release a column.
    """
    model, groups = subject.model, subject.groups
    single = [group for group in groups if group.graph is None]
    nodes = plural(sum(len(group.nodes) for group in single), "attention node")
    by = f", made by {model.producer}" if model.producer else ""
    kinds = "all the same call" if len(single) == 1 else f"{len(single)} different calls"
    series = series_of(target for target in targets if target.name in answers)
    by_series = [columns_of(answers, each, together=told is None) for each in series]
    columns = [column for some in by_series for column in some]
    causes = [*_causes(answers, series, similar), *_refusals(answers, series)]
    return ModelTable(
        heading=f"{model.path}{by}: {nodes}, {kinds}",
        notes=(*subject.notes, *_insensitive(answers)),
        sentences=tuple(
            (
                _worst(some[-1].answers),
                headline(some, len(subject.faults)),
            )
            for some in by_series
        ),
        targets=tuple(label_of(column.targets) for column in columns),
        rows=tuple(_row(group, number, columns, told) for number, group in enumerate(groups)),
        causes=tuple(causes),
        faults=tuple(f"{name} was not checked: {why}" for name, why in subject.faults.items()),
    )


def _row(
    group: Group,
    number: int,
    columns: Sequence[ReleaseColumn],
    told: Callable[[ModelAnswer], str] | None,
) -> ModelRow:
    """The row of the group with this number: a line for each use, or one if all are alike."""
    each = [(column.targets[-1], column.answers[number]) for column in columns]
    uses = [use for use in USES if any(use in one.uses for _, one in each)]
    if told is not None or all(one.alike for _, one in each):
        cells = (_cell(target, one, told(one) if told else one.sentence) for target, one in each)
        lines = [ModelLine("", tuple(cells))]
    else:
        lines = [
            ModelLine(
                use, tuple(_cell(target, one.of(use), one.of(use).sentence) for target, one in each)
            )
            for use in uses
        ]
    return ModelRow(ranges(group.layers), group.what, tuple(lines))


def _insensitive(answers: Mapping[str, Sequence[ModelAnswer]]) -> Iterator[str]:
    """The faults that some calls could not show, with the number of these calls."""
    parts: dict[str, set[str]] = {}
    for one in chain.from_iterable(answers.values()):
        for _, record in chain.from_iterable(part.results for part in one.parts):
            for part in _INSENSITIVE.findall(record.insensitive):
                parts.setdefault(part, set()).add(record.case)
    for part, cases in parts.items():
        yield f"A fault in {part} would hardly show in {plural(len(cases), 'call')}: {min(cases)}."


def _reason(group: Group, record: ResultRecord) -> str:
    """The reason why a result is wrong.

    A fault of presents that nothing reads is named only if there is no other fault.
    """
    if group.form.reads_presents:
        return record.reason
    for error in record.errors:
        if error.output == "output" and is_beyond(error) and error.index is not None:
            fields = error.model_dump(include={"output", "index", "got", "want", "budget", "share"})
            return f"It ran, but {fault_text(BeyondBudget(**fields))}."
    return record.reason


def _worst(answers: Sequence[ModelAnswer]) -> Drawn:
    order = list(DRAWN)
    return DRAWN[min((one.kind for one in answers), key=order.index)]


def _cell(target: DescribedTarget, one: ModelAnswer, sentence: str) -> ModelCell:
    told = sentence + (" (expected)" if one.pinned else "")
    if target.on_software and one.kind not in ("software", "untried"):
        told += "; software adapter, a GPU may differ"
    first = next((record for part in (*one.bad, *one.parts) for _, record in part.results), None)
    return ModelCell(
        DRAWN[one.kind],
        told,
        first.case if first else "",
        first.target if first else target.name,
    )


class _Member(NamedTuple):
    """A result with a defect that belongs to a cause."""

    kind: AnswerKind
    group: Group
    stage: NodeCall
    record: ResultRecord


def _causes(
    answers: Mapping[str, Sequence[ModelAnswer]],
    series: Sequence[Sequence[DescribedTarget]],
    similar: Callable[[ResultRecord], Similar | None],
) -> Iterator[ModelCause]:
    """Each cause of the defects once.

    A cause is a known defect, identified by its link, or else the property that the results share.
    """
    found: dict[str, list[_Member]] = {}
    near: dict[str, Similar | None] = {}
    known_of: dict[str, str] = {}
    # The newest release is what an example is worth most of.
    for target in (target for each in series for target in reversed(each)):
        for one, part in ((each, part) for each in answers[target.name] for part in each.bad):
            for stage, record in part.results:
                # A message means the same on any target; a fault in values does not.
                own = f"{part.kind} of {target.base}: {symptom(record)}"
                if part.kind == "refused" and record.message:
                    own = _NUMBER.sub("…", short(record.message))
                if record.known is None and own not in near:
                    near[own] = similar(record)
                known = record.known or near[own]
                key = known.link if known else own
                if known and part.kind == "refused":
                    known_of.setdefault(own, key)
                near.setdefault(key, near.get(own))
                found.setdefault(key, []).append(_Member(part.kind, one.group, stage, record))
    for own, key in known_of.items():  # a message with a known reason elsewhere
        found[key] += found.pop(own, []) if own != key else []
    for key, members in found.items():
        yield _cause(members, series, near[key])


def _refusals(
    answers: Mapping[str, Sequence[ModelAnswer]], series: Sequence[Sequence[DescribedTarget]]
) -> Iterator[ModelCause]:
    """Each message with which targets refuse the model itself, or crash on it, once."""
    found: dict[tuple[AnswerKind, str], list[tuple[str, ModelAnswer, AnswerPart]]] = {}
    for target in (target for each in series for target in reversed(each)):
        for one in answers[target.name]:
            for part in one.bad:
                if part.message:
                    member = target.name, one, part
                    found.setdefault((part.kind, part.message), []).append(member)
    for (kind, message), members in found.items():
        names = dict.fromkeys(name for name, _, _ in members)
        part, layers = members[0][2], layers_of(one.group for _, one, _ in members)
        loading = part.where == LOADING
        yield ModelCause(
            target=members[0][0],
            where=in_words(names, series),
            verdict=DRAWN[kind],
            what=part.sentence if loading else f"{part.sentence} at {layers}",
            said=message,
            example="" if loading else f"the model itself, {part.call}",
            case="",
        )


def _cause(
    members: Sequence[_Member], series: Sequence[Sequence[DescribedTarget]], near: Similar | None
) -> ModelCause:
    _, group, stage, record = members[0]
    known = record.known or near
    link = known.link if known and known.link != TODO else ""
    told = []
    for kind in DRAWN:
        of_kind = [each for each in members if each.kind == kind]
        if of_kind:
            # Layers alone say more than the graph of one of them with another layer.
            alone = [each for each in of_kind if each.group.graph is None] or of_kind
            layers = layers_of(at_fault(each.group, [each.record]) for each in alone)
            calls = plural(len({each.record.case for each in of_kind}), "call")
            told.append(f"{WORDS[kind]} in {layers} ({calls})")
    return ModelCause(
        record.target,
        in_words({each.record.target for each in members}, series),
        DRAWN[min((each.kind for each in members), key=list(DRAWN).index)],
        "; ".join(told),
        short(record.message) if record.message else _reason(group, record),
        f"{layers_of([group])}, {stage.words}",
        record.case,
        known.why if known else "",
        link,
        workaround(link),
        "" if record.known or near is None else near.case,
    )
