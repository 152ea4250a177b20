"""Random valid calls of GroupQueryAttention, as general as the operator itself: test helpers.

No kernel supports all of them: any head size, any rotary width, gaps in the bias, ragged batches in
every phase.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from gqa_calls import Arrays, Attributes, rotary_caches, token_inputs
from numpy.random import RandomState

STAGES = (
    "prompt",
    "prompt_into_static",
    "concatenated",
    "static",
    "borrowed",
    "borrowed_prompt",
    "all_at_once",
)


@dataclass(frozen=True, eq=False)
class Configuration:
    """A call, and its stage in the life of a cache (one of `STAGES`)."""

    seed: int
    stage: str
    inputs: Arrays
    attributes: Attributes

    def __str__(self) -> str:
        shapes = {name: array.shape for name, array in self.inputs.items()}
        return f"seed {self.seed}, {self.stage}, {self.attributes}, {shapes}"


def random_configuration(seed: int) -> Configuration:
    """Return the configuration of a seed; its numbers are float64, whatever its dtype."""
    rng = RandomState(seed)
    dtype = np.dtype((np.float32, np.float16, ml_dtypes.bfloat16)[max(0, rng.randint(-5, 3))])

    def pick(*choices: Any) -> Any:
        return choices[rng.randint(len(choices))]

    def chance(share: float) -> bool:
        return bool(rng.random_sample() < share)

    stage = STAGES[seed % len(STAGES)]
    batch_size = pick(1, 2, 3, 4)
    kv_num_heads = pick(1, 1, 2, 3)
    num_heads = kv_num_heads * pick(1, 2, 3, 8)
    head_size = pick(1, 2, 5, 8, 16, 24, 40, 64, 80, 128)
    queries, new, past, total = _lengths(rng, stage, pick, chance)
    shortest = 1 if queries == total else queries
    lengths = np.full(batch_size, total)
    if chance(0.5):
        lengths = rng.randint(shortest, total + 1, batch_size)
        if chance(0.8):
            lengths[rng.randint(batch_size)] = total
    spread = pick(0.3, 1.0, 2.0)

    def values(*shape: int) -> np.ndarray:
        return (spread * rng.standard_normal(shape)).astype(dtype)

    attributes: Attributes = {"num_heads": num_heads, "kv_num_heads": kv_num_heads}
    packed = new == queries and chance(0.25)
    sizes = (num_heads, kv_num_heads, head_size)
    inputs = token_inputs(values, sizes, (queries, new, past, total), lengths, packed)
    if head_size > 1 and chance(0.5):
        half, rows = rng.randint(1, head_size // 2 + 1), total + pick(0, 7)
        inputs["cos_cache"], inputs["sin_cache"] = rotary_caches(rows, half, dtype)
        attributes["do_rotary"] = 1
        attributes["rotary_interleaved"] = pick(0, 1)
        if stage != "all_at_once" and chance(0.4):
            last = rows - queries + 1
            inputs["position_ids"] = rng.randint(0, last, (batch_size, queries)).astype(np.int64)
    if chance(0.4):
        attributes["local_window_size"] = pick(1, 2, 3, 7, total, total + 1)
    elif chance(0.4):
        attributes["causal"] = 0
    if chance(0.3):
        attributes["softcap"] = pick(0.7, 3.0, 50.0)
    if chance(0.4):
        attributes["scale"] = pick(0.25, 0.0625, 0.1, 0.3, -0.2)
    if chance(0.5):
        shape = (pick(1, batch_size), pick(1, num_heads), queries, total)
        bias, hidden = values(*shape), rng.random_sample(shape) < pick(0.1, 0.5, 0.95)
        form = pick("numbers", "holes", "mask", "lowest")
        if form != "numbers":
            least = ml_dtypes.finfo(dtype).min if form == "lowest" else -np.inf
            bias = np.where(hidden, least, bias if form == "holes" else 0).astype(dtype)
        inputs["attention_bias"] = bias
    if chance(0.2):
        attributes["smooth_softmax"] = 1
    if chance(0.25):
        inputs["head_sink"] = values(num_heads)
        if chance(0.3):
            inputs["head_sink"][0] = -np.inf
    return Configuration(seed, stage, inputs, attributes)


def _lengths(
    rng: RandomState, stage: str, pick: Any, chance: Any
) -> tuple[int, int, int | None, int]:
    """Return queries, new keys, rows of the past buffer (None: no past), total length."""
    longest = 60 if chance(0.1) else 12
    if stage in ("prompt", "prompt_into_static"):
        total = rng.randint(1, longest + 1)
        return total, total, None if stage == "prompt" else total + pick(0, 5), total
    if stage == "borrowed_prompt":
        total = rng.randint(1, longest + 1)
        return total, 0, total, total
    queries = pick(1, 1, 2, 3, 7)
    if stage == "all_at_once":
        total = queries + rng.randint(1, longest)
        return queries, total, None, total
    if stage == "concatenated":
        past = rng.randint(1, longest + 1)
        return queries, queries, past, past + queries
    total = queries + rng.randint(1, longest)
    if stage == "static":
        return queries, queries, total + pick(0, 1, 9), total
    return queries, 0, total + pick(0, 0, 4), total  # borrowed
