"""What led to the numbers of a computed call, for people who look for a fault in a kernel."""

from __future__ import annotations

from typing import Literal

import numpy as np

from conformance.oracle.attention import Hiding, hidden_keys
from conformance.oracle.cache import Tokens, present_places
from conformance.oracle.numbers import Float, Int
from conformance.oracle.read_call import OracleCall
from conformance.oracle.reference import Computation
from conformance.oracle.rotary import key_positions, normed, query_positions

#: Why a query does not attend to a key: as the lengths and masks say, or a bias of -inf removes it.
Hidden = Hiding | Literal["bias", ""]
#: The numbers from an input to what is used or stored, each [D], by the names of the steps. Those
#: of the rotation, cos and sin, are NaN for elements that are not rotated.
Steps = dict[str, Float]


def why_hidden(call: OracleCall, batch: int, token: int, logits: Float) -> list[Hidden]:
    """Why a query with these ``logits`` [T] does not attend to each of the keys; "" if it does."""
    found: list[Hidden] = ["bias" if logit == -np.inf else "" for logit in logits]
    rules = hidden_keys(call, rows=slice(token, token + 1))
    for rule, hidden in reversed([*rules]):  # of several rules, the first is told
        there = np.broadcast_to(hidden, (call.batch_size, 1, call.total))[batch, 0]
        found = [rule if at else why for at, why in zip(there, found, strict=True)]
    return found


def why_undefined(work: Computation, batch: int, head: int, token: int) -> str:
    """Why the operator does not define a head of a token of the output; "" if it does."""
    attention, row = work.block_of(token)
    at = batch, head // work.group, head % work.group, row
    if attention.defined[at]:
        return ""
    if work.call.query_starts[batch] + token >= work.call.lengths[batch]:
        return "the token is padding"
    if attention.watched["nothing"][at]:
        return "there is nothing to attend to"
    if attention.watched["masked"][at]:
        return "a mask hides a NaN, an infinity or a number out of range"
    return "a NaN, an infinity or a number out of range takes part"


def query_position(call: OracleCall, batch: int, token: int) -> int:
    """The position by which a query is rotated, -1 without rotary."""
    return -1 if call.cos is None else int(query_positions(call)[batch, token])


def origins(work: Computation, batch: int) -> tuple[Int, Int, Int]:
    """The row of the past, the new token and the position of each of a sequence's T keys, or -1.

    The position is that by which this call rotates the key.
    """
    call = work.call
    places, old = np.arange(call.total), int(call.past_lengths[batch])
    new = np.where((places >= old) & (places < call.lengths[batch]), places - old, -1)
    position = np.full(call.total, -1)
    if call.cos is not None:
        position[new >= 0] = key_positions(call)[batch, new[new >= 0]]
    return work.cache.key.past_row[batch], new, position


def present_rows(call: OracleCall, batch: int) -> Int:
    """Return [T]: the row of the present that holds each key, or -1 if the cache has evicted it."""
    rows = np.full(call.total, -1)
    places = present_places(call)[batch]
    rows[places[places >= 0]] = np.flatnonzero(places >= 0)
    return rows


def query_steps(call: OracleCall, batch: int, head: int, token: int) -> Steps:
    """A head of a query before and after the norm, and the numbers by which it is rotated."""
    given, position = call.query[batch, token, head], query_position(call, batch, token)
    return _steps(call, given, call.q_norm, call.q_epsilon, position)


def stored_steps(work: Computation, batch: int, head: int, place: int) -> tuple[Steps, Steps]:
    """A key and a value of the cache from the input, or from the past, to what is stored.

    If the cache is quantised, the last steps are the number to be stored, its code, and the number
    for which this stands.
    """
    call, at = work.call, (batch, head, place)
    past_row, new, position = (int(of[place]) for of in origins(work, batch))
    if new >= 0:
        given = call.key[batch, new, head]
        key = _steps(call, given, call.k_norm, call.k_epsilon, position)
        value = {"given": call.value[batch, new, head]}
    else:
        key = {"given": call.past_key[batch, head, past_row]}
        value = {"given": call.past_value[batch, head, past_row]}
    return _coded(key, work.cache.key, at), _coded(value, work.cache.value, at)


def _steps(
    call: OracleCall, given: Float, weight: Float | None, epsilon: float, position: int
) -> Steps:
    steps = {"given": given}
    if weight is not None:
        steps["normed"] = normed(given, weight, epsilon)
    for name, table in (("cos", call.cos), ("sin", call.sin)):
        if table is not None and 0 <= position < len(table):
            row = table[position]
            steps[name] = np.full(call.head_size, np.nan)
            steps[name][: 2 * row.size] = np.repeat(row, 2) if call.interleaved else [*row, *row]
    return steps


def _coded(steps: Steps, tokens: Tokens, at: tuple[int, int, int]) -> Steps:
    if not tokens.format.quantised:
        return steps
    exact = {"exact": tokens.exact[at]} if len(steps) > 1 else {}
    return {
        **steps,
        **exact,
        "code": tokens.codes[at] + 0.0,
        "stands for": tokens.value[at] + 0.0,
    }  # no -0
