"""Sentences about mistakes in a model, and about facts that anybody who runs it must know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isclose
from typing import Any, Final

from conformance.base.words import listed
from conformance.graph.nodes import ATTENTION, AttentionNode, is_attention
from conformance.graph.reading import ReadModel
from conformance.graph.walks import nodes_in
from conformance.model.calls.groups import Group, layers_of, ranges
from conformance.model.config.configuration import Configuration
from conformance.model.config.graph_rotation import NORMS, Preparation, TableReader, preparation_of
from conformance.model.config.layers import ExpectedLayer
from conformance.model.config.table_notes import is_still, table_contradictions

#: Operators that normalise, or that are a part of a norm.
_OF_NORMS: Final = NORMS | {
    "SkipSimplifiedLayerNormalization",
    "SkipLayerNormalization",
    "ReduceMean",
}
#: The smallest heads of models that people use.
_LEAST_SIZE: Final = 32


@dataclass(frozen=True)
class Note:
    """A sentence. ``contradicts``: by it, the graph computes something else than config.json."""

    text: str
    contradicts: bool = False


def notes_on(
    model: ReadModel, groups: Sequence[Group], configuration: Configuration
) -> Iterator[Note]:
    """Notes on contradictions between a graph and its configuration, and on the graph itself.

    Notes on the graph are about the nodes around the attention nodes, and about other kinds of
    attention.
    """
    yield from _contradictions(model, groups, configuration)
    yield from map(Note, _facts(model, groups, configuration))


def _facts(
    model: ReadModel, groups: Sequence[Group], configuration: Configuration
) -> Iterator[str]:
    idle = [
        group
        for group in groups
        if not group.form.fields.get("rotary") and "cos_cache" in group.nodes[0].inputs
    ]
    if idle:
        yield f"Rotary tables are connected to {layers_of(idle)}, and do_rotary is 0: none is used."
    for name, other in (("q_norm_weight", "k_norm_weight"), ("k_norm_weight", "q_norm_weight")):
        alone = [g for g in groups if name in g.nodes[0].inputs and other not in g.nodes[0].inputs]
        if alone:
            yield f"Of {layers_of(alone)}, {name} is connected and {other} is not."
    for group in groups:
        yield from _on_batch(group)
    if configuration.provider_options:
        yield (
            f"genai_config.json sets {listed(configuration.provider_options)}, which this check"
            " does not apply; rotary tables and caches may mean something else with it."
        )
    every = Counter(node.op_type for node in nodes_in(model.proto.graph))
    others = [f"{every[name]} {name}" for name in ATTENTION if every[name]]
    if others:
        yield f"The model has {listed(others)} as well, which this command does not check."
    with_attention = sum(not layer.mixer for layer in configuration.layers)
    nodes = sum(map(is_attention, nodes_in(model.proto.graph)))
    if nodes < with_attention:
        yield (
            f"config.json has {with_attention} layers of attention, and the graph has this"
            f" attention in {nodes}."
        )
    if configuration.unread:
        names = listed(configuration.unread[:8])
        yield f"config.json sets {names}, with which this check does not compare the graph."
    rows = [group.form.table_rows for group in groups if group.form.table_rows]
    context = configuration.context
    if rows and context and min(rows) < context:
        yield (
            f"The rotary tables have {min(rows)} rows, and the configuration allows {context}"
            " tokens: no call beyond the tables can run."
        )


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


def _contradictions(
    model: ReadModel, groups: Sequence[Group], configuration: Configuration
) -> Iterator[Note]:
    """What the layers of a graph contradict, one note for all layers that do it alike."""
    expected = _expected(groups, configuration)
    layer_of = {node.name: node.layer for group in groups for node in group.nodes}
    windows = {group.form.window for group in groups}
    reader = TableReader(model)
    least = min((group.form.fields["head_size"] for group in groups), default=0)
    has_norms = any(node.op_type in _OF_NORMS for node in nodes_in(model.proto.graph))
    is_whole = has_norms and least >= _LEAST_SIZE
    told: dict[str, set[int]] = {}
    for group in groups:
        for node in group.nodes:
            layer = expected.get(node.layer)
            if layer is None:
                continue
            one = _Compared(layer, group, node, configuration, reader, layer_of, windows, is_whole)
            for text in one.contradictions():
                told.setdefault(text, set()).add(node.layer)
    for text, layers in sorted(told.items(), key=lambda item: min(item[1])):
        one_layer = len(layers) == 1
        words = {
            "layers": f"{'layer' if one_layer else 'layers'} {ranges(sorted(layers))}",
            "have": "has" if one_layer else "have",
            "s": "s" if one_layer else "",
        }
        for name, word in words.items():
            text = text.replace(f"{{{name}}}", word)
        yield Note(text, contradicts=True)


def _expected(groups: Sequence[Group], configuration: Configuration) -> Mapping[int, ExpectedLayer]:
    """The expected layers by the numbers that the layers have in the graph.

    In the graph of a model with other layers as well, those with attention may be counted alone.
    Empty if it cannot be told which layer is which.
    """
    with_attention = {n: layer for n, layer in enumerate(configuration.layers) if not layer.mixer}
    groups = [g for g in groups if g.form.cache != "none" or g.form.fields.get("causal") != 0]
    sizes: dict[int, tuple[Any, ...]] = {}
    for group in groups:
        fields = group.form.fields
        for node in group.nodes:
            mine = fields["num_heads"], fields["head_size"]
            if sizes.setdefault(node.layer, mine) != mine:
                return {}
    if sizes.keys() <= with_attention.keys():
        return with_attention
    if len(sizes) == len(with_attention):
        return dict(zip(sorted(sizes), with_attention.values(), strict=True))
    return {}


@dataclass(frozen=True)
class _Compared:
    """A node of the graph and what config.json says of its layer.

    ``layer_of`` has the layers of nodes by their names, and ``windows`` those of all nodes.
    ``is_whole``: the graph has norms, and heads of a usual size. Another one is a part or a sketch
    of a model, to which not all that is known of its family applies.
    """

    expected: ExpectedLayer
    group: Group
    node: AttentionNode
    configuration: Configuration
    reader: TableReader
    layer_of: Mapping[str, int]
    windows: set[int | None]
    is_whole: bool

    def contradictions(self) -> Iterator[str]:
        """Sentences with ``{layers}``, ``{have}`` and ``{s}`` to be filled in."""
        fields = self.group.form.fields
        how = preparation_of(self.reader.model, self.node, fields.get("rotary") or "none")
        yield from self._on_window()
        yield from self._on_numbers(how)
        yield from self._on_source()
        yield from self._on_norm(how)
        yield from self._on_rotation(how)

    @property
    def _family(self) -> str:
        return f"config.json is of a {self.configuration.model_type}, whose"

    def _on_window(self) -> Iterator[str]:
        has, wanted = self.group.form.window, self.expected.window
        context = self.configuration.context
        if has and context and has >= context:
            has = None
        # Some exporters count the query's own token as part of the window, and others do not.
        near = {w for w in (self.windows if self.expected.maybe_window else {has}) if w}
        if wanted and not any(abs(w - wanted) <= 1 for w in near):
            has_words = f"one of {ranges(sorted(near))}" if near else "none"
            yield (
                f"config.json has a window of {wanted} in {{layers}}, and the graph has {has_words}"
                " there."
            )
        elif wanted == 0 and has and not self.expected.maybe_window:
            yield f"config.json has no window in {{layers}}, and the graph has one of {has} there."

    def _on_numbers(self, how: Preparation) -> Iterator[str]:
        fields, expected = self.group.form.fields, self.expected
        for name in ("num_heads", "kv_num_heads", "head_size"):
            has, wanted = fields[name], getattr(expected, name)
            # Some exporters repeat the heads of the cache, and the result is the same.
            is_repeated = name == "kv_num_heads" and wanted and has % wanted == 0
            if wanted and has != wanted and not is_repeated:
                yield f"config.json has a {name} of {wanted}, and {{layers}} {{have}} {has}."
        softcap = fields.get("softcap") or 0.0
        if expected.softcap is not None and not isclose(softcap, expected.softcap, rel_tol=1e-3):
            yield (
                f"config.json has a softcap of {expected.softcap:g}, and {{layers}} {{have}}"
                f" {softcap:g}."
            )
        scale = fields.get("scale") or fields["head_size"] ** -0.5
        in_norm = fields.get("qk_norm") or how.scaled  # a norm often takes the scale over
        is_told = not in_norm and (self.is_whole or not expected.scale_of_family)
        if expected.scale and is_told and not isclose(scale, expected.scale, rel_tol=1e-3):
            yield (
                f"config.json has a scale of {expected.scale:g}, and {{layers}} {{have}}"
                f" {scale:.6g}, unless the graph multiplies queries before."
            )
        sink = bool(fields.get("head_sink") or fields.get("smooth_softmax", 0) > 0)
        if self.is_whole and expected.sink is not None and sink != expected.sink:
            yield (
                f"{self._family} {{layers}} {{have}} {'a' if expected.sink else 'no'} sink, and"
                f" the graph has {'one' if sink else 'none'} there."
            )

    def _on_source(self) -> Iterator[str]:
        if not self.configuration.model_type and self.expected.source is None:
            return
        has = self.layer_of.get(self.node.source or "")
        if has is None or has == self.node.layer or has == self.expected.source:
            return
        wanted = self.expected.source
        of = "has a cache of its own" if wanted is None else f"borrows the cache of layer {wanted}"
        # One layer a sentence: the layers that they borrow from differ.
        yield (
            f"By config.json, layer {self.node.layer} {of}, and in the graph it borrows that of"
            f" layer {has}."
        )

    def _on_norm(self, how: Preparation) -> Iterator[str]:
        wanted, has = self.expected.norm, how.norm
        if wanted is None or has is None or wanted == has or (wanted == "either" and has):
            return
        if not (self.is_whole or has):
            return
        words = {
            "": "not normalised",
            "before": "normalised before they are rotated",
            "after": "normalised after they are rotated",
            "either": "normalised",
        }
        if has and wanted and not (self.expected.rotates and how.rotates):
            return
        yield (
            f"{self._family} queries and keys are {words[wanted]}, and in {{layers}} they are"
            f" {words[has]}."
        )

    def _on_rotation(self, how: Preparation) -> Iterator[str]:
        expected, fields = self.expected, self.group.form.fields
        tables = self.reader.tables(how.tables)
        if expected.rotates is False and how.rotates:
            if tables and not is_still(tables):
                why = expected.rotation_set
                why = f"a {self.configuration.model_type}" if why == "model_type" else why
                yield (
                    f"config.json has no rotary embedding in {{layers}} ({why}), and the graph"
                    " rotates there."
                )
            return
        if expected.rotates and how.rotates is False:
            yield (
                "config.json has a rotary embedding in {layers}, and neither the node nor the graph"
                " rotates there."
            )
        if not expected.rotates or not how.rotates or is_still(tables):
            return
        ways = {False: "halves", True: "pairs"}
        if expected.style and ways[bool(how.interleaved)] != expected.style:
            does = "the halves of a head" if expected.style == "halves" else "pairs"
            turned = "pairs" if how.interleaved else "the halves of a head"
            yield (
                f"config.json is of a {self.configuration.model_type}, which rotates {does}, and"
                f" {{layers}} rotate{{s}} {turned} (rotary_interleaved {how.interleaved:d})."
            )
        size = fields["head_size"]
        width = fields.get("rotary_dim", size) if fields.get("rotary") else None
        width = width or (tables[0].cos.shape[1] * 2 if tables else None)
        if width is None:
            return
        if expected.share and not isclose(width / size, expected.share, rel_tol=1e-3):
            yield (
                f"config.json has a rotated share of a head of {expected.share:g}, and {{layers}}"
                f" {{have}} {width / size:.6g}."
            )
        scale = fields.get("scale") or size**-0.5
        plain = expected.scale or size**-0.5
        is_known = how.scaled is False and not fields.get("qk_norm") and not how.norm
        multiplied = scale / plain if is_known else None
        yield from table_contradictions(expected, tables, width, multiplied)
