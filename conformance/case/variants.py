"""The relations: a call written another way, whose numbers must agree with its own.

A case may name one. Then its target computes both forms, and the two answers are held against each
other beside the oracle: a relation needs no reference values, and holds far more tightly.
``forms.py`` makes the other form; what stands here is what users read and write.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from conformance.base.paths import file_to_write
from conformance.case.call import Call

RelationName = Literal[
    "omitted_presents",
    "omitted_key_value",
    "packed_qkv",
    "each_sequence_alone",
    "permuted_batch",
    "permuted_heads",
    "repeated_kv_heads",
    "static_cache",
    "shared_buffer",
    "token_by_token",
    "in_chunks",
    "rejected_tokens",
    "other_later_tokens",
    "rotary_before",
    "constant_bias",
    "long_window",
    "causal_as_bias",
    "sink_of_zero",
    "scale_in_query",
    "doubled_values",
    "borrowed_in_graph",
    "standard_attention",
]

#: How far the two forms may be from each other.
#: exact: the same arithmetic on the same shapes, so not one bit.
#: arithmetic: sums may be taken in another order, and then the result is stored.
#: storage: the other form also rounds something to the storage type that this one need not.
Closeness = Literal["exact", "arithmetic", "storage"]


@dataclass(frozen=True)
class Relation:
    """``what``: the other form, in words that follow "the same call"; ``law``: why they agree.

    ``misfit`` says why a call has no such form, None if it has one.
    """

    what: str
    law: str
    closeness: Closeness
    misfit: Callable[[Call], str | None]

    @property
    def sentence(self) -> str:
        """What must agree with the call, and why."""
        return f"The same call, {self.what}: {self.law}."


def _all(*checks: Callable[[Call], str | None]) -> Callable[[Call], str | None]:
    return lambda call: next((said for check in checks if (said := check(call))), None)


def _plain(call: Call) -> str | None:
    """Forms are made of whole, natural inputs, so nothing may be written by hand."""
    if call.inputs or call.outputs or call.attributes:
        return "inputs, outputs and attributes written by hand have no other form"
    if call.cache_dtype is not None or call.sliding_window_cache:
        return "the cache must hold what it was given, neither quantised nor evicted"
    if call.dims == "static":
        return "dims must be symbolic"
    if call.kv_sequence_length is not None:
        return "key and value must have the query's length, or 0"
    return None


def _single(call: Call) -> str | None:
    return "it must be one call, not a loop" if call.loop else None


def _wants(sentence: str, holds: Callable[[Call], bool]) -> Callable[[Call], str | None]:
    return lambda call: None if holds(call) else sentence


_NEW = _wants("key_value must be new", lambda call: call.key_value == "new")
_EVEN = _wants("all sequences must be of one length", lambda c: c.total_sequence_lengths is None)
_CAUSAL = _wants("causal must not be 0", lambda call: call.causal != 0)
_SEVERAL = _wants("there must be several query tokens", lambda call: call.sequence_length > 1)
_BATCH = _wants("batch_size must be at least 2", lambda call: call.batch_size > 1)
_NO_PAST = _wants("cache must be none", lambda call: call.cache_kind == "none")
_APPENDING = _wants("cache must be concatenated", lambda call: call.cache_kind == "concatenated")
_NO_POSITIONS = _wants("position_ids must be off", lambda call: not call.position_ids)
_NO_BIAS = _wants("attention_bias must be none", lambda call: call.attention_bias == "none")
_NO_WINDOW = _wants("local_window_size must be absent", lambda call: call.local_window_size is None)
_NO_SINK = _wants(
    "there must be no sink", lambda call: not call.head_sink and call.smooth_softmax is None
)
_UNPACKED = _wants(
    "key and value must be given", lambda call: call.key_value not in ("packed", "omitted")
)
_BOTH_PRESENTS = _wants("both presents must be connected", lambda call: call.presents == "both")
_NO_EXTRAS = _wants(
    "softcap, sink, window, rotary, norm, causal, scale and output_qk have no place in it",
    lambda call: (
        call.rotary == "none"
        and not call.head_sink
        and call.smooth_softmax is call.softcap is call.local_window_size is call.causal is None
        and call.scale is None
        and not call.qk_output
        and not call.qk_norm
    ),
)

RELATIONS: Final[dict[RelationName, Relation]] = {
    "omitted_presents": Relation(
        "without present_key and present_value",
        "an output that is not asked for changes nothing",
        "arithmetic",
        _all(_plain, _single, _NO_PAST),
    ),
    "omitted_key_value": Relation(
        "with key and value omitted instead of given with length 0",
        "both say that there is nothing new to append",
        "arithmetic",
        _all(
            _plain,
            _single,
            _wants("key_value must be zero_length", lambda call: call.key_value == "zero_length"),
        ),
    ),
    "packed_qkv": Relation(
        "with key and value packed into query",
        "packing is a matter of layout",
        "arithmetic",
        _all(_plain, _NEW),
    ),
    "each_sequence_alone": Relation(
        "made for each sequence of the batch by itself, without its padding",
        "sequences of a batch do not see each other",
        "arithmetic",
        _all(_plain, _single, _NEW, _BATCH),
    ),
    "permuted_batch": Relation(
        "with the sequences of the batch in another order",
        "sequences of a batch do not see each other",
        "arithmetic",
        _all(_plain, _single, _BATCH),
    ),
    "permuted_heads": Relation(
        "with the heads in another order, groups and heads within a group",
        "heads do not see each other",
        "arithmetic",
        _all(
            _plain,
            _single,
            _UNPACKED,
            _wants("num_heads must be at least 2", lambda call: call.num_heads > 1),
        ),
    ),
    "repeated_kv_heads": Relation(
        "with each key/value head repeated for every head of its group",
        "a group shares one key/value head",
        "arithmetic",
        _all(
            _plain,
            _single,
            _UNPACKED,
            _wants("heads must be grouped", lambda call: call.num_heads > call.kv_num_heads),
        ),
    ),
    "static_cache": Relation(
        "on a static buffer that is longer than the tokens, its rest full of other numbers",
        "rows beyond a sequence's end are nobody's",
        "arithmetic",
        _all(_plain, _single, _APPENDING),
    ),
    "shared_buffer": Relation(
        "on a static buffer that past and present share",
        "where the present is stored changes nothing",
        "arithmetic",
        _all(_plain, _single, _APPENDING, _NEW, _BOTH_PRESENTS),
    ),
    "token_by_token": Relation(
        "fed one token at a time, each on the present of the one before",
        "a causal query sees the tokens up to its own, whenever they came",
        "arithmetic",
        _all(_plain, _single, _NEW, _EVEN, _CAUSAL, _SEVERAL, _NO_POSITIONS, _BOTH_PRESENTS),
    ),
    "in_chunks": Relation(
        "fed in two chunks, the second on the present of the first",
        "a causal query sees the tokens up to its own, whenever they came",
        "arithmetic",
        _all(_plain, _single, _NEW, _EVEN, _CAUSAL, _SEVERAL, _NO_POSITIONS, _BOTH_PRESENTS),
    ),
    "rejected_tokens": Relation(
        "with three more tokens fed in between, taken back and overwritten",
        "rows beyond a sequence's end are nobody's",
        "exact",
        _all(
            _plain,
            _NEW,
            _EVEN,
            _NO_BIAS,
            _NO_POSITIONS,
            _wants(
                "it must be a loop of two calls", lambda c: c.loop is not None and len(c.loop) == 2
            ),
            _wants("rotary_cache_length must be absent", lambda c: c.rotary_cache_length is None),
            _wants(
                "max_sequence_length must leave room for three tokens more",
                lambda c: (
                    (c.max_sequence_length or 0) >= c.past_sequence_length + sum(c.loop or ()) + 3
                ),
            ),
        ),
    ),
    "other_later_tokens": Relation(
        "with other numbers in the later half of its tokens",
        "a causal query never sees a later token",
        "exact",
        _all(_plain, _single, _NEW, _EVEN, _CAUSAL, _SEVERAL),
    ),
    "rotary_before": Relation(
        "with query and key turned beforehand and do_rotary off",
        "rotary embedding comes before everything else",
        "storage",
        _all(
            _plain,
            _single,
            _wants("rotary must be on", lambda call: call.rotary != "none"),
            _wants("qk_norm comes before rotary", lambda c: not c.qk_norm),
            _UNPACKED,
        ),
    ),
    "constant_bias": Relation(
        "with an attention_bias that is one number for all keys of a query",
        "softmax does not change when all logits of a row rise alike",
        "arithmetic",
        _all(
            _plain,
            _single,
            _NO_BIAS,
            _NO_SINK,
            _wants("output_qk before the softmax moves with it", lambda c: c.qk_output != 1),
        ),
    ),
    "long_window": Relation(
        "with a local window as long as the sequence",
        "a window that reaches everything hides nothing",
        "arithmetic",
        _all(
            _plain,
            _single,
            _CAUSAL,
            _NO_WINDOW,
        ),
    ),
    "causal_as_bias": Relation(
        "with causal 0 and an attention_bias of -inf for later keys",
        "a key of logit -inf is not attended to",
        "arithmetic",
        _all(
            _plain,
            _single,
            _EVEN,
            _NO_BIAS,
            _SEVERAL,
            _wants("causal must be absent", lambda call: call.causal is None),
            _NO_WINDOW,
        ),
    ),
    "sink_of_zero": Relation(
        "with a head_sink of zeros instead of smooth_softmax",
        "smooth_softmax is a sink of logit 0",
        "arithmetic",
        _all(
            _plain,
            _single,
            _wants(
                "smooth_softmax must be 1 and head_sink off",
                lambda call: call.smooth_softmax == 1 and not call.head_sink,
            ),
        ),
    ),
    "scale_in_query": Relation(
        "with the query times four and the scale a quarter",
        "powers of two move between factors without rounding",
        "exact",
        _all(
            _plain,
            _single,
            _UNPACKED,
            _wants("qk_norm takes the factor away", lambda c: not c.qk_norm),
            _wants("scale must be given, a power of two", lambda call: _power_of_two(call.scale)),
        ),
    ),
    "doubled_values": Relation(
        "with values twice as large",
        "the output is linear in the values, and powers of two do not round",
        "exact",
        _all(
            _plain,
            _single,
            _UNPACKED,
        ),
    ),
    "borrowed_in_graph": Relation(
        "as the second layer of a graph whose first layer's present it borrows",
        "where the borrowed cache comes from changes nothing",
        "exact",
        _all(
            _plain,
            _single,
            _EVEN,
            _wants("key_value must be zero_length", lambda call: call.key_value == "zero_length"),
            _wants(
                "the cache must be concatenated and longer than the query",
                lambda c: (
                    c.cache_kind == "concatenated" and c.past_sequence_length > c.sequence_length
                ),
            ),
        ),
    ),
    "standard_attention": Relation(
        "as Transpose, Concat and the standard Attention operator",
        "so do exporters write it for runtimes that lack the fused operator",
        "storage",
        _all(
            _plain,
            _single,
            _EVEN,
            _NO_EXTRAS,
            _UNPACKED,
            _wants(
                "the cache must be none or concatenated, not static",
                lambda call: call.cache_kind != "static",
            ),
        ),
    ),
}


def document() -> str:
    """The text of docs/relations.md."""
    rows = [f"| `{n}` | {r.what} | {r.law} | {r.closeness} |" for n, r in RELATIONS.items()]
    return "\n".join(
        [
            "# Relations",
            "",
            "A case that names a relation is computed in two forms on its target, and the answers",
            "must agree. It needs no reference values. How far they may be apart is said in",
            "[tolerance.md](tolerance.md#relations).",
            "Written by `python -m conformance.case.variants`.",
            "",
            "| relation | the same call | because | closeness |",
            "| --- | --- | --- | --- |",
            *rows,
            "",
        ]
    )


def _power_of_two(scale: float | None) -> bool:
    return scale is not None and scale >= 2.0**-124 and scale.hex().startswith("0x1.0000000000000p")


if __name__ == "__main__":
    argparse.ArgumentParser(description="Writes docs/relations.md.").parse_args()
    file_to_write("docs/relations.md").write_text(document())
