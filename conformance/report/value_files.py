"""The oracle's values as arrays for programs."""

from __future__ import annotations

from typing import Any

import numpy as np

from conformance.base.array_types import NUMPY
from conformance.bundle.prepare import Prepared
from conformance.bundle.values import computation_of
from conformance.case.case import Case
from conformance.oracle.tolerance import CONSTANTS, TargetClass
from conformance.report.values import Returned

Array = np.ndarray[Any, Any]


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
