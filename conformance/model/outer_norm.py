"""The norm of queries and keys as separate nodes, for a provider whose attention has none.

ONNX Runtime's CPU provider refuses a GroupQueryAttention with q_norm_weight and k_norm_weight. To
run such a model there, the norm is put before the node. The node's other inputs do not change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from conformance.operator.signature import ATTRIBUTE_BY_NAME, DOMAIN, INPUT_NAMES, OP_TYPE

_NORMS: Final = tuple(map(INPUT_NAMES.index, ("q_norm_weight", "k_norm_weight")))
_EPSILON: Final = "qk_norm_epsilon"


def has_norm(node: NodeProto) -> bool:
    """Whether the node normalises queries and keys."""
    return (node.op_type, node.domain) == (OP_TYPE, DOMAIN) and any(_weights(node))


def _weights(node: NodeProto) -> list[str]:
    """The names of the weights for queries and for keys, "" for one that is not connected."""
    return [node.input[at] if at < len(node.input) else "" for at in _NORMS]


def put_norm_outside(graph: onnx.GraphProto) -> None:
    """Put the norm of each such node of the graph before it, if its weights are initializers."""
    sizes = {tensor.name: tensor.dims[0] for tensor in graph.initializer if len(tensor.dims) == 1}
    nodes: list[NodeProto] = []
    for number, node in enumerate(graph.node):
        size = next((sizes[each] for each in _weights(node) if each in sizes), None)
        if has_norm(node) and size is not None:
            maker = _Maker(f"gqa_norm_{number}", size)
            maker.replace(node)
            nodes += maker.nodes
            graph.initializer.extend(maker.constants)
        nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)


class _Maker:
    """Makes the nodes for the norm of one attention node; their names begin with ``prefix``."""

    def __init__(self, prefix: str, head_size: int) -> None:
        self.prefix = prefix
        self.size = head_size
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []

    def replace(self, node: NodeProto) -> None:
        """Take the norm out of ``node``, which gets the normalised values instead."""
        given = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        heads, kv_heads = given["num_heads"], given["kv_num_heads"]
        default = ATTRIBUTE_BY_NAME[_EPSILON].default
        epsilon = given.get(_EPSILON, default)
        query, key, value = node.input[:3]
        packed = not key
        if packed:
            query, key, value = self._parts(query, (heads, kv_heads, kv_heads))
        query_norm, key_norm = _weights(node)
        node.input[0] = self._normed(query, query_norm, heads, epsilon)
        node.input[1] = self._normed(key, key_norm, kv_heads, epsilon)
        node.input[2] = value
        for at in _NORMS:
            if at < len(node.input):
                node.input[at] = ""
        while not node.input[-1]:
            del node.input[-1]
        kept = [each for each in node.attribute if each.name != _EPSILON]
        del node.attribute[:]
        node.attribute.extend(kept)

    def _parts(self, packed: str, heads: Sequence[int]) -> Iterator[str]:
        """Query, key and value of a packed input."""
        ends = np.cumsum([0, *heads]) * self.size
        last = self._numbers(-1)
        for start, end in pairwise(ends):
            yield self._node("Slice", packed, self._numbers(start), self._numbers(end), last)

    def _normed(self, tokens: str, weight: str, heads: int, epsilon: Any) -> str:
        if not tokens or not weight:
            return tokens
        split = self._node("Reshape", tokens, self._numbers(0, 0, heads, self.size))
        normed = self._node("SimplifiedLayerNormalization", split, weight, axis=-1, epsilon=epsilon)
        return self._node("Reshape", normed, self._numbers(0, 0, heads * self.size))

    def _node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        output = f"{self.prefix}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [output], output, **attributes))
        return output

    def _numbers(self, *numbers: int) -> str:
        name = f"{self.prefix}_constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.array(numbers, np.int64), name))
        return name
