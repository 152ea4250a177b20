"""The oracle: computes the outputs of one GroupQueryAttention call in float64."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import numpy as np

from conformance.operator.readings import ReadingName
from conformance.oracle.attention import Attention, AttentionInputs, Watched, attention_inputs
from conformance.oracle.block_pass import BoundedOutput, output_in_blocks
from conformance.oracle.cache import Cache, Tokens, build_cache, present_places
from conformance.oracle.errors import OracleError
from conformance.oracle.numbers import Bool, Float, Storage
from conformance.oracle.read_call import Attributes, Inputs, OracleCall, read_call
from conformance.oracle.rotary import (
    Rotated,
    apply_rotary,
    key_positions,
    normed,
    query_positions,
)


@dataclass(frozen=True, eq=False)
class Reference:
    """The required content of one output.

    ``value`` (float64) and ``defined`` have the exact shape of the output. Undefined elements must
    not be compared. ``watched`` has masks of some undefined elements, each of the output's shape
    and never empty: a value that differs from ``value`` there is reported. All other undefined
    elements are 0 in ``value``. ``dtype`` is the dtype that the runtime must return. The other
    fields are for the error model: ``work`` holds the intermediate results of the call;
    ``qk_output`` is 1 for logits and 2 for probabilities; ``tokens`` holds the rows of a
    present before they are stored in the tensor's format. ``bounded`` has
    bounds of the unit budget for a past without errors; None if they are not known.
    """

    value: Float
    defined: Bool
    dtype: np.dtype[Any]
    work: Computation | None = None
    watched: Mapping[Watched, Bool] = field(default_factory=dict)
    qk_output: int = 0
    tokens: Tokens | None = None
    unit: Float | None = None
    bounded: BoundedOutput | None = None

    @property
    def computed(self) -> Bool:
        """Elements whose value is known, even if masked numbers may change it in a kernel."""
        masked = self.watched.get("masked")
        return self.defined if masked is None else self.defined | masked

    @property
    def attention(self) -> Attention | None:
        """The intermediate results of all queries; see `Computation.attention`."""
        return None if self.work is None else self.work.attention


#: Scores that are held at once, one for each query, key and query head, with about 80 bytes each.
#: A call with more of them is large.
MAX_AT_ONCE: Final = 1 << 23
#: Products of elements of queries and keys from which on an output is computed in blocks.
_LEAST_PRODUCTS: Final = 1 << 21
#: Scores of a block of queries of a large call.
_BLOCK: Final = 1 << 20


@dataclass(frozen=True, eq=False)
class Computation:
    """A computed call, from which its outputs, and the values of a query, are taken.

    The attention of a large call does not fit into memory. It is computed in blocks of queries,
    each when it is first used.
    """

    call: OracleCall
    query: Rotated
    cache: Cache

    @property
    def group(self) -> int:
        """Query heads that share a key/value head: N / K."""
        return self.call.num_heads // int(self.cache.key.value.shape[1])

    @property
    def is_large(self) -> bool:
        """Whether the attention is computed in blocks."""
        return self._of_query * self.call.sequence_length > MAX_AT_ONCE

    @property
    def has_many_products(self) -> bool:
        """Whether one pass over blocks is faster than the attention as a whole."""
        scores = self._of_query * self.call.sequence_length
        return scores * self.call.head_size >= _LEAST_PRODUCTS

    @property
    def _of_query(self) -> int:
        """The number of scores of one query, in all heads of all sequences."""
        return self.call.batch_size * self.call.num_heads * self.call.total

    @cached_property
    def inputs(self) -> AttentionInputs:
        """What the attention of any of its queries is computed from."""
        return attention_inputs(self.call, self.query, self.cache)

    @cached_property
    def attention(self) -> Attention:
        """The attention of all queries; of a large call, take `blocks` or `block_of`."""
        return self.inputs.attention()

    def blocks(self) -> Iterator[Attention]:
        """The attention of all queries, in consecutive blocks: one, unless the call is large."""
        if not self.is_large:
            yield self.attention
            return
        for start in range(0, self.call.sequence_length, self._rows):
            yield self._block(start)

    def block_of(self, token: int) -> tuple[Attention, int]:
        """The attention of the block that has a query, and the index of the query in it."""
        if not self.is_large:
            return self.attention, token
        start = token // self._rows * self._rows
        return self._block(start), token - start

    @property
    def _rows(self) -> int:
        """The number of queries of a block."""
        return max(1, _BLOCK // self._of_query)

    def _block(self, start: int) -> Attention:
        return self.inputs.attention(rows=slice(start, start + self._rows))


def compute(
    inputs: Inputs,
    attributes: Attributes,
    outputs: Collection[str],
    reading: ReadingName | None = None,
    dtype: np.dtype[Any] | None = None,
) -> Computation:
    """Compute a call; the arguments are those of :func:`read_call`.

    Raises:
        OracleError: as in `read_call`, `rotated` and `attended`.
    """
    call = read_call(inputs, attributes, outputs, reading, dtype)
    return attended(call, *rotated(call))


def rotated(call: OracleCall) -> tuple[Rotated, Rotated]:
    """Return the queries and the new keys after the RMS norm and the rotary embedding.

    Raises:
        OracleError: a token's position has no row in the tables.
    """
    query = apply_rotary(
        normed(call.query, call.q_norm, call.q_epsilon),
        query_positions(call),
        call.lengths - call.query_starts,
        call,
        normed=call.q_norm is not None,
    )
    key = apply_rotary(
        normed(call.key, call.k_norm, call.k_epsilon),
        key_positions(call),
        call.lengths - call.past_lengths,
        call,
        normed=call.k_norm is not None,
    )
    return query, key


def attended(call: OracleCall, query: Rotated, key: Rotated) -> Computation:
    """Compute a call from its rotated queries and new keys.

    Raises:
        OracleError: a query's window includes tokens that the window cache has evicted.
    """
    starts = call.query_starts
    begins = np.maximum(starts - (call.total if call.window is None else call.window) + 1, 0)
    if np.any((begins < call.first_past_places) & (starts < call.lengths)):
        raise OracleError("A query's window includes tokens that the window cache has evicted.")
    return Computation(call, query, build_cache(call, key))


def reference(
    inputs: Inputs,
    attributes: Attributes,
    outputs: Collection[str],
    reading: ReadingName | None = None,
) -> dict[str, Reference]:
    """Compute the connected outputs of one call, in the operator's order.

    Args:
        inputs: the connected inputs by the operator's names, exactly as the runtime gets them. An
            omitted input is not in the mapping; an input of length zero is, with that shape.
        attributes: the attributes set on the node; the others have the schema's defaults.
        outputs: the names of the connected outputs.
        reading: another reading of the documentation (:mod:`conformance.base.readings`).

    Raises:
        OracleError: the call has no defined meaning.
    """
    return outputs_of(compute(inputs, attributes, outputs, reading), outputs)


def outputs_of(work: Computation, outputs: Collection[str]) -> dict[str, Reference]:
    """Return the references of these outputs of a computed call, in the operator's order."""
    call, cache = work.call, work.cache
    in_blocks = work.has_many_products and "output_qk" not in outputs
    makers: dict[str, Callable[[], Reference]] = {
        "output": lambda: _bounded(work) if in_blocks else _of_blocks(work, _output, axis=1),
        "present_key": lambda: _present(call, cache.key),
        "present_value": lambda: _present(call, cache.value),
        "output_qk": lambda: _of_blocks(work, _output_qk, axis=2),
    }
    made = {name: make() for name, make in makers.items() if name in outputs}
    return {name: replace(each, work=work) for name, each in made.items()}


def _of_blocks(
    work: Computation, make: Callable[[OracleCall, Attention], Reference], axis: int
) -> Reference:
    """Return an output of the attention, computed in blocks along the ``axis`` of queries."""
    parts = [make(work.call, attention) for attention in work.blocks()]
    whole = parts[0]
    if len(parts) == 1:
        return whole
    reasons = {why: None for part in parts for why in part.watched}
    return replace(
        whole,
        value=np.concatenate([part.value for part in parts], axis),
        defined=np.concatenate([part.defined for part in parts], axis),
        watched={
            why: np.concatenate(
                [part.watched.get(why, np.zeros_like(part.defined)) for part in parts], axis
            )
            for why in reasons
        },
    )


def _bounded(work: Computation) -> Reference:
    made = output_in_blocks(work.inputs)
    return replace(_output(work.call, made), bounded=made)


def _output(call: OracleCall, attention: Attention | BoundedOutput) -> Reference:
    """Return output [B, S, N * D]: the heads of a token side by side."""
    queries = attention.output.shape[3]
    shape = (call.batch_size, queries, call.num_heads * call.head_size)

    def elements(rows: Bool) -> Bool:
        each = np.broadcast_to(rows[..., None], attention.output.shape)
        return each.transpose(0, 3, 1, 2, 4).reshape(shape)

    value: Float = attention.output.transpose(0, 3, 1, 2, 4).reshape(shape)
    return _of_attention(call, attention, value, elements)


def _of_attention(
    call: OracleCall,
    attention: Attention | BoundedOutput,
    value: Float,
    elements: Callable[[Bool], Bool],
) -> Reference:
    """Return an output; ``elements`` maps a mask of rows [B, K, G, S] to the output's elements."""
    defined = elements(attention.defined)
    watched = {why: elements(rows) for why, rows in attention.watched.items()}
    watched = {why: at for why, at in watched.items() if at.any()}
    if not defined.all():
        told = np.any([defined, *watched.values()], axis=0)
        value = np.where(told, value, 0.0)
    return Reference(value, defined, call.dtype, watched=watched)


def _present(call: OracleCall, tokens: Tokens) -> Reference:
    """Return present_key or present_value [B, K, rows, D], or [B, K, rows, (D + 1) / 2] if packed.

    A byte with one element of an odd number is undefined: no text says what its high half holds.
    """
    places = present_places(call)
    # A present of all places: where a sequence has no token, there are zeros already.
    is_whole = places.shape[1] == call.total and not call.first_present_places.any()
    rows = tokens if is_whole else tokens.at(places)
    there = np.broadcast_to((places >= 0)[:, None, :, None], rows.value.shape)
    defined = there & Storage.of(call.dtype).holds(rows.exact)
    if rows.format.packed:
        low, high = rows.format.pairs(defined)
        defined = low & high
    value = rows.format.pack(rows.codes)
    if not defined.all():
        value = np.where(defined, value, 0.0)
    return Reference(value, defined, rows.format.dtype, tokens=rows)


def _output_qk(call: OracleCall, attention: Attention) -> Reference:
    """Return output_qk [B, N, S, T]: the input (1) or the output (2) of the softmax.

    Before the softmax, only the elements of keys that a query attends to are defined, because the
    value for other keys is not specified. After it, the value for other keys is 0. Columns beyond
    the end of a sequence are undefined in both cases. All elements are undefined if the mode is 0,
    which requests nothing.
    """
    exists = (np.arange(call.total) < call.lengths[:, None])[:, None, None, None, :]
    exists = exists & (call.qk_output > 0)
    value = attention.probabilities
    if call.qk_output == 1:
        exists = exists & np.isfinite(attention.logits)
        exists = exists & Storage.of(call.dtype).holds(attention.logits)
        value = attention.logits
    shape = (call.batch_size, call.num_heads, *value.shape[3:])

    def elements(rows: Bool) -> Bool:
        return np.broadcast_to(rows[..., None] & exists, value.shape).reshape(shape)

    made = _of_attention(call, attention, value.reshape(shape), elements)
    return replace(made, qk_output=call.qk_output)
