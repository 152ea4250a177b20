"""The relations between a call and its variants, whose results must agree.

If a case names a relation, its target computes the call and its variant. Both are compared with the
oracle and with each other: a relation needs no reference values and has far tighter bounds. This
module has the names and descriptions; :mod:`conformance.bundle.variants` makes the variants.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from conformance.operator.call import CALL_FIELDS, Call, GraphCall
from conformance.operator.signature import ATTRIBUTES

#: Returns why a call does not fit; None if it does.
Check = Callable[[Call], str | None]

#: How closely the results of a call and its variant must agree.
#: exact: the arithmetic and the shapes are the same, so the results are equal to the bit.
#: arithmetic: sums may be computed in another order before the result is stored.
#: storage: the variant also rounds a value to the storage type that the call need not round.
Closeness = Literal["exact", "arithmetic", "storage"]


def _plain(call: Call) -> str | None:
    """The result of `_implied`; also excludes chunks and a total that is not that of the longest.

    Few variants have them.
    """
    if call.query_seqlens is not None or call.total_sequence_length is not None:
        return "query_seqlens and total_sequence_length must be absent"
    return _implied(call)


def _implied(call: Call) -> str | None:
    """Why a call has inputs that are written by hand, if it has any.

    Variants are made from inputs as the fields imply them.
    """
    if call.inputs or call.outputs or call.attributes:
        return "there is no variant of inputs, outputs or attributes written by hand"
    if call.cache_dtype is not None or call.sliding_window_cache:
        return "the cache must be neither quantised nor a sliding-window cache"
    if call.dims == "static":
        return "dims must be symbolic"
    if call.constants:
        return "constants must be empty"
    if call.kv_sequence_length is not None:
        return "key and value must have the query's length, or 0"
    return None


def _single(call: Call) -> str | None:
    return "it must be one call, not a loop" if call.loop else None


def _alone(call: Call) -> str | None:
    return "no calls can stand before it on the session" if call.earlier_calls else None


def _requires(sentence: str, holds: Callable[[Call], bool]) -> Check:
    return lambda call: None if holds(call) else sentence


_NEW = _requires("key_value must be new", lambda call: call.key_value == "new")
_ZERO_LENGTH = _requires(
    "key_value must be zero_length", lambda call: call.key_value == "zero_length"
)
_EVEN = _requires("all sequences must be of one length", lambda c: c.total_sequence_lengths is None)
_CAUSAL = _requires("causal must not be 0", lambda call: call.causal != 0)
_SEVERAL = _requires("there must be several query tokens", lambda call: call.sequence_length > 1)
_BATCH = _requires("batch_size must be at least 2", lambda call: call.batch_size > 1)
_ONE_SEQUENCE = _requires(
    "batch_size must be 1: of a batch, runtimes may refuse several tokens on a past",
    lambda call: call.batch_size == 1,
)
_NO_PAST = _requires("cache must be none", lambda call: call.cache_kind == "none")
_APPENDING = _requires("cache must be concatenated", lambda call: call.cache_kind == "concatenated")
_NO_POSITIONS = _requires("position_ids must be off", lambda call: not call.position_ids)
_NO_BIAS = _requires("attention_bias must be none", lambda call: call.attention_bias == "none")
_NO_WINDOW = _requires(
    "local_window_size must be absent", lambda call: call.local_window_size is None
)
_NO_SINK = _requires(
    "there must be no sink", lambda call: not call.head_sink and call.smooth_softmax is None
)
_UNPACKED = _requires(
    "key and value must be given", lambda call: call.key_value not in ("packed", "omitted")
)
_BOTH_PRESENTS = _requires("both presents must be connected", lambda call: call.presents == "both")
_DEFAULTS = {
    attribute.name: attribute.default
    for attribute in ATTRIBUTES
    if not attribute.required and attribute.name in CALL_FIELDS
}
_NO_EXTRAS = _requires(
    "softcap, sink, window, rotary, qk_norm, causal, scale, output_qk and other optional attributes"
    " must not be used",
    lambda call: (
        call.rotary == "none"
        and not call.head_sink
        and not call.qk_norm
        and all(getattr(call, name) in (None, default) for name, default in _DEFAULTS.items())
    ),
)


def _has_spare_rows(call: Call) -> bool:
    """Whether a static cache has four rows behind the longest sequence."""
    totals, *_ = call.written_totals
    longest = max(totals, default=call.past_sequence_length + call.sequence_length)
    return call.max_sequence_length is None or call.max_sequence_length >= longest + 4


_ROOM_FOR_PADDING = _requires("a static cache must have four spare rows", _has_spare_rows)


def _has_query_tokens(call: Call) -> bool:
    """Whether query_seqlens leaves a token to any sequence."""
    counts = call.query_seqlens or ()
    return any(any(each) if isinstance(each, tuple) else each for each in counts)


#: Why a model in standard operators is not called with one buffer: it writes before it has read.
CANNOT_SHARE: Final = "in standard operators, past and present cannot share a buffer"


def _in_standard_operators(call: Call) -> str | None:
    """Why a call is no graph whose nodes can all be written in standard operators."""
    import onnx  # takes long to import

    from conformance.rewriting.dense import CannotRewrite
    from conformance.rewriting.standard import standard_model

    if not isinstance(call, GraphCall):
        return "the call must have a graph"
    if call.shared_buffer:
        return CANNOT_SHARE
    try:
        left = standard_model(onnx.load_model_from_string(call.content)).left
    except CannotRewrite as error:
        return f"the graph has no such form: {error}".rstrip(".")
    return f"its node {left[0][0]} has no such form: {left[0][1]}" if left else None


@dataclass(frozen=True)
class Relation:
    """A relation between a call and a variant of it.

    ``what`` is the variant, in words that follow "the same call"; ``law`` is the reason why the two
    agree. ``needs`` and ``usual``, which most relations have, check whether a call has the variant.
    """

    what: str
    law: str
    needs: tuple[Check, ...] = ()
    closeness: Closeness = "arithmetic"
    usual: tuple[Check, ...] = (_plain, _single)
    of_graphs: bool = False
    """Whether graphs have such variants, instead of calls of a node."""
    undecided: bool = False
    """Whether no contract follows from the features of a call, as the variant has others."""

    def misfit(self, call: Call) -> str | None:
        """Why the call has no such variant; None if it has one."""
        return next(
            (why for check in (_alone, *self.usual, *self.needs) if (why := check(call))), None
        )

    @property
    def sentence(self) -> str:
        """The variant, and why its results must agree with the call's."""
        return f"The same call, {self.what}: {self.law}."


RELATIONS: Final[dict[str, Relation]] = {
    "constants_as_inputs": Relation(
        "with its constants as inputs of the model",
        "a constant is an input that never changes, and a kernel may convert it once",
        (_requires("constants must be listed", lambda call: bool(call.constants)),),
        usual=(),
    ),
    "omitted_presents": Relation(
        "without present_key and present_value",
        "whether an output is connected does not change the others",
        (_NO_PAST,),
    ),
    "omitted_key_value": Relation(
        "with key and value omitted instead of given with length 0",
        "both mean that there are no new tokens to append",
        (_ZERO_LENGTH,),
    ),
    "packed_qkv": Relation(
        "with key and value packed into query",
        "packing changes only the memory layout",
        (_NEW,),
        usual=(_plain,),
    ),
    "each_sequence_alone": Relation(
        "made for each sequence of the batch alone, without padding",
        "the sequences of a batch do not attend to each other",
        (_NEW, _BATCH),
    ),
    "permuted_batch": Relation(
        "with the sequences of the batch in another order",
        "the sequences of a batch do not attend to each other",
        (_BATCH,),
    ),
    "permuted_heads": Relation(
        "with groups, and heads within a group, in another order",
        "heads do not affect each other",
        (_UNPACKED, _requires("num_heads must be at least 2", lambda call: call.num_heads > 1)),
    ),
    "repeated_kv_heads": Relation(
        "with each key/value head repeated for every head of its group",
        "the heads of a group share one key/value head",
        (
            _UNPACKED,
            _requires("heads must be grouped", lambda call: call.num_heads > call.kv_num_heads),
        ),
    ),
    "static_cache": Relation(
        "on a static buffer longer than the sequence, with other numbers in the unused rows",
        "rows beyond the end of a sequence are not used",
        (_APPENDING,),
    ),
    "shared_buffer": Relation(
        "on a static buffer that past and present share",
        "the memory in which the present is stored does not change its values",
        (_APPENDING, _NEW, _BOTH_PRESENTS),
    ),
    "token_by_token": Relation(
        "one token at a time, each with the present of the one before as its past",
        "a causal query attends to the tokens up to its own, whichever call appended them",
        (_NEW, _EVEN, _CAUSAL, _SEVERAL, _NO_POSITIONS, _BOTH_PRESENTS),
    ),
    "in_chunks": Relation(
        "in two chunks, the second with the present of the first as its past",
        "a causal query attends to the tokens up to its own, whichever call appended them",
        (_NEW, _EVEN, _CAUSAL, _SEVERAL, _NO_POSITIONS, _BOTH_PRESENTS, _ONE_SEQUENCE),
    ),
    "in_padded_chunks": Relation(
        "in chunks of four rows; query_seqlens says how many of them are tokens",
        "a causal query attends to the tokens up to its own, whichever call appended them, and"
        " padding is not read",
        (_NEW, _CAUSAL, _SEVERAL, _NO_POSITIONS, _BOTH_PRESENTS, _ROOM_FOR_PADDING),
        undecided=True,
    ),
    "without_padding": Relation(
        "made for each sequence alone with the tokens of its chunk, without padding",
        "the result of every valid row equals that of a chunk without padding, and the sequences"
        " of a batch do not attend to each other",
        (
            _NEW,
            _requires("query_seqlens must be given", lambda call: call.query_seqlens is not None),
            _requires("a sequence must have query tokens", _has_query_tokens),
        ),
        usual=(_implied, _single),
    ),
    "rejected_tokens": Relation(
        "with three more tokens in between, which are rejected and overwritten",
        "rows beyond the end of a sequence are not used",
        (
            _NEW,
            _EVEN,
            _NO_BIAS,
            _NO_POSITIONS,
            _requires(
                "it must be a loop of two calls", lambda c: c.loop is not None and len(c.loop) == 2
            ),
            _requires(
                "rotary_cache_length must be absent", lambda c: c.rotary_cache_length is None
            ),
            _requires(
                "max_sequence_length must leave room for three more tokens",
                lambda c: (
                    (c.max_sequence_length or 0) >= c.past_sequence_length + sum(c.loop or ()) + 3
                ),
            ),
        ),
        closeness="exact",
        usual=(_plain,),
    ),
    "other_later_tokens": Relation(
        "with other values in the second half of its tokens",
        "a causal query never attends to a later token",
        (_NEW, _EVEN, _CAUSAL, _SEVERAL),
        closeness="exact",
    ),
    "rotary_before": Relation(
        "with query and key rotated beforehand and do_rotary off",
        "without a norm, rotary embedding is the first operation on query and key",
        (
            _requires("rotary must be on", lambda call: call.rotary != "none"),
            _requires("qk_norm must be off: it precedes rotary", lambda c: not c.qk_norm),
            _UNPACKED,
        ),
        closeness="storage",
    ),
    "constant_bias": Relation(
        "with an attention_bias that is the same number for all keys of a query",
        "softmax does not change if the same number is added to all logits of a row",
        (
            _NO_BIAS,
            _NO_SINK,
            _requires("qk_output must not be 1: it includes the bias", lambda c: c.qk_output != 1),
        ),
    ),
    "long_window": Relation(
        "with a local window as long as the sequence",
        "a window that covers the whole sequence hides nothing",
        (_CAUSAL, _NO_WINDOW),
    ),
    "causal_as_bias": Relation(
        "with causal 0 and an attention_bias of -inf for later keys",
        "a key with the logit -inf is not attended to",
        (
            _EVEN,
            _NO_BIAS,
            _SEVERAL,
            _requires("causal must be absent", lambda call: call.causal is None),
            _NO_WINDOW,
        ),
    ),
    "sink_of_zero": Relation(
        "with a head_sink of zeros instead of smooth_softmax",
        "smooth_softmax is a sink with the logit 0",
        (
            _requires(
                "smooth_softmax must be 1 and head_sink off",
                lambda call: call.smooth_softmax == 1 and not call.head_sink,
            ),
        ),
    ),
    "scale_in_query": Relation(
        "with the query multiplied by four and the scale divided by four",
        "multiplication by a power of two does not round",
        (
            _UNPACKED,
            _requires("qk_norm must be off: it removes the factor", lambda c: not c.qk_norm),
            _requires(
                "scale must be given and be a power of two", lambda c: _power_of_two(c.scale)
            ),
        ),
        closeness="exact",
    ),
    "doubled_values": Relation(
        "with values twice as large",
        "the output is linear in the values, and multiplication by two does not round",
        (_UNPACKED,),
        closeness="exact",
    ),
    "borrowed_in_graph": Relation(
        "as the second layer of a graph whose first layer's present it borrows",
        "the origin of the borrowed cache does not change the result",
        (
            _EVEN,
            _ZERO_LENGTH,
            _requires(
                "the cache must be concatenated and longer than the query",
                lambda c: (
                    c.cache_kind == "concatenated" and c.past_sequence_length > c.sequence_length
                ),
            ),
        ),
        closeness="exact",
    ),
    "standard_attention": Relation(
        "as Transpose, Concat and the standard Attention operator",
        "exporters write it this way for runtimes without the fused operator",
        (
            _EVEN,
            _NO_EXTRAS,
            _UNPACKED,
            _requires(
                "the cache must be none or concatenated, not static",
                lambda call: call.cache_kind != "static",
            ),
        ),
        closeness="storage",
    ),
    "standard_operators": Relation(
        "with standard operators in place of each GroupQueryAttention, as gqa rewrite writes them",
        "the fused operator and its definition in other operators are the same function",
        (_in_standard_operators,),
        closeness="storage",
        usual=(),
        of_graphs=True,
    ),
}

#: The name of a relation, one of `RELATIONS`.
if TYPE_CHECKING:
    RelationName = str
else:
    RelationName = Literal[tuple(RELATIONS)]


def document() -> str:
    """The text of docs/relations.md."""
    rows = [f"| `{n}` | {r.what} | {r.law} | {r.closeness} |" for n, r in RELATIONS.items()]
    return "\n".join(
        [
            "# Relations",
            "",
            "The target of a case that names a relation computes the call and a variant of it, and",
            "the results must agree. This needs no reference values. How closely they agree is",
            "derived in [tolerance.md](tolerance.md#relations).",
            "Written by `python -m conformance.maintain.generate`.",
            "",
            "| relation | the same call | because | closeness |",
            "| --- | --- | --- | --- |",
            *rows,
            "",
        ]
    )


def _power_of_two(scale: float | None) -> bool:
    return scale is not None and scale >= 2.0**-124 and scale.hex().startswith("0x1.0000000000000p")
