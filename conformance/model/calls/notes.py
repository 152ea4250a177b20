"""Sentences about mistakes in a model, and about facts that anybody who runs it must know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isclose
from typing import Any

from conformance.base.words import listed
from conformance.graph.nodes import ATTENTION, is_attention
from conformance.graph.reading import ReadModel
from conformance.graph.walks import nodes_in
from conformance.model.calls.forms import Form
from conformance.model.calls.groups import Group, layers_of, ranges
from conformance.model.config.configuration import Configuration
from conformance.model.config.graph_rotation import Preparation, RotaryTables, RotationReader
from conformance.model.config.layers import ExpectedLayer
from conformance.model.config.table_notes import is_still, table_contradictions
from conformance.rewriting.dense_nodes import is_rewritten


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
    attention = [
        n for n in nodes_in(model.proto.graph) if is_attention(n) or n.op_type in ATTENTION
    ]
    every = Counter(node.op_type for node in attention if not is_rewritten(node))
    if every:
        others = listed([f"{number} {name}" for name, number in every.items()])
        yield f"The model has {others} as well, which is not compared with dense attention."
    with_attention = sum(not layer.mixer for layer in configuration.layers)
    nodes = len(attention)
    # A loop may run a node once for each layer.
    loops = any(node.op_type in ("Loop", "Scan") for node in model.proto.graph.node)
    if nodes < with_attention and not loops:
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
    # An encoder beside the decoder has neither a cache nor a causal mask.
    groups = [g for g in groups if g.form.cache != "none" or g.form.fields.get("causal") != 0]
    expected = _expected(groups, configuration)
    layer_of = {node.name: node.layer for group in groups for node in group.nodes}
    windows = {group.form.window for group in groups if group.form.window}
    reader = RotationReader(model)
    kinds = {node.op_type for node in nodes_in(model.proto.graph)}
    has_norms = any("Normalization" in kind or kind == "ReduceMean" for kind in kinds)
    told: dict[str, set[int]] = {}
    for form, node in [(group.form, node) for group in groups for node in group.nodes]:
        if (layer := expected.get(node.layer)) is not None:
            how = reader.preparation(node, form.fields.get("rotary") or "none")
            source = layer_of.get(node.source or "")
            one = _Compared(layer, form, node.layer, source, how, configuration, has_norms)
            for text in one.contradictions(windows, reader.tables(how.tables)):
                told.setdefault(text, set()).add(node.layer)
    for text, layers in sorted(told.items(), key=lambda item: min(item[1])):
        noun, have, s = ("layer", "has", "s") if len(layers) == 1 else ("layers", "have", "")
        text = text.replace("{layers}", f"{noun} {ranges(sorted(layers))}")
        yield Note(text.replace("{have}", have).replace("{s}", s), contradicts=True)


def _expected(groups: Sequence[Group], configuration: Configuration) -> Mapping[int, ExpectedLayer]:
    """The expected layers by the numbers that the layers have in the graph.

    In the graph of a model with other layers as well, those with attention may be counted alone.
    Empty if it cannot be told which layer is which.
    """
    with_attention = {n: layer for n, layer in enumerate(configuration.layers) if not layer.mixer}
    sizes: dict[int, tuple[Any, ...]] = {}
    for form, node in [(group.form, node) for group in groups for node in group.nodes]:
        mine = form.fields["num_heads"], form.fields["head_size"]
        if sizes.setdefault(node.layer, mine) != mine:
            return {}
    if sizes.keys() <= with_attention.keys():
        return with_attention
    if len(sizes) != len(with_attention):
        return {}
    number = dict(zip(with_attention, sorted(sizes), strict=True))
    return {
        number[n]: replace(layer, source=number.get(-1 if layer.source is None else layer.source))
        for n, layer in with_attention.items()
    }


@dataclass(frozen=True)
class _Compared:
    """A node of the graph and what config.json says of its layer.

    ``source`` is the layer whose cache the node reads. ``has_norms``: the graph has some. One
    without is a sketch of a model, to which not all that is known of its family applies.
    """

    expected: ExpectedLayer
    form: Form
    layer: int
    source: int | None
    how: Preparation
    configuration: Configuration
    has_norms: bool

    def contradictions(self, windows: set[int], tables: Sequence[RotaryTables]) -> Iterator[str]:
        """Sentences with ``{layers}``, ``{have}`` and ``{s}`` to be filled in.

        ``windows`` are those of all nodes.
        """
        yield from self._on_window(windows)
        for name, wanted, has in self._numbers(tables):
            if wanted is not None and not isclose(has, wanted, rel_tol=1e-3):
                is_of, but = f"config.json has a {name} of {wanted:g}", ""
                if name == "scale":
                    is_of = f"By config.json, the scale is {wanted:g}"
                    but = ", unless the graph multiplies queries before"
                yield f"{is_of}, and {{layers}} {{have}} {has:.6g}{but}."
        yield from self._on_source()
        yield from self._on_family()
        yield from self._on_rotation(tables)

    def _on_window(self, windows: set[int]) -> Iterator[str]:
        has, wanted, context = self.form.window, self.expected.window, self.configuration.context
        own = {has} if has and not (context and has >= context) else set()
        near = windows if self.expected.maybe_window else own
        there = f"one of {ranges(sorted(near))} there" if near else "none there"
        # Some exporters count the query's own token as part of the window, and others do not.
        if wanted and not any(abs(window - wanted) <= 1 for window in near):
            yield f"config.json has a window of {wanted} in {{layers}}, and the graph has {there}."
        elif wanted == 0 and own and not self.expected.maybe_window:
            yield f"config.json has no window in {{layers}}, and the graph has {there}."

    def _numbers(self, tables: Sequence[RotaryTables]) -> Iterator[tuple[str, float | None, float]]:
        """The name of each number, what it is by config.json, and what it is in the graph."""
        fields, expected = self.form.fields, self.expected
        kv_heads = expected.kv_num_heads
        # Some exporters repeat the heads of the cache, and the result is the same.
        is_repeated = kv_heads and fields["kv_num_heads"] % kv_heads == 0
        yield "num_heads", expected.num_heads, fields["num_heads"]
        yield "kv_num_heads", None if is_repeated else kv_heads, fields["kv_num_heads"]
        yield "head_size", expected.head_size, fields["head_size"]
        yield "softcap", expected.softcap, fields.get("softcap") or 0.0
        elsewhere = fields.get("qk_norm") or self.how.scaled  # a norm often takes the scale over
        if expected.scale is None:  # so does the scaling of rotary positions, if nothing is set
            scaled = expected.rotation and expected.rotation.scaling
            elsewhere = elsewhere or self.how.scaled is None or scaled
        is_told = not elsewhere and expected.scale_is_known
        yield "scale", (expected.scale or self._plain_scale) if is_told else None, self._scale
        if (width := self._width(tables)) and self.how.rotates and not is_still(tables):
            yield "rotated share of a head", expected.share, width / fields["head_size"]

    @property
    def _scale(self) -> float:
        return float(self.form.fields.get("scale") or self._plain_scale)

    @property
    def _plain_scale(self) -> float:
        return float(self.form.fields["head_size"] ** -0.5)

    def _width(self, tables: Sequence[RotaryTables]) -> int:
        """The number of elements of a head that rotate, 0 if it is not known."""
        if self.form.fields.get("rotary"):
            return int(self.form.fields.get("rotary_dim", self.form.fields["head_size"]))
        return 2 * tables[0].cos.shape[1] if tables else 0

    def _on_source(self) -> Iterator[str]:
        has, wanted = self.source, self.expected.source
        if has in (None, self.layer, wanted) or (wanted is None and self.expected.norm is None):
            return
        of = "has a cache of its own" if wanted is None else f"borrows the cache of layer {wanted}"
        # One layer a sentence: the layers that they borrow from differ.
        by_config = f"By config.json, layer {self.layer} {of}"
        yield f"{by_config}, and in the graph it borrows that of layer {has}."

    def _on_family(self) -> Iterator[str]:
        """What no setting says."""
        fields, wanted, has = self.form.fields, self.expected.norm, self.how.norm
        whose = f"config.json is of a {self.configuration.model_type}, whose"
        sink = bool(fields.get("head_sink") or fields.get("smooth_softmax", 0) > 0)
        if self.has_norms and self.expected.sink not in (None, sink):
            yield f"{whose} {{layers}} {{have}} {'no' if sink else 'a'} sink, unlike the graph's."
        both_rotate = self.expected.rotates and self.how.rotates
        is_same = wanted == has or (wanted and has and (wanted == "either" or not both_rotate))
        if wanted is not None and has is not None and not is_same and (self.has_norms or has):
            yield (
                f"{whose} queries and keys are {_normalised(wanted)}, and in {{layers}} they are"
                f" {_normalised(has)}."
            )

    def _on_rotation(self, tables: Sequence[RotaryTables]) -> Iterator[str]:
        expected, how, model_type = self.expected, self.how, self.configuration.model_type
        if expected.rotates is False and how.rotates and tables and not is_still(tables):
            by_family = expected.rotation_set == "model_type"
            why = f"a {model_type}" if by_family else expected.rotation_set
            yield (
                f"config.json has no rotary embedding in {{layers}} ({why}), and the graph rotates"
                " there."
            )
        if expected.rotates and how.rotates is False:
            yield "config.json rotates in {layers}, and neither the node nor the graph does."
        if not expected.rotates or how.interleaved is None or is_still(tables):
            return
        style = "pairs" if how.interleaved else "halves"
        if expected.style not in ("", style):
            words = {"halves": "the halves of a head", "pairs": "pairs"}
            yield (
                f"config.json is of a {model_type}, which rotates {words[expected.style]}, and"
                f" {{layers}} rotate{{s}} {words[style]} (rotary_interleaved {how.interleaved:d})."
            )
        wanted = expected.scale or self._plain_scale
        multiplied = self._scale / wanted if how.scaled is False and not how.norm else None
        yield from table_contradictions(expected, tables, self._width(tables), multiplied)


def _normalised(norm: str) -> str:
    words = {"": "not normalised", "either": "normalised"}
    return words.get(norm, f"normalised {norm} they are rotated")
