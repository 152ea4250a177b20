"""The oracle compared with formulas: random calls changed so that their result is known."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pytest
from gqa_calls import ALL
from numpy.random import RandomState
from other_oracles import Said
from random_configurations import STAGES, Configuration, random_configuration
from small_calls import decode_of, output_of

from conformance.oracle import reference

SEEDS = range(105)
SINKS = ("head_sink", "smooth_softmax")


def bent(seed: int, *leave_out: str, **attributes: Any) -> Configuration:
    """The random call of a seed without some inputs and attributes, and with others changed."""
    configuration = random_configuration(seed)
    inputs = {name: a for name, a in configuration.inputs.items() if name not in leave_out}
    kept = {name: v for name, v in configuration.attributes.items() if name not in leave_out}
    return replace(configuration, inputs=inputs, attributes=kept | attributes)


class Result:
    """The oracle's result for a call, and which rows of it are tokens."""

    def __init__(self, configuration: Configuration) -> None:
        self.said = said = Said(configuration)
        references = reference(configuration.inputs, configuration.attributes, ALL)
        heads = (said.batch_size, said.queries, said.num_heads, said.head_size)
        self.output = references["output"].value.reshape(heads)
        self.defined = references["output"].defined.reshape(heads)
        group = said.num_heads // said.kv_num_heads
        self.values = np.repeat(references["present_value"].value, group, axis=1)
        """[B, N, T or more, D]: each query head's own."""

    def rows(self) -> Iterator[tuple[int, int, list[int]]]:
        """For every token: its sequence, its row and the positions of the keys it sees."""
        said = self.said
        for b, row in np.argwhere(said.real).tolist():
            i = int(said.starts[b]) + row
            first = 0 if said.window is None else max(0, i - said.window + 1)
            last = i if said.causal else int(said.lengths[b]) - 1
            yield b, row, list(range(first, last + 1))


def near(got: np.ndarray, want: np.ndarray, scale: float = 1.0) -> None:
    np.testing.assert_allclose(got, want, rtol=0, atol=32 * 2.0**-53 * max(1.0, scale))


@pytest.mark.parametrize("stage", range(7))
def test_one_key_gives_its_value_to_the_last_bit(stage: int) -> None:
    for seed in SEEDS[stage::7]:
        result = Result(bent(seed, *SINKS, "attention_bias", "causal", local_window_size=1))
        for b, row, (place,) in result.rows():
            np.testing.assert_array_equal(result.output[b, row], result.values[b, :, place])
            assert result.defined[b, row].all()


@pytest.mark.parametrize("stage", range(7))
def test_queries_of_zero_attend_to_all_keys_equally(stage: int) -> None:
    """The mean of the visible values; a sink takes part like that many more keys."""
    for seed in SEEDS[stage::7]:
        configuration = bent(seed, "attention_bias")
        said = Said(configuration)
        queries = said.num_heads * said.head_size  # packed or not, they come first
        configuration.inputs["query"][:, :, :queries] = 0
        result = Result(configuration)
        sink = np.zeros(said.num_heads) if said.sink is None else np.exp(said.sink)
        for b, row, seen in result.rows():
            total = result.values[b, :, seen].sum(axis=0)
            near(result.output[b, row], total / (len(seen) + sink)[:, None], np.abs(total).max())


# --- a key with a value of zero is not a missing key: it takes its weight w and adds nothing ---


@pytest.mark.parametrize("stage", ["borrowed", "borrowed_prompt"])
def test_a_key_with_a_zero_value_reduces_the_output(stage: str) -> None:
    """The output is (1 - w) times the one without the key, where w is the weight of the key.

    Whatever else the call has: the key is at position 0 of a full cache, w is the output where all
    other values are 0 and its own is 1, and a bias of -inf removes it.
    """
    compared = 0
    for seed in range(STAGES.index(stage), 60 * len(STAGES), len(STAGES)):
        configuration = bent(seed, "attention_bias")
        said = Said(configuration)
        values = configuration.inputs["past_value"]
        diluting, telling = values.copy(), np.zeros_like(values)
        diluting[:, :, 0], telling[:, :, 0] = 0, 1
        hiding = np.zeros((1, 1, said.queries, said.total), values.dtype)
        hiding[..., 0] = -np.inf
        diluted, weight, absent = (
            Result(replace(configuration, inputs=configuration.inputs | more))
            for more in (
                {"past_value": diluting},
                {"past_value": telling},
                {"attention_bias": hiding},
            )
        )
        near(
            diluted.output[absent.defined],
            (absent.output * (1.0 - weight.output))[absent.defined],
            float(np.abs(absent.output).max(initial=0.0)),
        )
        compared += int(absent.defined.sum())
    assert compared > 1000


def decode(query: Any, keys: Any, values: Any, **more: Any) -> np.ndarray:
    """The output [D] of one token of one head on a cache: query [D], keys and values [T, D]."""
    return output_of(decode_of(query, keys, values, scale=0.5, **more))[0, 0]


@pytest.mark.parametrize("seed", range(20))
def test_dilution_in_numbers_of_50_digits(seed: int) -> None:
    rng = RandomState(seed)
    count, size = rng.randint(1, 20), rng.choice([1, 4, 16])
    query, zero_valued, *keys = rng.standard_normal((count + 2, size)).astype(np.float32)
    values = rng.standard_normal((count, size)).astype(np.float32)
    with localcontext() as context:
        context.prec = 50

        def dot(a: Any, b: Any) -> Decimal:
            return sum((Decimal(float(x)) * Decimal(float(y)) for x, y in zip(a, b, strict=True)))

        exps = [(dot(query, key) / 2).exp() for key in keys]
        without = [
            sum(e * Decimal(float(v)) for e, v in zip(exps, column, strict=True)) / sum(exps)
            for column in values.T
        ]
        w = (dot(query, zero_valued) / 2).exp()
        w /= w + sum(exps)
        expected = np.array([float(out * (1 - w)) for out in without])
    keys.insert(0, zero_valued)
    got = decode(query, keys, [np.zeros(size), *values])
    near(got, expected)
