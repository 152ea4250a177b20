"""Comparing the oracle with other implementations: test helpers.

No line of the oracle is used to express a call for the others. Our own part is the position of the
tokens, and the way a feature that the other side lacks is expressed as a mask; heads, groups,
caches, causal and window masks, softcap, softmax and rotary are theirs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from gqa_calls import ALL
from random_configurations import Configuration

from conformance.oracle import Reference, reference

NEAR = 1e-12
CONFIGURATIONS = 1200
BLOCK = 100


class Said:
    """One call, split up for another implementation. Token tensors are [B, S, width]."""

    def __init__(self, configuration: Configuration) -> None:
        inputs, self.attributes = configuration.inputs, configuration.attributes
        self.inputs = {
            name: array if array.dtype.kind == "i" else array.astype(float)
            for name, array in inputs.items()
        }
        self.stage = configuration.stage
        self.num_heads = self.attributes["num_heads"]
        self.kv_num_heads = self.attributes["kv_num_heads"]
        if "key" in inputs:
            self.query, self.key, self.value = (
                self.inputs[name] for name in ("query", "key", "value")
            )
            self.head_size = self.query.shape[2] // self.num_heads
        else:
            heads = self.num_heads + 2 * self.kv_num_heads
            self.head_size = inputs["query"].shape[2] // heads
            ends = np.cumsum([self.num_heads, self.kv_num_heads]) * self.head_size
            self.query, self.key, self.value = np.split(self.inputs["query"], ends, axis=2)
        self.batch_size, self.queries, _ = self.query.shape
        self.new = self.key.shape[1]
        self.total = int(inputs["total_sequence_length"])
        self.lengths = inputs["seqlens_k"].astype(np.int64) + 1
        self.prompt = self.queries == self.total
        self.starts = self.lengths - self.queries
        if self.prompt:
            self.starts = np.zeros_like(self.lengths)
        self.causal = bool(self.attributes.get("causal", 1))
        self.window = self.attributes.get("local_window_size")
        self.softcap = float(self.attributes.get("softcap", 0.0))
        given = self.attributes.get("scale")
        self.scale = self.head_size**-0.5 if given is None else float(np.float32(given))

    @property
    def query_positions(self) -> np.ndarray:
        """[B, S]"""
        if "position_ids" not in self.inputs:
            return self.starts[:, None] + np.arange(self.queries)
        positions = self.inputs["position_ids"]
        if self.prompt:  # only its first element counts, for the whole batch
            return np.tile(positions[0, 0] + np.arange(self.queries), (self.batch_size, 1))
        return positions

    @property
    def key_positions(self) -> np.ndarray:
        """[B, L]"""
        if self.new == self.queries:
            return self.query_positions
        return np.tile(np.arange(self.new), (self.batch_size, 1))

    @property
    def sink(self) -> np.ndarray | None:
        """[N]: the logit of each head's sink."""
        if "head_sink" in self.inputs:
            return self.inputs["head_sink"]
        return np.zeros(self.num_heads) if self.attributes.get("smooth_softmax") else None

    @property
    def uniform(self) -> bool:
        """Whether every sequence has the full length."""
        return bool((self.lengths == self.total).all())

    @property
    def real(self) -> np.ndarray:
        """[B, S]: whether a query is a token and not padding of a prompt."""
        return self.starts[:, None] + np.arange(self.queries) < self.lengths[:, None]

    def bnsh(self, tokens: np.ndarray) -> np.ndarray:
        """[B, S, heads * D] to [B, heads, S, D]."""
        heads = tokens.reshape(*tokens.shape[:2], tokens.shape[2] // self.head_size, self.head_size)
        return heads.transpose(0, 2, 1, 3)


class Computed(NamedTuple):
    """The result of another implementation."""

    way: str
    output: np.ndarray
    """[B, N, S, D]"""
    weight: np.ndarray
    """[B, N, S]: what a row's weights, the sink's too, add up to; 0 with nothing to attend to."""
    key: np.ndarray
    """[B, K, T or more, D]: the cache after the call."""
    value: np.ndarray
    matrix: np.ndarray | None = None
    """[B, N, S, sink and keys]: what Attention tells of scores or weights."""


def largest_difference(configuration: Configuration, ways: Iterable[Computed]) -> float:
    """Return the largest difference between the oracle and any of ``ways``, where defined.

    Asserts that the oracle defines exactly those rows that are tokens and have anything to attend
    to.
    """
    said = Said(configuration)
    references = reference(configuration.inputs, configuration.attributes, ALL)
    largest = 0.0

    def compare(name: str, ours: Reference, theirs: np.ndarray, defined: np.ndarray) -> None:
        nonlocal largest
        where = f"{name}, {computed.way}, {configuration}"
        wanted = np.broadcast_to(defined, ours.value.shape)
        assert (ours.defined == wanted).all(), where
        theirs = theirs.reshape(ours.value.shape)
        off = float(np.abs(ours.value - theirs)[wanted].max(initial=0.0))
        assert off <= NEAR, f"{off} off: {where}"
        largest = max(largest, off)

    written = np.arange(references["present_key"].value.shape[2]) < said.lengths[:, None]
    unwritten = ((0, 0), (0, 0), (0, written.shape[1] - said.total), (0, 0))
    for computed in ways:
        defined = said.real[:, :, None] & (computed.weight.transpose(0, 2, 1) > 0.5)
        defined = np.repeat(defined, said.head_size, axis=2)
        compare("output", references["output"], computed.output.transpose(0, 2, 1, 3), defined)
        for name, rows in (("present_key", computed.key), ("present_value", computed.value)):
            rows = np.pad(rows[:, :, : said.total], unwritten)
            compare(name, references[name], rows, written[:, None, :, None])
    return largest
