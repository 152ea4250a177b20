"""Values of a generated call that make every active feature show in its result."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from conformance.bundle.sensitivity import NO_EFFECT, effects, part_of, shortfalls
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
    return not any(shortfalls(_effects(fields, dtype), fields.get("insensitive_to", [])))


def _effects(fields: Mapping[str, Any], dtype: str) -> dict[str, float]:
    call = {name: value for name, value in fields.items() if name in Call.model_fields}
    return effects(Call.model_validate({**call, "dtype": dtype}))


def sensitive(
    fields: dict[str, Any],
    dtypes: Sequence[str],
    *,
    inputs: Sequence[Mapping[str, Any]] = ({},),
    queries: Sequence[Mapping[str, Any] | None] = QUERIES,
    seeds: int = SEEDS,
    hidden: Collection[str] = (),
) -> dict[str, Any] | None:
    """The fields, with the first values that make the row sensitive in all ``dtypes``.

    Those are a seed, values of other ``inputs`` and values of ``queries``; of each, the ones that
    come first are preferred. Parts of the call in ``hidden`` may have no effect; the fields list
    those under ``insensitive_to``.
    """
    for seed, others, query in itertools.product(range(seeds), inputs, queries):
        made = dict(fields)
        values = {**fields.get("inputs", {}), **others}
        if query:
            values["query"] = {**values.get("query", {}), "values": query}
        if values:
            made["inputs"] = values
        if seed:
            made["seed"] = seed
        found = _effects(made, dtypes[0]) if hidden else {}
        without = {part_of(name) for name, effect in found.items() if effect < NO_EFFECT}
        if declared := [part for part in hidden if part in without]:
            made["insensitive_to"] = declared
        if all(is_sensitive(made, dtype) for dtype in dtypes):
            return made
    return None
