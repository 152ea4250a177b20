"""The oracle compared with PyTorch's scaled_dot_product_attention, where PyTorch is installed.

Each sequence is computed separately and cut to its length, so nothing is ragged there.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from other_oracles import BLOCK, CONFIGURATIONS, Computed, Said, largest_difference
from random_configurations import random_configuration


class Torch:
    """A call in PyTorch, which has no softcap; a sink is added as a last key with a zero value."""

    def __init__(self, said: Said, torch: ModuleType) -> None:
        self.said, self.torch = said, torch

    def computed(self) -> Computed:
        said, torch = self.said, self.torch
        cache = (said.batch_size, said.kv_num_heads, said.total, said.head_size)
        rows = (said.batch_size, said.num_heads, said.queries)
        keys, values = torch.zeros(cache).double(), torch.zeros(cache).double()
        output = torch.zeros((*rows, said.head_size)).double()
        weight = torch.zeros(rows).double()
        query = self.turned(said.query, said.query_positions)
        new_key = self.turned(said.key, said.key_positions)
        new_value = torch.from_numpy(said.bnsh(said.value))
        for b, length in enumerate(said.lengths.tolist()):
            key = self.whole("past_key", new_key, b, length)
            value = self.whole("past_value", new_value, b, length)
            keys[b, :, :length], values[b, :, :length] = key, value
            queries = min(said.queries, length)
            output[b, :, :queries], weight[b, :, :queries] = self.attended(
                query[b, :, :queries], key, value, b
            )
        arrays = (tensor.numpy() for tensor in (output, weight, keys, values))
        return Computed("torch", *arrays)

    def turned(self, tokens: np.ndarray, positions: np.ndarray) -> Any:
        """[B, heads, S, D]: pairs as complex numbers, times cos + i sin of their positions."""
        said, torch = self.said, self.torch
        x = torch.from_numpy(said.bnsh(tokens).copy())
        if not said.attributes.get("do_rotary") or not x.numel():
            return x
        turn = torch.from_numpy(said.inputs["cos_cache"] + 1j * said.inputs["sin_cache"])
        half = turn.shape[1]
        pairs = x[..., : 2 * half]
        if said.attributes["rotary_interleaved"]:
            pairs = pairs.unflatten(3, (half, 2))
        else:
            pairs = pairs.unflatten(3, (2, half)).transpose(3, 4)
        by = turn[torch.from_numpy(positions)][:, None]
        pairs = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * by)
        if not said.attributes["rotary_interleaved"]:
            pairs = pairs.transpose(3, 4)
        return torch.cat([pairs.flatten(3), x[..., 2 * half :]], dim=3)

    def whole(self, past_name: str, new: Any, b: int, length: int) -> Any:
        """[K, length, D]: all that sequence b may attend to."""
        said, torch = self.said, self.torch
        if said.new == said.total:
            return new[b, :, :length]
        past = torch.from_numpy(said.inputs[past_name][b, :, : length - said.new])
        return torch.cat([past, new[b]], dim=1)

    def attended(self, query: Any, key: Any, value: Any, b: int) -> tuple[Any, Any]:
        """Output [N, S, D] and whether a row had anything to attend to [N, S]."""
        said, torch = self.said, self.torch
        shape = (said.num_heads, query.shape[1], key.shape[1])
        start = int(said.starts[b])
        attends = torch.ones(shape[:2]).double()
        options: dict[str, Any] = {}
        if "attention_bias" not in said.inputs and said.window is None and said.sink is None:
            if said.causal and start == 0:
                options["is_causal"] = True  # PyTorch aligns the mask at the upper left
            elif said.causal:
                options["attn_mask"] = torch.nn.attention.bias.causal_lower_right(*shape[1:])
        else:
            mask = self.mask(shape, start, b)
            if said.sink is not None:
                nothing = torch.zeros((said.kv_num_heads, 1, said.head_size)).double()
                key, value = torch.cat([key, nothing], 1), torch.cat([value, nothing], 1)
            attends = (~torch.isneginf(mask).all(dim=2)).double()
            options["attn_mask"] = mask[None]
        # PyTorch 2.15 on the CPU applies a scale after is_causal: a negative one makes NaN of -inf.
        sign = 1.0 if said.scale > 0 else -1.0
        output = torch.nn.functional.scaled_dot_product_attention(
            sign * query[None],
            key[None],
            value[None],
            scale=abs(said.scale),
            enable_gqa=True,
            **options,
        )
        return output[0], attends

    def mask(self, shape: tuple[int, int, int], start: int, b: int) -> Any:
        """The bias of sequence b [N, S, length], -inf where nothing is seen, a sink at its end."""
        said, torch = self.said, self.torch
        mask = torch.zeros(shape).double()
        if "attention_bias" in said.inputs:
            bias = torch.from_numpy(said.inputs["attention_bias"])
            mask = mask + bias[b if bias.shape[0] > 1 else 0, :, : shape[1], : shape[2]]
        seen = torch.ones(shape[1:], dtype=torch.bool)
        if said.causal:
            seen = seen.tril(start)
        if said.window is not None:
            seen = seen.triu(start - said.window + 1)
        mask = mask.masked_fill(~seen, -torch.inf)
        if said.sink is None:
            return mask
        sink = torch.from_numpy(said.sink)[:, None, None].expand(*shape[:2], 1)
        return torch.cat([mask, sink], dim=2)


@pytest.fixture
def torch() -> Iterator[ModuleType]:
    module = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
    importlib.import_module("torch.nn.attention.bias")
    threads = module.get_num_threads()
    module.set_num_threads(1)  # threads slow such small tensors down by a factor of five
    yield module
    module.set_num_threads(threads)


@pytest.mark.parametrize("first", range(0, CONFIGURATIONS, BLOCK))
def test_agrees_with_torch(torch: ModuleType, first: int) -> None:
    for seed in range(first, first + BLOCK):
        configuration = random_configuration(seed)
        if "softcap" not in configuration.attributes:
            largest_difference(configuration, [Torch(Said(configuration), torch).computed()])
