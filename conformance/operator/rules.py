"""What is true of combinations of values: those that exclude each other, and what they rest on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from conformance.operator.part import Condition, Ground, established, has, quoted
from conformance.operator.parts.attention_bias import ATTENTION_BIAS
from conformance.operator.parts.cache import CACHE
from conformance.operator.parts.key_value import BORROWS, KEY_VALUE
from conformance.operator.parts.lengths import BATCH, LENGTHS, PHASE
from conformance.operator.parts.mask import CAUSAL, WINDOW
from conformance.operator.parts.output_qk import OUTPUT_QK
from conformance.operator.parts.position_ids import POSITION_IDS
from conformance.operator.parts.presents import PRESENTS
from conformance.operator.parts.quantisation import QUANTISED
from conformance.operator.parts.query_seqlens import QUERY_SEQLENS
from conformance.operator.parts.rotary import ROTARY
from conformance.operator.parts.sink import SINK
from conformance.operator.parts.sizes import DIMS, HEAD_SIZE
from conformance.operator.sources import (
    BIAS_ON_CUDA,
    BIDIRECTIONAL,
    BORROWING,
    DOCUMENTATION,
    HELPER,
    OMITTED_PRESENTS,
    OMITTING,
    ONNXRUNTIME,
    SCORES,
    SLIDING,
    SUITE,
)


@dataclass(frozen=True)
class Rule:
    """Values of two features that exclude each other, or of three that cannot occur together."""

    values: tuple[Condition, ...]
    reason: str
    source: str = DOCUMENTATION

    def forbids(self, row: Mapping[str, str | None]) -> bool:
        """Whether ``row`` has one of the excluded values for each feature of the rule."""
        return has(row, self.values)


_BORROWED: Final = KEY_VALUE.of(*BORROWS)
_OWN: Final = KEY_VALUE.of("new", "packed", "zero_valued")
_NOT_BOTH: Final = PRESENTS.of("none", "one")

RULES: Final = (
    Rule(
        (PHASE.of("decode", "chunked_prefill", "loop"), CACHE.of("none")),
        "Without a cache there are no tokens other than those of the prefill.",
    ),
    Rule(
        (PHASE.of("loop"), _NOT_BOTH),
        "In a loop the presents of each call are the past of the next.",
        SUITE,
    ),
    Rule((CACHE.of("shared_buffer"), _NOT_BOTH), "A shared buffer is both past and present."),
    Rule(
        (CACHE.of("none"), _BORROWED),
        "A call without new keys and without a cache has nothing to attend to.",
        BORROWING,
    ),
    Rule(
        (KEY_VALUE.of("omitted"), PHASE.of("loop")),
        "Borrowing by omitting key and value was requested for single calls only; the released way"
        " is zero_length.",
        OMITTING,
    ),
    Rule((BATCH.of("one"), LENGTHS.of("ragged")), "One sequence has one length."),
    Rule(
        (BATCH.of("one"), ATTENTION_BIAS.of("one_batch", "one_batch_one_head")),
        "In a batch of one these shapes are the same as full and one_head.",
    ),
    Rule(
        (ROTARY.of("none"), POSITION_IDS.of("given")),
        "Positions are the rotation angles of rotary; without rotary their meaning is not"
        " specified.",
    ),
    Rule(
        (CAUSAL.given, WINDOW.given),
        "local_window_size must be -1 if causal is 0.",
        BIDIRECTIONAL,
    ),
    Rule(
        (CACHE.of("sliding_window"), WINDOW.of("none")),
        "sliding_window_cache requires a local_window_size.",
        SLIDING,
    ),
    Rule(
        (CACHE.of("sliding_window"), CAUSAL.given),
        "sliding_window_cache requires a window, and a window requires causal.",
        SLIDING,
    ),
    Rule(
        (CACHE.of("none"), QUANTISED.given),
        "Presents have the format of the past; without a past they have the query's.",
    ),
    Rule(
        (_BORROWED, CACHE.of("sliding_window")),
        "Runtimes refuse it: a sliding-window cache holds the tokens of its own calls.",
        SLIDING,
    ),
    Rule(
        (_NOT_BOTH, PHASE.of("decode", "chunked_prefill"), _OWN),
        "Past and new tokens are joined in the present; without it the call must be refused.",
        BORROWING,
    ),
    Rule(
        (DIMS.of("static"), PHASE.of("loop"), CACHE.of("concatenated"), _OWN),
        "Static dims require the same shapes in all calls of a loop, and a concatenated cache"
        " grows.",
        SUITE,
    ),
    Rule(
        (DIMS.of("static"), PHASE.of("loop"), ATTENTION_BIAS.given, _OWN),
        "Static dims require the same shapes in all calls of a loop, and the bias has a column for"
        " each token.",
        SUITE,
    ),
    Rule(
        (QUERY_SEQLENS.given, CACHE.of("none")),
        "query_seqlens requires past_key and past_value.",
    ),
    Rule(
        (QUERY_SEQLENS.given, _BORROWED),
        "query_seqlens requires new key and value, as long as query.",
    ),
    Rule((QUERY_SEQLENS.given, CAUSAL.given), "query_seqlens requires causal."),
    Rule(
        (QUERY_SEQLENS.of("idle"), _NOT_BOTH),
        "The cache of an idle entry is kept in the present.",
    ),
    Rule(
        (QUERY_SEQLENS.of("padded"), PHASE.of("decode")),
        "A single token is padding or not: the entry is idle or unpadded.",
    ),
    Rule(
        (QUERY_SEQLENS.of("unpadded"), PHASE.of("prefill"), LENGTHS.of("ragged")),
        "Prompts without padding are as long as query.",
    ),
    Rule(
        (QUERY_SEQLENS.of("idle"), PHASE.of("prefill")),
        "An idle entry has an already-populated cache.",
    ),
)


def why_excluded(features: Mapping[str, str | None]) -> tuple[list[str], str] | None:
    """The features of the first rule that a call breaks, and the reason; None if it breaks none."""
    broken = next((rule for rule in RULES if rule.forbids(features)), None)
    return ([name for name, _ in broken.values], broken.reason) if broken else None


# What combinations rest on

_WITH_A_BIAS: Final = "whether a bias goes together with"

#: The grounds of values that together leave more questions open than each alone.
TOGETHER: Final[tuple[tuple[tuple[Condition, ...], Ground], ...]] = (
    (
        (ATTENTION_BIAS.given, SINK.given),
        established(f"{_WITH_A_BIAS} a sink", BIAS_ON_CUDA),
    ),
    (
        (ATTENTION_BIAS.given, QUANTISED.given),
        established(f"{_WITH_A_BIAS} a quantised cache", BIAS_ON_CUDA),
    ),
    (
        (OUTPUT_QK.given, KEY_VALUE.of("zero_length")),
        established("that output_qk has a column for each borrowed token", SCORES),
    ),
)
#: Values whose own grounds do not count beside others, which say what they mean there.
SAID_ELSEWHERE: Final[tuple[tuple[Condition, tuple[Condition, ...]], ...]] = (
    # The rows of a sliding-window cache say what its window includes.
    (CACHE.of("sliding_window"), (WINDOW.given,)),
    # The text on query_seqlens has words that no text has for other calls.
    (
        QUERY_SEQLENS.given,
        (PHASE.of("chunked_prefill"), LENGTHS.of("ragged"), CACHE.of("static")),
    ),
)


# What the texts leave open


@dataclass(frozen=True)
class OpenQuestion:
    """Calls on which texts are silent and kernels disagree: they compute it right or reject it.

    ``why`` says what is open, ``mentions`` what a rejection must name. ``readings`` are the other
    readings of the text whose values are right, too.
    """

    values: tuple[Condition, ...]
    why: str
    mentions: tuple[str, ...]
    source: str = DOCUMENTATION
    established: bool = False
    readings: tuple[str, ...] = ()


_SLIDING_DOES_NOT_SAY: Final = "The documentation of window-sized caches does not say"

#: The first question whose values a call has counts. None is asked of omitted key and value, which
#: are requested.
OPEN_QUESTIONS: Final = (
    OpenQuestion(
        (PHASE.of("chunked_prefill"), BATCH.of("more"), QUERY_SEQLENS.of("none")),
        quoted("`sequence_length > 1` requires `batch_size == 1`")
        + " with a past; computing a larger batch is right, too, since its meaning is clear.",
        ("batch_size", "sequence_length"),
    ),
    *(
        OpenQuestion(
            (CACHE.of("sliding_window"), values),
            f"{_SLIDING_DOES_NOT_SAY} {question}.",
            ("sliding_window_cache",),
        )
        for values, question in (
            (OUTPUT_QK.given, "which keys output_qk has then"),
            (_NOT_BOTH, "whether such a cache may do without its presents"),
            (KEY_VALUE.of("zero_length"), "whether such a cache can be borrowed"),
        )
    ),
    OpenQuestion(
        (PHASE.of("prefill"), LENGTHS.of("ragged"), CAUSAL.given),
        quoted("the full valid key sequence")
        + " does not say that seqlens_k ends it; some of ONNX Runtime's CUDA kernels attend to the"
        " padding of a prompt.",
        ("seqlens_k", "causal"),
        BIDIRECTIONAL,
        readings=("prompt_without_lengths",),
    ),
    OpenQuestion(
        (QUERY_SEQLENS.given, PHASE.of("prefill"), POSITION_IDS.of("given")),
        quoted("When processing the first prompt the kernel uses only the first element")
        + ", but total_sequence_length "
        + quoted("is not used to determine the prompt case")
        + ": each element counts, or only the first of each row.",
        ("position_ids",),
        readings=("prompts_of_query_seqlens",),
    ),
    OpenQuestion(
        (HEAD_SIZE.of("no_multiple_of_8"),),
        "The documentation sets no limit to head_size; all kernels of ONNX Runtime refuse what is"
        " not a multiple of 8.",
        ("head_size",),
        HELPER,
        established=True,
    ),
    OpenQuestion(
        (ROTARY.given, HEAD_SIZE.of("8", "40", "no_multiple_of_16")),
        "The documentation sets no limit to head_size, but all kernels of ONNX Runtime refuse this"
        " one with rotary tables.",
        ("head_size", "cos_cache", "rotary"),
        HELPER,
        established=True,
    ),
    OpenQuestion(
        (ROTARY.of("partial_half_split", "partial_interleaved"), HEAD_SIZE.of("16")),
        "The documentation gives the tables head_size / 2 columns. Narrower ones were allowed where"
        f" their width is {quoted('<= head_size / 2 and a multiple of 8')}, which it is not here.",
        ("cos_cache", "rotary", "head_size"),
        f"{ONNXRUNTIME}/pull/19874",
    ),
    OpenQuestion(
        (PRESENTS.of("one"),),
        quoted("Marked the `present_key` and `present_value` outputs as optional")
        + " says nothing of one without the other, and kernels disagree.",
        ("present",),
        OMITTED_PRESENTS,
    ),
    OpenQuestion(
        (PRESENTS.of("none"), QUANTISED.given),
        "No text says whether a quantised cache may do without its presents, and kernels disagree.",
        ("present",),
        f"{ONNXRUNTIME}/pull/28576",
    ),
)
