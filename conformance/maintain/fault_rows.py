"""The rows of ``conformance.maintain.fault_cases``: their factors, and which levels go together.

A row has a level of each factor: of the features of a call, of its special numbers, and of its
sizes. :func:`words_of` says a row in the words in which the mutants declare what faults need.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from conformance.case.features import BY_NAME
from conformance.maintain import region_cases
from conformance.maintain.dense_cases import COMMON_RULES, Group
from conformance.maintain.region_cases import Rule, Size, cost, size_of
from conformance.maintain.regions import SIZES as RANGES
from conformance.maintain.regions import Needs

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
        *("4:2", "7:1", "12:1", "16:1", "12:2", "14:2", "18:6", "8:2", "8:1", "32:2"),
    ),
    "head_size": (
        *("16", "8", "40", "64", "80", "128", "256", "512"),
        *("48", "96", "112", "160", "192", "384", "24", "56", "88", "104", "120", "136"),
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


def group_of(heads: str) -> int:
    """The query heads of a key/value head; ``heads`` is "num_heads:kv_num_heads"."""
    query, _, key = heads.partition(":")
    return int(query) // int(key)


#: The values of the features that levels stand for, where the two differ.
VALUES: Final[Mapping[str, tuple[str, Mapping[str, str]]]] = {
    "key_value": ("key_value", {"borrowed": "zero_length", "zeros": "zero_valued"}),
    "rotary": ("rotary", {"unrotated": "none", "partial": "partial_half_split"}),
    "position_ids": (
        "position_ids",
        {"implied": "none", **dict.fromkeys(("ids", "first_alone", "far"), "given")},
    ),
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
SPECIAL_NUMBERS: Final = (
    *("first_alone", "hidden", "low", "apart", "smooth_zero", "smooth_sink"),
    *("scale_one", "zero_head", "far", "straddling", "sliding_shared", "hidden_tile"),
)

_ROTATED: Final = FEATURES["rotary"][1:]
_QUANTISED: Final = FEATURES["quantised"][1:]
BORROWED: Final = ("borrowed", "omitted")
_OWN: Final = ("new", "packed", "zeros")
_LATER: Final = tuple(phase for phase in SIZES["phase"] if phase != "prefill")
_CHUNKS: Final = SIZES["phase"][2:]
SLIDING: Final = ("sliding", "sliding_shared")

_MQA: Final = tuple(heads for heads in SIZES["heads"] if _kind(heads) == "mqa")

RULES: Final = (
    *COMMON_RULES,
    Rule({"cache": ("none",), "phase": _LATER}, "There is no past without a cache."),
    Rule({"cache": ("none",), "key_value": BORROWED}, "There is nothing to attend to."),
    Rule({"cache": ("none",), "quantised": _QUANTISED}, "The presents have the query's format."),
    Rule({"cache": ("shared_buffer",), "presents": ("none", "one")}, "It is past and present."),
    Rule(
        {"phase": _LATER, "presents": ("none", "one"), "key_value": _OWN},
        "Past and new tokens are joined in the present.",
    ),
    Rule({"key_value": ("omitted",), "quantised": _QUANTISED}, "It was not requested."),
    Rule(
        {"position_ids": ("first_alone",), "phase": _LATER},
        "Only a first prompt reads its first position alone.",
    ),
    Rule(
        {"zeros": ("zero_head",), "heads": _MQA, "batch": ("1",)},
        "All of the output would be zero.",
    ),
    Rule({"cache": SLIDING, "window": ("whole",)}, "Such a cache requires a window."),
    Rule({"cache": SLIDING, "key_value": BORROWED}, "Runtimes reject it."),
    Rule(
        {"cache": SLIDING, "phase": _CHUNKS, "batch": SIZES["batch"][1:]},
        "Several tokens on a sliding-window cache require a batch of one.",
    ),
    Rule({"phase": ("prefill",), "keys": ("1024", "2048", "4096")}, "Too many scores."),
    Rule({"phase": ("chunk_130",), "keys": ("2048", "4096")}, "Too many scores."),
    Rule({"keys": ("0",), "phase": _LATER}, "There is no past."),
    Rule({"keys": ("0",), "edge": SIZES["edge"][1:]}, "There is one key."),
    Rule(
        {"rotary": _ROTATED, "head_size": ("24", "56", "88", "104", "120", "136")},
        "ONNX Runtime wants a multiple of 16.",
    ),
    Rule({"keys": ("0",), "lengths": ("ragged",)}, "A sequence has a token."),
    Rule(
        {"keys": ("0",), "window": ("tile", "most", "straddling", "all_but_one")},
        "There is one key.",
    ),
    Rule({"cache": ("sliding_shared",), "presents": ("none", "one")}, "It is past and present."),
    Rule({"keys": ("0",), "key_value": BORROWED}, "Its prompt is a decode."),
    Rule({"keys": ("0",), "bias": ("hidden", "apart")}, "No key can be hidden beside another."),
    Rule({"keys": ("0",), "zeros": ("zero_head",)}, "Only one key is there."),
    Rule({"zeros": ("zero_head",), "causal": ("bidirectional",)}, "All queries see all keys."),
    Rule({"zeros": ("zero_head",), "key_value": ("zeros",)}, "All new values are zero already."),
    Rule(
        {"phase": ("prefill",), "quantised": _QUANTISED, "presents": ("none", "one")},
        "A prompt may attend to its keys before they are rounded.",
    ),
    Rule(
        {"phase": ("prefill",), "quantised": _QUANTISED, "window": FEATURES["window"][2:]},
        "A key more or less hardly shows where keys may be rounded or not.",
    ),
    Rule(
        {"phase": ("prefill",), "quantised": _QUANTISED, "scale": ("scale_one",)},
        "Large scores hardly show where keys may be rounded or not.",
    ),
    Rule({"bias": ("low",), "sink": ("smooth",)}, "All weight is the sink's."),
    *(
        Rule(
            {
                "keys": ("0",),
                "sink": ("no_sink", "smooth_zero"),
                "output_qk": ("no_qk", "weights"),
                feature: FEATURES[feature][1:],
            },
            "The weight of a single key without a sink is 1, whatever its score.",
        )
        for feature in ("bias", "softcap", "scale")
    ),
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
        30,
    ),
    Group(
        "tract",
        {
            "key_value": ("new", "zeros"),
            "presents": ("both",),
            "rotary": ("unrotated", "half_split"),
            "position_ids": ("implied",),
            "sink": ("no_sink",),
            "softcap": ("uncapped",),
            "norm": ("plain",),
            "output_qk": ("no_qk",),
            "quantised": ("exact",),
            "causal": ("causal",),
            "cache": ("none", "concatenated"),
            "phase": ("decode", "prefill"),
            "dtype": ("floats",),
        },
        30,
    ),
    Group("any", {}, 400),
)


def words_of(row: Row) -> dict[str, Any]:
    """The row in the words of :data:`Needs`: values of features, sizes, and ``numbers``."""
    size = size_of(row)
    words: dict[str, Any] = {}
    for factor, level in row.items():
        if factor in ("head_size", "keys", "edge", "dtype", "zeros"):
            continue
        feature, values = VALUES.get(factor, (factor, {}))
        words[feature] = values.get(level, level)
    if row["window"] != "whole":
        window = window_of(row, size)
        words["window"] = "shorter" if window < size.keys else "longer"
    else:
        words["window"] = "none"
    numbers = {level for level in row.values() if level in SPECIAL_NUMBERS}
    if row["window"] == "straddling" and window_of(row, size) == 5:
        numbers.remove("straddling")
    if row["bias"] == "hidden" and hidden_tile(row, size, size.keys) is not None:
        numbers.add("hidden_tile")
    return {
        **words,
        "head_size": size.head_size,
        "sixteens": "rest" if size.head_size % 16 else "none",
        "power_of_two": "yes" if size.head_size.bit_count() == 1 else "no",
        "group": str(size.heads // size.kv_heads),
        "num_heads": size.heads,
        "kv_num_heads": size.kv_heads,
        "keys": size.keys,
        "queries": size.queries,
        "batch_size": size.batch,
        "numbers": numbers,
        "dtype": set(dtypes_of(row)),
    }


def window_of(row: Row, size: Size) -> int:
    """The row's local_window_size, in tokens."""
    window: int = region_cases.window(row["window"])(size)["local_window_size"]
    return window


def meets(words: Mapping[str, Any], needs: Needs) -> bool:
    """Whether a row, by its :func:`words_of`, has what is needed."""
    for name, values in needs.items():
        if name in RANGES:
            if not values[0] <= words[name] <= values[1]:
                return False
        elif name in ("numbers", "dtype"):
            if not words[name] & set(values):
                return False
        elif words[name] not in values:
            return False
    return True


def dtypes_of(row: Row) -> tuple[str, ...]:
    """The dtypes of the row's matrix."""
    return ("float16", "float32") if row["dtype"] == "floats" else ("bfloat16",)


def hidden_tile(row: Row, size: Size, length: int) -> int | None:
    """The first key of a whole tile of 16 that the last query of a sequence sees; None if none."""
    oldest = 0 if row["window"] == "whole" else max(0, length - window_of(row, size))
    tile = -(-oldest // 16) * 16
    return tile if tile + 16 < length - 1 else None


_SMALLEST: Final = {
    **{"phase": "decode", "batch": "1", "heads": "2:2", "head_size": "8"},
    **{"keys": "16", "edge": "one_more"},
}


#: The rules in which a factor is named.
_RULES_OF: Final = {name: [rule for rule in RULES if name in rule.values] for name in FACTORS}


def allowed(most: int, row: Row, added: str) -> bool:
    """Whether a row, perhaps without some of its factors, is possible and costs at most ``most``.

    It is known to be without the factor ``added``.
    """
    if any(rule.forbids(row) for rule in _RULES_OF[added]):
        return False
    if added not in SIZES:
        return True
    size = size_of({**_SMALLEST, **row})
    chunk = row.get("phase", "").startswith("chunk") and {"keys", "edge"} <= row.keys()
    if chunk and size.queries >= size.keys:
        return False  # no past is left
    return cost(size) <= most
