"""cases/dense.yaml: many features and sizes together in each call.

``python -m conformance.maintain.generate cases/dense.yaml`` writes it. cases/regions.yaml has few
features in each call, so that a runtime that rejects one of them hides no other. A kernel branches
on several at a time, however: a window of a quantised cache in a ragged batch is a path of its own.
The rows are a covering array in which each two values of features meet at each of the
:data:`SIZES`. The first rows keep to what one of ONNX Runtime's execution providers supports.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import combinations, islice, product
from typing import Final, NamedTuple

from conformance.case.contracts import contract_of_call
from conformance.case.features import BY_NAME
from conformance.maintain import region_cases
from conformance.maintain.case_text import MadeEntry, file_text
from conformance.maintain.covering import Covering, Row, Set
from conformance.maintain.region_cases import (
    Family,
    Fields,
    Made,
    Rule,
    Size,
    cost,
    loud,
    queries_of,
    size_of,
)
from conformance.maintain.telling_values import is_sensitive, sensitive

DTYPES: Final = ("float16", "float32")
#: The number of rows with bfloat16 too.
BFLOAT16: Final = 25

#: The features of a row; the first value of each is the plain one.
FEATURES: Final[Mapping[str, tuple[str, ...]]] = {
    "key_value": ("new", "packed", "borrowed"),
    "rotary": ("unrotated", "half_split", "interleaved", "partial", "partial_interleaved"),
    "position_ids": ("implied", "ids"),
    "window": ("whole", "few", "tile", "most"),
    "bias": ("unbiased", "bias", "hidden", "one_head", "one_batch"),
    "sink": ("no_sink", "sink", "smooth", "smooth_sink"),
    "softcap": ("uncapped", "softcap"),
    "scale": ("default", "scale"),
    "norm": ("plain", "norm"),
    "output_qk": ("no_qk", "scores", "weights"),
    "quantised": ("exact", "int8_tensor", "int8_channel", "int4_channel", "float8_channel"),
    "causal": ("causal", "bidirectional"),
}
#: The sizes that each two values meet, and those that vary beside them.
SIZES: Final[Mapping[str, tuple[str, ...]]] = {
    "phase": ("decode", "chunk_3", "prefill", "chunk_17", "chunk_65"),
    "cache": ("concatenated", "static", "shared_buffer"),
    "batch": ("1", "9", "2", "5"),
    "lengths": ("equal", "ragged"),
    "heads": ("6:2", "9:9", "18:2", "5:1"),
    "head_size": ("16", "64", "24", "40", "128", "256"),
    "keys": ("128", "1024", "256", "2048", "4096"),
}
EDGES: Final = ("one_more", "odd", "one_less", "whole")
#: The sizes that are demanded with each two values of features; the others occur in some rows.
DEMANDED: Final[Mapping[str, tuple[str, ...]]] = {
    "phase": ("decode", "chunk_3"),
    "cache": ("static", "shared_buffer", "concatenated"),
    "batch": ("9",),
    "lengths": ("ragged",),
    "heads": ("9:9", "18:2"),
    "head_size": ("64",),
    "keys": ("1024",),
}
FACTORS: Final = {**FEATURES, **SIZES, "edge": EDGES}
#: The largest cost of a row.
MOST: Final = 1 << 19

_ROTATED: Final = FEATURES["rotary"][1:]
_QUANTISED: Final = FEATURES["quantised"][1:]
#: All formats of a quantised cache; the rows here have some of them.
_CODES: Final = BY_NAME["quantised"].values[1:]
_LARGE: Final = ("1024", "2048", "4096")
#: Windows of more than a few keys, here or in conformance/maintain/fault_rows.py.
_WINDOWS_OF_MANY: Final = ("tile", "most", "straddling", "all_but_one", "wide")
_MANY: Final = ("whole", *_WINDOWS_OF_MANY)

#: Rules that conformance/maintain/fault_rows.py has as well.
COMMON_RULES: Final = (
    Rule(
        {"rotary": ("unrotated",), "position_ids": ("ids", "first_alone", "far")},
        "Positions without rotary have no specified meaning.",
    ),
    Rule(
        {"window": ("few", *_WINDOWS_OF_MANY), "causal": ("bidirectional",)},
        "local_window_size must be -1 if causal is 0.",
    ),
    Rule({"batch": ("1",), "lengths": ("ragged",)}, "One sequence has one length."),
    Rule(
        {"batch": ("1",), "bias": ("one_batch", "one_batch_one_head")},
        "In a batch of one these shapes are the same as full and one_head.",
    ),
    Rule(
        {"rotary": ("partial", "partial_interleaved"), "head_size": ("8", "16")},
        "ONNX Runtime wants 16 elements or more to turn.",
    ),
    Rule(
        {"sink": ("smooth",), "quantised": _CODES, "window": _MANY},
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
        {"causal": ("bidirectional",), "quantised": _CODES, "keys": _LARGE},
        "The few keys that a causal call hides hardly show among so many codes.",
    ),
    Rule(
        {"window": _WINDOWS_OF_MANY, "quantised": _CODES, "keys": _LARGE},
        "One code more or less hardly shows among so many.",
    ),
)
RULES: Final = (
    *COMMON_RULES,
    Rule({"phase": ("decode",), "causal": ("bidirectional",)}, "The last token sees all anyway."),
    Rule({"phase": ("prefill",), "keys": ("256", *_LARGE)}, "Too many scores."),
    Rule({"phase": ("prefill",), "key_value": ("borrowed",)}, "A borrowed cache is a past."),
    Rule(
        {"phase": ("prefill",), "lengths": ("ragged",)},
        "The padding of a causal prompt comes after every element that is compared.",
    ),
    Rule(
        {"phase": ("prefill",), "quantised": _QUANTISED},
        "A prompt may attend to its keys before they are rounded.",
    ),
    Rule({"rotary": _ROTATED, "head_size": ("24", "40")}, "ONNX Runtime wants a multiple of 16."),
    Rule(
        {"sink": ("smooth",), "keys": _LARGE, "causal": ("bidirectional",)},
        "A window would have to hide keys, and needs causal attention.",
    ),
)


#: Sets of which no row is sensitive with any of the values that were tried.
UNSEEN: Final = (
    Rule(
        {"sink": ("smooth",), "window": ("most",), "cache": ("static",)},
        "The sink of smooth_softmax hardly shows beside so many keys.",
    ),
    Rule(
        {"sink": ("smooth",), "causal": ("bidirectional",), "cache": ("static",)},
        "The sink of smooth_softmax hardly shows beside so many keys.",
    ),
    Rule(
        {"window": ("most",), "quantised": ("float8_channel",), "cache": ("static",)},
        "One code more or less hardly shows among so many.",
    ),
)


class Group(NamedTuple):
    """Rows that keep to some values, so that one execution provider supports them."""

    name: str
    plain: Mapping[str, tuple[str, ...]]
    rows: int


GROUPS: Final = (
    Group(
        "cpu",
        {
            "norm": ("plain",),
            "quantised": ("exact", "int8_tensor", "int8_channel", "int4_channel"),
            "causal": ("causal",),
        },
        30,
    ),
    Group(
        "webgpu",
        {
            "key_value": ("new", "packed"),
            "output_qk": ("no_qk",),
            "quantised": ("exact",),
            "causal": ("causal",),
            "head_size": ("64", "128", "256"),
            "bias": ("unbiased", "bias", "hidden", "one_head"),
        },
        10,
    ),
    Group(
        "cuda",
        {
            "bias": ("unbiased",),
            "output_qk": ("no_qk",),
            "head_size": ("64", "128", "256"),
            "causal": ("causal",),
        },
        10,
    ),
    Group("any", {}, 200),
    Group("any, for rows that no values made sensitive", {}, 20),
)


def allowed(group: Group, row: Row) -> bool:
    """Whether the row, perhaps without some of its factors, is possible in the group."""
    if any(row.get(name, values[0]) not in values for name, values in group.plain.items()):
        return False
    if any(rule.forbids(row) for rule in RULES):
        return False
    smallest = {"phase": "decode", "batch": "1", "heads": "6:2", "head_size": "16", "keys": "128"}
    return cost(size_of({**smallest, "edge": "one_more", **row})) <= MOST


def wanted() -> dict[Set, None]:
    """Each two values of features that are not plain, with each demanded size."""
    values = {name: [(name, value) for value in found[1:]] for name, found in FEATURES.items()}
    sizes = [(name, level) for name, levels in DEMANDED.items() for level in levels]
    return {
        (*pair, size): None
        for one, other in combinations(values.values(), 2)
        for pair, size in product(product(one, other), sizes)
    }


def rows() -> Iterator[tuple[Row, list[Set], Fields]]:
    """Each row with the demanded sets that it is the first to have, and the fields of its call."""
    left = wanted()
    for number, group in enumerate(GROUPS):
        factors = {name: group.plain.get(name, levels) for name, levels in FACTORS.items()}
        covering = Covering(
            factors, partial(allowed, group), lambda row: 1 + cost(size_of(row)) / MOST, number, 3
        )
        for row, new in islice(covering.rows(list(left), left), group.rows):
            fields = values_of(row)
            if fields is None:
                left |= dict.fromkeys(new)  # for another row
            else:
                yield row, new, fields


def hidden(row: Row, size: Size, lengths: list[int]) -> Fields:
    """A bias of -inf in single elements and in a run, but for no row in all."""
    first, last = lengths[0], lengths[-1]
    elements: list[Fields] = [
        {"at": [0, 0, 0, first - size.queries - (size.queries < first)], "value": -float("inf")},
        {"at": [-1, -1, -1, last - 3], "value": -float("inf")},
    ]
    if row["window"] in ("whole", "most"):
        elements.append({"at": [0, 0, 0, 0], "count": 16, "value": -float("inf")})
    return {"values": {"low": -1.0, "high": 1.0}, "elements": elements}


def features(row: Row, size: Size) -> Fields:
    """The fields of the row's features."""
    fields: Fields = {}
    if row["key_value"] != "new":
        named = {"borrowed": "zero_length", "zeros": "zero_valued"}
        fields["key_value"] = named.get(row["key_value"], row["key_value"])
    if row.get("presents", "both") != "both":
        fields["presents"] = {"none": "none", "one": "key_only"}[row["presents"]]
    if row["rotary"] != "unrotated":
        layout = "interleaved" if row["rotary"].endswith("interleaved") else "half_split"
        fields["rotary"] = layout
        if row["rotary"].startswith("partial"):
            fields["rotary_dim"] = size.head_size // 2 // 16 * 16
    if row["position_ids"] != "implied":
        fields["position_ids"] = True
    if row["window"] != "whole":
        fields |= region_cases.window(row["window"])(size)
    if row["bias"] != "unbiased":
        shaped = ("one_head", "one_batch", "one_batch_one_head")
        fields["attention_bias"] = row["bias"] if row["bias"] in shaped else "full"
    if row["sink"] in ("sink", "smooth_sink"):
        fields["head_sink"] = True
    if row["sink"].startswith("smooth"):
        fields["smooth_softmax"] = int(row["sink"] != "smooth_zero")
    if row["softcap"] == "softcap":
        fields["softcap"] = 2.0
    if row["scale"] != "default":
        fields["scale"] = 1.0 if row["scale"] == "scale_one" else round(2 * size.head_size**-0.5, 3)
    if row["norm"] == "norm":
        fields |= {"qk_norm": True, "qk_norm_epsilon": 0.1}
    if row["causal"] == "bidirectional":
        fields["causal"] = 0
    if row["output_qk"] != "no_qk":
        fields["qk_output"] = {"scores": 1, "weights": 2}[row["output_qk"]]
    if row["quantised"] != "exact":
        fields |= region_cases.quantised(*row["quantised"].split("_"))(size)
    return fields


def made_of(row: Row) -> Made:
    """The row as one of a family that has no other."""
    values = {"dense": partial(features, row)}
    family = Family("dense", values, borrowed=row["key_value"] in ("borrowed", "omitted"))
    return Made(family, {**row, "feature": "dense"}, [])


def call_of(row: Row) -> Fields:
    """The fields of the row's call, in the order of the file."""
    fields = region_cases.call_of(made_of(row))
    if row["bias"] == "hidden":
        size = size_of(row)
        lengths = fields.get("total_sequence_lengths", [size.keys])
        fields["inputs"] = {
            **fields.get("inputs", {}),
            "attention_bias": hidden(row, size, lengths),
        }
    return fields


def values_of(row: Row) -> Fields | None:
    """The fields of the row's call, with values that make it sensitive."""
    made = made_of(row)
    return sensitive(
        call_of(row), DTYPES, inputs=[{}, loud(made)], queries=queries_of(made), seeds=1
    )


def special_words(row: Row, features: Mapping[str, tuple[str, ...]] = FEATURES) -> list[str]:
    """The values of the row's features that are not plain."""
    return [row[name] for name, values in features.items() if row[name] != values[0]]


def name_of(row: Row, features: Mapping[str, tuple[str, ...]] = FEATURES) -> str:
    """The row's name: its sizes and its features."""
    size = size_of(row)
    words = [row["phase"], row["cache"], f"b{size.batch}"]
    words += ["ragged"] * (row["lengths"] == "ragged")
    words += [f"h{size.heads}_{size.kv_heads}", f"d{size.head_size}", f"keys{size.keys}"]
    return "_".join([*words, *special_words(row, features)])


def entry_of(
    row: Row,
    number: int,
    why: str,
    fields: Fields,
    dtypes: tuple[str, ...],
    features: Mapping[str, tuple[str, ...]] = FEATURES,
) -> MadeEntry:
    """The entry of a row in the file.

    Its title has the sizes in words; the name says what the features are, which are too many.
    """
    sizes = region_cases.title_of(made_of(row)).removesuffix("dense")
    title = f"{sizes}{len(special_words(row, features))} features, row {number}"
    fields = {"title": title, "why": why, **fields}
    return MadeEntry(name_of(row, features), fields, contract_of_call(fields), dtypes)


def text() -> str:
    """The file cases/dense.yaml."""
    entries: list[MadeEntry] = []
    third = BFLOAT16
    for row, new, fields in rows():
        dtypes: tuple[str, ...] = ("float32", "float16")
        exact = row["quantised"] == "exact"
        if third and exact and is_sensitive(fields, "bfloat16"):
            dtypes, third = (*dtypes, "bfloat16"), third - 1
        entries.append(entry_of(row, len(entries) + 1, why(new), fields, dtypes))
    return file_text(
        "dense",
        "Are many features right together?",
        "conformance/maintain/dense_cases.py says what meets what",
        entries,
    )


def why(new: list[Set]) -> str:
    """The `why` of a row: its new sets."""
    said = [", ".join(level for _, level in one) for one in new[:3]]
    more = f", and {len(new) - len(said)} sets more" if len(new) > len(said) else ""
    return f"No row before has {'; '.join(said)}{more}."
