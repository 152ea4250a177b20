"""A model with everything that is checked of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from conformance.model.configuration import configuration_beside
from conformance.model.cut import cuts_of, possible_stages
from conformance.model.entries import CaseFiles, case_files_of
from conformance.model.groups import Group, disagreements, groups_of, layers_of
from conformance.model.layers import only_layers
from conformance.model.nodes import nodes_of
from conformance.model.reading import ModelError, ReadModel, read_model
from conformance.model.stages import Lengths, Stage, graph_stages, stages_of


@dataclass(frozen=True)
class Subject:
    """A model with its groups of nodes, and the case files of their stages.

    ``faults`` maps the names of nodes without cases to the reason, and ``notes`` say in what the
    graph and its configuration disagree.
    """

    model: ReadModel
    groups: Sequence[Group]
    stages: Mapping[str, Sequence[Stage]]
    faults: Mapping[str, str]
    notes: Sequence[str]
    files: CaseFiles


def subject_of(
    path: Path,
    lengths: Lengths,
    head_size: int | None = None,
    dtype: str | None = None,
    layers: tuple[int, ...] = (),
) -> Subject:
    """The model at ``path``, with stages of the ``lengths`` and only these ``layers``, if given.

    ``head_size`` and ``dtype`` are what the user says of the graph. Raises :class:`ModelError`.
    """
    model = read_model(path)
    found = nodes_of(model)
    beside = configuration_beside(model.path).overridden(head_size, dtype)
    groups, unclear = groups_of(found.nodes, beside)
    faults = {**found.faults, **unclear}
    if not groups:
        lines = "".join(f"\n  {name}: {why}" for name, why in faults.items())
        raise ModelError(f"{model.path}: no node can be checked.{lines}")
    groups = only_layers(groups, layers)
    notes = [*disagreements(groups, beside)]
    if found.warning:
        notes.append(f"Shapes are only those that the graph declares: {found.warning}")
    stages = {group.name: stages_of(group.form, lengths) for group in groups}
    every = [*groups]
    for cut in cuts_of(model, groups):
        wanted = graph_stages(stages_of(cut.form, lengths), cut.form)
        stages[cut.name], why = possible_stages(cut, wanted)
        if why:
            notes.append(f"The graph of {layers_of([cut])} was not checked with {why}")
        if stages[cut.name]:
            every.append(cut)
    return Subject(model, every, stages, faults, notes, case_files_of(model, every, stages))
