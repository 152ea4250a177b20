"""Scores, softmax with a sink, and the weighted sum of the values."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Literal

import numpy as np

from conformance.oracle.cache import Cache, Tokens
from conformance.oracle.numbers import LARGEST_FLOAT32, Bool, Float, Int, Storage
from conformance.oracle.read_call import OracleCall
from conformance.oracle.rotary import Rotated


@dataclass(frozen=True, eq=False)
class Attention:
    """All intermediate results of the output, kept for the error model.

    Query heads are grouped by the key/value head that they share: query head n is member n % G of
    group n // G, with G = N / K. Sizes: B, K, G, S queries, T keys, D.
    """

    query: Float
    """[B, K, G, S, D], rotated; zeros in the padding of a prompt."""
    query_magnitude: Float
    """[B, K, G, S, D], see :class:`Rotated`."""
    query_normed: bool
    """Whether the RMS norm was applied to the queries."""
    keys: Tokens
    """T keys, rotated, as the cache holds them; zeros where there is no token."""
    values: Tokens
    visible: Bool
    """[B, S, T]: the keys that a query may attend to, before attention_bias."""
    scale: float
    softcap: float
    scores: Float
    """[B, K, G, S, T]: scale * q.k, before softcap."""
    capped: Float
    """[B, K, G, S, T]: after softcap, before attention_bias."""
    logits: Float
    """[B, K, G, S, T]: the input of the softmax; -inf for keys that are not attended to."""
    sink: Float | None
    """[K, G], or [B, K, G] where sequences have sinks of their own: the sink's logit."""
    probabilities: Float
    """[B, K, G, S, T]; together with the sink's probability they sum to 1."""
    sink_probability: Float
    """[B, K, G, S]; 0 without a sink."""
    output: Float
    """[B, K, G, S, D]"""
    defined: Bool
    """[B, K, G, S]: rows that have a defined value."""
    watched: Mapping[Watched, Bool]
    """[B, K, G, S] each: undefined rows of which something is to be said if they are off."""
    prompts: Bool
    """[B]: see :attr:`OracleCall.prompts`."""

    @cached_property
    def attends(self) -> Bool:
        """[B, K, G, S, T]: the keys that are attended to."""
        return np.isfinite(self.logits)

    @cached_property
    def top(self) -> Float:
        """[B, K, G, S]: the largest logit of each row, including the sink's; 0 without any."""
        top = np.max(self.logits, axis=-1, initial=-np.inf)
        if self.sink is not None:
            top = np.maximum(top, self.sink[:, :, None])
        return np.where(np.isfinite(top), top, 0.0)

    def at(self, batch: slice, heads: slice, rows: slice, keys: slice) -> Attention:
        """Return a part: slices of B, K, S and T."""
        of_scores = np.s_[batch, heads, :, rows, keys]
        of_rows = np.s_[batch, heads, :, rows]
        sink = self.sink
        if sink is not None:
            sink = sink[heads] if sink.ndim == 2 else sink[batch, heads]
        return replace(
            self,
            query=self.query[of_rows],
            query_magnitude=self.query_magnitude[of_rows],
            keys=self.keys.part(batch, heads, keys),
            values=self.values.part(batch, heads, keys),
            visible=self.visible[batch, rows, keys],
            scores=self.scores[of_scores],
            capped=self.capped[of_scores],
            logits=self.logits[of_scores],
            sink=sink,
            probabilities=self.probabilities[of_scores],
            sink_probability=self.sink_probability[of_rows],
            output=self.output[of_rows],
            defined=self.defined[of_rows],
            watched={why: there[of_rows] for why, there in self.watched.items()},
            prompts=self.prompts[batch],
        )

    @property
    def key(self) -> Float:
        """[B, K, T, D]: the keys as attention uses them."""
        return self.keys.value

    @property
    def value(self) -> Float:
        """[B, K, T, D]: the values as attention uses them."""
        return self.values.value


#: Why a row is undefined and watched: the sequence and key/value head of its keys also have NaN,
#: infinities or numbers that may overflow, but in keys or values that the row does not attend to;
#: or it has nothing to attend to, and 0 is the best that it can be.
Watched = Literal["masked", "nothing"]

#: The reasons for hiding a key from a query: the sequence has no such key, the query is padding,
#: the key is later than the query, or it is before the query's window.
Hiding = Literal["no token", "padding", "causal", "window"]


#: Queries: consecutive ones, or their indices in order.
Rows = slice | Int
#: The largest finite number.
_LARGEST: Final = float(np.finfo(np.float64).max)
#: All queries of a call.
ALL: Final = slice(None)


def hidden_keys(
    call: OracleCall, batch: slice = ALL, rows: Rows = ALL, keys: slice = ALL
) -> Iterator[tuple[Hiding, Bool]]:
    """The keys that the lengths and masks hide from a query, rule by rule.

    Each array broadcasts to [B, S, T], with the sequences in ``batch``, the queries in ``rows`` and
    the ``keys``. Let i be the place of the query in its sequence and j that of the key. Then the
    key must exist (j < length), must not be later than the query (j <= i, unless causal is 0), and
    must be in the window (i - w < j: the w keys up to and including the query's own). Padding
    attends to nothing.
    """
    i = _places(call, rows)[batch, :, None]
    j = np.arange(call.total)[None, None, keys]
    length = call.lengths[batch, None, None]
    yield "padding", i >= length
    yield "no token", j >= length
    if call.causal:
        yield "causal", j > i
    if call.window is not None:
        yield "window", j <= i - call.window


def _places(call: OracleCall, rows: Rows = ALL) -> Int:
    """Return [B, S]: the place of each query in its sequence."""
    places: Int = call.query_starts[:, None] + np.arange(call.sequence_length)[rows]
    return places


def softmax(logits: Float, sink: Float | None) -> tuple[Float, Float]:
    """Return the probabilities of ``logits`` [..., S, T] and the sink's probability [..., S].

    A sink acts as one more key, with its own logit and a value of zero: it takes a part of the
    probability and adds nothing to the output. If there is neither a key nor a sink to attend to,
    all probabilities are 0.
    """
    top = np.max(logits, axis=-1, initial=-np.inf)
    if sink is not None:
        top = np.maximum(top, sink)
    top = np.where(np.isneginf(top), 0.0, top)
    weights = logits - top[..., None]
    np.exp(weights, out=weights)
    sink_weight = np.zeros_like(top) if sink is None else np.exp(sink - top)
    total = weights.sum(axis=-1) + sink_weight
    total = np.where(total == 0.0, 1.0, total)
    weights /= total[..., None]
    return weights, sink_weight / total


@dataclass(frozen=True, eq=False)
class AttentionInputs:
    """What the attention of any part of a call is computed from; sizes as in `Attention`."""

    call: OracleCall
    query: Float
    query_magnitude: Float
    computable: Bool
    """[B, K, G, S]: queries with numbers that a kernel can compute with, and no padding."""
    keys: Tokens
    values: Tokens
    clean: Bool
    """[B, K, T]: keys and values with numbers that a kernel can compute with."""
    unmasked: Bool
    """[B, K, G or 1, S or 1]: whether the numbers that no mask hides are all there are: keys,
    values, biases, and rows that hold no token."""
    bias: Float | None
    """[B, K, G, S, T]"""
    sink: Float | None

    @cached_property
    def most_product(self) -> float:
        """No product of a query and a key is larger."""
        most = (float(np.abs(x).max(initial=0.0)) for x in (self.query, self.keys.value))
        return math.prod(most) * int(self.query.shape[-1])

    def keys_of(self, batch: int, rows: Rows) -> slice:
        """The keys that one of a sequence's queries may attend to, from the first to the last.

        They are all if products with others may overflow, which matters, too.
        """
        call = self.call
        if not self.most_product <= LARGEST_FLOAT32:
            return ALL
        length = int(call.lengths[batch])
        places = _places(call, rows)[batch]
        places = places[places < length]
        if not places.size:
            return slice(0)
        first = 0 if call.window is None else max(0, int(places[0]) - call.window + 1)
        return slice(first, min(length, int(places[-1]) + 1) if call.causal else length)

    def attention(
        self, batch: slice = ALL, heads: slice = ALL, rows: Rows = ALL, keys: slice = ALL
    ) -> Attention:
        """The attention of a part of the call: slices of B, K, S and T.

        Keys that are left out must be hidden from all queries of the part, see `keys_of`.

        logits = softcap * tanh(scale * q.k / softcap) + attention_bias. The sink is not scaled,
        capped or biased. A row that attends to a NaN, an infinity or a number that may overflow is
        undefined. A row for which a mask hides such a number of its own sequence and key/value head
        is undefined, too, but it is watched. An attention_bias or a sink of -inf does not make a
        row undefined: it removes the key or sink.
        """
        call = self.call
        of_rows = np.s_[batch, heads, :, rows]
        q, k = self.query[of_rows], self.keys.part(batch, heads, keys)
        v = self.values.part(batch, heads, keys)
        bias = None if self.bias is None else self.bias[batch, heads, :, rows, keys]
        clean = self.clean[batch, heads, None, None, keys]
        unmasked = np.broadcast_to(self.unmasked, self.computable.shape)[of_rows]

        products = q @ k.value[:, :, None].swapaxes(-1, -2)
        scores = call.scale * products
        capped = scores
        if call.softcap:
            capped = scores / call.softcap
            np.tanh(capped, out=capped)
            capped *= call.softcap
        visible = np.ones((*q.shape[:1], q.shape[3], k.value.shape[2]), bool)
        for _, hidden in hidden_keys(call, batch, rows, keys):
            visible &= ~hidden
        attending = mask = visible[:, None, None]
        logits = np.where(mask, capped, -np.inf)
        if bias is not None:
            logits += np.where(bias < np.inf, bias, 0.0)
            clean = clean & (bias < np.inf)
            attending = mask & ~np.isneginf(bias)
        most = max(products.max(initial=0.0), -products.min(initial=0.0))
        if not most <= LARGEST_FLOAT32:  # nor NaN, where an infinity was added to its opposite
            clean = clean & (np.abs(products) <= LARGEST_FLOAT32)
            unmasked = unmasked & np.all(clean, axis=-1)
        computable = self.computable[of_rows]
        if not clean.all():
            computable = computable & np.all(clean | ~attending, axis=-1)
        sink = self.sink
        if sink is not None:
            sink = sink[heads] if sink.ndim == 2 else sink[batch, heads]
        of_sink = None if sink is None else sink[..., None]
        probabilities, sink_probability = softmax(logits, of_sink)
        some = (probabilities.max(axis=-1, initial=0.0) > 0.0) | (sink_probability > 0.0)
        return Attention(
            query=q,
            query_magnitude=self.query_magnitude[of_rows],
            query_normed=call.q_norm is not None,
            keys=k,
            values=v,
            visible=visible,
            scale=call.scale,
            softcap=call.softcap,
            scores=scores,
            capped=capped,
            logits=logits,
            sink=sink,
            probabilities=probabilities,
            sink_probability=sink_probability,
            output=probabilities @ v.value[:, :, None],
            defined=computable & some & unmasked,
            watched={"masked": computable & some & ~unmasked, "nothing": computable & ~some},
            prompts=call.prompts[batch],
        )


def attention_inputs(call: OracleCall, query: Rotated, cache: Cache) -> AttentionInputs:
    """What the attention of a call is computed from, by its rotated queries and its caches."""
    _, kv_num_heads, _, head_size = cache.key.value.shape
    group = call.num_heads // kv_num_heads
    real = _places(call) < call.lengths[:, None]
    grouped = (*real.shape, kv_num_heads, group, head_size)

    def as_groups(heads: Float) -> Float:
        kept: Float = heads if real.all() else np.where(real[:, :, None, None], heads, 0.0)
        return kept.reshape(grouped).transpose(0, 2, 3, 1, 4)

    largest = Storage.of(call.dtype).largest
    q, computable = _finite(as_groups(query.value), largest)
    keys, finite_key = _finite_tokens(cache.key, largest)
    values, finite_value = _finite_tokens(cache.value)
    clean = finite_key & finite_value
    computable = computable & real[:, None, None, :]
    unmasked = (np.all(clean, axis=-1) & cache.unused_finite)[:, :, None, None]
    bias, sink = call.bias, call.sink
    if bias is not None:
        heads = (1, 1) if bias.shape[1] == 1 else (kv_num_heads, group)
        bias = bias.reshape(len(bias), *heads, *bias.shape[2:])
        unmasked = unmasked & np.all(bias < np.inf, axis=-1)
        bias = np.broadcast_to(bias, (*computable.shape, call.total))
    if sink is not None:
        sink = sink.reshape(*sink.shape[:-1], kv_num_heads, group)
        computable = computable & (sink < np.inf)[..., None]
        sink = np.where(sink < np.inf, sink, 0.0)
    magnitude = np.zeros_like(q)
    if query.magnitude is not None:
        magnitude, _ = _finite(as_groups(query.magnitude))
    return AttentionInputs(
        call, q, magnitude, computable, keys, values, clean, unmasked, bias, sink
    )


def _finite(vectors: Float, largest: float = _LARGEST) -> tuple[Float, Bool]:
    """Return ``vectors`` [..., D] with 0 for NaN and infinity, and which [...] are at most
    ``largest`` in all elements: those that a correct kernel can compute and store.
    """
    if vectors.max(initial=0.0) <= largest and vectors.min(initial=0.0) >= -largest:  # usual
        return vectors, np.ones(vectors.shape[:-1], bool)
    size = np.abs(vectors)
    return np.where(size <= _LARGEST, vectors, 0.0), np.all(size <= largest, axis=-1)


def _finite_tokens(tokens: Tokens, largest: float = _LARGEST) -> tuple[Tokens, Bool]:
    """The same for ``tokens``; which [B, K, tokens] have only such numbers."""
    value, fits = _finite(tokens.value, largest)
    exact, exact_fits = value, fits
    if tokens.exact is not tokens.value:
        exact, exact_fits = _finite(tokens.exact, largest)
    magnitude = tokens.magnitude
    if magnitude is not None:
        magnitude, _ = _finite(magnitude)
    return replace(tokens, value=value, exact=exact, magnitude=magnitude), fits & exact_fits
