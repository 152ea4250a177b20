"""Regions: sets of calls, and parts of a call, in which a mutant can be switched on alone.

Real kernels have one program for prompts and another for single tokens, one for each dtype, one for
long caches. A fault in one of them is on in some calls only. A region names such calls by a
predicate over the call. A region that is a *part* of a call names sequences, heads, rows, keys or
channels: there the results are the mutant's, and elsewhere the correct kernel's.

``needs`` says what the predicate implies, in the words of the suite's features (conformance/case/
features.py), of `SIZES`, and of ``sixteens``, what remains of head_size divided by 16. So it can be
told which regions and faults exclude each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple

from kernel import Call
from parts import AXES

#: What a region or a mutant needs: the values of a feature that it may have, or the smallest and
#: the largest number of one of `SIZES`.
Needs = Mapping[str, tuple[Any, ...]]

#: Numbers of a call: the tokens of its longest sequence, its query tokens, sequences, elements of a
#: head.
SIZES = ("keys", "queries", "batch_size", "head_size", "num_heads", "kv_num_heads")


class Part(NamedTuple):
    """What lies on ``axis`` from index ``first`` on."""

    axis: str
    first: int


@dataclass(frozen=True)
class Region:
    """A set of calls for which ``holds``, or of parts of calls. ``what`` describes it."""

    name: str
    group: str
    what: str
    needs: Needs
    holds: Callable[[Call], bool] = lambda call: True
    part: Part | None = None

    @property
    def outputs(self) -> list[str]:
        """The outputs that have the part."""
        return [name for name, axes in AXES.items() if self.part and self.part.axis in axes]


def _over(size: str, number: int) -> Needs:
    return {size: (number + 1, inf)}


def joined(one: Needs, other: Needs) -> Needs:
    """What both need; a feature left without a value makes them exclude each other."""
    both = dict(one)
    for name, values in other.items():
        if name not in both:
            both[name] = values
        elif name in SIZES:
            both[name] = (max(both[name][0], values[0]), min(both[name][1], values[1]))
        else:
            both[name] = tuple(value for value in both[name] if value in values)
    return both


def _on_a_past(call: Call) -> bool:
    return not call.first_prompt and call.past > 0


def _static(call: Call) -> bool:
    full = call.past == call.total and not call.borrowed
    return call.has("past_key") and not call.sliding and (call.past > call.total or full)


def _partial(call: Call) -> bool:
    return bool(call.get("do_rotary", 0)) and 2 * call.inputs["cos_cache"].shape[1] < call.size


def _rotary(call: Call, interleaved: int) -> bool:
    whole = bool(call.get("do_rotary", 0)) and not _partial(call)
    return whole and call.get("rotary_interleaved", 0) == interleaved


def _quantised(kind: str, dtype: str, bits: int) -> Callable[[Call], bool]:
    def holds(call: Call) -> bool:
        past = call.inputs.get("past_key")
        same = call.get("k_quant_type", "NONE") == call.get("v_quant_type", "NONE") == kind
        fits = past is not None and past.dtype.name == dtype
        return same and fits and call.get("kv_cache_bit_width", 8) == bits

    return holds


_QUANTISED = [
    (f"{name}_{kind.removeprefix('PER_').lower()}", _quantised(kind, dtype, bits))
    for name, dtype, bits in (
        ("int8", "int8", 8),
        ("int4", "uint8", 4),
        ("float8", "float8_e4m3fn", 8),
    )
    for kind in ("PER_TENSOR", "PER_CHANNEL")
]
BIASES = ("full", "one_batch", "one_head", "one_batch_one_head")
WINDOWS = ("shorter", "whole", "longer")
ROTARIES = ("half_split", "interleaved", "partial_half_split", "partial_interleaved")

DTYPES = [
    Region(
        name,
        "dtype",
        f"Calls in {name}.",
        {"dtype": (name,)},
        lambda c, n=name: c.dtype.name == n,  # type: ignore[misc]
    )
    for name in ("float32", "float16", "bfloat16")
]
PHASES = [
    Region(
        "prefill",
        "phase",
        "First calls of their sequences.",
        {"phase": ("prefill",)},
        lambda c: c.first_prompt,
    ),
    Region(
        "decode",
        "phase",
        "One token on a past.",
        {"phase": ("decode",), "queries": (1, 1)},
        lambda c: _on_a_past(c) and c.queries == 1,
    ),
    Region(
        "chunked_prefill",
        "phase",
        "Several tokens on a past.",
        {"phase": ("chunked_prefill",), "queries": (2, inf)},
        lambda c: _on_a_past(c) and c.queries > 1,
    ),
]
CACHES = [
    Region(
        "no_cache",
        "cache",
        "Calls without a past.",
        {"cache": ("none",)},
        lambda c: not c.has("past_key"),
    ),
    Region(
        "concatenated_cache",
        "cache",
        "A past of exactly the past tokens.",
        {"cache": ("concatenated",)},
        lambda c: c.has("past_key") and not c.sliding and not _static(c) and not c.shared,
    ),
    Region(
        "static_cache",
        "cache",
        "A past that is a buffer with room for all tokens.",
        {"cache": ("static",)},
        lambda c: _static(c) and not c.shared,
    ),
    Region(
        "shared_buffer",
        "cache",
        "Past and present are the same memory.",
        {"cache": ("shared_buffer",)},
        lambda c: c.shared and not c.sliding,
    ),
    Region(
        "sliding_window_cache",
        "cache",
        "A cache that keeps a window.",
        {"cache": ("sliding_window",)},
        lambda c: c.sliding,
    ),
]
HEADS = [
    Region(
        "mha",
        "heads",
        "As many key/value heads as query heads.",
        {"heads": ("mha",)},
        lambda c: c.heads == c.kv_heads,
    ),
    Region(
        "gqa",
        "heads",
        "Several key/value heads, fewer than query heads.",
        {"heads": ("gqa",)},
        lambda c: c.heads > c.kv_heads > 1,
    ),
    Region(
        "mqa",
        "heads",
        "One key/value head for all query heads.",
        {"heads": ("mqa",)},
        lambda c: c.heads > c.kv_heads == 1,
    ),
]
GROUPS = [
    Region(
        "group_no_power_of_two",
        "heads",
        "The group of a key/value head has 3, 5, 6, 7 … heads.",
        {"heads": ("gqa", "mqa")},
        lambda c: (c.heads // c.kv_heads).bit_count() > 1,
    ),
    Region(
        "xqa",
        "heads",
        "One token on a past, groups of 4, 8, 16 or 32 heads of 64, 128 or 256: what XQA takes.",
        {
            "phase": ("decode",),
            "queries": (1, 1),
            "heads": ("gqa", "mqa"),
            "group": ("4", "8", "16", "32"),
            "head_size": (64, 256),
            "power_of_two": ("yes",),
            "sixteens": ("none",),
        },
        lambda c: (
            _on_a_past(c)
            and c.queries == 1
            and c.heads // c.kv_heads in (4, 8, 16, 32)
            and c.size in (64, 128, 256)
        ),
    ),
    Region(
        "odd_heads",
        "heads",
        "An odd number of query heads, over 1.",
        {},
        lambda c: c.heads > 1 and c.heads % 2 == 1,
    ),
]
BATCHES = [
    Region(
        "one_sequence",
        "batch",
        "A batch_size of 1.",
        {"batch": ("one",), "batch_size": (1, 1)},
        lambda c: c.batch == 1,
    ),
    *(
        Region(
            f"batch_over_{number}",
            "batch",
            f"More than {number} sequence{'s' * (number > 1)}.",
            {"batch": ("more",), **_over("batch_size", number)},
            lambda c, n=number: c.batch > n,  # type: ignore[misc]
        )
        for number in (1, 3, 7)
    ),
    Region(
        "odd_batch",
        "batch",
        "An odd batch_size over 1.",
        {"batch": ("more",), "batch_size": (3, inf)},
        lambda c: c.batch > 1 and c.batch % 2 == 1,
    ),
    Region(
        "ragged",
        "batch",
        "Sequences of different lengths.",
        {"batch": ("more",), "batch_size": (2, inf), "lengths": ("ragged",)},
        lambda c: len(set(c.lengths.tolist())) > 1,
    ),
]
HEAD_SIZES = [
    *(
        Region(
            f"head_size_{size}",
            "head size",
            f"A head_size of {size}.",
            {
                "head_size": (size, size),
                "sixteens": ("rest",) if size % 16 else ("none",),
                "power_of_two": ("yes",) if size.bit_count() == 1 else ("no",),
            },
            lambda c, n=size: c.size == n,  # type: ignore[misc]
        )
        for size in (8, 64, 80, 128, 256, 512)
    ),
    Region(
        "head_size_off_16",
        "head size",
        "A head_size that is no multiple of 16.",
        {"sixteens": ("rest",)},
        lambda c: c.size % 16 > 0,
    ),
]
EDGES = (16, 64, 128, 256, 512, 1024, 2048, 4096)
KEYS = [
    Region(
        f"over_{number}_keys",
        "keys",
        f"The longest sequence has more than {number} tokens.",
        _over("keys", number),
        lambda c, n=number: c.total > n,  # type: ignore[misc]
    )
    for number in EDGES
]
ODD = [
    Region(
        "odd_keys",
        "sizes",
        "The longest sequence has an odd number of tokens, over 8.",
        {"keys": (9, inf)},
        lambda c: c.total > 8 and c.total % 2 == 1,
    ),
    Region(
        "odd_queries",
        "sizes",
        "An odd number of query tokens, over 1.",
        {"queries": (3, inf), "phase": ("prefill", "chunked_prefill")},
        lambda c: c.queries > 1 and c.queries % 2 == 1,
    ),
]
KEY_VALUES = [
    Region(
        "new_keys",
        "key and value",
        "key and value of the new tokens are inputs of their own.",
        {"key_value": ("new", "zero_valued")},
        lambda c: not c.packed and not c.borrowed,
    ),
    Region(
        "packed",
        "key and value",
        "key and value are part of query.",
        {"key_value": ("packed",)},
        lambda c: c.packed,
    ),
    Region(
        "borrowed",
        "key and value",
        "The cache holds all keys and values.",
        {"key_value": ("zero_length", "omitted")},
        lambda c: c.borrowed,
    ),
    Region(
        "no_presents",
        "key and value",
        "Not both presents are connected.",
        {"presents": ("none", "one")},
        lambda c: not {"present_key", "present_value"} <= set(c.outputs),
    ),
]
FEATURES = [
    Region(
        "rotary_half_split",
        "rotary and norm",
        "Heads are rotated, half-split.",
        {"rotary": ("half_split",)},
        lambda c: _rotary(c, 0),
    ),
    Region(
        "rotary_interleaved",
        "rotary and norm",
        "Heads are rotated, interleaved.",
        {"rotary": ("interleaved",)},
        lambda c: _rotary(c, 1),
    ),
    Region(
        "rotary_partial",
        "rotary and norm",
        "A part of each head is rotated.",
        {"rotary": ("partial_half_split", "partial_interleaved")},
        _partial,
    ),
    Region(
        "position_ids",
        "rotary and norm",
        "position_ids is connected.",
        {"position_ids": ("given",), "rotary": ROTARIES},
        lambda c: c.has("position_ids"),
    ),
    Region(
        "qk_norm",
        "rotary and norm",
        "The weights of the norm are connected.",
        {"qk_norm": ("given",)},
        lambda c: c.has("q_norm_weight"),
    ),
    Region(
        "bidirectional",
        "scores",
        "causal is 0.",
        {"causal": ("bidirectional",)},
        lambda c: c.get("causal", 1) == 0,
    ),
    Region(
        "window",
        "scores",
        "local_window_size is set.",
        {"window": WINDOWS},
        lambda c: c.get("local_window_size", -1) != -1,
    ),
    Region(
        "scale",
        "scores",
        "scale is set.",
        {"scale": ("given",)},
        lambda c: bool(c.get("scale", 0.0)),
    ),
    Region(
        "softcap",
        "scores",
        "softcap is set.",
        {"softcap": ("given",)},
        lambda c: bool(c.get("softcap", 0.0)),
    ),
    Region(
        "bias",
        "scores",
        "attention_bias is connected.",
        {"attention_bias": BIASES},
        lambda c: c.has("attention_bias"),
    ),
    Region(
        "head_sink",
        "scores",
        "head_sink is connected.",
        {"sink": ("head_sink",)},
        lambda c: c.has("head_sink"),
    ),
    Region(
        "smooth_softmax",
        "scores",
        "smooth_softmax is 1.",
        {"sink": ("smooth_softmax",)},
        lambda c: c.get("smooth_softmax", -1) == 1 and not c.has("head_sink"),
    ),
    Region(
        "output_qk",
        "scores",
        "output_qk is connected.",
        {"output_qk": ("before_softmax", "after_softmax")},
        lambda c: "output_qk" in c.outputs,
    ),
    *(
        Region(
            name,
            "quantised cache",
            "A cache of {} with one scale for each {}.".format(*name.split("_")),
            {"quantised": (name,)},
            holds,
        )
        for name, holds in _QUANTISED
    ),
]


def _both(group: str, *regions: Region) -> Region:
    """The calls that lie in all ``regions``."""
    needs: Needs = {}
    for region in regions:
        needs = joined(needs, region.needs)
    return Region(
        "+".join(region.name for region in regions),
        group,
        " ".join(region.what for region in regions),
        needs,
        lambda call: all(region.holds(call) for region in regions),
    )


def _pairs() -> Iterator[Region]:
    """Pairs by which real kernels choose their program."""
    for phase in PHASES:
        yield from (_both(f"{phase.name} by keys", phase, keys) for keys in KEYS)
    for phase in PHASES:
        for heads in HEADS:
            name = f"{phase.name}, {heads.name} by cache"
            yield from (_both(name, phase, heads, cache) for cache in CACHES)


def _part(axis: str, group: str, what: str, needs: Needs, *firsts: int) -> Iterator[Region]:
    for first in firsts:
        least = dict.fromkeys(set(needs) & set(SIZES), (first + 1, inf))
        yield Region(
            f"{group.replace(' ', '_')}_from_{first}",
            f"part: {group}",
            f"{what} from index {first} on.",
            {**needs, **least},
            part=Part(axis, first),
        )


_SEVERAL: Needs = {"batch": ("more",), "batch_size": (2, inf)}
_ROWS: Needs = {"queries": (2, inf), "phase": ("prefill", "chunked_prefill", "loop")}
PARTS = [
    *_part("sequence", "sequences", "The sequences", _SEVERAL, 3, 7),
    *_part("query_head", "query heads", "The query heads", {"num_heads": (1, inf)}, 1, 4),
    *_part(
        "kv_head",
        "kv heads",
        "The heads of the presents",
        {"heads": ("gqa", "mha"), "kv_num_heads": (1, inf)},
        *(1, 4),
    ),
    *_part("query", "query rows", "The query tokens", _ROWS, 16, 64, 128),
    *_part("channel", "channels", "The elements of a head", {"head_size": (1, inf)}, 64, 128),
    *_part("present_row", "present rows", "The rows of the presents", {"keys": (1, inf)}, *EDGES),
    *_part("key", "keys", "The keys, in the step that is at fault,", {"keys": (1, inf)}, *EDGES),
]

REGIONS: dict[str, Region] = {
    region.name: region
    for region in (
        *DTYPES,
        *PHASES,
        *CACHES,
        *HEADS,
        *GROUPS,
        *BATCHES,
        *HEAD_SIZES,
        *KEYS,
        *ODD,
        *KEY_VALUES,
        *FEATURES,
        *_pairs(),
        *PARTS,
    )
}
