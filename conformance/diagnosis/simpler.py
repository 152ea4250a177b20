"""The ways in which a call can be made simpler, and what is left when none of them helps."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from conformance.base.words import listed
from conformance.case.case import Case
from conformance.operator.call import CALL_FIELDS, Call, EarlierCall, InputOverride
from conformance.operator.features import BY_NAME, FEATURES
from conformance.operator.part import FieldChanges
from conformance.run.assessment import prepared_case

_PLAIN: Final = Call()
#: The features that fields turn off, those first that cost most.
_COSTLY: Final = ("earlier_calls", "query_seqlens", "lengths", "quantised", "cache")
_FEATURES: Final = (
    *map(BY_NAME.__getitem__, _COSTLY),
    *(feature for feature in FEATURES if feature.off and feature.name not in _COSTLY),
)

#: Sizes, with the least value that is tried; those of heads in multiples of 8.
_SIZES: Final = {
    "kv_sequence_length": 1,
    "max_sequence_length": 1,
    "local_window_size": 1,
    "head_size": _PLAIN.head_size,
    "rotary_dim": 8,
    "rotary_cache_length": 1,
}


def simplifications(case: Case) -> dict[str, list[FieldChanges]]:
    """For each part of a case the changes that make it simpler, the largest first.

    Parts that cost most come first. A change may lead to an impossible call.
    """
    call = case.written_call
    changes: dict[str, list[FieldChanges]] = {
        "relation": [{"relation": None}, *_variants(case)],
        "values_from": [{"values_from": None}],
        "loop": [*_loops(case)],
        "batch": [*_batches(case)],
        "heads": [*_heads(call)],
        "sequence_length": [
            _lengths(case, each, call.past_sequence_length)
            for each in ([] if call.loop else _towards(1, call.sequence_length))
        ],
        "past": [
            _lengths(case, call.sequence_length, each)
            for each in _towards(0, call.past_sequence_length)
        ],
        "attributes": [*_without_entries(call, "attributes")],
        "inputs": [*_without_entries(call, "inputs")],
        "outputs": [*_without_entries(call, "outputs")],
    }
    for feature in _FEATURES:
        plain = {field: getattr(_PLAIN, field) for field in feature.off}
        is_on = any(getattr(call, field) != value for field, value in plain.items())
        less = [plain, *_of_session(call, plain), *feature.plainer]
        changes[feature.name] = less if is_on else []
    changes["earlier_calls"] += _sessions(call)
    changes["totals"] = [*_totals(call)]
    for name, least in _SIZES.items():
        size, unit = getattr(call, name), 1 if least % 8 else 8
        sizes = _towards(least // unit, size // unit) if size is not None else ()
        changes[name] = [{name: getattr(_PLAIN, name)}, *({name: n * unit} for n in sizes)]
    changes["constants"] = [{"constants": ()}, *({"constants": (each,)} for each in call.constants)]
    for name in ("total_sequence_length", "seed"):
        changes[name] = [{name: getattr(_PLAIN, name)}]
    return changes


def without(kept: Collection[str]) -> Iterator[FieldChanges]:
    """The changes that take away each part that is not ``kept``.

    Lengths, also those of a loop, batch and input values stay.
    """
    stay = {field for name in kept if name in BY_NAME for field in BY_NAME[name].off}
    for feature in _FEATURES:
        if feature.name not in kept:
            yield {each: getattr(_PLAIN, each) for each in feature.off if each not in stay}
    for name in ("outputs", "attributes", "constants", "head_size"):
        if name not in kept:
            yield {name: getattr(_PLAIN, name)}
    if "heads" not in kept:
        yield {"num_heads": 1, "kv_num_heads": 1}
    if "relation" not in kept:
        yield {"relation": None}


#: New tokens on past tokens that are tried in place of those of a call.
_LENGTHS: Final = ((1, 0), (2, 0), (1, 1), (3, 2), (1, 40), (40, 0))
#: Sizes that a call can take from another one.
_TAKEN: Final = (("num_heads", "kv_num_heads"), ("head_size",), ("dtype",), ("batch_size",))


def additions(case: Case, like: Sequence[Case]) -> Iterator[FieldChanges]:
    """Changes of one part each: other lengths, and sizes and features that a call in ``like`` has.

    The first of ``like`` that has a value gives it.
    """
    call = case.written_call
    tokens, past = call.sequence_length, call.past_sequence_length
    near = ((tokens + 1, past), (tokens, past + 1))
    yield from (_lengths(case, *each) for each in (() if call.loop else (*near, *_LENGTHS)))
    seen: set[tuple[object, ...]] = set()
    for other in like:
        parts = ((feature.name, feature.off) for feature in BY_NAME.values() if feature.off)
        values = [(other.features[name], fields) for name, fields in parts]
        for value, fields in (*values, *((None, fields) for fields in _TAKEN)):
            changes = {field: getattr(other.written_call, field) for field in fields}
            key = (fields, value or tuple(changes.values()))
            if key not in seen:
                seen.add(key)
                yield changes


def _towards(least: int, value: int) -> Iterator[int]:
    """``least``, then values that approach ``value``."""
    distance = value - least
    while distance > 0:
        yield value - distance
        distance //= 2


def _variants(case: Case) -> Iterator[FieldChanges]:
    """The variant as a call of its own."""
    variant = prepared_case(case).variant.script.call if case.relation else None
    if variant is not None:
        yield {"relation": None, **{name: getattr(variant, name) for name in CALL_FIELDS}}


def _loops(case: Case) -> Iterator[FieldChanges]:
    """Each of the calls alone, and shorter loops."""
    call = case.written_call
    if not call.loop:
        return
    for step in (case.steps[-1], case.steps[len(call.earlier_calls)]):
        ragged = len({*step.total_lengths}) > 1
        yield {
            "loop": None,
            "sequence_length": step.sequence_length,
            "past_sequence_length": max(0, step.total_sequence_length - step.new_tokens),
            "total_sequence_lengths": step.total_lengths if ragged else None,
            "query_seqlens": step.query_lengths,
        }
    for part in (slice(None, len(call.loop) // 2), slice(None, -1), slice(1, None)):
        if len(call.loop[part]) > 1:
            changes: dict[str, Any] = {"loop": call.loop[part]}
            changes["query_seqlens"] = call.query_seqlens and call.query_seqlens[part]
            if len(call.written_totals) > 1:
                changes["total_sequence_lengths"] = tuple(call.written_totals[part])
            yield changes
    for at, length in enumerate(call.loop):
        for each in _towards(1, length):
            yield {"loop": (*call.loop[:at], each, *call.loop[at + 1 :])}


def _sessions(call: Call) -> Iterator[FieldChanges]:
    """Each earlier call alone, fewer earlier calls, and earlier calls that differ less."""
    earlier = call.earlier_calls
    sizes = EarlierCall.model_fields.keys() - {"refused", "inputs"}
    kind = None if call.cache_kind == "none" else call.cache_kind  # also of a past of no token
    for each, written in zip(call.calls, earlier, strict=False):
        if not written.refused:
            alone = {name: getattr(each, name) for name in sizes}
            yield {**alone, "cache": kind, "loop": None, "earlier_calls": ()}
    for at in range(len(earlier) if len(earlier) > 1 else 0):
        yield {"earlier_calls": earlier[at : at + 1]}
    for at, one in enumerate(earlier):
        if len(earlier) > 2:
            yield {"earlier_calls": earlier[:at] + earlier[at + 1 :]}
        for name, value in ((name, getattr(one, name)) for name in sorted(sizes)):
            values = [None] if isinstance(value, tuple) else [None, *_towards(0, value or 0)]
            for less in values if value is not None else ():
                changed = one.model_copy(update={name: less})
                yield {"earlier_calls": (*earlier[:at], changed, *earlier[at + 1 :])}


def _of_session(call: Call, plain: FieldChanges) -> Iterator[FieldChanges]:
    """Plain values for all calls of the session, if earlier ones have others."""
    unset = dict.fromkeys(plain.keys() & EarlierCall.model_fields.keys())
    earlier = tuple(each.model_copy(update=unset) for each in call.earlier_calls)
    if earlier != call.earlier_calls:
        yield {**plain, "earlier_calls": earlier}


def _batches(case: Case) -> Iterator[FieldChanges]:
    """One sequence, half of them, and all but one."""
    call, number = case.written_call, case.written_call.batch_size
    every = [*range(number)]
    halves = [every[: number // 2], every[number // 2 :]] if number > 3 else []
    without = [every[:at] + every[at + 1 :] for at in every[:8]]
    for kept in ([0], [number - 1], *halves, *without) if number > 1 else ():
        totals, queries = _totals_of(call), call.query_seqlens
        changes: dict[str, Any] = {"batch_size": len(kept)}
        if queries is not None:
            cut = (tuple(q[i] for i in kept) for q in queries if isinstance(q, tuple))
            changes["query_seqlens"] = tuple(cut if call.loop else (queries[i] for i in kept))
        if len(call.written_totals) > 1:
            of_calls = tuple(tuple(each[i] for i in kept) for each in call.written_totals)
            changes["total_sequence_lengths"] = of_calls
        if totals is not None:
            rest = tuple(totals[i] for i in kept)
            changes["total_sequence_lengths"] = rest if len({*rest}) > 1 else None
            past = call.past_sequence_length + max(rest) - max(totals)
            changes["past_sequence_length"] = max(0, past)
            if not call.loop:
                changes["sequence_length"] = call.sequence_length + min(0, past)
        yield changes


def _heads(call: Call) -> Iterator[FieldChanges]:
    """Fewer heads, or fewer for each key/value head."""
    heads, kv_heads = call.num_heads, call.kv_num_heads
    pairs = {
        (kv * group, kv)
        for kv in {1, 2, kv_heads // 2, kv_heads}
        for group in {1, 2, heads // kv_heads}
        if 0 < kv <= kv_heads and 0 < kv * group <= heads
    }
    for pair in sorted(pairs - {(heads, kv_heads)}):
        yield dict(zip(("num_heads", "kv_num_heads"), pair, strict=True))


def _lengths(case: Case, sequence_length: int, past: int) -> FieldChanges:
    """Other lengths of a call, with those of each sequence that fit; a full cache stays full."""
    call = case.written_call
    totals, queries = _totals_of(call), call.query_seqlens
    changes: dict[str, Any] = {"sequence_length": sequence_length, "past_sequence_length": past}
    if call.max_sequence_length == call.past_sequence_length + call.sequence_length:
        changes["max_sequence_length"] = past + sequence_length
    if queries is not None and not call.loop:
        queries = tuple(min(sequence_length, q) for q in queries if isinstance(q, int))
        changes["query_seqlens"] = queries
    if totals is not None:
        step = case.steps[len(call.earlier_calls)]
        old = step.query_lengths or (step.new_tokens,) * len(totals)
        new = [min(count, sequence_length) for count in old] if not call.loop else old
        pasts = [min(total - count, past) for total, count in zip(totals, old, strict=False)]
        fitted = tuple(max(1, p + count) for p, count in zip(pasts, new, strict=False))
        changes["total_sequence_lengths"] = fitted
    return changes


def _totals(call: Call) -> Iterator[FieldChanges]:
    """Shorter single sequences of a ragged batch."""
    totals = _totals_of(call) or ()
    for at, total in enumerate(totals[:8]):
        for each in _towards(1, total):
            yield {"total_sequence_lengths": (*totals[:at], each, *totals[at + 1 :])}


def _totals_of(call: Call) -> tuple[int, ...] | None:
    """The written lengths of the sequences, unless each call of a loop has its own."""
    return call.written_totals[0] or None if len(call.written_totals) == 1 else None


def _without_entries(call: Call, field: str) -> Iterator[FieldChanges]:
    """Without what is written by hand, without each of it, and with plainer values of each."""
    entries: Mapping[str, Any] = getattr(call, field)
    if entries:
        yield {field: {}}
    for name in entries if len(entries) > 1 else ():
        yield {field: {other: value for other, value in entries.items() if other != name}}
    for name, entry in entries.items():
        if isinstance(entry, InputOverride):
            for less in ({"elements": ()}, {"values": None}, {"data": None}, {"dtype": None}):
                yield {field: {**entries, name: entry.model_copy(update=less)}}


# What could not be made simpler, in words

_DIGITS: Final = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
#: A noun that has an article.
_COUNTABLE: Final = re.compile(r"(?!one |no |per)(\w).*(cache|buffer|bias|chunk|entry|cap|scale)$")


def needs(case: Case, needed: Collection[str]) -> dict[str, str]:
    """A phrase for each ``needed`` part of ``case``, except those that follow from other parts."""
    call, step = case.written_call, case.steps[-1]
    features, tokens = case.features, step.sequence_length
    keys = max(step.total_lengths, default=0)
    prompt = features["phase"] == "prefill"
    window = call.local_window_size or 0
    ragged = features["lengths"] == "ragged"
    hidden = {"batch"} if ragged and "lengths" in needed and call.batch_size == 2 else set()
    if "window" in needed and keys == window + 1:
        hidden |= {"sequence_length", "past"}
    if call.num_heads == call.kv_num_heads == 1:
        hidden.add("heads")
    groups = [_number(call.kv_num_heads, "key/value head")] if call.kv_num_heads > 1 else []
    if call.num_heads > call.kv_num_heads:
        groups.insert(0, _number(call.num_heads, "query head"))
    own = {
        "relation": f"the variant {case.relation}",
        "values_from": "its own input values",
        "loop": f"a loop of {_number(len(call.loop or ()), 'call')}",
        "earlier_calls": f"{_number(len(call.earlier_calls), 'call')} before it on the session",
        "batch": _number(call.batch_size, "sequence"),
        "heads": " and ".join(groups),
        "sequence_length": f"{'a prompt of ' * prompt}{_number(tokens, 'token')}",
        "past": _number(call.past_sequence_length, "past token"),
        "lengths": f"sequences {'of different lengths' if ragged else 'shorter than the cache'}",
        "cache": "" if features["cache"] == "concatenated" else _feature(case, "cache"),
        "window": f"a window of {_number(window, 'token')}, "
        f"{features['window']} than {'the prompt' if prompt else 'all tokens'}",
        "head_size": f"head_size {call.head_size}",
        "seed": f"the values of seed {call.seed}",
        "constants": f"{', '.join(call.constants)} as constants",
        "inputs": f"its own {listed([*call.inputs])}",
        **{
            name: f"{listed([*getattr(call, name)])} written by hand"
            for name in ("attributes", "outputs")
        },
    }
    if features["window"] == "whole":
        own["window"] = "a window as long as all tokens"
    if len(call.written_totals) > 1:
        own["lengths"] = "tokens that are taken back"
    shown = [name for name in simplifications(case) if name in needed and name not in hidden]
    phrases = {name: own[name] if name in own else _feature(case, name) for name in shown}
    return {name: phrase for name, phrase in phrases.items() if phrase}


def _feature(case: Case, name: str) -> str:
    """The value of a feature in words; empty of a part that is no feature."""
    feature = BY_NAME.get(name)
    text = feature.values[case.features[name] or feature.plain].title if feature else ""
    found = _COUNTABLE.match(text)
    return f"a{'n' * (found[1] in 'aeiou')} {text}" if found else text


def _number(count: int, noun: str) -> str:
    digits = _DIGITS[count] if count < len(_DIGITS) else str(count)
    return f"{digits} {noun}{'s' * (count != 1)}"
