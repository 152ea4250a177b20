"""The tensors of a call: its inputs and outputs, with their shapes, dtypes and values.

:mod:`conformance.case.node_steps` derives them from the fields of a case.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from conformance.operator.call import CALL_FIELDS, Call, CallError, State, Values
from conformance.operator.positions import Positions
from conformance.operator.signature import ATTRIBUTES

#: The attributes that are fields of a call.
_ATTRIBUTE_FIELDS: Final = tuple(a.name for a in ATTRIBUTES if a.name in CALL_FIELDS)


#: The bits of a code in a quantised cache, by the cache's dtype.
BIT_WIDTHS: Final = {"int8": 8, "float8e4m3fn": 8, "uint8": 4}


#: Leading indices of an array, how many consecutive values the last of them takes, and the value
#: of all elements below.
Elements = tuple[tuple[int, ...], int, float]


class Tensor(NamedTuple):
    """An input or output of one call.

    ``shape`` is None if the tensor is not connected, and for outputs whose shape the graph does not
    declare. ``values`` is None for inputs whose values follow from the call (lengths, positions,
    cos and sin tables). ``dims`` holds the name of each dim in the graph, or None for a fixed dim.
    ``elements`` holds ranges of elements, with the value of each. ``role`` is set for the inputs of
    a graph: the input of an operator that gives them their values (:mod:`conformance.case.graph`),
    and ``node`` is then the call of the node that takes it. ``constant``: it is a constant of the
    model. ``same_as`` is the name of another input with the same tensor. ``holds`` is the name of
    the output that the program binds to this memory.
    """

    name: str
    state: State
    dtype: str
    rank: int
    shape: tuple[int, ...] | None = None
    values: Values | None = None
    data: object = None
    dims: tuple[str | None, ...] = ()
    elements: tuple[Elements, ...] = ()
    role: str = ""
    node: Call | None = None
    constant: bool = False
    same_as: str = ""
    holds: str = ""

    @property
    def connected(self) -> bool:
        """Whether the node has this input or output."""
        return self.state == "connected"

    @property
    def fed(self) -> bool:
        """Whether it is an input of the model: no constant, and not the tensor of another input."""
        return self.connected and not self.constant and not self.same_as


@dataclass(frozen=True)
class Step:
    """One execution of the model: its tensors in the signature's order, and its lengths.

    ``index`` chooses the random numbers of its inputs: its number in a loop, or a larger one.
    ``total_lengths`` is the number of tokens of each sequence after the call, ``new_tokens`` the
    number of new key/value tokens. ``query_lengths`` is the number of query tokens of each sequence
    that are not padding, by query_seqlens, or None if that is not connected. ``positions`` are
    those of position_ids, or the implied ones. ``carried``: the past is the present of the step
    before, cut to its first ``keep`` rows if tokens of a growing cache are taken back. ``buffers``
    are the inputs of the model that no node reads: memory that outputs are bound to. In a graph,
    ``inputs`` and ``outputs`` are those of the graph, ``weights`` are the constants whose values
    are drawn, and ``node`` has the tensors of its main node. ``refused``: the call is illegal, and
    others follow on the session.
    """

    index: int
    sequence_length: int
    new_tokens: int
    total_lengths: tuple[int, ...]
    total_sequence_length: int
    positions: Positions
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    carried: bool
    query_lengths: tuple[int, ...] | None = None
    keep: int | None = None
    buffers: tuple[Tensor, ...] = ()
    weights: tuple[Tensor, ...] = ()
    node: Step | None = None
    refused: bool = False

    def input(self, name: str) -> Tensor:
        """The input ``name``."""
        return next(tensor for tensor in self.inputs if tensor.name == name)

    @property
    def connected_outputs(self) -> tuple[str, ...]:
        """The names of the connected outputs."""
        return tuple(tensor.name for tensor in self.outputs if tensor.connected)


class ShapeError(CallError):
    """A shape or the values given for it are impossible."""


def attributes_of(call: Call) -> dict[str, int | float | str]:
    """The attributes set on the node, in the signature's order.

    Quantised caches of 8 bits say so by themselves; ``attributes`` can leave that out.
    """
    values: dict[str, int | float | str | None] = {
        name: getattr(call, name) for name in _ATTRIBUTE_FIELDS
    }
    if call.kv_cache_bit_width is None and call.k_quant_type not in (None, "NONE"):
        values["kv_cache_bit_width"] = {"int8": 8, "float8e4m3fn": 8}.get(call.cache_dtype or "")
    values["do_rotary"] = 1 if call.rotary != "none" else None
    values["rotary_interleaved"] = 1 if call.rotary == "interleaved" else None
    values.update({str(name): value for name, value in call.attributes.items()})
    return {
        attribute.name: value
        for attribute in ATTRIBUTES
        if (value := values.get(attribute.name)) is not None
    }
