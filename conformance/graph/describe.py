"""An attention node as fields of a call: what its attributes, connections and types say."""

from __future__ import annotations

from typing import Any, Final

from conformance.graph.nodes import AttentionNode
from conformance.operator.call import CALL_FIELDS
from conformance.operator.features import PARTS
from conformance.operator.signature import ATTRIBUTE_BY_NAME

#: The attributes that are fields of a call under their own names, without sizes.
_FIELDS: Final = tuple(
    name
    for name in CALL_FIELDS
    if name in ATTRIBUTE_BY_NAME and name not in ("num_heads", "kv_num_heads")
)


_OF_NODE: Final = [part.of_node for part in PARTS if part.of_node]


class Unclear(ValueError):
    """A fact about a node is unknown; the message says which, and which option gives it."""


def fields_of_node(node: AttentionNode) -> dict[str, Any]:
    """The fields of the features that the node has, without sizes."""
    found = {name: node.attributes[name] for name in _FIELDS if name in node.attributes}
    for of_node in _OF_NODE:
        found |= of_node(node)
    return {name: found[name] for name in CALL_FIELDS if name in found}


def heads_of(node: AttentionNode) -> tuple[int, int]:
    """The numbers of query heads and of key/value heads. Raises :class:`Unclear`."""
    given = [node.attributes.get(name) for name in ("num_heads", "kv_num_heads")]
    heads, kv_heads = (number if isinstance(number, int) else 0 for number in given)
    if heads < 1 or kv_heads < 1:
        raise Unclear("num_heads and kv_num_heads must be at least 1")
    return heads, kv_heads


def head_size_of(node: AttentionNode, configured: int | None = None) -> int | None:
    """The head size; ``configured`` counts if the types do not tell it. None if it is unknown.

    Raises :class:`Unclear` if tensors disagree.
    """
    heads, kv_heads = heads_of(node)

    def parts(name: str, number: int) -> int | None:
        width = node.type(name).size(-1)
        if width is None:
            return None
        if width % number:
            raise Unclear(f"the {width} elements of {name} are not divisible by {number} heads")
        return width // number

    packed = "key" not in node.inputs
    past = node.type("past_key").size(3)
    if past is not None:
        size = past * 2 if _packs_two(node) else past
        flat = not packed and len(node.type("query").dims or ()) == 3
        of_query = parts("query", heads) if flat else None
        if of_query not in (None, size):
            raise Unclear(f"heads have {size} elements in past_key, and {of_query} in query")
        return size
    table = node.type("cos_cache").size(1)
    found = (
        None if packed else parts("key", kv_heads),
        parts("output", heads),
        parts("query", heads + 2 * kv_heads if packed else heads),
        node.type("q_norm_weight").size(0),
        configured,
        2 * table if table is not None else None,
    )
    return next((size for size in found if size is not None), None)


def _packs_two(node: AttentionNode) -> bool:
    """Whether the cache holds two values in each byte."""
    return node.type("past_key").dtype == "uint8" and node.attributes.get("kv_cache_bit_width") == 4
