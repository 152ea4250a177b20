"""The title of a case whose entry has none: its call in words, made of its features."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from conformance.case.call import Call
from conformance.case.case import MAX_TITLE
from conformance.case.features import BY_NAME, REST

#: Features that a title may name beside phase and cache, the most telling first, and how many.
_TELLING: Final = (
    *("key_value", "quantised", "query_seqlens", "presents", "qk_norm", "causal", "window"),
    *("rotary", "lengths", "attention_bias", "sink", "softcap", "output_qk", "position_ids"),
    *("scale", "heads", "batch", "head_size", "dims", "dtype"),
)
_MOST_TOLD: Final = 3

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


def title_of(features: Mapping[str, str | None], calls: Sequence[Call]) -> str:
    """What ``calls`` are that share ``features``: the phase with its lengths, the cache, and the
    features that tell most, as many as fit: ``97 tokens on a past of 4034, shared buffer, int8
    cache``."""
    told = dict(_words(features))
    lengths = {(call.sequence_length, call.past_sequence_length) for call in calls}
    if len(lengths) == 1:
        ((new, past),) = lengths
        with_lengths = {
            "prefill": f"prompt of {new} token{'s' if new != 1 else ''}",
            "decode": f"one token on a past of {past}",
            "chunked_prefill": f"{new} tokens on a past of {past}",
        }
        told["phase"] = with_lengths.get(features.get("phase") or "", told.get("phase", ""))
    head = [told[name] for name in ("phase", "cache") if told.get(name)] or ["call"]
    telling = [told[name] for name in _TELLING if name in told][:_MOST_TOLD]
    while telling and len(", ".join([*head, *telling])) > MAX_TITLE - 4:  # of the number
        telling.pop()
    return _capitalised(", ".join([*head, *telling]))


def words(features: Mapping[str, str | None]) -> str:
    """A call in words: ``Prompt, sliding-window cache, batch, partial rotary``.

    ``features`` are those of :func:`conformance.case.features.features_of`. A feature that is None
    or missing is left out, and so is one whose value is plain or implied by another feature.
    """
    return _capitalised(", ".join(text for _, text in _words(features)) or "call")


def _capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]


def _words(features: Mapping[str, str | None]) -> Iterator[tuple[str, str]]:
    """The words for each feature that is not implied."""
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
