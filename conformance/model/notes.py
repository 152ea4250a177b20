"""What in a model is surely a mistake, or must be known to whoever runs it, as sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import onnx

from conformance.base.words import listed
from conformance.model.configuration import Configuration
from conformance.model.groups import Group, layers_of
from conformance.model.nodes import ATTENTION
from conformance.model.reading import ReadModel, makers_in, nodes_in

#: What passes elements on, in another order or type.
_PASSING: Final = frozenset(
    ["Cast", "Concat", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"]
)


def notes_on(
    model: ReadModel, groups: Sequence[Group], configuration: Configuration
) -> Iterator[str]:
    """Notes on the graph around the attention nodes, and on other attention in it."""
    graph = model.proto.graph
    every = Counter(node.op_type for node in nodes_in(graph))
    others = [f"{every[name]} {name}" for name in ATTENTION if every[name]]
    if others:
        yield f"The model has {listed(others)} as well, which this command does not check."
    makers = makers_in(graph)
    twice = [group for group in groups if _rotated_before(group, makers)]
    if twice:
        yield (
            f"A RotaryEmbedding in front of {layers_of(twice)} rotates, and the node rotates again"
            " (do_rotary 1)."
        )
    masked = any("mask" in each.name for each in graph.input)
    if configuration.padding_side == "left" and masked:
        yield (
            "tokenizer_config.json says padding_side left, and seqlens_k counts from the first"
            " token: prompts of a batch must be padded at the right."
        )
    rows = [group.form.table_rows for group in groups if group.form.table_rows]
    context = configuration.context
    if rows and context and min(rows) < context:
        yield (
            f"The rotary tables have {min(rows)} rows, and the configuration allows {context}"
            " tokens: no call beyond the tables can run."
        )


def _rotated_before(group: Group, makers: Mapping[str, onnx.NodeProto]) -> bool:
    if not group.form.fields.get("rotary"):
        return False
    node = group.nodes[0]
    for name in ("query", "key"):
        value = node.inputs.get(name, "")
        for _ in range(16):
            maker = makers.get(value)
            if maker is not None and maker.op_type.endswith("RotaryEmbedding"):
                return True
            if maker is None or maker.op_type not in _PASSING:
                break
            value = maker.input[0]
    return False
