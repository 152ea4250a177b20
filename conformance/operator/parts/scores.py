"""Scale and softcap: how the products of queries and keys become the logits of the softmax."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from conformance.operator.call import Call, Values
from conformance.operator.part import (
    AttributeValues,
    Feature,
    Objection,
    Part,
    Value,
    established,
    specified,
    uniform,
)
from conformance.operator.parts.quantisation import is_quantised
from conformance.operator.replacement import CallChanges, ConnectedCall, Replacement
from conformance.operator.sources import ONNXRUNTIME

#: Approximate largest absolute score of the drawn queries, unless a feature needs another range.
SCORE: Final = 2.0

SCALE = Feature(
    "scale",
    {
        "default": Value(),
        "given": Value("scale", "scale", specified("Custom scale will be used if specified.")),
    },
    lambda reader: "given" if reader.attributes.get("scale") else "default",
    off=("scale",),
    shown_by=("scale",),
)
SOFTCAP = Feature(
    "softcap",
    {
        "none": Value(),
        "given": Value(
            "softcap",
            "softcap",
            established("how and when a softcap changes the scores", f"{ONNXRUNTIME}/pull/21683"),
        ),
    },
    lambda reader: "given" if reader.attributes.get("softcap") else "none",
    off=("softcap",),
    shown_by=("softcap",),
)


def query_values(call: Call, keys: int) -> Values:
    """The default values of queries: their scores differ visibly at every head size and scale.

    With marked keys (:class:`conformance.operator.call.Values`) scores are at most about `scale *
    high` in magnitude. That is large enough for a wrong score to show and small enough that no
    key's weight vanishes beside the others. With a softcap, every second head has scores of the
    softcap's magnitude. The sink of smooth_softmax, whose logit is 0, needs scores so low that all
    ``keys`` together weigh about as much as the sink. With quantised keys all elements of a head
    contribute equally.
    """
    quantised = is_quantised(call)
    scale = abs(call.scale or 0.0)
    if not 0.0 < scale < math.inf:
        scale = 1.0 / math.sqrt(call.head_size or 1)
    if quantised:
        scale *= math.sqrt(call.head_size or 1)
    cap = abs(call.softcap or 0.0)
    if call.smooth_softmax == 1 and not call.head_sink and not quantised:
        below = 0.5 + keys.bit_length()  # larger than log(keys)
        if call.qk_norm:  # the norm removes their size, but first squares them in float32
            scale = max(scale, 2.0**-10)
        return uniform(-1.25 * below / scale, -0.75 * below / scale)
    score = max(SCORE, min(2.5 * cap, 250.0))
    high = min(max(score / scale, 1.0), 4096.0)
    return uniform(-high, high, SCORE / score)


def _excluded(call: Call, attributes: AttributeValues) -> Iterator[Objection]:
    yield (call.softcap or 0) < 0, "softcap", "softcap must be 0 (none) or positive"


def _replacements() -> Iterator[Replacement]:
    import numpy as np

    def default_scale(given: ConnectedCall) -> CallChanges | None:
        scale = given.call.head_size**-0.5
        return {"scale": scale} if np.float32(given.call.scale) != np.float32(scale) else None

    def no_cap(given: ConnectedCall) -> CallChanges | None:
        return {"softcap": 0.0} if given.call.softcap else None

    yield Replacement("softcap", "", "no cap", no_cap, "softcap")
    yield Replacement("scale", "", "the default", default_scale, "scale")


PART = Part(
    features=(SCALE, SOFTCAP),
    effects=("scale", "softcap"),
    excluded=_excluded,
    replacements=_replacements,
)
