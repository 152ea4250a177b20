"""The calls of ``conformance.maintain.fault_cases``: fields, special numbers and telling values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from conformance.maintain import dense_cases, region_cases
from conformance.maintain.fault_rows import (
    BORROWED,
    SLIDING,
    Row,
    dtypes_of,
    hidden_tile,
)
from conformance.maintain.region_cases import Fields, Size, size_of
from conformance.maintain.telling_values import sensitive

#: Parts of a call that may have no effect in a prompt of one token, in a ragged causal one, and
#: with a window wider than the tokens.
_HIDDEN_BY_ONE: Final = (
    *("rotary", "rotary_interleaved", "position_ids", "window", "window_edge", "scale"),
    *("softcap", "attention_bias", "qk_norm", "causal", "quantisation", "sliding_window_cache"),
)
_HIDDEN_BY_PADDING: Final = ("ragged",)
_HIDDEN_BY_WIDTH: Final = ("window", "window_edge", "sliding_window_cache")

#: A position beyond the integers that float16 has.
FAR: Final = 4099


def _elements(of: Mapping[str, Any], *more: Fields) -> Fields:
    return {**of, "elements": [*of.get("elements", []), *more]}


def call_of(row: Row) -> Fields:
    """The fields of the row's call, in the order of the file, with its special numbers."""
    made = dense_cases.made_of(row)
    size = size_of(row)
    fields = region_cases.call_of(made)
    if row["presents"] == "one" and row["quantised"] != "exact":
        fields["presents"] = "value_only"  # values have special numbers
    if row["cache"] in SLIDING:
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
        past = int(fields.get("max_sequence_length") or fields.get("past_sequence_length") or 0)
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
    found: list[Fields] = [{"at": [-1, -1, -1, max(lengths[-1] - 4, 0)], "value": inf}]
    if (tile := hidden_tile(row, size, lengths[0])) is not None:
        found.append({"at": [0, 0, query, tile], "count": 16, "value": inf})
    elif last > 1:
        found.append({"at": [0, 0, query, last - 1], "value": inf})
    return found


def _zero_head(row: Row, size: Size, past: int, inputs: Fields) -> None:
    """Make all values zero that the first query of the last sequence's last head attends to."""
    zero = 136 if row["quantised"].startswith("int4") else 0  # two codes in a byte, 8 more each
    if row["phase"] != "prefill" or row["key_value"] in BORROWED:
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
    if row["cache"] in SLIDING:  # its rows are other tokens
        loud.pop("past_value", None)
    return sensitive(
        fields,
        dtypes_of(row),
        inputs=[base, _both(base, loud)],
        queries=queries,
        seeds=1,
        hidden=_hidden(row),
    )


def _hidden(row: Row) -> tuple[str, ...]:
    """The parts of the row's call that may have no effect."""
    if row["keys"] == "0":
        return _HIDDEN_BY_ONE
    if row["phase"] == "decode" and row["causal"] == "bidirectional":
        return ("causal",)
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
