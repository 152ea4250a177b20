"""A call in words, made of its features."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from conformance.case.features import BY_NAME, REST

#: The words for each value of a feature. Plain values have none, except for the phase.
WORDS: Final = {
    ("phase", "prefill"): "prompt",
    ("phase", "decode"): "one token on a past",
    ("phase", "chunked_prefill"): "several tokens on a past",
    ("phase", "loop"): "generation loop",
    ("cache", "concatenated"): "past of no token",
    ("cache", "static"): "static cache",
    ("cache", "shared_buffer"): "shared buffer",
    ("cache", "sliding_window"): "sliding-window cache",
    ("key_value", "packed"): "packed QKV",
    ("key_value", "zero_length"): "borrowed cache",
    ("key_value", "zero_valued"): "key and value of zeros",
    ("key_value", "omitted"): "key and value left out",
    ("presents", "none"): "no presents",
    ("presents", "one"): "one of two presents",
    ("batch", "more"): "batch",
    ("lengths", "ragged"): "ragged batch",
    ("heads", "mha"): "MHA",
    ("heads", "mqa"): "MQA",
    ("head_size", REST): "unusual head_size",
    ("rotary", "half_split"): "rotary",
    ("rotary", "interleaved"): "interleaved rotary",
    ("rotary", "partial_half_split"): "partial rotary",
    ("rotary", "partial_interleaved"): "partial interleaved rotary",
    ("position_ids", "given"): "position_ids",
    ("position_ids", "implied"): "implied position_ids",
    ("qk_norm", "given"): "QK norm",
    ("causal", "bidirectional"): "bidirectional",
    ("window", "shorter"): "local window",
    ("window", "whole"): "window of all tokens",
    ("window", "longer"): "window beyond all tokens",
    ("scale", "given"): "scale",
    ("softcap", "given"): "softcap",
    ("attention_bias", "full"): "attention bias",
    ("attention_bias", "one_batch"): "one bias for the batch",
    ("attention_bias", "one_head"): "one bias for all heads",
    ("attention_bias", "one_batch_one_head"): "one bias for all",
    ("sink", "head_sink"): "head_sink",
    ("sink", "smooth_softmax"): "smooth softmax",
    ("output_qk", "before_softmax"): "scores put out",
    ("output_qk", "after_softmax"): "probabilities put out",
    ("quantised", "int8_tensor"): "int8 cache",
    ("quantised", "int8_channel"): "per-channel int8 cache",
    ("quantised", "int4_tensor"): "int4 cache",
    ("quantised", "int4_channel"): "per-channel int4 cache",
    ("quantised", "float8_tensor"): "float8 cache",
    ("quantised", "float8_channel"): "per-channel float8 cache",
    ("dtype", "float16"): "float16",
    ("dtype", "bfloat16"): "bfloat16",
    ("dims", "static"): "fixed dims",
    ("query_seqlens", "unpadded"): "query_seqlens",
    ("query_seqlens", "padded"): "padded chunk",
    ("query_seqlens", "idle"): "idle entry",
}


def words(features: Mapping[str, str | None]) -> str:
    """A call in words: ``Prompt, sliding-window cache, batch, partial rotary``.

    ``features`` are those of :func:`conformance.case.features.features_of`. A feature that is None
    or missing is left out, and so is one whose value is plain or implied by another feature.
    """
    text = ", ".join(text for _, text in word_of_each(features)) or "call"
    return text[:1].upper() + text[1:]


def word_of_each(features: Mapping[str, str | None]) -> Iterator[tuple[str, str]]:
    """The names of the features that are not implied, each with its words."""
    for name, value in features.items():
        if value is None or _is_implied(name, value, features):
            continue
        other = name == "head_size" and value != REST
        yield name, f"head_size {value}" if other else WORDS[name, value]


def _is_implied(name: str, value: str, features: Mapping[str, str | None]) -> bool:
    """Whether the value is the plain one or follows from the other features."""
    if name == "phase":
        return False
    if name == "cache" and value == "concatenated":
        borrowed = features.get("key_value") in ("zero_length", "omitted")
        return features.get("phase") != "prefill" or borrowed
    if name == "batch":
        return value == "one" or features.get("lengths") == "ragged"
    if name == "window" and features.get("cache") == "sliding_window":
        return value in ("none", "shorter")
    return value == BY_NAME[name].values[0]
