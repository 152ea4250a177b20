"""The answers for a model as one table."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from conformance.base.findings import workaround
from conformance.base.words import listed, plural
from conformance.expectations.known import TODO
from conformance.graph.nodes import ATTENTION, layer_in
from conformance.graph.reading import ReadModel
from conformance.graph.walks import nodes_in
from conformance.model.answer.answers import CHAT, WAY_OF, AnswerPart, ModelAnswer
from conformance.model.answer.headline import (
    Answers,
    ReleaseColumn,
    columns_of,
    headline,
    in_words,
    label_of,
    of_graph,
    series_of,
)
from conformance.model.answer.similar_defect import Similar
from conformance.model.calls.groups import Group, layers_of, layers_with, ranges, whole_of
from conformance.model.calls.stages import NodeCall
from conformance.model.calls.subject import Subject
from conformance.model.run.short_messages import short
from conformance.report.model_table import (
    DRAWN,
    LOADING,
    LOADING_PART,
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
from conformance.results.wrong_outputs import is_beyond
from conformance.rewriting.dense_nodes import is_rewritten
from conformance.run.target import DescribedTarget

_NUMBER: Final = re.compile(r"\d+")


def table_of(
    subject: Subject,
    answers: Answers,
    targets: Iterable[DescribedTarget],
    similar: Callable[[ResultRecord], Similar | None] = lambda record: None,
    required: Collection[str] = (CHAT,),
) -> ModelTable:
    """The table of ``answers``, of each target first the model itself, and then its groups.

    ``similar`` looks for a known defect like that of a result which no expectation covers, and
    ``required`` are the uses that a target must run right.
    """
    model, groups = subject.model, subject.groups
    nodes = plural(sum(len(group.nodes) for group in groups), "attention node")
    by = f", made by {model.producer}" if model.producer else ""
    kinds = "all the same call" if len(groups) == 1 else f"{len(groups)} different calls"
    series = series_of(target for target in targets if target.name in answers)
    by_series = [columns_of(answers, each) for each in series]
    columns = [column for some in by_series for column in some]
    causes = [*_causes(answers, series, similar), *_of_model(answers, series)]
    wholes = [whole_of(groups), *groups]
    sentences = [
        (
            DRAWN[worst_kind(some[-1].answers, required)],
            headline(some, required, len(subject.faults)),
        )
        for some in by_series
    ]
    return ModelTable(
        heading=f"{model.path}{by}: {nodes}, {kinds}",
        notes=tuple(subject.notes),
        sentences=(*of_graph(answers, required), *sentences),
        ways=_ways(answers),
        targets=tuple(label_of(column.targets) for column in columns),
        rows=(
            *(_row(group, at, columns, subject.contradicts) for at, group in enumerate(wholes)),
            *_other_rows(model, groups, columns),
        ),
        causes=tuple(causes),
        faults=tuple(f"{name} was not checked: {why}" for name, why in subject.faults.items()),
    )


def _ways(answers: Answers) -> str:
    """Which ways of calling were tried, and why others were not; "" if none was."""
    parts = [part for those in answers.values() for part in those[0].parts]
    if not parts:
        return ""
    done = {part.use for part in parts if part.kind != "untried"}
    names = [way.name for use, way in WAY_OF.items() if use in done]
    left: dict[str, list[str]] = {}
    for use, why in {part.use: part.where for part in parts if part.use not in done}.items():
        if not WAY_OF[use].rare:
            left.setdefault(why, []).append(WAY_OF[use].name)
    others = "; ".join(f"{listed(each)} ({why})" for why, each in left.items())
    return f"Tried: {', '.join(names) or 'none'}.{f' Not tried: {others}.' if others else ''}"


def _row(
    group: Group, number: int, columns: Sequence[ReleaseColumn], contradicts: bool
) -> ModelRow:
    """The row of the group with this number: a line for each use, or one if all are alike."""
    each = [(column.targets[-1], column.answers[number]) for column in columns]
    uses = [use for use in WAY_OF if any(_is_told(one.of(use)) for _, one in each)]
    but = ", but see the notes" if contradicts and group.is_whole else ""
    if len(uses) < 2 or (all(one.alike for _, one in each) and not group.is_whole):
        lines = [ModelLine("", tuple(_cell(target, one, but) for target, one in each))]
    else:
        lines = [
            ModelLine(use, tuple(_cell(target, one.of(use), but) for target, one in each))
            for use in uses
        ]
    return ModelRow(ranges(group.layers), group.what, tuple(lines))


def _other_rows(
    model: ReadModel, groups: Sequence[Group], columns: Sequence[ReleaseColumn]
) -> Iterator[ModelRow]:
    """A row for each other attention operator, which only the model itself can be judged with."""
    found: dict[tuple[str, bool], list[int]] = {}
    called = {node.outputs.get("output") for group in groups for node in group.nodes}
    for at, node in enumerate(nodes_in(model.proto.graph)):
        if node.op_type in ATTENTION and called.isdisjoint(node.output):
            layer = layer_in(" ".join((node.name, *node.input, *node.output)))
            of = found.setdefault((node.op_type, is_rewritten(node)), [])
            of.append(at if layer is None else layer)
    for (name, compared), layers in found.items():
        cells = []
        for column in columns:
            whole = column.answers[0]
            chat = whole.of(CHAT)
            told = f"{chat.sentence}, as part of the model" if compared else "not compared"
            verdict = DRAWN[chat.kind if compared else "untried"]
            cells.append(ModelCell(verdict, told, "", column.targets[-1].name))
        yield ModelRow(ranges(sorted({*layers})), name, (ModelLine("", tuple(cells)),))


def _is_told(one: ModelAnswer) -> bool:
    """Whether an answer for one use has a line: of the model itself if it was tried."""
    return any(part.kind != "untried" or not one.group.is_whole for part in one.parts)


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


def worst_kind(answers: Sequence[ModelAnswer], required: Collection[str]) -> AnswerKind:
    """The worst outcome in a use that is required."""
    order = list(DRAWN)
    whole, *groups = answers
    kinds = [one.of(use).kind for one in groups for use in required if one.of(use).parts]
    kinds += [part.kind for part in whole.parts if part.use in required]
    kinds += ["untried"] if whole.unseen or not kinds else []
    return min(kinds, key=order.index)


def _cell(target: DescribedTarget, one: ModelAnswer, but: str) -> ModelCell:
    told = (
        one.sentence + (but if one.kind == "right" else "") + (" (expected)" if one.pinned else "")
    )
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
    answers: Answers,
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


def _of_model(
    answers: Answers, series: Sequence[Sequence[DescribedTarget]]
) -> Iterator[ModelCause]:
    """Each failure of the model itself once, unless the graph is to blame."""
    found: dict[tuple[AnswerKind, str], list[tuple[str, AnswerPart]]] = {}
    for target in (target for each in series for target in reversed(each)):
        nodes = [part for one in answers[target.name][1:] for part in one.bad]
        kinds = {part.kind for part in nodes}
        said = {short(record.message or "") for part in nodes for _, record in part.results} - {""}
        for part in answers[target.name][0].bad:
            # What calls of single nodes show is told with their cases.
            if not part.of_graph and (part.message or part.kind) not in said | kinds:
                what = _NUMBER.sub("…", part.message) or f"{part.use}: {part.told}"
                found.setdefault((part.kind, what), []).append((target.name, part))
    for (kind, _), members in found.items():
        names, part = dict.fromkeys(name for name, _ in members), members[0][1]
        uses = listed([WAY_OF[use].words for use in dict.fromkeys(p.use for _, p in members)])
        loading = part.where in (LOADING, LOADING_PART)
        yield ModelCause(
            target=members[0][0],
            where=in_words(names, series),
            verdict=DRAWN[kind],
            what=f"the model is refused {part.where}" if loading else f"{part.sentence} {uses}",
            said=part.message or _said(part),
            example="",
            case="",
        )


def _said(part: AnswerPart) -> str:
    layer = (
        f"the attention of {layers_with(part.cause.nodes)} computes wrong"
        if part.cause.nodes
        else ""
    )
    return "; ".join(filter(None, (layer, part.told)))


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
            layers = layers_of(each.group for each in of_kind)
            calls = plural(len({each.record.case for each in of_kind}), "call")
            uses = [use for use in WAY_OF if any(each.stage.use == use for each in of_kind)]
            how = "" if CHAT in uses else f" {listed([WAY_OF[use].words for use in uses])}"
            told.append(f"{WORDS[kind]} in {layers} ({calls}{how})")
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
