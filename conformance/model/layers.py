"""Some layers of a model: those that a user asks for by their numbers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from conformance.model.groups import Group, layers_of
from conformance.model.reading import ModelError


def only_layers(groups: Sequence[Group], layers: Collection[int]) -> list[Group]:
    """The groups with their nodes in ``layers``; none given: all.

    Raises :class:`ModelError` for a layer without attention.
    """
    if not layers:
        return list(groups)
    there = {layer for group in groups for layer in group.layers}
    if missing := sorted(set(layers) - there):
        raise ModelError(
            f"There is no layer {missing[0]} with attention, only {layers_of(groups)}."
        )
    kept = (
        replace(group, nodes=tuple(node for node in group.nodes if node.layer in layers))
        for group in groups
    )
    return [group for group in kept if group.nodes]
