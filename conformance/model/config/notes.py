"""Sentences about mistakes in a model, and about facts that anybody who runs it must know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from math import isclose
from typing import Final

from conformance.base.words import listed
from conformance.graph.nodes import ATTENTION
from conformance.graph.reading import ReadModel
from conformance.graph.walks import nodes_in
from conformance.model.calls.groups import Group, layers_of, ranges
from conformance.model.config.configuration import FAMILIES, Configuration, Family
from conformance.model.config.rotary_base import base_of

#: Whether layers of a kind have a window, by the words of config.json.
_WINDOW_OF: Final = {"sliding_attention": True, "full_attention": False}


def notes_on(
    model: ReadModel, groups: Sequence[Group], configuration: Configuration
) -> Iterator[str]:
    """Notes on contradictions between a graph and its configuration, and on the graph itself.

    Notes on the graph are about the nodes around the attention nodes, and about other kinds of
    attention.
    """
    yield from _on_windows(groups, configuration)
    yield from _on_numbers(model, groups, configuration)
    yield from _on_rotation(groups, configuration)
    for group in groups:
        yield from _on_batch(group)
    if configuration.provider_options:
        yield (
            f"genai_config.json sets {listed(configuration.provider_options)}, which this check"
            " does not apply; rotary tables and caches may mean something else with it."
        )
    graph = model.proto.graph
    every = Counter(node.op_type for node in nodes_in(graph))
    others = [f"{every[name]} {name}" for name in ATTENTION if every[name]]
    if others:
        yield f"The model has {listed(others)} as well, which this command does not check."
    rows = [group.form.table_rows for group in groups if group.form.table_rows]
    context = configuration.context
    if rows and context and min(rows) < context:
        yield (
            f"The rotary tables have {min(rows)} rows, and the configuration allows {context}"
            " tokens: no call beyond the tables can run."
        )


def _on_rotation(groups: Sequence[Group], configuration: Configuration) -> Iterator[str]:
    rotated = [(group, group.form.fields.get("rotary")) for group in groups]
    idle = [group for group, how in rotated if not how and "cos_cache" in group.nodes[0].inputs]
    if idle:
        yield f"Rotary tables are connected to {layers_of(idle)}, and do_rotary is 0: none is used."
    pairs = [group for group, how in rotated if how == "interleaved"]
    kind = configuration.model_type
    if pairs and FAMILIES.get(kind, Family()).halves:
        rotate = "rotates" if len(pairs) == 1 else "rotate"
        yield (
            f"config.json is of a {kind}, which rotates the halves of a head, and"
            f" {layers_of(pairs)} {rotate} pairs (rotary_interleaved 1)."
        )


def _on_windows(groups: Sequence[Group], configuration: Configuration) -> Iterator[str]:
    windows = sorted({group.form.window for group in groups if group.form.window})
    expected = configuration.sliding_window
    # Some exporters count the query's own token as part of the window, and others do not.
    if expected and not any(abs(window - expected) <= 1 for window in windows):
        has = f"has windows of {ranges(windows)}" if windows else "has no local window"
        yield f"config.json has a sliding window of {expected}, and the graph {has}."
    kinds = dict(enumerate(configuration.layer_types))
    for group in groups:
        has_window = group.form.window is not None
        wrong = [
            n for n in group.layers if _WINDOW_OF.get(kinds.get(n, ""), has_window) != has_window
        ]
        if wrong:
            has = f"has a window of {group.form.window}" if has_window else "has no window"
            layers = f"{'layer' if len(wrong) == 1 else 'layers'} {ranges(wrong)}"
            yield f"config.json calls {layers} {kinds[wrong[0]]}, and the node {has}."


def _on_numbers(
    model: ReadModel, groups: Sequence[Group], configuration: Configuration
) -> Iterator[str]:
    """The numbers that config.json contradicts, and norms that lack one of their weights."""
    found: dict[tuple[str, float], list[Group]] = {}
    for group in groups:
        for name, number in _numbers(model, group):
            found.setdefault((name, number), []).append(group)
    for (name, number), those in found.items():
        wanted = configuration.expected.get(name, ())
        near = 0.1 if name.startswith("base") else 1e-3  # tables in float16 tell it roughly
        if wanted and not any(isclose(number, each, rel_tol=near) for each in wanted):
            numbers = " or ".join(f"{each:g}" for each in dict.fromkeys(wanted))
            but = ", unless the graph multiplies queries before" if name == "scale" else ""
            has = f"{layers_of(those)} {'has' if len(those) == 1 else 'have'} {number:.6g}"
            yield f"config.json has a {name} of {numbers}, and {has}{but}."
    layers, number = {n for group in groups for n in group.layers}, configuration.layers or 0
    if not configuration.layer_types and layers < {*range(number)}:
        yield f"config.json has {number} layers, and the graph has this attention in {len(layers)}."
    for name, other in (("q_norm_weight", "k_norm_weight"), ("k_norm_weight", "q_norm_weight")):
        alone = [g for g in groups if name in g.nodes[0].inputs and other not in g.nodes[0].inputs]
        if alone:
            yield f"Of {layers_of(alone)}, {name} is connected and {other} is not."


def _numbers(model: ReadModel, group: Group) -> Iterator[tuple[str, float]]:
    fields = group.form.fields
    for name in ("num_heads", "kv_num_heads", "head_size"):
        yield name, fields[name]
    yield "softcap", fields.get("softcap") or 0.0
    if not fields.get("qk_norm"):  # a norm often takes the scale over
        yield "scale", fields.get("scale") or fields["head_size"] ** -0.5
    if fields.get("rotary"):
        rotary_dim = fields.get("rotary_dim", fields["head_size"])
        yield "rotated share of a head", rotary_dim / fields["head_size"]
        base = base_of(model, group.nodes[0], rotary_dim)
        if base is not None:
            yield "base of the rotary tables", base


def _on_batch(group: Group) -> Iterator[str]:
    node = group.nodes[0]
    names = ("query", "key", "value", "past_key")
    batches = {node.type(name).dim(0) for name in names} - {None}
    fixed = [dim for dim in batches if isinstance(dim, int)]
    if fixed and len(batches) > 1:
        yield (
            f"Only a batch of {min(fixed)} can run in {layers_of([group])}: query, key, value"
            f" and past have batch sizes of {listed(sorted(map(str, batches)))}."
        )
