"""cases/faults.yaml: what each fault needs, in each region.

``python -m conformance.maintain.generate cases/faults.yaml`` writes it. A fault of a kernel is on in
a region of calls only, and many faults show only with special numbers there: two scores far apart, a
number halfway between two codes, ``smooth_softmax`` 0. The mutants declare what each fault needs and
where it can be on (``mutants/needs.py``, ``mutants/regions.py``). The rows of this file are a
covering array of these: what each fault needs meets each region.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Final

import numpy as np

from conformance.case.call import Call
from conformance.case.features import BY_NAME, features_of
from conformance.case.tensors import steps_of
from conformance.maintain import dense_cases, region_cases
from conformance.maintain.case_text import MadeEntry, file_text
from conformance.maintain.contracts import contract_of
from conformance.maintain.dense_cases import Group
from conformance.maintain.power import known_mutants, known_regions
from conformance.maintain.region_cases import Fields, Rule, Size, cost, lengths_of, size_of
from conformance.maintain.region_run import impossible
from conformance.maintain.regions import SIZES as RANGES
from conformance.maintain.regions import Needs, joined
from conformance.maintain.telling_values import sensitive

Row = dict[str, str]

#: The levels of each factor; the first one of a feature is the plain one.
FEATURES: Final[Mapping[str, tuple[str, ...]]] = {
    "key_value": ("new", "packed", "borrowed", "omitted", "zeros"),
    "presents": ("both", "none", "one"),
    "rotary": ("unrotated", "half_split", "interleaved", "partial", "partial_interleaved"),
    "position_ids": ("implied", "ids", "first_alone", "far"),
    "window": ("whole", "few", "tile", "most", "straddling", "all_but_one", "wide"),
    "bias": (
        *("unbiased", "bias", "hidden", "low", "apart"),
        *("one_head", "one_batch", "one_batch_one_head"),
    ),
    "sink": ("no_sink", "smooth_zero", "sink", "smooth", "smooth_sink"),
    "softcap": ("uncapped", "softcap"),
    "scale": ("default", "scale", "scale_one"),
    "norm": ("plain", "norm"),
    "output_qk": ("no_qk", "scores", "weights"),
    "quantised": ("exact", *BY_NAME["quantised"].values[1:]),
    "causal": ("causal", "bidirectional"),
    "zeros": ("no_zeros", "zero_head"),
}
SIZES: Final[Mapping[str, tuple[str, ...]]] = {
    "phase": (
        *("decode", "prefill", "chunk_2", "chunk_3", "chunk_5", "chunk_17"),
        *("chunk_33", "chunk_65", "chunk_97", "chunk_130"),
    ),
    "cache": ("concatenated", "static", "shared_buffer", "none", "sliding", "sliding_shared"),
    "batch": tuple("123456789"),
    "lengths": ("equal", "ragged"),
    "heads": (
        *("6:2", "2:2", "5:1", "10:5", "9:9", "3:3", "4:4"),
        *("4:2", "7:1", "12:1", "16:1", "12:2", "14:2", "18:6"),
    ),
    "head_size": (
        *("16", "8", "40", "64", "80", "128", "256", "512"),
        *("48", "96", "112", "160", "192", "384", "4", "12", "20", "24", "88", "100"),
    ),
    "keys": ("16", "0", "64", "128", "256", "512", "1024", "2048", "4096"),
    "edge": ("one_more", "odd", "one_less", "whole", "below_double"),
    "dtype": ("floats", "bfloat16"),
}
FACTORS: Final = {**FEATURES, **SIZES}


def _kind(heads: str) -> str:
    """``heads`` is "num_heads:kv_num_heads"."""
    query, _, key = heads.partition(":")
    return "mha" if query == key else "mqa" if key == "1" else "gqa"


#: The values of the features that levels stand for, where the two differ.
_VALUES: Final[Mapping[str, tuple[str, Mapping[str, str]]]] = {
    "key_value": ("key_value", {"borrowed": "zero_length", "zeros": "zero_valued"}),
    "rotary": (
        "rotary",
        {
            "unrotated": "none",
            "partial": "partial_half_split",
        },
    ),
    "position_ids": ("position_ids", {"implied": "none", **dict.fromkeys(("ids", "first_alone", "far"), "given")}),
    "bias": (
        "attention_bias",
        {"unbiased": "none", **dict.fromkeys(("bias", "hidden", "low", "apart"), "full")},
    ),
    "sink": (
        "sink",
        {
            **dict.fromkeys(("no_sink", "smooth_zero"), "none"),
            **dict.fromkeys(("sink", "smooth_sink"), "head_sink"),
            "smooth": "smooth_softmax",
        },
    ),
    "softcap": ("softcap", {"uncapped": "none", "softcap": "given"}),
    "scale": ("scale", {"scale": "given", "scale_one": "given"}),
    "norm": ("qk_norm", {"plain": "none", "norm": "given"}),
    "output_qk": (
        "output_qk",
        {"no_qk": "none", "scores": "before_softmax", "weights": "after_softmax"},
    ),
    "quantised": ("quantised", {"exact": "none"}),
    "cache": ("cache", dict.fromkeys(("sliding", "sliding_shared"), "sliding_window")),
    "phase": ("phase", dict.fromkeys(SIZES["phase"][2:], "chunked_prefill")),
    "batch": ("batch", {"1": "one", **dict.fromkeys(SIZES["batch"][1:], "more")}),
    "heads": ("heads", {heads: _kind(heads) for heads in SIZES["heads"]}),
}
#: Levels that stand for special numbers.
_NUMBERS: Final = (
    *("first_alone", "hidden", "low", "apart", "smooth_zero", "smooth_sink"),
    *("scale_one", "zero_head", "far", "straddling", "sliding_shared"),
)

_ROTATED: Final = FEATURES["rotary"][1:]
_QUANTISED: Final = FEATURES["quantised"][1:]
_BORROWED: Final = ("borrowed", "omitted")
_OWN: Final = ("new", "packed", "zeros")
_LATER: Final = tuple(phase for phase in SIZES["phase"] if phase != "prefill")
_CHUNKS: Final = SIZES["phase"][2:]
_SLIDING: Final = ("sliding", "sliding_shared")
_FULL_BIAS: Final = ("bias", "hidden", "low", "apart")

_MANY: Final = ("whole", "tile", "most", "straddling", "all_but_one", "wide")
_LARGE: Final = ("1024", "2048", "4096")
_ALONE: Final = "The weight of a single key without a sink is 1, whatever its score."
#: Parts of a call that may have no effect in a prompt of one token, in a ragged causal one, and
#: with a window wider than the tokens.
_HIDDEN_BY_ONE: Final = (
    *("rotary", "rotary_interleaved", "position_ids", "window", "window_edge", "scale"),
    *("softcap", "attention_bias", "qk_norm", "causal", "quantisation", "sliding_window_cache"),
)
_HIDDEN_BY_PADDING: Final = ("ragged",)
_HIDDEN_BY_WIDTH: Final = ("window", "window_edge", "sliding_window_cache")

RULES: Final = (
    Rule({"cache": ("none",), "phase": _LATER}, "There is no past without a cache."),
    Rule({"cache": ("none",), "key_value": _BORROWED}, "There is nothing to attend to."),
    Rule({"cache": ("none",), "quantised": _QUANTISED}, "The presents have the query's format."),
    Rule({"cache": ("shared_buffer",), "presents": ("none", "one")}, "It is past and present."),
    Rule(
        {"phase": _LATER, "presents": ("none", "one"), "key_value": _OWN},
        "Past and new tokens are joined in the present.",
    ),
    Rule({"key_value": ("omitted",), "quantised": _QUANTISED}, "It was not requested."),
    Rule({"batch": ("1",), "lengths": ("ragged",)}, "One sequence has one length."),
    Rule(
        {"batch": ("1",), "bias": ("one_batch", "one_batch_one_head")},
        "In a batch of one these shapes are the same as full and one_head.",
    ),
    Rule(
        {"rotary": ("unrotated",), "position_ids": ("ids", "first_alone", "far")},
        "Positions without rotary have no specified meaning.",
    ),
    Rule(
        {"position_ids": ("first_alone",), "phase": _LATER},
        "Only a first prompt reads its first position alone.",
    ),
    Rule(
        {"rotary": ("partial", "partial_interleaved"), "head_size": ("8", "16")},
        "ONNX Runtime wants 16 elements or more to turn.",
    ),
    Rule(
        {"window": FEATURES["window"][1:], "causal": ("bidirectional",)},
        "local_window_size must be -1 if causal is 0.",
    ),
    Rule({"phase": ("decode",), "causal": ("bidirectional",)}, "The last token sees all anyway."),
    Rule({"cache": _SLIDING, "window": ("whole",)}, "Such a cache requires a window."),
    Rule({"cache": _SLIDING, "key_value": _BORROWED}, "Runtimes reject it."),
    Rule(
        {"cache": _SLIDING, "phase": _CHUNKS, "batch": SIZES["batch"][1:]},
        "Several tokens on a sliding-window cache require a batch of one.",
    ),
    Rule({"phase": ("prefill",), "keys": ("1024", "2048", "4096")}, "Too many scores."),
    Rule({"phase": ("chunk_130",), "keys": ("2048", "4096")}, "Too many scores."),
    Rule({"keys": ("0",), "phase": _LATER}, "There is no past."),
    Rule({"keys": ("0",), "edge": SIZES["edge"][1:]}, "There is one key."),
    Rule(
        {"rotary": _ROTATED, "head_size": ("4", "12", "20", "24", "88", "100")},
        "ONNX Runtime wants a multiple of 16.",
    ),
    Rule({"keys": ("0",), "lengths": ("ragged",)}, "A sequence has a token."),
    Rule({"keys": ("0",), "window": ("tile", "most", "straddling", "all_but_one")}, "There is one key."),
    Rule({"cache": ("sliding_shared",), "presents": ("none", "one")}, "It is past and present."),
    Rule({"keys": ("0",), "key_value": _BORROWED}, "Its prompt is a decode."),
    Rule({"keys": ("0",), "bias": ("hidden", "apart")}, "No key can be hidden beside another."),
    Rule({"keys": ("0",), "zeros": ("zero_head",)}, "Only one key is there."),
    Rule({"zeros": ("zero_head",), "causal": ("bidirectional",)}, "All queries see all keys."),
    Rule({"zeros": ("zero_head",), "key_value": ("zeros",)}, "All new values are zero already."),
    Rule(
        {"phase": ("prefill",), "quantised": _QUANTISED, "presents": ("none", "one")},
        "A prompt may attend to its keys before they are rounded.",
    ),
    Rule(
        {"phase": ("prefill",), "quantised": _QUANTISED, "window": _MANY[1:]},
        "A key more or less hardly shows where keys may be rounded or not.",
    ),
    Rule(
        {"phase": ("prefill",), "quantised": _QUANTISED, "scale": ("scale_one",)},
        "Large scores hardly show where keys may be rounded or not.",
    ),
    Rule({"bias": ("low",), "sink": ("smooth",)}, "All weight is the sink's."),
    Rule(
        {"sink": ("smooth",), "quantised": _QUANTISED, "window": _MANY},
        "The sink of smooth_softmax hardly shows beside so many codes.",
    ),
    Rule(
        {"sink": ("smooth",), "norm": ("norm",), "window": _MANY},
        "The sink of smooth_softmax hardly shows beside scores of norm.",
    ),
    Rule(
        {"sink": ("smooth",), "keys": _LARGE, "window": _MANY},
        "The sink of smooth_softmax hardly shows beside so many keys.",
    ),
    Rule(
        {"causal": ("bidirectional",), "quantised": _QUANTISED, "keys": _LARGE},
        "The few keys that a causal call hides hardly show among so many codes.",
    ),
    Rule(
        {"window": _MANY[1:], "quantised": _QUANTISED, "keys": _LARGE},
        "One code more or less hardly shows among so many.",
    ),
    Rule({"keys": ("0",), "sink": ("no_sink", "smooth_zero"), "output_qk": ("no_qk", "weights"),
          "bias": FEATURES["bias"][1:]}, _ALONE),
    Rule({"keys": ("0",), "sink": ("no_sink", "smooth_zero"), "output_qk": ("no_qk", "weights"),
          "softcap": ("softcap",)}, _ALONE),
    Rule({"keys": ("0",), "sink": ("no_sink", "smooth_zero"), "output_qk": ("no_qk", "weights"),
          "scale": FEATURES["scale"][1:]}, _ALONE),
)

GROUPS: Final = (
    Group(
        "cpu",
        {
            "norm": ("plain",),
            "quantised": ("exact", *(one for one in _QUANTISED if not one.startswith("float8"))),
            "causal": ("causal",),
            "presents": ("both", "none"),
            "dtype": ("floats",),
        },
        60,
    ),
    Group(
        "webgpu",
        {
            "key_value": ("new", "packed", "zeros"),
            "presents": ("both",),
            "output_qk": ("no_qk",),
            "quantised": ("exact",),
            "causal": ("causal",),
            "cache": ("none", "concatenated", "static", "shared_buffer"),
            "head_size": ("64", "128"),
            "phase": ("decode", "prefill", "chunk_3", "chunk_17"),
            "bias": ("unbiased", "bias", "hidden", "low", "apart", "one_head"),
            "dtype": ("floats",),
        },
        20,
    ),
    Group("any", {}, 400),
)

#: The usual cost of a row, and how many times the least cost in its region a row may have.
USUAL: Final = 1 << 16
SPARE: Final = (4, 32)
#: A position beyond the integers that float16 has.
FAR: Final = 4099
#: Candidates for each row, and tries for a candidate.
CANDIDATES: Final = 32
TRIES: Final = 4


def words_of(row: Row) -> dict[str, Any]:
    """The row in the words of :data:`Needs`: values of features, sizes, and ``numbers``."""
    size = size_of(row)
    words: dict[str, Any] = {}
    for factor, level in row.items():
        if factor in ("head_size", "keys", "edge", "dtype", "zeros"):
            continue
        feature, values = _VALUES.get(factor, (factor, {}))
        words[feature] = values.get(level, level)
    if row["window"] != "whole":
        window = _window(row, size)
        words["window"] = "shorter" if window < size.keys else "longer"
    else:
        words["window"] = "none"
    numbers = {level for level in row.values() if level in _NUMBERS}
    return {
        **words,
        "head_size": size.head_size,
        "sixteens": "rest" if size.head_size % 16 else "none",
        "keys": size.keys,
        "queries": size.queries,
        "batch_size": size.batch,
        "numbers": numbers,
    }


def _window(row: Row, size: Size) -> int:
    window: int = region_cases.window(row["window"])(size)["local_window_size"]
    return window


def _meets(words: Mapping[str, Any], needs: Needs) -> bool:
    for name, values in needs.items():
        if name in RANGES:
            if not values[0] <= words[name] <= values[1]:  # type: ignore[operator]
                return False
        elif name in ("numbers", "dtype"):
            if not words[name] & set(values):
                return False
        elif words[name] not in values:
            return False
    return True


def _dtypes(row: Row) -> tuple[str, ...]:
    return ("float16", "float32") if row["dtype"] == "floats" else ("bfloat16",)


@dataclass
class Wanted:
    """What is still to be met: the needs of faults, by the regions in which they can be on."""

    needs: list[list[Needs]] = field(default_factory=list)
    regions: list[Needs] = field(default_factory=list)
    left: Any = None

    def __post_init__(self) -> None:
        regions = known_regions()
        places: dict[str, int] = {}
        cells: dict[tuple[int, int], None] = {}
        self.regions = [region.needs for region in regions]
        for mutant in known_mutants():
            if mutant.everywhere:
                continue
            key = json.dumps(mutant.needs)
            if key not in places:
                places[key] = len(self.needs)
                self.needs.append(list(mutant.needs))
            for number, region in enumerate(regions):
                if not impossible(mutant, region):
                    cells[places[key], number] = None
        self.left = np.zeros((len(self.needs), len(self.regions)), bool)
        for cell in cells:
            self.left[cell] = True

    def met(self, row: Row) -> Any:
        """Which of the cells that are left the row meets."""
        words = words_of(row)
        found = np.zeros_like(self.left)
        for dtype in _dtypes(row):
            words["dtype"] = {dtype}
            needs = [any(_meets(words, one) for one in several) for several in self.needs]
            regions = [_meets(words, one) for one in self.regions]
            found |= np.outer(needs, regions)
        return found & self.left


_SMALLEST: Final = {
    **{"phase": "decode", "batch": "1", "heads": "2:2", "head_size": "4"},
    **{"keys": "16", "edge": "one_more"},
}


def allowed(group: Group, most: int, row: Row) -> bool:
    """Whether the row, perhaps without some of its factors, is possible in the group."""
    if any(row.get(name, values[0]) not in values for name, values in group.plain.items()):
        return False
    if any(rule.forbids(row) for rule in RULES):
        return False
    if row.get("phase", "").startswith("chunk") and {"keys", "edge"} <= row.keys():
        queries, keys = int(row["phase"].split("_")[1]), size_of({**_SMALLEST, **row}).keys
        if queries >= keys:
            return False  # no past is left
    return cost(size_of({**_SMALLEST, **row})) <= most


class Maker:
    """Makes rows that meet what is wanted."""

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.random = random.Random(0)

    def candidates(self, group: Group, most: int, cell: tuple[int, int]) -> Iterator[Row]:
        """Rows of the group that meet the cell."""
        needs, region = cell
        for _ in range(CANDIDATES):
            one = self.random.choice(self.wanted.needs[needs])
            row = self._row(group, most, joined(one, self.wanted.regions[region]))
            if row is not None:
                yield row

    def _row(self, group: Group, most: int, needs: Needs) -> Row | None:
        levels = {name: self._levels(group, name, needs) for name in FACTORS}
        if not all(levels.values()):
            return None
        for _ in range(TRIES):
            row = self._filled(group, most, levels)
            if row is None:
                continue
            words = words_of(row)
            words["dtype"] = set(_dtypes(row))
            if _meets(words, needs):
                return row
        return None

    def _levels(self, group: Group, factor: str, needs: Needs) -> list[str]:
        levels = list(group.plain.get(factor, FACTORS[factor]))
        feature, values = _VALUES.get(factor, (factor, {}))
        if factor == "window" and "window" in needs:
            shorter = "shorter" in needs["window"] or "longer" in needs["window"]
            return [one for one in levels if shorter == (one != "whole") or "none" in needs["window"]]
        if factor == "dtype" and "dtype" in needs:
            bfloat16 = "bfloat16" in needs["dtype"]
            floats = {"float16", "float32"} & set(needs["dtype"])
            return [one for one in levels if (bfloat16 if one == "bfloat16" else floats)]
        if factor == "head_size":
            low, high = needs.get("head_size", (0, math.inf))
            rest = needs.get("sixteens", ("rest", "none"))
            return [
                one
                for one in levels
                if low <= int(one) <= high  # type: ignore[operator]
                and ("rest" if int(one) % 16 else "none") in rest
            ]
        if factor == "phase":
            low, high = needs.get("queries", (1, math.inf))
            levels = [
                one
                for one in levels
                if one == "prefill" or low <= int(f"{one}_1".split("_")[1]) <= high  # type: ignore[operator]
            ]
        if factor == "batch":
            low, high = needs.get("batch_size", (1, math.inf))
            levels = [one for one in levels if low <= int(one) <= high]  # type: ignore[operator]
        if factor == "keys":
            low, high = needs.get("keys", (1, math.inf))
            if set(needs.get("phase", ())) == {"prefill"}:
                few, many = needs.get("queries", (1, math.inf))
                low, high = max(low, few), min(high, many)  # type: ignore[type-var]
            return [
                one
                for one in levels
                if (2 * int(one) >= low or low <= 1) and int(one) + 1 <= high  # type: ignore[operator]
            ]
        if feature in needs:
            levels = [one for one in levels if values.get(one, one) in needs[feature]]
        if "numbers" in needs:
            special = [one for one in levels if one in needs["numbers"]]
            levels = special or levels
        return levels

    def _filled(self, group: Group, most: int, levels: Mapping[str, Sequence[str]]) -> Row | None:
        """A random row of these levels; a feature is plain half of the times."""
        order = sorted(FACTORS, key=lambda name: (len(levels[name]) > 1, self.random.random()))
        row: Row = {}
        for name in order:
            found = list(levels[name])
            self.random.shuffle(found)
            plain = FACTORS[name][0]
            if name in FEATURES and plain in found and self.random.random() < 0.5:
                found.remove(plain)
                found.insert(0, plain)
            for level in found:
                row[name] = level
                if allowed(group, most, row):
                    break
            else:
                return None
        return {name: row[name] for name in FACTORS}


def rows() -> Iterator[tuple[Row, int, Fields]]:
    """Each row with the number of cells that it is the first to meet, and the fields of its call."""
    wanted = Wanted()
    maker = Maker(wanted)
    given_up = np.zeros_like(wanted.left)
    least = [_least(region) for region in wanted.regions]
    cells = sorted(zip(*np.nonzero(wanted.left), strict=True), key=lambda cell: -least[cell[1]])
    for group, spare in product(GROUPS, SPARE):
        made = 0
        for cell in cells:
            if made >= group.rows:
                break
            if not wanted.left[cell] or given_up[cell]:
                continue
            most = max(USUAL, spare * least[cell[1]])
            found = [
                (wanted.met(row).sum() / (1 + cost(size_of(row)) / most), row)
                for row in maker.candidates(group, most, cell)
            ]
            found.sort(key=lambda one: -one[0])
            for _, row in found[:2]:
                fields = values_of(row)
                if fields is not None:
                    met = wanted.met(row)
                    wanted.left &= ~met
                    made += 1
                    yield row, int(met.sum()), fields
                    break
            else:
                given_up[cell] = bool(found)


def _least(region: Needs) -> int:
    """About the least cost of a row in the region."""
    least = {name: int(region[name][0]) if name in region else 1 for name in RANGES}
    prompt = set(region.get("phase", ())) == {"prefill"}
    queries = least["keys"] if prompt else least["queries"]
    keys = max(least["keys"], queries, 16)
    size = max(least["head_size"], 8)
    return 2 * least["batch_size"] * ((keys + queries) * size + 4 * queries * keys)


def _elements(of: Mapping[str, Any], *more: Fields) -> Fields:
    return {**of, "elements": [*of.get("elements", []), *more]}


def call_of(row: Row) -> Fields:
    """The fields of the row's call, in the order of the file, with its special numbers."""
    made = dense_cases.made_of(row)
    size = size_of(row)
    fields = region_cases.call_of(made)
    if row["cache"] in _SLIDING:
        fields["max_sequence_length"] = fields["local_window_size"] + 3
        fields["sliding_window_cache"] = 1
        if row["cache"] == "sliding_shared":
            fields["shared_buffer"] = True
    if row["cache"] == "concatenated" or (row["phase"] == "prefill" and row["cache"] == "none"):
        fields.pop("max_sequence_length", None)
    lengths = fields.get("total_sequence_lengths", [size.keys] * size.batch)
    inputs: Fields = dict(fields.pop("inputs", {}))
    if bias := _bias(row, size, lengths):
        inputs["attention_bias"] = bias
    if row["sink"] in ("sink", "smooth_sink"):
        high = size.keys.bit_length() / 2 + 1  # its weight is then about that of all keys
        low, high = (-131.0, -127.0) if row["bias"] == "low" else (-high, high)
        inputs["head_sink"] = {"values": {"low": low, "high": high}}
    if row["norm"] == "norm":
        for side in "qk":
            inputs[f"{side}_norm_weight"] = {"values": {"low": -2.0, "high": 2.0}}
    if row["softcap"] == "softcap":
        fields["softcap"] = 1.7
    if row["position_ids"] == "ids" and size.keys * size.head_size < 1 << 18:
        fields["rotary_cache_length"] = 2 * size.keys + 2 * size.queries + 64
    first = {"first_alone": 3, "far": FAR}.get(row["position_ids"])
    if first is not None:
        fields["rotary_cache_length"] = first + size.keys + 16
        inputs["position_ids"] = {"values": {"low": first // 2 + 1, "high": first + size.keys + 8}}
        if row["phase"] == "prefill":
            inputs["position_ids"]["elements"] = [
                {"at": [b, 0], "value": first} for b in range(size.batch)
            ]
    if row["zeros"] == "zero_head":
        past = fields.get("max_sequence_length", fields.get("past_sequence_length", 0))
        _zero_head(row, size, past, inputs)
    if row["quantised"] != "exact" and row["key_value"] in ("new", "packed"):
        _beyond_the_codes(row, size, lengths, inputs)
    if inputs:
        fields["inputs"] = inputs
    return fields


def _bias(row: Row, size: Size, lengths: Sequence[int]) -> Fields:
    """A bias with which scores are far below zero or far apart, or with hidden keys."""
    low = -130.0
    if row["bias"] == "hidden":
        return {"values": {"low": -1.0, "high": 1.0}, "elements": _hidden_keys(row, size, lengths)}
    if row["bias"] == "low":
        return {"values": {"low": low, "high": low + 2}}
    if row["bias"] == "apart":
        last = lengths[-1]
        elements: list[Fields] = []
        if size.queries > 1:  # one row is far below the others
            elements.append({"at": [0, 0, 0], "value": low})
        elements += [
            {"at": [-1, -1, -1, last - 1], "value": 100.0},
            {"at": [-1, -1, -1, max(last - 2, 0)], "value": low},
        ]
        return {"values": {"low": -1.0, "high": 1.0}, "elements": elements}
    return {}


def _hidden_keys(row: Row, size: Size, lengths: Sequence[int]) -> list[Fields]:
    """Keys that a bias hides from the first sequence's last query, a whole tile of them if it sees
    as many, and the last but three from the last sequence's."""
    inf = -float("inf")
    prompt = size.queries == size.keys
    query, last = (lengths[0] - 1 if prompt else size.queries - 1), lengths[0] - 1
    oldest = 0 if row["window"] == "whole" else max(0, last - _window(row, size) + 1)
    tile = -(-oldest // 16) * 16
    found: list[Fields] = [{"at": [-1, -1, -1, max(lengths[-1] - 4, 0)], "value": inf}]
    if tile + 16 < last:
        found.append({"at": [0, 0, query, tile], "count": 16, "value": inf})
    elif oldest < last:
        found.append({"at": [0, 0, query, oldest], "value": inf})
    return found


def _zero_head(row: Row, size: Size, past: int, inputs: Fields) -> None:
    """Make all values zero that the first query of the last sequence's last head attends to."""
    zero = 136 if row["quantised"].startswith("int4") else 0  # two codes in a byte, 8 more each
    if row["phase"] != "prefill" or row["key_value"] in _BORROWED:
        inputs["past_value"] = _elements(
            inputs.get("past_value", {}), {"at": [-1, -1, 0], "count": past, "value": zero}
        )
    if row["key_value"] in ("new", "packed"):
        name, width = _value_part(row, size)
        at = [-1, 0, width - size.head_size]
        inputs[name] = _elements(
            inputs.get(name, {}), {"at": at, "count": size.head_size, "value": 0.0}
        )


def _value_part(row: Row, size: Size) -> tuple[str, int]:
    """The input that has the new values, and its width."""
    if row["key_value"] == "packed":
        return "query", (size.heads + 2 * size.kv_heads) * size.head_size
    return "value", size.kv_heads * size.head_size


def _beyond_the_codes(row: Row, size: Size, lengths: Sequence[int], inputs: Fields) -> None:
    """Numbers of the last token halfway between two codes, and beyond the largest one."""
    name, width = _value_part(row, size)
    first = width - size.kv_heads * size.head_size  # of the values
    longest = list(lengths).index(max(lengths))
    scale = {"int8": 2.0**-6, "int4": 0.25, "float8": 2.0**-6}[row["quantised"].split("_")[0]]
    if row["quantised"].endswith("_tensor"):
        for side in "kv":
            inputs[f"{side}_scale"] = {"values": {"kind": "constant", "value": scale}}
    else:
        inputs["v_scale"] = _elements(
            inputs["v_scale"],
            {"at": [0, 0, 0, 0], "count": 2, "value": scale},
            {"at": [0, -1, 0, -2], "count": 2, "value": scale},
        )
    beyond, halfway = (-9.0, 8.5 * scale) if "float8" in row["quantised"] else (-4.0, 2.5 * scale)
    inputs[name] = _elements(
        inputs.get(name, {}),
        {"at": [longest, -1, first], "value": halfway},
        {"at": [longest, -1, first + 1], "value": beyond},
        {"at": [longest, -1, width - 2], "value": halfway},
        {"at": [longest, -1, width - 1], "value": beyond},
    )


def values_of(row: Row) -> Fields | None:
    """The fields of the row's call, with values that make it sensitive."""
    made = dense_cases.made_of(row)
    fields = call_of(row)
    base = fields.pop("inputs", {})
    queries = region_cases.queries_of(made)
    if row["scale"] == "scale_one":
        high = round(3 * size_of(row).head_size ** -0.5, 3)
        queries = [{"low": -high, "high": high}, {"low": -3 * high, "high": 3 * high}]
    loud = region_cases.loud(made)
    if row["cache"] in _SLIDING:  # its rows are other tokens
        loud.pop("past_value", None)
    return sensitive(
        fields,
        _dtypes(row),
        inputs=[base, _both(base, loud)],
        queries=queries,
        seeds=1,
        hidden=_hidden(row),
    )


def _hidden(row: Row) -> tuple[str, ...]:
    """The parts of the row's call that may have no effect."""
    if row["keys"] == "0":
        return _HIDDEN_BY_ONE
    padded = row["phase"] == "prefill" and row["causal"] == "causal"
    wide = row["window"] == "wide"
    return _HIDDEN_BY_PADDING * padded + _HIDDEN_BY_WIDTH * wide


def _both(one: Fields, other: Fields) -> Fields:
    """The overrides of both."""
    both = {**other, **one}
    for name in one.keys() & other.keys():
        both[name] = {**other[name], **one[name]}
        if elements := [*other[name].get("elements", []), *one[name].get("elements", [])]:
            both[name]["elements"] = elements
    return both


def special_words(row: Row) -> list[str]:
    """The levels of the row's features that are not plain."""
    return [row[name] for name, levels in FEATURES.items() if row[name] != levels[0]]


def name_of(row: Row) -> str:
    """The row's name: its sizes and its features."""
    size = size_of(row)
    words = [row["phase"], row["cache"], f"b{size.batch}"]
    words += ["ragged"] * (row["lengths"] == "ragged")
    words += [f"h{size.heads}_{size.kv_heads}", f"d{size.head_size}", f"keys{size.keys}"]
    return "_".join([*words, *special_words(row)])


def text() -> str:
    """The file cases/faults.yaml."""
    entries: list[MadeEntry] = []
    for row, met, fields in rows():
        call = Call.model_validate({k: v for k, v in fields.items() if k in Call.model_fields})
        found = features_of(call, steps_of(call))
        contract = contract_of({name: value for name, value in found.items() if value is not None})
        title = region_cases.title_of(dense_cases.made_of(row)).removesuffix("dense")
        title = f"{title}{len(special_words(row))} features, row {len(entries) + 1}"
        why = f"{met} times what a fault needs is in a region of which no row before is."
        entries.append(
            MadeEntry(name_of(row), {"title": title, "why": why, **fields}, contract, _dtypes(row))
        )
    return file_text(
        "faults",
        "Would each fault show in each region?",
        "conformance/maintain/fault_cases.py says what meets what",
        entries,
    )
