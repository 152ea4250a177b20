"""Causal attention and the local window: which keys a query attends to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from conformance.operator.call import Call
from conformance.operator.part import (
    AttributeValues,
    Decision,
    Feature,
    Objection,
    Part,
    Reader,
    Value,
    established,
    must_be,
    quoted,
    specified,
)
from conformance.operator.replacement import (
    EDGE_THRESHOLD,
    CallChanges,
    ConnectedCall,
    Replace,
    Replacement,
)
from conformance.operator.sources import BIDIRECTIONAL, JSEP, ONNXRUNTIME, WEBGPU


def _window(reader: Reader) -> str | None:
    window = reader.attributes.get("local_window_size", -1)
    if not isinstance(window, int) or window == 0 or window < -1:
        return None
    keys = max(reader.step.total_lengths, default=0)
    if window == -1:
        return "none"
    return "shorter" if window < keys else "whole" if window == keys else "longer"


def _is_implied(value: str, features: Mapping[str, str | None]) -> bool:
    return value == "none" or (value == "shorter" and features.get("cache") == "sliding_window")


CAUSAL = Feature(
    "causal",
    {
        "causal": Value(),
        "bidirectional": Value(
            "bidirectional",
            "bidirectional",
            specified(
                "Bidirectional models require each query token to attend to the full valid key"
                " sequence.",
                BIDIRECTIONAL,
            ),
        ),
    },
    lambda reader: "bidirectional" if reader.attributes.get("causal", 1) == 0 else "causal",
    off=("causal",),
)
_WHOLE = specified("left_window_size for causal local attention (like Mistral).")
WINDOW = Feature(
    "window",
    {
        "none": Value(),
        "shorter": Value(
            "local window",
            "window",
            established(
                "whether a window includes the query's own token", f"{ONNXRUNTIME}/pull/25927"
            ),
        ),
        "whole": Value("window of all tokens", "window", _WHOLE),
        "longer": Value("window beyond all tokens", "window", _WHOLE),
    },
    _window,
    off=("local_window_size",),
    is_implied=_is_implied,
)


def _excluded(call: Call, attributes: AttributeValues) -> Iterator[Objection]:
    window = call.local_window_size
    if window is not None and window != -1:
        sentence = "local_window_size must be -1 if causal is 0"
        yield call.causal == 0, "local_window_size", sentence
        sentence = "local_window_size must be -1 (no window) or at least 1"
        yield window < 1, "local_window_size", sentence
    yield must_be(attributes, "causal", 0, 1)


def _replacements() -> Iterator[Replacement]:
    def no_window(given: ConnectedCall) -> CallChanges | None:
        """A sliding-window cache must have a window."""
        call = given.call
        return None if call.window is None or call.window_cache else {"window": None}

    def edge(by: int) -> Replace:
        """Another window, if it hides anything at all; a window cache must have room for it."""

        def changes(given: ConnectedCall) -> CallChanges | None:
            call, window = given.call, given.call.window
            if window is None or window >= call.lengths.max() or window + by < 1:
                return None
            if call.window_cache and window + by > call.past_sequence_length:
                return None
            return {"window": window + by}

        return changes

    def opposite(given: ConnectedCall) -> CallChanges | None:
        """The opposite setting; not with a local window, which requires causal attention."""
        call = given.call
        queries = call.sequence_length if call.query_lengths is None else call.query_lengths.max()
        applies = queries > 1 and call.window is None
        return {"causal": not call.causal} if applies else None

    yield Replacement("window", "", "no window", no_window, "window")
    for name, by, words in (("longer", 1, "one token more"), ("shorter", -1, "one token fewer")):
        yield Replacement("window_edge", name, words, edge(by), "window_edge", EDGE_THRESHOLD)
    yield Replacement("causal", "", "the opposite", opposite, "causal")


PART = Part(
    features=(CAUSAL, WINDOW),
    effects=("window", "window_edge", "causal"),
    excluded=_excluded,
    decisions=(
        Decision(
            (CAUSAL.given,),
            (WEBGPU, JSEP),
            "either",
            quoted("WebGPU and JS report `NOT_IMPLEMENTED` for `causal=0`.") + ".",
            ("causal",),
            BIDIRECTIONAL,
        ),
    ),
    replacements=_replacements,
)
