"""The themes in the order in which a day on a GPU runs them: the most informative on CUDA first."""

from __future__ import annotations

from itertools import zip_longest
from typing import Final

#: Every theme of the corpus, and why it has this place.
THEMES: Final = {
    "smoke": "a call for each family of kernels: does anything work at all?",
    # What is suspected of CUDA's kernels.
    "known_bugs": "each case was a defect that somebody reported, many of them on CUDA",
    "shared_kv": "a borrowed cache: half of Gemma 4's layers, and a special path in every kernel",
    "omitted_present": "with a past, ONNX Runtime's source has a null pointer here",
    "dispatch": "the borders between the kernels that ONNX Runtime chooses from",
    "head_sizes": "each head size is code of its own; over 256 in float16 gave NaN",
    "attention_bias": "its path on CUDA is new and has calls that it does not support",
    "ragged": "right-padded prompts with lengths of their own, a regression in review",
    "window": "XQA and the decode kernels each have their own window",
    "tiles": "lengths that are multiples of 8 without a past have crashed",
    "decode_shapes": "every decode step of every model is one of these",
    "static_cache": "the cache that CUDA is used with, past and present one buffer",
    "query_seqlens": "only CUDA and the CPU honour it, and on CUDA nobody has run these calls",
    "constants": "kernels prepack tables, sinks and scales that are constants",
    "quantised_cache": "kernels of their own for each type of code",
    "quantised_types": "the same for each type of query",
    "bounds_lengths": "negative and too large lengths reach the device unchecked",
    "models": "the calls of real models",
    "exports": "the calls that exporters write",
    "blocks": "attention in a graph, beside nodes on the device",
    "whole_models": "small models whole, as exporters write them",
    # One feature each.
    "sliding_window_cache": "new, with a kernel of its own",
    "qk_norm": "only CUDA and WebGPU have it",
    "sink": "fused differently in each kernel",
    "softcap": "fused differently in each kernel",
    "rotary": "a kernel of its own in front of attention",
    "positions": "near and far positions of the same kernel",
    "packed_qkv": "an unpacking kernel in front of attention",
    "prefill": "all ratios of heads and lengths without a past",
    "heads": "which key/value head a query head uses",
    "causal": "both directions",
    "omitted_kv": "another way to borrow a cache",
    "zero_valued_kv": "a third way to borrow a cache",
    "output_qk": "an output that few kernels have",
    "loop": "the present of a call as the past of the next",
    "long_past": "where the splits of flash decoding end",
    "long_features": "features over many tiles",
    "long_batches": "sequences over many tiles",
    "decoding": "whole generations",
    # Calls that are refused, or should be.
    "bounds_quantised": "what is not checked is read out of bounds",
    "bounds_shapes": "the same for shapes and presence",
    "bounds_heads": "the same for head counts",
    "bounds_attributes": "the same for attributes",
    "bounds_values": "infinities and NaN behind masks",
    "refusals": "calls without a sense",
    "qk_norm_refusals": "wrong weights of QK norm",
    "query_seqlens_refusals": "counts and buffers that a kernel would read beyond",
    # Many cases that find what meets rarely.
    "relations": "the same call made in another way",
    "pairs": "any two features",
    "dense": "many features at once",
    "regions": "every feature at every size",
    "faults_decode": "each known fault, on a past",
    "faults_prefill": "each known fault, in a prompt",
    "power_regions": "faults that no other case shows",
    "power": "faults that ordinary values hide",
}

#: Where calls reach the borders of memory, most suspected first; for compute-sanitizer.
BOUNDARY_THEMES: Final = (
    "smoke",
    "omitted_present",
    "bounds_lengths",
    "ragged",
    "shared_kv",
    "head_sizes",
    "tiles",
    "bounds_quantised",
    "bounds_shapes",
    "bounds_heads",
    "bounds_attributes",
    "bounds_values",
)

#: Ordinary calls, for the time of a call.
TIMED_THEMES: Final = ("decode_shapes", "heads")


def in_order(ids: list[str]) -> list[str]:
    """Case ids by the place of their theme; within a theme, and of other themes, as they come."""
    places = {theme: number for number, theme in enumerate(THEMES)}
    return sorted(ids, key=lambda id: places.get(theme_of(id), len(places)))


def at_the_boundary(ids: list[str]) -> list[str]:
    """The cases of the boundary themes: the first of each theme, then the second of each …

    compute-sanitizer takes many seconds for a case, so few of them are run.
    """
    each = [[id for id in ids if theme_of(id) == theme] for theme in BOUNDARY_THEMES]
    return [id for round in zip_longest(*each) for id in round if id is not None]


def theme_of(id: str) -> str:
    """The theme of a case."""
    return id.partition("/")[0]
