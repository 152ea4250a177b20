"""The basis of each feature of a call: the words of a text, or the behaviour of kernels.

A case can promise no more than its features: its contract has the weakest basis of them. The table
is :data:`GROUNDS`; ``cases/pairs.yaml`` gets its contracts from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from conformance.case.contract import Basis
from conformance.case.features import (
    BIDIRECTIONAL,
    BORROWING,
    BY_NAME,
    DOCUMENTATION,
    OMITTING,
)

_THREADS: Final = "https://github.com/microsoft/onnxruntime"
KERNELS: Final = f"{_THREADS}/blob/main/onnxruntime/contrib_ops"

#: The bases from the strongest to the weakest.
STRENGTH: Final[tuple[Basis, ...]] = ("specified", "established", "requested")


@dataclass(frozen=True)
class Ground:
    """The basis of a feature's meaning.

    ``words``: for `specified`, the words of ``source``, letter by letter; for `established`, the
    question that no text answers, or a sentence; for `requested`, a sentence.
    """

    basis: Basis
    source: str
    words: str


def _said(words: str, source: str = DOCUMENTATION) -> Ground:
    return Ground("specified", source, words)


def _done(question: str, source: str) -> Ground:
    return Ground("established", source, question)


#: A call without any feature.
PLAIN: Final = _said("implements grouped-query attention with past state (KV cache) support")

_ROTARY: Final = _done(
    "which elements of a head rotary embedding pairs", f"{KERNELS}/cpu/bert/rotary_embedding.cc"
)
_PARTIAL: Final = _done(
    "that a narrow cos_cache leaves the rest of a head unrotated", f"{_THREADS}/pull/19874"
)
_POSITIONS: Final = _done(
    "whether each token after the first prompt has its own position", _ROTARY.source
)
_WHOLE_WINDOW: Final = _said("left_window_size for causal local attention (like Mistral).")
_BIAS: Final = _said(
    "additional add to QxK' with shape (batch_size or 1, num_heads or 1, sequence_length,"
    " total_sequence_length)."
)
_SINK: Final = _said(
    "For h-th head, `head_sink[h]` is used as smooth factor s. When head_sink is not provided,"
    " constant 0 is used as smooth factor s.",
    f"{_THREADS}/pull/25269",
)
_SCORES: Final = _said(
    "controls if attention scores should be saved before or after softmax is applied",
    f"{_THREADS}/pull/25319",
)
_CODES: Final = _done(
    "The operator's documentation has no arithmetic for codes; CUDA's page has.",
    f"{_THREADS}/blob/main/docs/contrib_ops/cuda/gqa.md",
)

#: The ground of each value of a feature; a value that is not here adds nothing to a plain call.
GROUNDS: Final[Mapping[tuple[str, str], Ground]] = {
    ("phase", "chunked_prefill"): _said(
        "GQA can take arbitrary length input using seqlens_k as total_sequence_length - 1 and the"
        " sequence length of qkv as new_sequence_length",
        f"{_THREADS}/pull/21523",
    ),
    ("cache", "concatenated"): _said(
        "otherwise of length past_sequence_length +kv_sequence_length."
    ),
    ("cache", "static"): _done(
        "whether a past that shares no memory with the present may be longer than its tokens",
        f"{KERNELS}/cpu/bert/gqa_attention_base.h",
    ),
    ("cache", "shared_buffer"): _said(
        "When past_key uses same tensor as present_key(k-v cache), it is of length"
        " max_sequence_length"
    ),
    ("cache", "sliding_window"): _said(
        "rows `[0, L)` of `present_key` and `present_value` hold the `L` most recent positions in"
        " increasing position order … the whole window stays resident"
    ),
    ("key_value", "packed"): _said(
        "packed QKV with shape(batch_size, sequence_length, d) where d is (num_heads * head_size +"
        " 2 * kv_num_heads * head_size)."
    ),
    ("key_value", "zero_length"): _said(
        "allowing `kv_sequence_length=0` when `past_key`/`past_value` contain the borrowed KV"
        " cache",
        BORROWING,
    ),
    ("key_value", "omitted"): Ground(
        "requested", OMITTING, "Asked for; the operator reads omitted key and value as packed QKV."
    ),
    ("presents", "none"): _said(
        "Marked the `present_key` and `present_value` outputs as optional", f"{_THREADS}/pull/28689"
    ),
    ("lengths", "ragged"): _done(
        "on which side a shorter sequence is padded",
        f"{KERNELS}/cpu/bert/group_query_attention_helper.h",
    ),
    ("rotary", "half_split"): _ROTARY,
    ("rotary", "interleaved"): _ROTARY,
    ("rotary", "partial_half_split"): _PARTIAL,
    ("rotary", "partial_interleaved"): _PARTIAL,
    ("position_ids", "given"): _POSITIONS,
    ("qk_norm", "given"): _said(
        "the kernel applies a per-head RMS normalization to Q (and K) before any rotary embedding."
    ),
    ("causal", "bidirectional"): _said(
        "Bidirectional models require each query token to attend to the full valid key sequence.",
        BIDIRECTIONAL,
    ),
    ("window", "shorter"): _done(
        "whether a window includes the query's own token", f"{_THREADS}/pull/25927"
    ),
    ("window", "whole"): _WHOLE_WINDOW,
    ("window", "longer"): _WHOLE_WINDOW,
    ("scale", "given"): _said("Custom scale will be used if specified."),
    ("softcap", "given"): _done(
        "how and when a softcap changes the scores", f"{_THREADS}/pull/21683"
    ),
    **{("attention_bias", value): _BIAS for value in BY_NAME["attention_bias"].values[1:]},
    **{("sink", value): _SINK for value in BY_NAME["sink"].values[1:]},
    **{("output_qk", value): _SCORES for value in BY_NAME["output_qk"].values[1:]},
    **{("quantised", value): _CODES for value in BY_NAME["quantised"].values[1:]},
    ("query_seqlens", "unpadded"): _said(
        "Query row `s` is at absolute position `P + s` … Batched multi-token chunks are supported."
    ),
    ("query_seqlens", "padded"): _said(
        "Only the valid rows are appended to the cache … For every valid row the result equals that"
        " of the same call with an unpadded chunk of `Q` tokens"
    ),
    ("query_seqlens", "idle"): _said(
        "`Q = 0` marks an idle entry with an already-populated cache: keep its `seqlens_k`"
        " unchanged and ignore all its output rows."
    ),
}

#: The words of the text on query_seqlens, which no text has for other calls.
_SAID_OF_CHUNKS: Final = (
    ("phase", "chunked_prefill"),
    ("lengths", "ragged"),
    ("cache", "static"),
)


BIASES: Final = BY_NAME["attention_bias"].values[1:]
_WITH_A_BIAS: Final = "whether a bias goes together with"
BIAS_ON_CUDA: Final = f"{_THREADS}/pull/29525"

#: The grounds of values that together leave more questions open than each alone.
TOGETHER: Final[tuple[tuple[Mapping[str, tuple[str, ...]], Ground], ...]] = (
    (
        {"attention_bias": BIASES, "sink": BY_NAME["sink"].values[1:]},
        _done(f"{_WITH_A_BIAS} a sink", BIAS_ON_CUDA),
    ),
    (
        {"attention_bias": BIASES, "quantised": BY_NAME["quantised"].values[1:]},
        _done(f"{_WITH_A_BIAS} a quantised cache", BIAS_ON_CUDA),
    ),
    (
        {"output_qk": BY_NAME["output_qk"].values[1:], "key_value": ("zero_length",)},
        _done("that output_qk has a column for each borrowed token", _SCORES.source),
    ),
)


def grounds_of(features: Mapping[str, str | None]) -> list[Ground]:
    """The grounds of a call with ``features``, without the grounds of values that add nothing."""
    items = [(name, value) for name, value in features.items() if value is not None]
    if ("cache", "sliding_window") in items:  # its rows say what its window includes
        items = [(name, value) for name, value in items if name != "window"]
    if features.get("query_seqlens", "none") != "none":
        items = [item for item in items if item not in _SAID_OF_CHUNKS]
    together = (
        ground
        for values, ground in TOGETHER
        if all(features.get(name) in those for name, those in values.items())
    )
    return [*(GROUNDS[item] for item in items if item in GROUNDS), *together]


def weakest_of(features: Mapping[str, str | None]) -> Basis:
    """The weakest basis of the features of a call: its contract cannot promise more."""
    return max(
        (ground.basis for ground in grounds_of(features)), key=STRENGTH.index, default="specified"
    )


def contract_on(features: Mapping[str, str | None]) -> dict[str, Any]:
    """The contract of a call with ``features`` that must be computed, without default values.

    The source is the operator's documentation, unless another source says more, or does it.
    """
    basis = weakest_of(features)
    weakest = [ground for ground in [PLAIN, *grounds_of(features)] if ground.basis == basis]
    source = next((g.source for g in weakest if g.source != DOCUMENTATION), DOCUMENTATION)
    if basis == "specified":  # words of a text are checked against that text
        weakest = [ground for ground in weakest if ground.source == source]
    said = list(dict.fromkeys(ground.words for ground in weakest))
    contract = {"basis": basis, "source": source, "why": _WHY[basis](said)}
    return {field: value for field, value in contract.items() if value != "specified"}


def _listed(parts: Sequence[str], last: str) -> str:
    """``a, b and c``."""
    return f" {last} ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))


def _unsaid(said: Sequence[str]) -> str:
    """The questions that no text answers, in one sentence, then the other sentences."""
    sentences = [words for words in said if words.endswith(".")]
    if questions := [words for words in said if words not in sentences]:
        sentences.insert(
            0,
            f"The documentation does not say {_listed(questions, 'or')}; ONNX Runtime's kernels"
            " agree.",
        )
    return " ".join(sentences)


_WHY: Final[Mapping[Basis, Callable[[Sequence[str]], str]]] = {
    "specified": lambda said: f"In words: {_listed([quoted(words) for words in said], 'and')}.",
    "established": _unsaid,
    "requested": lambda said: said[0],
}


def quoted(words: str) -> str:
    """``words`` as a quotation, without the full stop at their end."""
    return f'"{words.removesuffix(".")}"'
