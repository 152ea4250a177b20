"""The values of one query of a computed call, for people who look for a fault in a kernel.

The outputs are computed from the same numbers, except for the norm of a single head, which the
oracle does not keep.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from conformance.oracle.attention import Attention, Hiding, hidden_keys
from conformance.oracle.cache import Tokens, present_places
from conformance.oracle.call import OracleCall
from conformance.oracle.numbers import Float, Int
from conformance.oracle.reference import Computation
from conformance.oracle.rotary import key_positions, normed, query_positions

#: Why a query does not attend to a key: as the lengths and masks say, or a bias of -inf removes it.
Hidden = Hiding | Literal["bias", ""]


@dataclass(frozen=True, eq=False)
class Rotation:
    """A head before and after the norm and the rotary embedding, each [D].

    ``normed`` is None without a norm, ``cos`` and ``sin`` are None without a rotation; they are NaN
    for elements that are not rotated.
    """

    given: Float
    normed: Float | None
    cos: Float | None
    sin: Float | None
    rotated: Float


@dataclass(frozen=True, eq=False)
class Keys:
    """The values of a query for each of the T keys: arrays [T], and [T, D] of the vectors.

    Scores of hidden keys are computed, too, with zeros for keys that do not exist. NaN and
    infinities of the inputs count as 0.
    """

    past_row: Int
    """The row of the past that holds the key, or -1."""
    new_token: Int
    """The key's index in the input key, or -1."""
    present_row: Int
    """The row of the present that holds the key, or -1 if the cache has evicted it."""
    position: Int
    """The position by which this call rotates the key, or -1."""
    hidden: tuple[Hidden, ...]
    """Why the query does not attend to the key; "" if it does."""
    score: Float
    """scale * q.k"""
    capped: Float
    """After softcap."""
    bias: Float | None
    """attention_bias, None without one."""
    logit: Float
    """The input of the softmax, -inf for hidden keys."""
    probability: Float
    key: Float
    """As attention uses it: rotated, and dequantised if the cache is quantised."""
    value: Float


@dataclass(frozen=True, eq=False)
class QueryValues:
    """All values that lead to one head of one output token."""

    call: OracleCall
    batch: int
    head: int
    token: int
    kv_head: int
    place: int
    """The index of the token in its sequence."""
    position: int
    """The position by which the query is rotated, -1 without rotary."""
    undefined: str
    """Why the operator does not define this row of the output; "" if it does."""
    query: Rotation
    keys: Keys
    sink: float | None
    """The sink's logit, None without one."""
    sink_probability: float
    output: Float
    """[D]"""


@dataclass(frozen=True, eq=False)
class StoredHead:
    """A key or a value in a row of the present, each array [D].

    ``given`` is the input, or for a token of the past the number in the past; ``exact`` is the
    number to be stored; ``code`` is None if the cache is not quantised; ``stored`` is the number
    that the code represents.
    """

    given: Float
    exact: Float
    code: Float | None
    stored: Float


@dataclass(frozen=True, eq=False)
class RowValues:
    """One row of the presents of a key/value head. ``rotation`` is None for a token of the past."""

    place: int
    past_row: int
    new_token: int
    position: int
    rotation: Rotation | None
    key: StoredHead
    value: StoredHead


def last_token(computation: Computation, batch: int) -> int:
    """The index of the last query of a sequence that is not padding; 0 if all are padding."""
    call = computation.call
    queries = int(min(call.lengths[batch] - call.query_starts[batch], call.sequence_length))
    return max(queries - 1, 0)


def query_values(computation: Computation, batch: int, head: int, token: int) -> QueryValues:
    """The values of query ``token`` of sequence ``batch`` in query head ``head``."""
    call, group = computation.call, computation.group
    kv_head = head // group
    a, row = computation.block_of(token)
    at = batch, kv_head, head % group, row
    bias = None
    if call.bias is not None:
        of_batch, of_head = min(batch, len(call.bias) - 1), min(head, call.bias.shape[1] - 1)
        bias = call.bias[of_batch, of_head, token]
    past_row, new_token, positions = _origin(computation, batch)
    keys = Keys(
        past_row=past_row,
        new_token=new_token,
        present_row=present_rows(call, batch),
        position=positions,
        hidden=_hidden(computation, batch, token, a.logits[at]),
        score=a.scores[at],
        capped=a.capped[at],
        bias=bias,
        logit=a.logits[at],
        probability=a.probabilities[at],
        key=a.key[batch, kv_head],
        value=a.value[batch, kv_head],
    )
    position = int(query_positions(call)[batch, token]) if call.cos is not None else -1
    given = call.query[batch, token, head]
    after_norm = None if call.q_norm is None else normed(given, call.q_norm, call.q_epsilon)
    return QueryValues(
        call=call,
        batch=batch,
        head=head,
        token=token,
        kv_head=kv_head,
        place=int(call.query_starts[batch]) + token,
        position=position,
        undefined=_undefined(call, a, at, token),
        query=Rotation(given, after_norm, *_turn(call, position), a.query[at]),
        keys=keys,
        sink=None if call.sink is None else float(call.sink[head]),
        sink_probability=float(a.sink_probability[at]),
        output=a.output[at],
    )


def row_values(computation: Computation, batch: int, kv_head: int, row: int) -> RowValues | None:
    """The values in a row of the presents; None if the row holds no token."""
    call, cache = computation.call, computation.cache
    place = int(present_places(call)[batch, row])
    if place < 0:
        return None
    past_row, new, position = (int(of[place]) for of in _origin(computation, batch))
    at, rotation = (batch, kv_head, place), None
    if new >= 0:
        given, value = call.key[batch, new, kv_head], call.value[batch, new, kv_head]
        after_norm = None if call.k_norm is None else normed(given, call.k_norm, call.k_epsilon)
        rotation = Rotation(given, after_norm, *_turn(call, position), cache.key.exact[at])
    else:
        given = call.past_key[batch, kv_head, past_row]
        value = call.past_value[batch, kv_head, past_row]
    key = _stored(given, cache.key, at)
    return RowValues(place, past_row, new, position, rotation, key, _stored(value, cache.value, at))


def _origin(computation: Computation, batch: int) -> tuple[Int, Int, Int]:
    """The row of the past, the new token and the position of each of a sequence's T keys, or -1."""
    call = computation.call
    past_row = computation.cache.key.past_row[batch]
    places, old = np.arange(call.total), int(call.past_lengths[batch])
    new = np.where((places >= old) & (places < call.lengths[batch]), places - old, -1)
    position = np.full(call.total, -1)
    if call.cos is not None:
        position[new >= 0] = key_positions(call)[batch, new[new >= 0]]
    return past_row, new, position


def present_rows(call: OracleCall, batch: int) -> Int:
    """Return [T]: the row of the present that holds each key, or -1."""
    rows = np.full(call.total, -1)
    places = present_places(call)[batch]
    rows[places[places >= 0]] = np.flatnonzero(places >= 0)
    return rows


def _hidden(computation: Computation, batch: int, token: int, logits: Float) -> tuple[Hidden, ...]:
    call = computation.call
    found: list[Hidden] = ["bias" if logit == -np.inf else "" for logit in logits]
    shape = call.batch_size, 1, call.total
    rules = hidden_keys(call, slice(token, token + 1))
    for rule, hidden in reversed([*rules]):  # of several rules, the first is told
        for key in np.flatnonzero(np.broadcast_to(hidden, shape)[batch, 0]):
            found[key] = rule
    return tuple(found)


def _undefined(call: OracleCall, a: Attention, at: tuple[int, int, int, int], token: int) -> str:
    """Why the row ``at`` of an attention, for the query ``token``, is undefined."""
    if a.defined[at]:
        return ""
    batch = at[0]
    if call.query_starts[batch] + token >= call.lengths[batch]:
        return "the token is padding"
    if a.watched["nothing"][at]:
        return "there is nothing to attend to"
    if a.watched["masked"][at]:
        return "a mask hides a NaN, an infinity or a number out of range"
    return "a NaN, an infinity or a number out of range takes part"


def _turn(call: OracleCall, position: int) -> tuple[Float | None, Float | None]:
    """The cosine and the sine for each element of a head [D], NaN where it is not rotated."""
    if call.cos is None or call.sin is None or not 0 <= position < len(call.cos):
        return None, None
    return _spread(call, call.cos[position]), _spread(call, call.sin[position])


def _spread(call: OracleCall, row: Float) -> Float:
    """Return [D]: for each element of a head its number in a ``row`` of cos_cache or sin_cache."""
    spread = np.full(call.head_size, np.nan)
    pairs = np.repeat(row, 2) if call.interleaved else np.concatenate([row, row])
    spread[: pairs.size] = pairs
    return spread


def _stored(given: Float, tokens: Tokens, at: tuple[int, int, int]) -> StoredHead:
    """The head ``at`` a sequence, a key/value head and a place of the cache."""
    code = tokens.format.encode(tokens.exact)[at] if tokens.format.quantised else None
    return StoredHead(given, tokens.exact[at], code, tokens.value[at])
