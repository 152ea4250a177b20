"""What a faulty kernel uses in place of an input: the replacements by which the inputs are checked.

A case looks at an input only if its result changes when the input is replaced by what a kernel that
ignores it, or a part of it, would use: the positions that follow from the lengths, the row of the
first sequence, one scale for all channels. :data:`REPLACEMENTS` lists them.
:mod:`conformance.bundle.sensitivity` measures how far the outputs move.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from conformance.case.case import EffectName
from conformance.oracle import Format
from conformance.oracle.call import OracleCall
from conformance.oracle.numbers import Float, Int
from conformance.oracle.rotary import Rotated, query_positions

#: The threshold for changed inputs that only count as coverage, for a window that is one token
#: longer or shorter, and for mixed-up channels. One key among hundreds contributes no more to the
#: output, and a correct kernel's error cannot reach two budgets.
EDGE_THRESHOLD: Final = 2.0
#: The effect, in error budgets, that a part of a call must have unless something else is said.
THRESHOLD: Final = 20.0
#: The threshold for doubled quantisation scales. A doubled key scale only sharpens the softmax, and
#: bfloat16 can barely resolve the difference.
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
    """One thing that a kernel can use in place of ``input``.

    ``changes`` returns the fields of the call that differ then; None if the call has no such input,
    or nothing of it can be replaced in this way. ``words`` say what is used instead.

    A replacement with a ``part`` is required: the case must show it, with an effect of at least
    ``threshold``, or declare the part in ``insensitive_to``. Any other only counts as coverage, and
    does not apply to an input that is equal to what replaces it. ``outputs`` are those compared.
    """

    input: str
    name: str
    words: str
    changes: Callable[[Given], Changes | None]
    part: EffectName | None = None
    threshold: float = EDGE_THRESHOLD
    outputs: tuple[str, ...] = ("output",)

    @property
    def key(self) -> str:
        """The name of the effect: ``position_ids/implied``."""
        return f"{self.input}/{self.name}"


def _first(field: str, axis: int) -> Callable[[Given], Changes | None]:
    """The first slice of a field along an axis, for all."""

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
    """Other position_ids; those of a first prompt count on from its first one anyway."""

    def changes(given: Given) -> Changes | None:
        ids = given.call.position_ids
        if given.call.cos is None or ids is None:
            return None
        changed = change(ids)
        return {"position_ids": changed} if changed is None or not given.call.first_prompt else None

    return changes


def _lengths(length: Callable[[OracleCall], int]) -> Callable[[Given], Changes | None]:
    """One length for all; the padding of a causal prompt follows every token that is compared."""

    def changes(given: Given) -> Changes | None:
        call = given.call
        if call.first_prompt and call.causal:
            return None
        return {"lengths": np.full_like(call.lengths, length(call))}

    return changes


def _every_total(given: Given) -> Changes | None:
    ragged = np.any(given.call.lengths < given.call.total)
    return _lengths(lambda call: call.total)(given) if ragged else None


def _total(length: Callable[[OracleCall], int]) -> Callable[[Given], Changes | None]:
    """Rows of the attention_bias as if they had that many columns."""

    def changes(given: Given) -> Changes | None:
        call, columns = given.call, length(given.call)
        if call.bias is None or columns == call.total:
            return None
        batch_size, heads, queries, total = call.bias.shape
        rows = np.arange(batch_size * heads * queries).reshape(batch_size, heads, queries, 1)
        places = rows * columns + np.arange(total)
        return {"bias": np.take(call.bias, places, mode="wrap")}

    return changes


def _scale(
    side: str, change: Callable[[Float], Float], when: Callable[[Given], bool]
) -> Callable[[Given], Changes | None]:
    """Another scale, by which new tokens are stored and the past is read."""
    names = {"k": ("key_format", "past_key"), "v": ("value_format", "past_value")}
    format_name, past_name = names[side]

    def changes(given: Given) -> Changes | None:
        format: Format = getattr(given.call, format_name)
        if format.scale is None or not when(given):
            return None
        scale = change(format.scale)
        return {
            format_name: Format(format.dtype, np.broadcast_to(scale, format.scale.shape)),
            past_name: getattr(given.call, past_name) * (scale / format.scale),
        }

    return changes


def _scales(side: str) -> Iterator[Replacement]:
    name, field, present = {
        "k": ("k_scale", "key", "present_key"),
        "v": ("v_scale", "value", "present_value"),
    }[side]

    def new(given: Given) -> bool:
        return present in given.outputs and bool(getattr(given.call, field).any())

    def past(given: Given) -> bool:
        return bool(given.call.past_lengths.any())

    def channels(when: Callable[[Given], bool]) -> Callable[[Given], bool]:
        def differ(given: Given) -> bool:
            scale = getattr(given.call, f"{field}_format").scale
            return when(given) and bool(np.ptp(scale) > 0)

        return differ

    def doubled(scale: Float) -> Float:
        return 2.0 * scale

    def shifted(scale: Float) -> Float:
        return np.roll(scale, 1, axis=-1)

    def first(scale: Float) -> Float:
        return scale[:, :1, :, :1]

    def first_head(scale: Float) -> Float:
        return scale[:, :1]

    def each(
        found: str,
        words: str,
        when: Callable[[Given], bool],
        parts: tuple[EffectName, EffectName],
        thresholds: tuple[float, float],
        output: str,
    ) -> Iterator[Replacement]:
        differ = channels(when)
        for short, used, change, applies, part, threshold in (
            ("doubled", "twice its value", doubled, when, parts[0], thresholds[0]),
            ("shifted", "that of the channel before", shifted, differ, parts[1], thresholds[1]),
            ("first", "the first one for all channels", first, differ, None, EDGE_THRESHOLD),
            ("first_head", "the first head's for all", first_head, differ, None, EDGE_THRESHOLD),
        ):
            changes = _scale(side, change, applies)
            yield Replacement(
                name, f"{short}_{found}", f"{used} {words}", changes, part, threshold, (output,)
            )

    stored = "when new tokens are stored"
    both: tuple[EffectName, EffectName] = ("quantisation", "quantisation")
    yield from each("new", stored, new, both, (THRESHOLD, THRESHOLD), present)
    read = "when the past is read"
    both = ("dequantisation", "channels")
    yield from each("past", read, past, both, (SCALE_THRESHOLD, EDGE_THRESHOLD), "output")


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
    name, field = f"{side}_norm_weight", f"{side}_norm"

    def none(given: Given) -> Changes | None:
        return None if getattr(given.call, field) is None else {field: None}

    yield Replacement(name, "none", "no norm", none, "qk_norm", THRESHOLD)
    yield Replacement(name, "ones", "ones", _filled(field, 1.0))
    yield Replacement(name, "first", "its first element for all", _first(field, 0))


def _sink(changes: Callable[[Given], Changes | None]) -> Callable[[Given], Changes | None]:
    return lambda given: changes(given) if "head_sink" in given.inputs else None


_TURNED: Final = ("output", "present_key")

#: Every replacement, in the order of the operator's inputs.
REPLACEMENTS: Final = (
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
        THRESHOLD,
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
    Replacement("cos_cache", "row_0", "row 0 at every position", _first("cos", 0), outputs=_TURNED),
    Replacement("sin_cache", "zeros", "zeros", _filled("sin", 0.0), outputs=_TURNED),
    Replacement("sin_cache", "row_0", "row 0 at every position", _first("sin", 0), outputs=_TURNED),
    # In a first prompt all positions move together, which only the rotated keys show.
    Replacement(
        "position_ids",
        "implied",
        "the positions that follow from the lengths",
        _positions(lambda ids: None),
        "position_ids",
        THRESHOLD,
        _TURNED,
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
    Replacement(
        "attention_bias", "none", "no bias", _filled("bias", 0.0), "attention_bias", THRESHOLD
    ),
    Replacement(
        "attention_bias", "first_sequence", "the first sequence's for all", _first("bias", 0)
    ),
    Replacement("attention_bias", "first_head", "the first head's for all", _first("bias", 1)),
    Replacement("attention_bias", "first_token", "the first query's for all", _first("bias", 2)),
    Replacement(
        "head_sink", "none", "no sink", _sink(_filled("sink", -np.inf)), "head_sink", THRESHOLD
    ),
    Replacement("head_sink", "first", "its first element for all heads", _sink(_first("sink", 0))),
    *_scales("k"),
    *_scales("v"),
    *_norm("q"),
    *_norm("k"),
)


def equals(call: OracleCall, changes: Mapping[str, Any]) -> bool:
    """Whether the call reads the same with these ``changes``."""
    if "position_ids" in changes:
        return np.array_equal(query_positions(call), query_positions(replace(call, **changes)))
    return all(_same(getattr(call, name), changed) for name, changed in changes.items())


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Format) and isinstance(other, Format):
        return _same(one.scale, other.scale)
    return one is other or (one is not None and other is not None and np.array_equal(one, other))


#: Fields that change the rotated queries and keys.
_TURNING: Final = {"query", "key", "lengths", "position_ids", "cos", "sin", "q_norm", "k_norm"}


def turns(changes: Collection[str]) -> bool:
    """Whether the rotated queries or keys can differ after a change of these fields."""
    return not _TURNING.isdisjoint(changes)


def side_by_side(
    calls: Sequence[OracleCall], rotated: Sequence[tuple[Rotated, Rotated]]
) -> tuple[OracleCall, Rotated, Rotated]:
    """One call with all sequences of ``calls``, which differ in values only, in their order.

    Sinks and scales become those of each sequence.
    """
    one = calls[0]
    sequences = one.batch_size

    def joined(name: str) -> Any:
        found = [getattr(call, name) for call in calls]
        return None if found[0] is None else np.concatenate(found)

    def spread(arrays: Sequence[Any], rank: int) -> Any:
        """Arrays with a row for each sequence; ``rank`` is that of an array with such rows."""
        if arrays[0] is None:
            return None
        shapes = [array.shape[-(rank - 1) :] for array in arrays]
        pairs = zip(arrays, shapes, strict=True)
        return np.concatenate([np.broadcast_to(a, (sequences, *shape)) for a, shape in pairs])

    def format_of(name: str) -> Format:
        formats = [getattr(call, name) for call in calls]
        return Format(formats[0].dtype, spread([format.scale for format in formats], 4))

    def turned(index: int) -> Rotated:
        value = np.concatenate([pair[index].value for pair in rotated])
        return Rotated(value, value)  # magnitudes are for the error model alone

    whole = replace(
        one,
        **{
            name: joined(name)
            for name in ("query", "key", "value", "past_key", "past_value", "lengths")
        },
        bias=spread([call.bias for call in calls], 4),
        sink=spread([call.sink for call in calls], 2),
        key_format=format_of("key_format"),
        value_format=format_of("value_format"),
    )
    return whole, turned(0), turned(1)


def last_head(call: OracleCall) -> OracleCall:
    """The call with its last key/value head alone, and the query heads that share it."""
    group = call.num_heads // call.past_key.shape[1]

    def format_of(format: Format) -> Format:
        return format if format.scale is None else Format(format.dtype, format.scale[:, -1:])

    return replace(
        call,
        query=call.query[:, :, -group:],
        key=call.key[:, :, -1:],
        value=call.value[:, :, -1:],
        past_key=call.past_key[:, -1:],
        past_value=call.past_value[:, -1:],
        key_format=format_of(call.key_format),
        value_format=format_of(call.value_format),
        bias=None if call.bias is None else call.bias[:, -group:],
        sink=None if call.sink is None else call.sink[..., -group:],
    )
