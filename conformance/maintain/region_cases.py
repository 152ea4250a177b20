"""cases/regions.yaml: every feature at every size of a call.

``python -m conformance.maintain.generate cases/regions.yaml`` writes it. Kernels branch on sizes:
on the number of keys, on the head size, on the batch. A fault in one of these branches shows only
in calls of that size. So each *family* of features has a covering array of its own over the
:data:`SIZES`, in which each of its values meets each size. In the families of :data:`COMMON`, which
most runtimes support, each two sizes meet as well. Families do not mix their features, so that a
runtime that rejects one of them hides no other; the families of several features come last.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations, product
from typing import Any, Final, NamedTuple

from conformance.case.contracts import contract_of_call
from conformance.case.features import BY_NAME
from conformance.case.tensors import SCORE
from conformance.maintain.case_text import MadeEntry, file_text
from conformance.maintain.covering import Covering, Pair, Row
from conformance.maintain.telling_values import SEEDS, sensitive

#: The harder type first: values that suffice for it mostly suffice for the other.
DTYPES: Final = ("float16", "float32")

#: The sizes of a call, and its form. ``keys`` is the power of two that the number of keys exceeds,
#: ``edge`` where between two tiles the number lies.
SIZES: Final[Mapping[str, tuple[str, ...]]] = {
    "phase": ("prefill", "decode", "chunk_3", "chunk_17", "chunk_33", "chunk_65", "loop"),
    "cache": ("none", "concatenated", "static", "shared_buffer"),
    "batch": ("1", "2", "5", "9"),
    "lengths": ("equal", "ragged"),
    "heads": ("4:2", "2:2", "5:1", "6:2", "9:3", "18:2", "9:9"),
    "head_size": ("8", "16", "40", "64", "80", "96", "128", "256", "512"),
    "keys": ("16", "64", "128", "256", "512", "1024", "2048", "4096"),
    "edge": ("one_more", "odd", "one_less", "whole"),
}
#: The sizes in the families that few runtimes support: each range of sizes has one.
FEWER_SIZES: Final[Mapping[str, tuple[str, ...]]] = {
    **SIZES,
    "phase": ("prefill", "decode", "chunk_3", "chunk_33", "loop"),
    "batch": ("1", "2", "9"),
    "heads": ("4:2", "2:2", "5:1", "9:3", "18:2"),
    "head_size": ("8", "64", "80", "128", "256", "512"),
    "keys": ("16", "128", "512", "1024", "4096"),
}
_CHUNKS: Final = tuple(phase for phase in SIZES["phase"] if phase.startswith("chunk"))
_BATCHES: Final = SIZES["batch"][1:]
_LARGE: Final = ("1024", "2048", "4096")
_LARGE_HEADS: Final = ("80", "96", "128", "256", "512")
#: Head sizes that no provider of ONNX Runtime takes with rotary tables, and with narrow ones.
_UNROTATED: Final = ("8", "40")
_UNROTATED_IN_PART: Final = (*_UNROTATED, "16")

#: The largest cost of a row, and then of rows for the pairs that only larger ones can have.
MOST: Final = (1 << 19, 1 << 22)
#: The cost of a row up to which a cheaper one saves nothing.
CHEAP: Final = 1 << 16


_MANY_SCORES: Final = "So many scores take longer than they teach."


class Rule(NamedTuple):
    """Sizes that exclude each other in every family, and why."""

    values: Mapping[str, tuple[str, ...]]
    reason: str

    def forbids(self, row: Mapping[str, str]) -> bool:
        return all(row.get(name) in levels for name, levels in self.values.items())


RULES: Final = (
    Rule(
        {"phase": (*SIZES["phase"][1:],), "cache": ("none",)},
        "There is no past without a cache.",
    ),
    Rule({"batch": ("1",), "lengths": ("ragged",)}, "One sequence has one length."),
    Rule(
        {"phase": ("chunk_17",), "keys": ("16",), "edge": ("one_more",)},
        "No past is left.",
    ),
    Rule(
        {"phase": ("chunk_33", "chunk_65"), "keys": ("16",)},
        "There are as many keys as queries or more.",
    ),
    Rule(
        {"phase": ("chunk_65",), "keys": ("64",), "edge": ("one_more",)},
        "No past is left.",
    ),
    Rule({"phase": ("prefill",), "keys": ("512", *_LARGE)}, _MANY_SCORES),
    Rule({"phase": ("chunk_65",), "keys": _LARGE}, _MANY_SCORES),
    Rule({"phase": ("chunk_33",), "keys": _LARGE[1:]}, _MANY_SCORES),
)
#: A rule of all families whose prompts are causal.
CAUSAL: Final = Rule(
    {"phase": ("prefill",), "lengths": ("ragged",)},
    "The padding of a causal prompt comes after every element that is compared.",
)
_COMPILES: Final = "Each is a large shader to compile; the plain family has all."
#: Rules of all families but the plain one, for calls of 32 tokens or more: the kernels of WebGPU
#: for so many tokens are compiled anew for each head size and feature.
MANY_TOKENS: Final = (
    Rule({"phase": ("chunk_33", "chunk_65"), "head_size": _LARGE_HEADS}, _COMPILES),
    Rule(
        {"phase": ("prefill",), "keys": ("64", "128", "256"), "head_size": _LARGE_HEADS}, _COMPILES
    ),
    Rule({"phase": ("loop",), "keys": ("64",), "head_size": _LARGE_HEADS}, _COMPILES),
    Rule(
        {
            "phase": ("prefill", "loop"),
            "keys": ("16",),
            "edge": ("whole",),
            "head_size": _LARGE_HEADS,
        },
        _COMPILES,
    ),
)
#: Rules of the families whose caches own the new tokens, except for the one of several sequences.
CHUNKS: Final = Rule(
    {"phase": _CHUNKS, "batch": _BATCHES},
    "The documentation excludes it; the family of several sequences has it.",
)


_HIDDEN: Final = "No values tried make its only row show each of its features in float16."
#: Pairs that the rules leave no room for together, and those whose rows no values make sensitive.
IMPLIED: Final = (
    Rule({"feature": ("int4_rotary",), "phase": ("chunk_33",)}, _HIDDEN),
    Rule({"feature": ("packed_window_sink",), "keys": ("4096",)}, _HIDDEN),
    Rule(
        {"phase": _CHUNKS, "lengths": ("ragged",)},
        "Several tokens on a past have one sequence, except in the family of several sequences.",
    ),
    Rule(
        {"feature": ("one_batch_bias", "one_batch_one_head_bias"), "phase": _CHUNKS},
        "Several tokens on a past have one sequence.",
    ),
    Rule({"cache": ("none",), "lengths": ("ragged",)}, "Without a cache there are only prompts."),
    Rule({"cache": ("none",), "keys": ("512", *_LARGE)}, "Without a cache there are only prompts."),
    Rule({"feature": ("several",), "cache": ("none",)}, "There is no past without a cache."),
    Rule({"feature": ("no_present",), "lengths": ("ragged",)}, "It has only prompts."),
    Rule({"feature": ("no_present",), "keys": ("512", *_LARGE)}, "It has only prompts."),
    Rule(
        {"head_size": ("512",), "keys": ("4096",)},
        "So large a cache takes longer than it teaches.",
    ),
)


class Size(NamedTuple):
    """The numbers of a row; ``keys`` of its longest sequence after the (first) call."""

    phase: str
    batch: int
    heads: int
    kv_heads: int
    head_size: int
    keys: int
    queries: int


def size_of(row: Mapping[str, str]) -> Size:
    """The numbers of a complete row."""
    above = int(row["keys"])
    tile = min(above, 128)
    keys = {
        "one_more": above + 1,
        "odd": above + tile // 4 + 3,
        "one_less": above + tile - 1,
        "whole": 2 * above if above < 4096 else above + 256,
        "below_double": 2 * above - 1 if above < 4096 else above + 129,
    }[row["edge"]]
    phase = row["phase"]
    if phase.startswith("chunk"):
        queries = int(phase.removeprefix("chunk_"))
    elif phase == "prefill" or (phase == "loop" and keys <= 128):
        queries = keys
    else:
        queries = 1
    heads, kv_heads = map(int, row["heads"].split(":"))
    return Size(phase, int(row["batch"]), heads, kv_heads, int(row["head_size"]), keys, queries)


Fields = dict[str, Any]


@dataclass(frozen=True)
class Family:
    """Features that are tried at every size.

    ``values`` maps each value to a function that returns its fields of the call. ``levels``
    narrows the sizes, ``rules`` adds to the common rules. With ``borrowed`` the past holds all
    tokens. ``common``: each two sizes meet in this family or in another common one. ``compiled``:
    the rules of :data:`MANY_TOKENS` do not hold. ``causal``: the rule :data:`CAUSAL` holds.
    """

    name: str
    values: Mapping[str, Callable[[Size], Fields]]
    levels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    rules: tuple[Rule, ...] = (CHUNKS,)
    borrowed: bool = False
    common: bool = False
    compiled: bool = False
    causal: bool = True

    @property
    def factors(self) -> dict[str, tuple[str, ...]]:
        """The levels of each factor: its feature, and the sizes."""
        sizes = SIZES if self.common else FEWER_SIZES
        narrowed = {
            name: tuple(level for level in levels if level in self.levels.get(name, levels))
            for name, levels in sizes.items()
        }
        return {"feature": tuple(self.values), **narrowed}

    def forbids(self, row: Mapping[str, str]) -> bool:
        """Whether a rule forbids the row, perhaps without some of its sizes."""
        rules = [*RULES, *self.rules]
        rules += [] if self.compiled else MANY_TOKENS
        rules += [CAUSAL] if self.causal else []
        return any(rule.forbids(row) for rule in rules)


def _fields(**fields: Any) -> Callable[[Size], Fields]:
    return lambda size: dict(fields)


def _rotary(layout: str, ids: bool = False, narrow: bool = False) -> Callable[[Size], Fields]:
    def fields(size: Size) -> Fields:
        return {
            "rotary": layout,
            **({"rotary_dim": size.head_size // 2 // 16 * 16} if narrow else {}),
            **({"position_ids": True} if ids else {}),
        }

    return fields


def _together(*parts: Callable[[Size], Fields]) -> Callable[[Size], Fields]:
    return lambda size: {name: value for part in parts for name, value in part(size).items()}


def window(kind: str) -> Callable[[Size], Fields]:
    """A window of a few tokens, of about a tile, of all tokens but a few or one, or of more than
    all; or a straddling one, with which some of the last queries attend to one of the first 32
    tokens and some do not."""
    return lambda size: {
        "local_window_size": {
            "few": 5,
            "tile": min(33, size.keys // 2),
            "most": size.keys - size.keys // 8 - 1,
            "all_but_one": size.keys - 1,
            "wide": size.keys + 3,
            "straddling": max(size.keys - 31 - size.queries // 2, 5),
        }[kind]
    }


def _scale(size: Size) -> Fields:
    return {"scale": round(2 * size.head_size**-0.5, 3)}


def quantised(number: str, each: str) -> Callable[[Size], Fields]:
    kind = {"tensor": "PER_TENSOR", "channel": "PER_CHANNEL"}[each]
    fields: Fields = {
        "cache_dtype": {"int8": "int8", "int4": "uint8", "float8": "float8e4m3fn"}[number],
        "k_quant_type": kind,
        "v_quant_type": kind,
        "kv_cache_bit_width": 4 if number == "int4" else 8,
    }
    if each == "channel":
        high = 0.2 if number == "int4" else 0.02
        apart = {"values": {"low": high / 10, "high": high}}
        fields["inputs"] = {"k_scale": apart, "v_scale": apart}
    return _fields(**fields)


def _sliding(size: Size) -> Fields:
    """A window cache of half of the tokens, with one row more than its window."""
    window = max(2, size.keys // 2)
    return {
        "local_window_size": window,
        "max_sequence_length": window + 1,
        "sliding_window_cache": 1,
    }


_OUT_OF_ROTARY: Final = Rule(
    {
        "feature": ("partial_rotary", "partial_interleaved_rotary"),
        "head_size": _UNROTATED_IN_PART,
    },
    "ONNX Runtime wants 16 elements or more to turn, a multiple of 16.",
)
_ROTATED: Final = tuple(size for size in SIZES["head_size"] if size not in _UNROTATED)
_ROTATED_IN_PART: Final = tuple(size for size in _ROTATED if size != "16")
_PAST: Final = tuple(phase for phase in SIZES["phase"] if phase not in ("prefill", "loop"))
_CACHES: Final = SIZES["cache"][1:]
_NO_PROMPT_IN_A_LOOP: Final = Rule(
    {"phase": ("loop",), "keys": ("16", "64")},
    "Its loop begins with a prompt, which may attend to its keys before they are rounded.",
)

_DROWNED: Final = "Beside the rounding of so many codes to float16 it does not show."
_FEW_CODES: Final = Rule(
    {"phase": ("chunk_3",), "keys": ("128", "512", *_LARGE)},
    "Two tokens hardly show among so many codes of four bits.",
)

FAMILIES: Final = (
    Family(
        "rotary",
        {
            "half_split_rotary": _rotary("half_split"),
            "interleaved_rotary": _rotary("interleaved", ids=True),
            "partial_rotary": _rotary("half_split", ids=True, narrow=True),
            "partial_interleaved_rotary": _rotary("interleaved", narrow=True),
        },
        {"head_size": _ROTATED},
        (CHUNKS, _OUT_OF_ROTARY),
        common=True,
    ),
    Family(
        "window",
        {f"window_of_{kind}": window(kind) for kind in ("few", "tile", "most")},
        common=True,
    ),
    Family(
        "bias",
        {
            f"{kind}_bias": _fields(attention_bias=kind)
            for kind in BY_NAME["attention_bias"].values[1:]
        },
        rules=(
            CHUNKS,
            Rule(
                {"feature": ("one_batch_bias", "one_batch_one_head_bias"), "batch": ("1",)},
                "In a batch of one these shapes are the same as full and one_head.",
            ),
        ),
        common=True,
    ),
    Family("plain", {"plain": _fields()}, common=True, compiled=True),
    Family("softcap", {"softcap": _together(_fields(softcap=2.0), _scale)}),
    Family("sink", {"head_sink": _fields(head_sink=True), "smooth": _fields(smooth_softmax=1)}),
    Family(
        "packed",
        {
            "packed": _together(_fields(key_value="packed"), _rotary("half_split", ids=True)),
            "packed_interleaved": _together(_fields(key_value="packed"), _rotary("interleaved")),
        },
        {"head_size": _ROTATED},
    ),
    Family(
        "borrowed",
        {
            "borrowed": _together(
                _fields(key_value="zero_length"), _rotary("half_split", ids=True)
            ),
            "borrowed_interleaved": _together(
                _fields(key_value="zero_length", presents="none"), _rotary("interleaved")
            ),
            "omitted": _together(_fields(key_value="omitted"), _rotary("half_split")),
        },
        {"head_size": _ROTATED, "cache": _CACHES},
        (
            CHUNKS,
            Rule(
                {"feature": ("borrowed_interleaved",), "phase": ("loop",)},
                "In a loop the presents of each call are the past of the next.",
            ),
            Rule(
                {"feature": ("borrowed_interleaved",), "cache": ("shared_buffer",)},
                "A shared buffer is both past and present.",
            ),
            Rule(
                {"feature": ("omitted",), "phase": ("loop",)},
                "Borrowing by omitting was requested for single calls only.",
            ),
            Rule(
                {"phase": ("loop",), "keys": ("16", "64")},
                "A loop begins with a prompt, and a borrowed cache has none.",
            ),
        ),
        borrowed=True,
    ),
    Family(
        "zeros",
        {"zeros": _fields(key_value="zero_valued")},
        {"phase": _PAST, "cache": _CACHES},
        (
            CHUNKS,
            Rule(
                {"phase": ("chunk_3",), "keys": ("128", "512", *_LARGE)},
                "Two tokens of zeros hardly show among so many.",
            ),
        ),
    ),
    *(
        Family(
            number,
            {f"{number}_{each}": quantised(number, each) for each in ("tensor", "channel")},
            {"phase": (*_PAST, "loop"), "cache": _CACHES},
            (
                CHUNKS,
                _NO_PROMPT_IN_A_LOOP,
                _FEW_CODES
                if number == "int4"
                else Rule({"phase": ("chunk_3",), "keys": _LARGE, "head_size": ("8",)}, _DROWNED),
            ),
        )
        for number in ("int8", "int4", "float8")
    ),
    Family(
        "qk_norm",
        {"qk_norm": _together(_fields(qk_norm=True, qk_norm_epsilon=0.1), _rotary("half_split"))},
        {"head_size": _ROTATED},
    ),
    Family("scores", {"scores": _fields(qk_output=1), "weights": _fields(qk_output=2)}),
    Family(
        "bidirectional",
        {"bidirectional": _fields(causal=0)},
        {"phase": ("prefill", *_CHUNKS)},
        causal=False,
    ),
    Family(
        "sliding",
        {
            "sliding": _sliding,
            "sliding_rotary": _together(_sliding, _rotary("half_split", ids=True)),
        },
        {"cache": ("static",), "head_size": _ROTATED},
    ),
    Family(
        "no_present",
        {"no_present": _fields(presents="none")},
        {"phase": ("prefill",), "cache": ("none", "concatenated", "static")},
    ),
    Family("several", {"several": _fields()}, {"phase": _CHUNKS, "batch": _BATCHES}, ()),
    Family(
        "together",
        {
            "bias_window_sink": _together(
                _fields(attention_bias="full", head_sink=True), window("tile")
            ),
            "rotary_bias": _together(
                _fields(attention_bias="one_head"), _scale, _rotary("interleaved", ids=True)
            ),
            "packed_window_sink": _together(
                _fields(key_value="packed", head_sink=True),
                _rotary("half_split"),
                window("most"),
            ),
            "packed_bias_window_more": _together(
                _fields(key_value="packed", attention_bias="full", head_sink=True, softcap=2.0),
                _scale,
                _rotary("interleaved", ids=True),
                window("tile"),
            ),
            "rotary_window_softcap": _together(
                _fields(softcap=2.0), _rotary("half_split", narrow=True), window("tile")
            ),
        },
        {"head_size": _ROTATED_IN_PART},
    ),
    Family(
        "borrowed_together",
        {
            "borrowed_window_sink": _together(
                _fields(key_value="zero_length", head_sink=True),
                _rotary("half_split"),
                window("tile"),
            ),
            "borrowed_bias_softcap": _together(
                _fields(key_value="zero_length", attention_bias="one_head", softcap=2.0),
                _scale,
                _rotary("interleaved", ids=True, narrow=True),
            ),
        },
        {"phase": _PAST, "head_size": _ROTATED_IN_PART, "cache": _CACHES},
        borrowed=True,
    ),
    Family(
        "quantised_together",
        {
            "int8_rotary_window": _together(
                quantised("int8", "tensor"), _rotary("interleaved"), window("tile")
            ),
            "int4_rotary": _together(quantised("int4", "channel"), _rotary("half_split", ids=True)),
            "int8_bias_sink": _together(
                quantised("int8", "channel"), _fields(attention_bias="full", head_sink=True)
            ),
        },
        {"phase": (*_PAST, "loop"), "cache": _CACHES, "head_size": _ROTATED},
        (
            CHUNKS,
            _NO_PROMPT_IN_A_LOOP,
            _FEW_CODES,
            Rule({"feature": ("int4_rotary", "int8_bias_sink"), "keys": ("4096",)}, _DROWNED),
            Rule({"feature": ("int8_rotary_window",), "head_size": ("512",)}, _DROWNED),
        ),
    ),
)


def cost(size: Size) -> int:
    """What a row takes to make and to run: its elements, and its scores, which take longer."""
    calls = 2 if size.phase == "loop" else 1
    heads = size.heads + 2 * size.kv_heads
    elements = size.kv_heads * (size.keys + 64) + size.queries * heads
    scores = size.heads * size.queries * size.keys
    return calls * size.batch * (elements * size.head_size + 4 * scores)


_SMALLEST: Final = {
    "phase": "decode",
    "batch": "1",
    "heads": "2:2",
    "head_size": "8",
    "keys": "16",
    "edge": "one_more",
}


def allowed(family: Family, most: int, row: Row) -> bool:
    """Whether the row, perhaps without some of its sizes, is possible and costs at most that."""
    return not family.forbids(row) and cost(size_of({**_SMALLEST, **row})) <= most


def wanted_of(family: Family) -> dict[Pair, None]:
    """The pairs of a family: each of its values with each size, and no more."""
    return {
        (("feature", value), (name, level)): None
        for name, levels in family.factors.items()
        if name != "feature"
        for value, level in product(family.values, levels)
    }


def pairs_of_sizes() -> dict[Pair, None]:
    """The pairs of two sizes."""
    return {
        ((one, level), (other, another)): None
        for one, other in combinations(SIZES, 2)
        for level, another in product(SIZES[one], SIZES[other])
    }


class Made(NamedTuple):
    """A row with its family and the pairs that it is the first to have."""

    family: Family
    row: Row
    new: list[Pair]


def rows() -> list[Made]:
    """All rows, without those whose pairs the others have, too; each with its new pairs.

    Those of the last common family have what is left of the pairs of two sizes.
    """
    sizes = pairs_of_sizes()
    last = [family for family in FAMILIES if family.common][-1]
    made = [
        each
        for family in FAMILIES
        for each in _rows(family, sizes if family.common else {}, family is last)
    ]
    return _first_to_have(_necessary(_cheapened(_necessary(made))))


def _demanded(made: Made) -> list[Pair]:
    """The pairs for which a row counts."""
    feature = ("feature", made.row["feature"])
    sizes = [(name, made.row[name]) for name in SIZES]
    of_sizes = list(combinations(sizes, 2)) if made.family.common else []
    return [*((feature, size) for size in sizes), *of_sizes]


def _necessary(made: list[Made]) -> list[Made]:
    """The rows that have a pair of their own, after the most expensive others were left out."""
    times = Counter(pair for each in made for pair in _demanded(each))
    left_out = set()
    for number in sorted(range(len(made)), key=lambda n: -cost(size_of(made[n].row))):
        demanded = _demanded(made[number])
        if all(times[pair] > 1 for pair in demanded):
            times.subtract(demanded)
            left_out.add(number)
    return [each for number, each in enumerate(made) if number not in left_out]


def _cheapened(made: list[Made]) -> list[Made]:
    """The rows, the expensive ones with cheaper levels where no pair of their own is lost."""
    times = Counter(pair for each in made for pair in _demanded(each))
    found = list(made)
    for number in sorted(range(len(made)), key=lambda n: -cost(size_of(made[n].row))):
        while (cheaper := _cheaper(found[number], times)) is not None:
            times.subtract(_demanded(found[number]))
            times.update(_demanded(cheaper))
            found[number] = cheaper
    return found


def _cheaper(made: Made, times: Mapping[Pair, int]) -> Made | None:
    """The row with other levels of one or two factors, the cheapest one; None if it is cheap.

    ``times``: how many rows have each pair. No level of a pair that only this row has is changed.
    """
    least = cost(size_of(made.row))
    if least <= CHEAP:
        return None
    own = {name for pair in _demanded(made) if times[pair] == 1 for name, _ in pair}
    free = [name for name in SIZES if name not in own]
    factors, cheapest = made.family.factors, None
    for names in (*combinations(free, 1), *combinations(free, 2)):
        for levels in product(*(factors[name] for name in names)):
            row = {**made.row, **dict(zip(names, levels, strict=True))}
            if (price := cost(size_of(row))) < least and not made.family.forbids(row):
                least, cheapest = price, row
    return None if cheapest is None else made._replace(row=cheapest)


def _first_to_have(made: list[Made]) -> list[Made]:
    seen: set[Pair] = set()
    found = []
    for each in made:
        new = [pair for pair in _demanded(each) if pair not in seen]
        seen.update(new)
        found.append(each._replace(new=new))
    return found


def _rows(family: Family, sizes: dict[Pair, None], all_sizes: bool) -> Iterator[Made]:
    """The rows of a family, and the pairs of ``sizes`` that they have, which are removed there."""
    needed = wanted_of(family)
    wanted = {**needed, **sizes}
    for most in MOST:
        covering = Covering(
            family.factors,
            partial(allowed, family, most),
            lambda row: 1 + 4 * cost(size_of(row)) / MOST[0],
            FAMILIES.index(family),
        )
        for row, new in covering.rows(list(wanted if all_sizes else needed), wanted):
            for pair in new:
                sizes.pop(pair, None)
            yield Made(family, row, new)


def lengths_of(row: Mapping[str, str], size: Size, borrowed: bool) -> list[int]:
    """The tokens of each sequence of a ragged batch; the first one is never the longest.

    One ends just below a tile, one at a tile, one is as short as possible.
    """
    tile = 64 if size.keys > 64 else 16
    whole = (size.keys - 1) // tile * tile
    prompt = size.queries == size.keys
    least = size.queries if (size.queries > 1 or borrowed) and not prompt else 2
    turn = int(row["head_size"]) // 8 + int(row["keys"]) // 16
    if size.batch == 2:
        other = (least, size.keys // 2 + 1, size.keys * 3 // 4)[turn % 3]
        return [max(min(other, size.keys - 1), least), size.keys]
    found = [whole - 1, least, size.keys, whole, size.keys * 3 // 5, size.keys - 1, least + 1]
    found += [size.keys // 2, size.keys]
    return [max(min(length, size.keys), least) for length in found[: size.batch]]


def call_of(made: Made) -> Fields:
    """The fields of the row's call, in the order of the file."""
    family, row = made.family, made.row
    size = size_of(row)
    loop = size.phase == "loop"
    past = size.keys - (0 if family.borrowed else size.queries)
    fields: Fields = {"batch_size": size.batch}
    if loop:
        fields["loop"] = [size.queries, 1]
    else:
        fields["sequence_length"] = size.queries
    if past:
        fields["past_sequence_length"] = past
    if row["lengths"] == "ragged":
        fields["total_sequence_lengths"] = lengths_of(row, size, family.borrowed)
    features = family.values[row["feature"]](size)
    capacity = size.keys + loop
    if row["cache"] == "concatenated":
        fields["cache"] = "concatenated"
    elif row["cache"] in ("static", "shared_buffer"):
        tile = 64 if row["edge"] == "odd" else 8
        fields["max_sequence_length"] = math.ceil((capacity + 3) / tile) * tile
        if row["cache"] == "shared_buffer":
            fields["shared_buffer"] = True
    if special := _special(made, fields):
        features["inputs"] = {**features.get("inputs", {}), **special}
    return {
        **fields,
        "num_heads": size.heads,
        "kv_num_heads": size.kv_heads,
        "head_size": size.head_size,
        **features,
    }


def _special(made: Made, fields: Fields) -> Fields:
    """Inputs with a few special numbers that a kernel could treat in a way of its own.

    A bias of -inf hides single keys and a run of them, though not from the new tokens themselves.
    Of the first new key and value of a quantised cache, one element lies halfway between two codes
    and one below them all.
    """
    row, keys = made.row, size_of(made.row).keys
    if row["edge"] not in ("one_more", "one_less"):  # half of the rows show it
        return {}
    if made.family.name == "bias":
        lengths = fields.get("total_sequence_lengths", [keys])
        hidden = [
            {"at": [0, 0, -1, lengths[0] - 2], "value": -math.inf},
            {"at": [-1, -1, -1, lengths[-1] - 3], "value": -math.inf},
        ]
        if run := min(16, min(lengths) // 4):
            hidden.append({"at": [0, 0, -1, 0], "count": run, "value": -math.inf})
        return {"attention_bias": {"elements": hidden}}
    if made.family.name in ("int8", "int4"):
        scale, below = {"int8": (2.0**-6, -200), "int4": (2.0**-3, -20)}[made.family.name]
        each = row["feature"].endswith("channel")
        scales = {"at": [0] * (4 if each else 1), "count": 2 if each else 1, "value": scale}
        numbers = [
            {"at": [0, 0, place], "value": number * scale}
            for place, number in enumerate((6.5, below))
        ]
        own = made.family.values[row["feature"]](size_of(row)).get("inputs", {})
        return {
            **{name: {"elements": numbers} for name in ("key", "value")},
            **{n: {**own.get(n, {}), "elements": [scales]} for n in ("k_scale", "v_scale")},
        }
    return {}


def _louder(made: Made) -> Fields:
    """As :func:`loud`, with loud tokens of the past between the others, so that each part shows."""
    inputs, fields, size = loud(made), call_of(made), size_of(made.row)
    past = fields.get("past_sequence_length", 0)
    if past < 4000 or "cache_dtype" in fields or "sliding_window_cache" in fields:
        return inputs
    found = [
        {"at": [place, place, past * part // 8 + 5], "value": size.keys // 16}
        for place, part in ((0, 3), (-1, 5))
    ]
    others = inputs.get("past_value", {}).get("elements", [])
    return {**inputs, "past_value": {"elements": [*found, *others]}}


def loud(made: Made) -> Fields:
    """Inputs with tokens whose values outweigh those of all others, where one more or less counts.

    One token of a thousand hardly moves the output. So the new tokens are loud, which shows the
    causal mask, and so are the two tokens at the edge of a window, and the last ones of a borrowed
    cache, in one head of the first sequence.
    """
    size, fields = size_of(made.row), call_of(made)
    if codes := {"int8": 12, "float8e4m3fn": 10.0}.get(fields.get("cache_dtype", "")):
        return {"past_value": {"values": {"low": -codes, "high": codes}}}
    if "cache_dtype" in fields or fields.get("key_value") == "packed":
        return {}
    volume = max(2.0, size.keys / 16)
    inputs: Fields = {}
    if not made.family.borrowed and fields.get("key_value") != "zero_valued":
        inputs["value"] = {"values": {"low": -volume, "high": volume}}
    length = fields.get("total_sequence_lengths", [size.keys])[0]
    rows = [length - 1, length - 2] if made.family.borrowed else []
    if (window := fields.get("local_window_size")) and "sliding_window_cache" not in fields:
        rows += [length - 1 - window, length - window]
    past = length - (0 if made.family.borrowed else size.queries)
    if found := [{"at": [0, 0, row], "value": volume} for row in rows if 0 <= row < past]:
        inputs["past_value"] = {"elements": found}
    return inputs


def queries_of(made: Made) -> list[Fields | None]:
    """Values of the queries that are tried: the usual ones, sharper ones, and marked ones.

    Sharp ones come first if there are many keys: a split of them then has a largest score of its
    own, which shows where splits are joined.
    """
    fields = call_of(made)
    high = 3 * SCORE * (1 if "cache_dtype" in fields else math.sqrt(fields["head_size"]))
    sharp = {"low": -round(high, 1), "high": round(high, 1)}
    if "smooth_softmax" in fields or "softcap" in fields:  # their queries have a range of their own
        return [None, sharp, {"kind": "marked"}]
    many = size_of(made.row).keys > 500
    return [*((sharp, None) if many else (None, sharp)), {"kind": "marked"}]


def values_of(made: Made) -> Fields | None:
    """The fields of the row's call, with values that make it sensitive."""
    many = size_of(made.row).keys > 4000
    inputs = [_louder(made), {}, loud(made)] if many else [{}, loud(made)]
    return sensitive(call_of(made), DTYPES, inputs=inputs, queries=queries_of(made), seeds=SEEDS)


_PHASES: Final = {
    "prefill": "Prefill",
    "decode": "Decode",
    "loop": "Loop",
}


def name_of(made: Made) -> str:
    """The row's name: its feature and its sizes."""
    row, size = made.row, size_of(made.row)
    words = [row["feature"], row["phase"], row["cache"], f"b{size.batch}"]
    words += ["ragged"] * (row["lengths"] == "ragged")
    words += [f"h{size.heads}_{size.kv_heads}", f"d{size.head_size}", f"keys{size.keys}"]
    return "_".join(words)


def title_of(made: Made) -> str:
    """The row's call in words."""
    row, size = made.row, size_of(made.row)
    past = size.keys - (0 if made.family.borrowed else size.queries)
    new = "" if size.phase == "decode" else f" of {size.queries}"
    parts = [_PHASES.get(size.phase, "Chunk") + new + f" on {past}" * bool(past)]
    if size.batch > 1:
        parts.append(f"{size.batch} {'ragged' if row['lengths'] == 'ragged' else 'sequences'}")
    parts.append(f"{size.heads}:{size.kv_heads} heads of {size.head_size}")
    if row["cache"] in ("static", "shared_buffer"):
        parts.append(row["cache"].removesuffix("_buffer"))
    return ", ".join((*parts, row["feature"].replace("_", " ")))


def text() -> str:
    """The file cases/regions.yaml."""
    entries = []
    for made in rows():
        fields = values_of(made)
        if fields is None:  # one token on the past is easier to see than several
            made = made._replace(row={**made.row, "phase": "decode"})
            fields = values_of(made)
        if fields is None:  # tests/test_regions.py names the pairs that are lost, for a rule
            continue
        entries.append(
            MadeEntry(
                name_of(made),
                {"title": title_of(made), "why": why(made.new), **fields},
                contract_of_call(fields),
                ("float32", "float16"),
            )
        )
    return file_text(
        "regions",
        "Is every feature right at every size?",
        "conformance/maintain/region_cases.py says what meets what",
        entries,
    )


def why(new: list[Pair]) -> str:
    """The `why` of a row: its new pairs."""
    said = [" with ".join(" ".join(level) for level in pair) for pair in new[:2]]
    more = f", and {len(new) - len(said)} pairs more" if len(new) > len(said) else ""
    return f"No row before has {', '.join(said)}{more}."
