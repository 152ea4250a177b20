"""The oracle's values for programs: those of one query as JSON, and all of them as arrays."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from conformance.base.array_types import NUMPY
from conformance.bundle.prepare import Prepared
from conformance.bundle.values import computation_of
from conformance.case.case import Case
from conformance.oracle.tolerance import CONSTANTS, TargetClass
from conformance.report.values import Returned, Values

Array = np.ndarray[Any, Any]


def values_json(case: Case, values: Values, returned: Returned | None) -> dict[str, Any]:
    """The values as strict JSON: numbers and nested lists, which ``np.array(…, float)`` accepts.

    "nan", "inf" and "-inf" stand for numbers that JSON does not have, null for unknown values.
    """
    document = {
        "case": case.id,
        "step": values.step,
        "target": returned.target if returned is not None else None,
        "element": str(values.element) if values.element else None,
        "query": _plain(values.query),
        "row": _plain(values.row),
        "outputs": {},
    }
    for name, compared in values.outputs.items():
        fields = _plain(compared)
        known = fields.pop("known")
        for each in ("got", "share"):
            fields[each] = [x if ok else None for x, ok in zip(fields[each], known, strict=True)]
        document["outputs"][name] = fields
    return document


def _plain(value: object) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return value


def arrays_of(
    case: Case, prepared: Prepared, step: int, returned: Returned | None
) -> dict[str, Array] | None:
    """All values of one step, for every batch, head and token; docs/oracle.md lists the arrays.

    None if they do not fit into memory.
    """
    computation = computation_of(case.call, prepared, step)
    if computation.is_large:
        return None
    call, a, cache = computation.call, computation.attention, computation.cache
    b, k, g, s, _ = a.query.shape

    def by_head(grouped: Array) -> Array:
        return grouped.reshape(b, k * g, s, *grouped.shape[4:])

    arrays: dict[str, Array] = {
        "lengths": call.lengths,
        "past_lengths": call.past_lengths,
        "query_places": call.query_starts[:, None] + np.arange(s),
        "past_row": cache.key.past_row,
        "query": by_head(a.query),
        "key": a.key,
        "value": a.value,
        "visible": a.visible,
        "scores": by_head(a.scores),
        "capped": by_head(a.capped),
        "logits": by_head(a.logits),
        "probabilities": by_head(a.probabilities),
        "sink_probability": by_head(a.sink_probability),
    }
    for name, expected in prepared.expected[step].items():
        arrays[f"expected_{name}"] = expected.value
        target_class: TargetClass = returned.target_class if returned is not None else "cpu"
        arrays[f"budget_{name}"] = CONSTANTS[target_class] * expected.unit
        if returned is not None and returned.outputs is not None:
            got = returned.outputs[step].get(name)
            if got is not None and got.dtype == NUMPY[expected.dtype]:
                arrays[f"got_{name}"] = got.astype(np.float64)
    return arrays
