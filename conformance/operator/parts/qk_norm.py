"""The norm of queries and keys: an RMS normalisation of each head before rotary embedding."""

from __future__ import annotations

from collections.abc import Iterator

from conformance.operator.part import (
    Decision,
    Feature,
    FieldChanges,
    Honoured,
    InputRule,
    OperatorNode,
    Part,
    Value,
    quoted,
    specified,
    uniform,
)
from conformance.operator.parts.key_value import KEY_VALUE
from conformance.operator.parts.rotary import ROTARY
from conformance.operator.replacement import (
    EDGE_THRESHOLD,
    SCALE_THRESHOLD,
    CallChanges,
    ConnectedCall,
    Replace,
    Replacement,
    filled,
    first,
)
from conformance.operator.sources import CPU, CUDA, JSEP, ONNXRUNTIME, WEBGPU

#: A merged decision on which norms WebGPU's kernel computes.
ON_WEBGPU = f"{ONNXRUNTIME}/pull/28484"

QK_NORM = Feature(
    "qk_norm",
    {
        "none": Value(),
        "given": Value(
            "QK norm",
            "qk_norm",
            specified(
                "the kernel applies a per-head RMS normalization to Q (and K) before any rotary"
                " embedding."
            ),
        ),
    },
    lambda reader: "given" if reader.tensor("q_norm_weight") else "none",
    off=("qk_norm", "qk_norm_epsilon", "q_norm_epsilon", "k_norm_epsilon"),
    plainer=({"q_norm_epsilon": None, "k_norm_epsilon": None}, {"qk_norm_epsilon": None}),
    shown_by=("qk_norm",),
)

_GIVEN = (QK_NORM.given,)
_MENTIONS = ("q_norm_weight", "k_norm_weight")
_HONOURED = (
    quoted(
        "Currently honored by the CUDA and native WebGPU execution providers; JSEP WebGPU/JS and"
        " other EPs must reject the node when this input is set."
    )
    + "."
)
_ON_WEBGPU = (
    quoted("The optimizer only rewrites nodes that the WebGPU kernel can handle")
    + "; these must be rotated and not packed."
)


def _weight(low: float, high: float) -> InputRule:
    return InputRule(
        lambda call: call.qk_norm,
        values=lambda call, keys: uniform(low, high),
        same_in_a_loop=True,
    )


def _replacements() -> Iterator[Replacement]:
    def unnormed(given: ConnectedCall) -> CallChanges | None:
        return None if given.call.q_norm is None else {"q_norm": None, "k_norm": None}

    def epsilon(field: str, other: str) -> Replace:
        """The epsilon of the other side, if there is a norm and the two differ."""

        def changes(given: ConnectedCall) -> CallChanges | None:
            call = given.call
            differ = call.q_norm is not None and call.q_epsilon != call.k_epsilon
            return {field: getattr(call, other)} if differ else None

        return changes

    def read(normed: str, change: Replace) -> Replace:
        """A weight is read only if there is something to normalise: no borrowed keys, no zeros."""
        return lambda given: change(given) if getattr(given.call, normed).any() else None

    def none(field: str) -> Replace:
        return lambda given: None if getattr(given.call, field) is None else {field: None}

    yield Replacement("qk_norm", "", "no norm of queries and keys", unnormed, "qk_norm")
    for side, other in (("queries", "keys"), ("keys", "queries")):
        changes = epsilon(f"{side[0]}_epsilon", f"{other[0]}_epsilon")
        yield Replacement(
            "norm_epsilon", side, f"that of {other}", changes, "norm_epsilon", SCALE_THRESHOLD
        )
    for side, normed in (("q", "query"), ("k", "key")):
        name, field = f"{side}_norm_weight", f"{side}_norm"
        off = read(normed, none(field))
        yield Replacement(name, "none", "no norm", off, "qk_norm", EDGE_THRESHOLD)
        yield Replacement(name, "ones", "ones", read(normed, filled(field, 1.0)))
        words = "its first element for all"
        yield Replacement(name, "first", words, read(normed, first(field, 0)))


def _of_node(node: OperatorNode) -> FieldChanges:
    return {"qk_norm": True} if "q_norm_weight" in node.inputs else {}


PART = Part(
    features=(QK_NORM,),
    inputs={"q_norm_weight": _weight(1.5, 3.5), "k_norm_weight": _weight(0.5, 2.5)},
    effects=("qk_norm", "norm_epsilon"),
    of_node=_of_node,
    honoured=(
        Honoured(
            _GIVEN,
            (CUDA, WEBGPU),
            _HONOURED,
            _MENTIONS,
            partly=tuple(
                Decision((other,), (WEBGPU,), "either", _ON_WEBGPU, source=ON_WEBGPU)
                for other in (ROTARY.of("none"), KEY_VALUE.of("packed"))
            ),
        ),
    ),
    decisions=(Decision(_GIVEN, (CPU, JSEP), "rejects", _HONOURED, _MENTIONS),),
    replacements=_replacements,
)
