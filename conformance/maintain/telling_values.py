"""Values of a generated call that make every active feature show in its result."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final

from conformance.bundle.cache import bundle_for
from conformance.bundle.sensitivity import shortfalls
from conformance.case.call import Call

#: Seeds and values of queries tried for a row's numbers.
SEEDS: Final = 4
QUERIES: Final = (
    None,
    {"kind": "marked"},
    {"low": -0.5, "high": 0.5},
    {"low": -1.5, "high": 1.5},
    {"low": -4.0, "high": 4.0},
)


def is_sensitive(fields: Mapping[str, Any], dtype: str) -> bool:
    """Whether the effect of every feature of the row reaches its threshold."""
    call = {name: value for name, value in fields.items() if name in Call.model_fields}
    found = bundle_for(Call.model_validate({**call, "dtype": dtype})).sensitivity
    return not any(shortfalls(found, fields.get("insensitive_to", [])))


def sensitive(
    fields: dict[str, Any],
    dtypes: Sequence[str],
    *,
    inputs: Sequence[Mapping[str, Any]] = ({},),
    queries: Sequence[Mapping[str, Any] | None] = QUERIES,
    seeds: int = SEEDS,
) -> dict[str, Any] | None:
    """The fields, with the first values that make the row sensitive in all ``dtypes``.

    Those are a seed, values of other ``inputs`` and values of ``queries``; of each, the ones that
    come first are preferred.
    """
    for seed, others, query in itertools.product(range(seeds), inputs, queries):
        made = dict(fields)
        values = {**fields.get("inputs", {}), **others}
        if query:
            values["query"] = {"values": query}
        if values:
            made["inputs"] = values
        if seed:
            made["seed"] = seed
        if all(is_sensitive(made, dtype) for dtype in dtypes):
            return made
    return None
