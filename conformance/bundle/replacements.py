"""The values that a faulty kernel uses in place of an input, by which cases are checked.

A case tests an input only if its result changes when the input is replaced by the values that a
kernel uses if it ignores the input, or a part of it: the positions that follow from the lengths,
the row of the first sequence, one scale for all channels. :data:`REPLACEMENTS` lists them.
:mod:`conformance.bundle.sensitivity` measures how far the outputs move.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np

from conformance.case.case import EffectName
from conformance.oracle import Format
from conformance.oracle.call import OracleCall
from conformance.oracle.numbers import Float, Int
from conformance.oracle.rotary import query_positions

#: The threshold for changed inputs that only count as coverage, for a window that is one token
#: longer or shorter, and for mixed-up channels. One key among hundreds contributes no more to the
#: output, and a correct kernel's error cannot reach two budgets.
EDGE_THRESHOLD: Final = 2.0
#: The effect, in error budgets, that a part of a call must have by default.
THRESHOLD: Final = 20.0
#: The threshold for doubled quantisation scales and for epsilons. They only sharpen the softmax,
#: and float16 and bfloat16 can barely resolve the difference.
SCALE_THRESHOLD: Final = 5.0

#: Fields of :class:`OracleCall` with other values.
Changes = dict[str, Any]


@dataclass(frozen=True)
class Given:
    """A call, the names of its connected inputs and those of its connected outputs."""

    call: OracleCall
    inputs: Collection[str]
    outputs: Collection[str]


@dataclass(frozen=True)
class Replacement:
    """One value that a kernel can use in place of an input, or of the value of an attribute.

    ``of`` names the input or the feature, and ``words`` say what is used instead. ``changes``
    returns the changed fields of the call; None if the call does not have the input, or if nothing
    in it can be replaced in this way.

    A replacement with a ``part`` is required: the case must show it, with an effect of at least
    ``threshold``, or declare the part in ``insensitive_to``. Any other replacement only counts as
    coverage, and does not apply to an input that is equal to its replacement. ``outputs`` are the
    outputs that are compared.
    """

    of: str
    name: str
    words: str
    changes: Callable[[Given], Changes | None]
    part: EffectName | None = None
    threshold: float = THRESHOLD
    outputs: tuple[str, ...] = ("output",)

    @property
    def key(self) -> str:
        """The name of the effect: ``position_ids/implied``, ``window``."""
        return f"{self.of}/{self.name}" if self.name else self.of

    @property
    def sentence(self) -> str:
        """The input, its replacement, and the effect that a case must show or that is coverage."""
        must = "must move" if self.part else "counts as looked at if it moves"
        outputs = " or ".join(self.outputs)
        return f"{self.of} replaced by {self.words}: {must} {outputs} by {self.enough:g} budgets."

    @property
    def enough(self) -> float:
        """The smallest effect, in error budgets, with which a case shows this replacement."""
        return self.threshold if self.part else EDGE_THRESHOLD


def _first(field: str, axis: int) -> Callable[[Given], Changes | None]:
    """The first slice of a field along an axis, used for all slices."""

    def changes(given: Given) -> Changes | None:
        array = getattr(given.call, field)
        if array is None or array.shape[axis] < 2:
            return None
        return {field: np.broadcast_to(np.take(array, [0], axis=axis), array.shape)}

    return changes


def _filled(field: str, value: float) -> Callable[[Given], Changes | None]:
    """The same number everywhere in a field."""

    def changes(given: Given) -> Changes | None:
        array = getattr(given.call, field)
        return None if array is None else {field: np.full_like(array, value)}

    return changes


def _of_the_past(change: Callable[[Given], Changes | None]) -> Callable[[Given], Changes | None]:
    return lambda given: change(given) if given.call.past_lengths.any() else None


def _positions(change: Callable[[Int], Int | None]) -> Callable[[Given], Changes | None]:
    """Other position_ids; those of a first prompt always count on from its first one."""

    def changes(given: Given) -> Changes | None:
        ids = given.call.position_ids
        if given.call.cos is None or ids is None:
            return None
        changed = change(ids)
        return {"position_ids": changed} if changed is None or not given.call.first_prompt else None

    return changes


def _lengths(length: Callable[[OracleCall], int]) -> Callable[[Given], Changes | None]:
    """One length for all sequences; the padding of a causal prompt follows all compared tokens."""

    def changes(given: Given) -> Changes | None:
        call = given.call
        if call.first_prompt and call.causal:
            return None
        changed = replace(call, lengths=np.full_like(call.lengths, length(call)))
        return {"lengths": changed.lengths} if _has_the_rows(changed) else None

    return changes


def _has_the_rows(call: OracleCall) -> bool:
    """Whether the past has as many rows as a chunk's lengths say; a window cache may lack some."""
    if call.query_lengths is None or call.window_cache:
        return True
    return bool(
        call.past_lengths.min() >= 0 and call.past_lengths.max() <= call.past_sequence_length
    )


def _queries(change: Callable[[Int, OracleCall], Int]) -> Callable[[Given], Changes | None]:
    """Other numbers of query tokens, within the limits of the chunk, the sequence and the past."""

    def changes(given: Given) -> Changes | None:
        call = given.call
        if call.query_lengths is None:
            return None
        most = np.minimum(call.sequence_length, call.lengths)
        counts = np.clip(change(call.query_lengths, call), 0, most)
        same = np.array_equal(counts, call.query_lengths)
        if same or not _has_the_rows(replace(call, query_lengths=counts)):
            return None
        return {"query_lengths": counts}

    return changes


def _longest(call: OracleCall) -> int:
    """The largest length; with query_seqlens the total is only a bound of it."""
    return call.total if call.query_lengths is None else int(call.lengths.max())


def _every_total(given: Given) -> Changes | None:
    ragged = np.any(given.call.lengths < _longest(given.call))
    return _lengths(_longest)(given) if ragged else None


def _total(length: Callable[[OracleCall], int]) -> Callable[[Given], Changes | None]:
    """Rows of the attention_bias, read with another number of columns."""

    def changes(given: Given) -> Changes | None:
        call, columns = given.call, length(given.call)
        if call.bias is None or columns == call.total:
            return None
        batch_size, heads, queries, total = call.bias.shape
        rows = np.arange(batch_size * heads * queries).reshape(batch_size, heads, queries, 1)
        places = rows * columns + np.arange(total)
        return {"bias": np.take(call.bias, places, mode="wrap")}

    return changes


#: Scales that a kernel can use in place of the right ones.
_SCALES: Final[tuple[tuple[str, str, Callable[[Float], Float]], ...]] = (
    ("doubled", "twice its value", lambda scale: 2.0 * scale),
    ("shifted", "that of the channel before", lambda scale: np.roll(scale, 1, axis=-1)),
    ("first", "the first one for all channels", lambda scale: scale[:, :1, :, :1]),
    ("first_head", "the first head's for all", lambda scale: scale[:, :1]),
)
#: The scales among them that a case must show, and the thresholds.
_REQUIRED_SCALES: Final[Mapping[str, tuple[EffectName, float]]] = {
    "doubled_new": ("quantisation", THRESHOLD),
    "shifted_new": ("quantisation", THRESHOLD),
    "doubled_past": ("dequantisation", SCALE_THRESHOLD),
    "shifted_past": ("channels", EDGE_THRESHOLD),
}


def _scales(side: str) -> Iterator[Replacement]:
    field = {"k": "key", "v": "value"}[side]
    for when, words, output in (
        ("new", "when new tokens are stored", f"present_{field}"),
        ("past", "when the past is read", "output"),
    ):
        for short, used, change in _SCALES:
            name = f"{short}_{when}"
            part, threshold = _REQUIRED_SCALES.get(name, (None, THRESHOLD))
            changes = _scale(field, when, change, by_channel=short != "doubled")
            yield Replacement(
                f"{side}_scale", name, f"{used} {words}", changes, part, threshold, (output,)
            )


def _scale(
    field: str, when: str, change: Callable[[Float], Float], *, by_channel: bool
) -> Callable[[Given], Changes | None]:
    """Another scale, for storing new tokens and for reading the past.

    ``by_channel``: only if the scales of the channels differ.
    """

    def changes(given: Given) -> Changes | None:
        call, format = given.call, getattr(given.call, f"{field}_format")
        if format.scale is None or (by_channel and not np.ptp(format.scale)):
            return None
        stores = f"present_{field}" in given.outputs and getattr(call, field).any()
        if not (stores if when == "new" else call.past_lengths.any()):
            return None
        scale = change(format.scale)
        return {
            f"{field}_format": Format(format.dtype, np.broadcast_to(scale, format.scale.shape)),
            f"past_{field}": getattr(call, f"past_{field}") * (scale / format.scale),
        }

    return changes


def _tokens(name: str, heads: str) -> Iterator[Replacement]:
    yield Replacement(name, "first_sequence", "the first sequence's for all", _first(name, 0))
    yield Replacement(name, "first_token", "the first token's for all tokens", _first(name, 1))
    yield Replacement(name, "first_head", f"the first {heads} head's for all", _first(name, 2))


def _past(name: str) -> Iterator[Replacement]:
    for short, words, change in (
        ("first_sequence", "the first sequence's for all", _first(name, 0)),
        ("first_head", "the first key/value head's for all", _first(name, 1)),
        ("first_token", "row 0 for all tokens", _first(name, 2)),
        ("zeros", "zeros", _filled(name, 0.0)),
    ):
        yield Replacement(name, short, words, _of_the_past(change))


def _norm(side: str) -> Iterator[Replacement]:
    name, field, normed = f"{side}_norm_weight", f"{side}_norm", {"q": "query", "k": "key"}[side]

    def read(change: Callable[[Given], Changes | None]) -> Callable[[Given], Changes | None]:
        """A weight is read only if there is something to normalise: no borrowed keys, no zeros."""
        return lambda given: change(given) if getattr(given.call, normed).any() else None

    def none(given: Given) -> Changes | None:
        return None if getattr(given.call, field) is None else {field: None}

    yield Replacement(name, "none", "no norm", read(none), "qk_norm", EDGE_THRESHOLD)
    yield Replacement(name, "ones", "ones", read(_filled(field, 1.0)))
    yield Replacement(name, "first", "its first element for all", read(_first(field, 0)))


def _row_0(field: str) -> Callable[[Given], Changes | None]:
    """Row 0 of a table, unless it is the row of the angle 0, which is another replacement."""
    alike = {"cos": 1.0, "sin": 0.0}[field]
    first = _first(field, 0)

    def changes(given: Given) -> Changes | None:
        table = getattr(given.call, field)
        return None if table is None or np.all(table[0] == alike) else first(given)

    return changes


def _sink(changes: Callable[[Given], Changes | None]) -> Callable[[Given], Changes | None]:
    return lambda given: changes(given) if "head_sink" in given.inputs else None


def _unturned(given: Given) -> Changes | None:
    return None if given.call.cos is None else {"cos": None, "sin": None}


def _unnormed(given: Given) -> Changes | None:
    return None if given.call.q_norm is None else {"q_norm": None, "k_norm": None}


def _epsilons() -> Iterator[Replacement]:
    """The epsilon of the other side, if there is a norm and the two differ."""
    for name, field, words, other in (
        ("queries", "q_epsilon", "that of keys", "k_epsilon"),
        ("keys", "k_epsilon", "that of queries", "q_epsilon"),
    ):
        changes = partial(_epsilon, field=field, other=other)
        yield Replacement("norm_epsilon", name, words, changes, "norm_epsilon", SCALE_THRESHOLD)


def _epsilon(given: Given, field: str, other: str) -> Changes | None:
    differ = given.call.q_norm is not None and given.call.q_epsilon != given.call.k_epsilon
    return {field: getattr(given.call, other)} if differ else None


def _layout(given: Given) -> Changes | None:
    return None if given.call.cos is None else {"interleaved": not given.call.interleaved}


def _window(given: Given) -> Changes | None:
    """A sliding-window cache must have a window."""
    call = given.call
    return None if call.window is None or call.window_cache else {"window": None}


def _edge(by: int) -> Callable[[Given], Changes | None]:
    """Another window, if the window hides anything at all; a window cache must have room for it."""

    def changes(given: Given) -> Changes | None:
        call, window = given.call, given.call.window
        if window is None or window >= call.lengths.max() or window + by < 1:
            return None
        if call.window_cache and window + by > call.past_sequence_length:
            return None
        return {"window": window + by}

    return changes


def _softcap(given: Given) -> Changes | None:
    return {"softcap": 0.0} if given.call.softcap else None


def _smooth_softmax(given: Given) -> Changes | None:
    return None if "head_sink" in given.inputs else _filled("sink", -np.inf)(given)


def _causal(given: Given) -> Changes | None:
    """The opposite setting; not with a local window, which requires causal attention."""
    call = given.call
    queries = call.sequence_length if call.query_lengths is None else call.query_lengths.max()
    applies = queries > 1 and call.window is None
    return {"causal": not call.causal} if applies else None


def _default_scale(given: Given) -> Changes | None:
    scale = given.call.head_size**-0.5
    return {"scale": scale} if np.float32(given.call.scale) != np.float32(scale) else None


def _all_tokens(given: Given) -> Changes | None:
    """A cache of all tokens, if the window cache has to evict any."""
    call = given.call
    rows = call.past_sequence_length
    evicts = call.window_cache and call.lengths.max() > rows
    holds = call.total == rows + call.kv_sequence_length and call.past_lengths.max() <= rows
    return {"window_cache": False} if evicts and holds else None


_ALL: Final = ("output", "present_key", "present_value")
_ATTRIBUTES: Final = (
    Replacement("rotary", "", "no rotation", _unturned, "rotary"),
    Replacement("rotary_interleaved", "", "the other layout", _layout, "rotary_interleaved"),
    Replacement("window", "", "no window", _window, "window"),
    Replacement("window_edge", "longer", "one token more", _edge(1), "window_edge", EDGE_THRESHOLD),
    Replacement(
        "window_edge", "shorter", "one token fewer", _edge(-1), "window_edge", EDGE_THRESHOLD
    ),
    Replacement("qk_norm", "", "no norm of queries and keys", _unnormed, "qk_norm"),
    *_epsilons(),
    Replacement("softcap", "", "no cap", _softcap, "softcap"),
    Replacement("smooth_softmax", "", "no sink", _smooth_softmax, "smooth_softmax"),
    Replacement("causal", "", "the opposite", _causal, "causal"),
    Replacement("scale", "", "the default", _default_scale, "scale"),
    Replacement(
        "sliding_window_cache",
        "",
        "a cache of all tokens",
        _all_tokens,
        "sliding_window_cache",
        outputs=_ALL,
    ),
)

_TURNED: Final = ("output", "present_key")

#: Every replacement: of attributes, then of inputs, in the operator's order.
REPLACEMENTS: Final = (
    *_ATTRIBUTES,
    *_tokens("query", "query"),
    *_tokens("key", "key"),
    Replacement("key", "zeros", "zeros", _filled("key", 0.0)),
    *_tokens("value", "value"),
    Replacement("value", "zeros", "zeros", _filled("value", 0.0)),
    *_past("past_key"),
    *_past("past_value"),
    Replacement(
        "seqlens_k",
        "total",
        "total_sequence_length for every sequence",
        _every_total,
        "ragged",
    ),
    Replacement(
        "seqlens_k",
        "first",
        "its first element for all sequences",
        _lengths(lambda call: int(call.lengths[0])),
    ),
    Replacement(
        "total_sequence_length",
        "longest",
        "the longest length of seqlens_k",
        _total(lambda call: int(call.lengths.max())),
    ),
    Replacement(
        "total_sequence_length",
        "rows",
        "the rows of the past and the new tokens",
        _total(lambda call: call.past_sequence_length + call.kv_sequence_length),
    ),
    Replacement("cos_cache", "ones", "ones", _filled("cos", 1.0), outputs=_TURNED),
    Replacement("cos_cache", "row_0", "row 0 at every position", _row_0("cos"), outputs=_TURNED),
    Replacement("sin_cache", "zeros", "zeros", _filled("sin", 0.0), outputs=_TURNED),
    Replacement("sin_cache", "row_0", "row 0 at every position", _row_0("sin"), outputs=_TURNED),
    # In a first prompt all positions move together, which only the rotated keys show.
    Replacement(
        "position_ids",
        "implied",
        "the positions that follow from the lengths",
        _positions(lambda ids: None),
        "position_ids",
        outputs=_TURNED,
    ),
    Replacement(
        "position_ids",
        "first_sequence",
        "the first sequence's for all",
        _positions(lambda ids: np.broadcast_to(ids[:1], ids.shape)),
        outputs=_TURNED,
    ),
    Replacement(
        "position_ids",
        "counted_on",
        "each sequence's first one, counted on",
        _positions(lambda ids: ids[:, :1] + np.arange(ids.shape[1])),
        outputs=_TURNED,
    ),
    Replacement("attention_bias", "none", "no bias", _filled("bias", 0.0), "attention_bias"),
    Replacement(
        "attention_bias", "first_sequence", "the first sequence's for all", _first("bias", 0)
    ),
    Replacement("attention_bias", "first_head", "the first head's for all", _first("bias", 1)),
    Replacement("attention_bias", "first_token", "the first query's for all", _first("bias", 2)),
    Replacement("head_sink", "none", "no sink", _sink(_filled("sink", -np.inf)), "head_sink"),
    Replacement("head_sink", "first", "its first element for all heads", _sink(_first("sink", 0))),
    *_scales("k"),
    *_scales("v"),
    *_norm("q"),
    *_norm("k"),
    Replacement(
        "query_seqlens",
        "none",
        "all tokens of query for every sequence that has some",
        _queries(lambda counts, call: np.where(counts > 0, call.sequence_length, 0)),
        "query_seqlens",
    ),
    Replacement(
        "query_seqlens",
        "never_idle",
        "all tokens of query where it is 0",
        _queries(lambda counts, call: np.where(counts > 0, counts, call.sequence_length)),
        "query_seqlens",
        outputs=("present_key", "present_value"),
    ),
    Replacement(
        "query_seqlens",
        "first",
        "its first element for all sequences",
        _queries(lambda counts, call: np.full_like(counts, counts[0])),
        outputs=_ALL,
    ),
    Replacement(
        "query_seqlens",
        "one_less",
        "the index of the last token, not the count",
        _queries(lambda counts, call: counts - 1),
        outputs=_ALL,
    ),
)


def equals(call: OracleCall, changes: Mapping[str, Any]) -> bool:
    """Whether the oracle reads the same call with these ``changes``."""
    if "position_ids" in changes:
        return np.array_equal(query_positions(call), query_positions(replace(call, **changes)))
    return all(_same(getattr(call, name), changed) for name, changed in changes.items())


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Format) and isinstance(other, Format):
        return _same(one.scale, other.scale)
    return one is other or (one is not None and other is not None and np.array_equal(one, other))


def last_heads(call: OracleCall) -> int:
    """The number of query heads of a part of a call: two, whose values can differ in magnitude."""
    return min(call.num_heads // int(call.past_key.shape[1]), 2)


def last_part(call: OracleCall, fields: Changes) -> Changes:
    """These fields of ``call``, restricted to a part of it.

    The part is the last sequence, with its last key/value head and :func:`last_heads` of the query
    heads. Other fields are the same there.
    """
    heads = last_heads(call)
    places: dict[str, Any] = {
        **dict.fromkeys(("lengths", "query_lengths"), np.s_[-1:]),
        **dict.fromkeys(("key", "value"), np.s_[-1:, :, -1:]),
        **dict.fromkeys(("past_key", "past_value"), np.s_[-1:, -1:]),
        "query": np.s_[-1:, :, -heads:],
        "bias": np.s_[-1:, -heads:],
        "sink": np.s_[-heads:],
    }

    def of_part(name: str, value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, Format):
            return value if value.scale is None else Format(value.dtype, value.scale[:, -1:])
        if name == "position_ids":
            return query_positions(replace(call, position_ids=value))[-1:]
        return value[places[name]] if name in places else value

    return {name: of_part(name, value) for name, value in fields.items()}
