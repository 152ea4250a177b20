"""The KV cache: none, growing, a static buffer, or a buffer of a window's last tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from conformance.operator.call import Call, Values
from conformance.operator.part import (
    AttributeValues,
    Decision,
    Feature,
    InputRule,
    Objection,
    Part,
    Reader,
    Value,
    established,
    must_be,
    quoted,
    specified,
    uniform,
)
from conformance.operator.parts.key_value import BORROWS, token_values
from conformance.operator.parts.lengths import most_tokens, padded_rows
from conformance.operator.parts.quantisation import stored_head_size
from conformance.operator.replacement import (
    CallChanges,
    ConnectedCall,
    Replace,
    Replacement,
    filled,
    first,
)
from conformance.operator.signature import Axis
from conformance.operator.sources import CUDA, JSEP, KERNELS, SLIDING, WEBGPU


def _cache(reader: Reader) -> str:
    if reader.attributes.get("sliding_window_cache"):
        return "sliding_window"
    return "shared_buffer" if reader.call.shared_buffer else reader.call.cache_kind


def _is_implied(value: str, features: Mapping[str, str | None]) -> bool:
    borrowed = features.get("key_value") in BORROWS
    grows = value == "concatenated" and (features.get("phase") != "prefill" or borrowed)
    return value == "none" or grows


CACHE = Feature(
    "cache",
    {
        "none": Value(),
        "concatenated": Value(
            "past of no token",
            "concatenated_cache",
            specified("otherwise of length past_sequence_length +kv_sequence_length."),
        ),
        "static": Value(
            "static cache",
            "static_cache",
            established(
                "whether a past that shares no memory with the present may be longer than its"
                " tokens",
                f"{KERNELS}/cpu/bert/gqa_attention_base.h",
            ),
        ),
        "shared_buffer": Value(
            "shared buffer",
            "static_cache shared_buffer",
            specified(
                "When past_key uses same tensor as present_key(k-v cache), it is of length"
                " max_sequence_length"
            ),
        ),
        "sliding_window": Value(
            "sliding-window cache",
            "sliding_window_cache",
            specified(
                "rows `[0, L)` of `present_key` and `present_value` hold the `L` most recent"
                " positions in increasing position order … the whole window stays resident"
            ),
        ),
    },
    _cache,
    off=("cache", "max_sequence_length", "shared_buffer", "sliding_window_cache"),
    plainer=({"shared_buffer": False, "sliding_window_cache": None}, {"shared_buffer": False}),
    is_implied=_is_implied,
)


def _is_connected(call: Call) -> bool:
    return call.cache_kind != "none"


def _axes(call: Call) -> tuple[Axis, ...]:
    rows = "max_sequence_length" if call.cache_kind == "static" else "past_sequence_length"
    return "batch_size", "kv_num_heads", rows, stored_head_size(call)


def _values(call: Call, keys: int) -> Values:
    if call.cache_dtype == "float8e4m3fn":  # times the scales, about as large as new tokens
        return uniform(-100.0, 100.0)
    return token_values(call)


def _impossible(call: Call) -> Iterator[Objection]:
    kind, capacity = call.cache_kind, call.max_sequence_length
    sentence = "a static cache needs max_sequence_length"
    yield kind == "static" and capacity is None, "cache", sentence
    sentence = f"only a static cache has a capacity; cache is {kind}"
    yield kind != "static" and capacity is not None, "max_sequence_length", sentence
    sentence = "cache is none, so there are no past tokens"
    yield kind == "none" and call.past_sequence_length, "past_sequence_length", sentence
    sentence = "only a static cache can share its buffer"
    yield call.shared_buffer and kind != "static", "shared_buffer", sentence
    yield call.loop and kind == "none", "cache", "a loop needs a cache"
    own = call.kv_sequence_length is not None or call.key_value == "omitted"
    sentence = "each call of a loop appends a key/value token for each query token, or none"
    yield call.loop and own, "loop", sentence


def _excluded(call: Call, attributes: AttributeValues) -> Iterator[Objection]:
    yield must_be(attributes, "sliding_window_cache", 0, 1)
    pasts = [call.inputs.get(name, "omitted") for name in ("past_key", "past_value")]
    states = {past if isinstance(past, str) else past.state for past in pasts}
    sentence = "a past written by hand needs a cache, concatenated or static"
    yield call.cache_kind == "none" and "connected" in states, "inputs", sentence
    sentence = "sliding_window_cache needs a cache, whose rows are the capacity"
    yield call.cache_kind == "none" and call.sliding_window_cache == 1, "cache", sentence
    if call.inputs:  # which may have other lengths
        return
    past, keys = call.past_sequence_length, most_tokens(call).ever
    sliding, window = call.sliding_window_cache == 1, call.local_window_size or 0
    held, rows = keys if call.shared_buffer else past, call.max_sequence_length or max(keys, past)
    few = held > rows and not sliding and call.query_seqlens is None
    yield few, "max_sequence_length", f"{rows} rows are too few for {held} tokens"
    if sliding and call.cache_kind == "concatenated":
        rows = past  # the capacity is that of the past
    chunk = 0 if sliding or call.cache_kind != "static" else padded_rows(call)
    sentence = f"{rows} rows are too few for the past and the whole padded chunk, {chunk} rows"
    yield chunk > rows, "max_sequence_length", sentence
    sentence = f"{rows} rows are fewer than local_window_size {window}"
    yield sliding and rows < window, "max_sequence_length", sentence
    appends = call.key_value not in BORROWS
    moved = sliding and appends and rows >= window > 0 and _moves_rows(call, rows, window)
    sentence = "after tokens are taken back, the window cache has the others in wrong rows"
    yield moved, "total_sequence_lengths", sentence


def _moves_rows(call: Call, capacity: int, window: int) -> bool:
    """Whether a loop takes tokens back from a window cache so that the others are in other rows.

    "That is exact when `L(T - k) == L(T) - k`", says the documentation of the L(T) resident rows.
    """

    def resident(tokens: int) -> int:
        group, excess = capacity - window + 1, max(tokens - capacity, 0)
        return tokens - group * -(-excess // group)

    written = call.written_totals
    lists = [counts for counts in call.query_seqlens or () if isinstance(counts, tuple)]
    added = lists or [(length,) * call.batch_size for length in call.loop or ()]
    for before, after, new in zip(written, written[1:], added[1:], strict=False):
        for old, now, n in zip(before, after, new, strict=False):
            kept = now - n
            if 0 < kept < old and resident(kept) != resident(old) - (old - kept):
                return True
    return False


def _replacements() -> Iterator[Replacement]:
    def all_tokens(given: ConnectedCall) -> CallChanges | None:
        """A cache of all tokens, if the window cache has to evict any."""
        call = given.call
        rows = call.past_sequence_length
        evicts = call.window_cache and call.lengths.max() > rows
        holds = call.total == rows + call.kv_sequence_length and call.past_lengths.max() <= rows
        return {"window_cache": False} if evicts and holds else None

    def of_the_past(change: Replace) -> Replace:
        return lambda given: change(given) if given.call.past_lengths.any() else None

    yield Replacement(
        "sliding_window_cache",
        "",
        "a cache of all tokens",
        all_tokens,
        "sliding_window_cache",
        outputs=("output", "present_key", "present_value"),
    )
    for name in ("past_key", "past_value"):
        for short, words, change in (
            ("first_sequence", "the first sequence's for all", first(name, 0)),
            ("first_head", "the first key/value head's for all", first(name, 1)),
            ("first_token", "row 0 for all tokens", first(name, 2)),
            ("zeros", "zeros", filled(name, 0.0)),
        ):
            yield Replacement(name, short, words, of_the_past(change))


_PAST = InputRule(_is_connected, _axes, _values)
_WINDOW_CACHE = (CACHE.of("sliding_window"),)

PART = Part(
    features=(CACHE,),
    inputs={"past_key": _PAST, "past_value": _PAST},
    read_as=dict.fromkeys(
        ("past_key", "past_value"),
        ("batch_size", "kv_num_heads", "past_sequence_length", "head_size"),
    ),
    effects=("past", "sliding_window_cache"),
    impossible=_impossible,
    excluded=_excluded,
    decisions=(
        Decision(
            _WINDOW_CACHE,
            (WEBGPU, JSEP),
            "either",
            quoted(
                "CPU / JS / WebGPU GQA return `NOT_IMPLEMENTED` for `sliding_window_cache=1`"
                " rather than silently computing the wrong result."
            )
            + ".",
            ("sliding_window_cache",),
            SLIDING,
        ),
        Decision(
            _WINDOW_CACHE,
            (CUDA,),
            "rejects",
            quoted(
                "The CUDA implementation requires `C == W`, so there `G` is 1 and `L(T)` is"
                " `min(T, C)`; a larger capacity is rejected."
            )
            + ".",
            ("capacity", "local_window_size", "sliding_window_cache"),
        ),
    ),
    replacements=_replacements,
)
