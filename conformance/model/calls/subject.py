"""A model with everything that the suite checks of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from conformance.base.explain import reason_of
from conformance.base.paths import shown
from conformance.base.text import visible
from conformance.base.words import plural
from conformance.case.case import misfits
from conformance.case.graph import graph_call
from conformance.case.steps import steps_of
from conformance.graph.nodes import is_attention, nodes_of
from conformance.graph.reading import ModelError, ReadModel, as_model_errors, read_model
from conformance.graph.walks import nodes_in
from conformance.model.calls.entries import case_file_of, graph_file
from conformance.model.calls.forms import Form
from conformance.model.calls.groups import (
    Group,
    groups_of,
    groups_of_forms,
    layers_of,
    only_layers,
    unique,
)
from conformance.model.calls.notes import notes_on
from conformance.model.calls.stages import (
    FEW_HEADS,
    Lengths,
    NodeCall,
    beyond_window,
    possible_stages_of,
    stages_of,
)
from conformance.model.calls.standard_calls import standard_call, standard_forms
from conformance.model.config.configuration import FILES, configuration_beside
from conformance.operator.call import checked_call


@dataclass(frozen=True)
class Subject:
    """A model with its groups of nodes, and the case file of their stages.

    ``groups`` are those of nodes of the operator, and then those of standard Attention nodes.
    ``faults`` maps the names of nodes without cases to the reason, and ``notes`` are sentences on
    the graph and its configuration. ``contradicts``: by one of them, the graph computes something
    else than its configuration says.
    ``files`` are those of a pipeline; ``model`` is the first of them with attention.
    """

    model: ReadModel
    groups: Sequence[Group]
    stages: Mapping[str, Sequence[NodeCall]]
    faults: Mapping[str, str]
    notes: Sequence[str]
    cases: str
    contradicts: bool = False
    files: tuple[ReadModel, ...] = ()

    @property
    def of_operator(self) -> list[Group]:
        """The groups of nodes of the operator."""
        return [group for group in self.groups if not group.form.graph]

    @property
    def graphs(self) -> Iterator[tuple[str, bytes]]:
        """The graphs of standard Attention nodes, by the names of the files beside the cases."""
        for group in self.groups:
            if group.form.graph:
                yield graph_file(self.model.path, group), group.form.graph


def subject_of(
    path: Path,
    lengths: Lengths,
    head_size: int | None = None,
    dtype: str | None = None,
    layers: tuple[int, ...] = (),
) -> Subject:
    """The model at ``path``, with stages of the ``lengths``, and only these ``layers`` if given.

    ``head_size`` and ``dtype`` are the user's values for facts that the graph leaves open. Raises
    :class:`ModelError`; :class:`NoCalls` is one.
    """
    with as_model_errors(path):
        return _subject_of(path, lengths, head_size, dtype, layers)


def _subject_of(
    path: Path,
    lengths: Lengths,
    head_size: int | None,
    dtype: str | None,
    layers: tuple[int, ...],
) -> Subject:
    files = _pipeline(path)
    model = next((each for each in files if _attends(each)), None) or read_model(path)
    found = nodes_of(model)
    beside = configuration_beside(model.path).overridden(head_size, dtype)
    groups, unclear = groups_of(found.nodes, beside)
    faults = dict(unclear)
    if files:
        groups = []
        for each in filter(_attends, files):
            own, unclear = groups_of(nodes_of(each).nodes, beside)
            groups += [replace(group, file=each.path.name) for group in own]
            faults |= unclear
        groups = unique(groups)
    if not groups:
        raise NoCalls(model, faults)
    groups = only_layers(groups, layers)
    noted = [*notes_on(model, groups, beside)]
    notes = [note.text for note in noted]
    standard = [
        each
        for file in files or [model]
        for each in standard_forms(file, beside)
        if not layers or each[0].layer in layers
    ]
    apart = {node.name: form for node, form in standard if isinstance(form, str)}
    forms = [(node, form) for node, form in standard if isinstance(form, Form)]
    groups = unique([*groups, *groups_of_forms(forms)])
    if found.warning:
        notes.append(f"Shapes are only those that the graph declares: {found.warning}")
    stages: dict[str, list[NodeCall]] = {}
    every: list[Group] = []
    for group in groups:
        wanted = stages_of(group.form, lengths)
        beyond = None if lengths.tokens else beyond_window(group.form, wanted)
        wanted += [] if beyond is None else [beyond]
        if group.form.graph:
            wanted = [*filter(None, (standard_call(group.form, each) for each in wanted))]
        stages[group.name], why = _judged(group, wanted)
        if stages[group.name]:
            left_out = "; ".join(_left_out(group.form, lengths, stages[group.name], beyond))
            every.append(replace(group, left_out=left_out))
            if why:
                where = f" in {layers_of([group])}" if len(groups) > 1 else ""
                notes.append(f"Not tested{where}: {why}.")
        else:
            untried = apart if group.form.graph else faults
            untried |= {node.name: why for node in group.nodes}
    notes += (f"Not called alone: {name} (Attention): {why}." for name, why in apart.items())
    if not every:
        raise NoCalls(model, faults)
    cases = case_file_of(model, every, stages)
    contradicts = any(note.contradicts for note in noted)
    return Subject(model, every, stages, faults, notes, cases, contradicts, tuple(files))


def _pipeline(path: Path) -> list[ReadModel]:
    """The files of a folder whose genai_config.json has a pipeline; none for other paths."""
    if not path.is_dir():
        return []
    stages = configuration_beside(path / FILES[0]).pipeline
    missing = next((each.file for each in stages if not (path / each.file).is_file()), None)
    if missing is not None:
        raise ModelError(
            f"{shown(path)}: genai_config.json names {visible(missing)}, which is not there."
        )
    return [read_model(path / each.file) for each in stages]


def _attends(model: ReadModel) -> bool:
    return any(map(is_attention, nodes_in(model.proto.graph)))


class NoCalls(ModelError):
    """None of the nodes can be called; the message gives the reason for each."""

    def __init__(self, model: ReadModel, faults: Mapping[str, str]) -> None:
        lines = "".join(f"\n  {name}: {why}" for name, why in faults.items())
        super().__init__(f"{model.path}: no node can be checked.{lines}")
        self.model = model


def _left_out(
    form: Form, lengths: Lengths, tried: Sequence[NodeCall], beyond: NodeCall | None
) -> Iterator[str]:
    """The calls that a program makes but that are not among ``tried``."""
    labels = {stage.label for stage in tried} | {
        stage.label.removesuffix(FEW_HEADS) for stage in tried
    }
    if fewer := [stage for stage in tried if lengths.tokens and stage.label.endswith(FEW_HEADS)]:
        yield f"{plural(len(fewer), 'call')} {fewer[0].words[fewer[0].words.index('with ') :]} only"
    possible = possible_stages_of(form, lengths)
    if form.graph:
        possible = [each for each in possible if standard_call(form, each)]
    left_out = [each for each in possible if each.label not in labels]
    if left_out:
        tokens = ",".join(map(str, sorted({stage.tokens for stage in left_out})))
        option = "" if lengths.tokens else f" without --lengths {tokens}"
        yield f"{plural(len(left_out), 'long call')} not tried{option}"
    if beyond is not None and beyond.label in labels:
        told = beyond.words.partition(" with ")[2]
        yield f"beyond its window of {form.window} only with {told}"
    elif form.window and not lengths.tokens and all(s.tokens <= form.window for s in tried):
        yield f"not tried beyond its window of {form.window}"


def _shortly(words: str) -> str:
    """``2,048 tokens after 2,048`` for 2048 tokens on a past of 2048."""
    words = words.replace(" on a past of ", " after ")
    return re.sub(r"\d{4,}", lambda number: f"{int(number[0]):,}", words)


def _judged(group: Group, stages: Sequence[NodeCall]) -> tuple[list[NodeCall], str]:
    """The ``stages`` that the oracle can compute, and why it cannot compute the others."""
    possible = []
    why = "the graph leaves no call to try"
    for stage in stages:
        try:
            call = checked_call({**group.form.fields, **stage.fields})
            if group.form.graph:
                of_graph = {"dtype": call.dtype, "graph": group.name, **stage.fields}
                call = graph_call(checked_call(of_graph), group.form.graph)
            steps_of(call)
        except ValueError as error:
            too_large = "too many for the oracle" in str(error)
            reason = "too large for the reference" if too_large else reason_of(error)
            why = f"{_shortly(stage.words)}; {reason}"
            continue
        wrong = [sentence.partition(";")[0] for _, sentence in misfits(call, "computes")]
        if wrong and not group.form.graph:
            return [], wrong[0]
        possible.append(stage)
    return possible, "" if len(possible) == len(stages) and possible else why
