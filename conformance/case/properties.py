"""The words and comparisons about calls in ``-k`` and ``gqa list``.

A word such as ``softcap`` or ``ragged`` means certain values of a feature. A comparison such as
``dtype=float16`` or ``head_size>=256`` has the name of a field, an attribute, a feature, an input
or an output, and compares the call's value with this name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any, Final, Literal, Protocol, get_args, get_origin

from conformance.base.explain import did_you_mean
from conformance.base.text import one_line
from conformance.operator.call import CALL_FIELDS, Call, CallFields, State
from conformance.operator.features import BY_NAME, FEATURES
from conformance.operator.part import Feature, Reader
from conformance.operator.signature import ATTRIBUTE_BY_NAME, INPUT_NAMES, OUTPUT_NAMES
from conformance.operator.tensors import Step, attributes_of


class Described(Protocol):
    """A call and its steps; `Case` has both."""

    @property
    def call(self) -> Call:
        """The fields of the call."""

    @property
    def steps(self) -> tuple[Step, ...]:
        """The tensors and lengths of each step."""


Test = Callable[[Described], bool]

# Words

#: All words of values, each once.
VOCABULARY: Final = tuple(
    dict.fromkeys(
        word
        for feature in FEATURES
        for value in feature.values.values()
        for word in value.search.split()
    )
)


def word_test(word: str) -> Test | None:
    """The test of a word for calls; None if the word says nothing about calls.

    Whole words between underscores count, too: ``int8`` means ``int8_tensor`` and ``int8_channel``,
    and ``bias`` means ``attention_bias``.
    """
    wanted = [
        (feature.read, frozenset(values))
        for feature in FEATURES
        if (values := [*values_meant(word, feature)])
    ]
    if not wanted:
        return None

    def test(case: Described) -> bool:
        reader = Reader(case.call, lambda: case.steps)
        return any(read(reader) in values for read, values in wanted)

    return test


def values_meant(word: str, feature: Feature) -> Iterator[str]:
    """The values of a feature that ``word`` means."""
    for name, value in feature.values.items():
        if any(f"_{word}_" in f"_{known}_" for known in value.search.split()):
            yield name


# Comparisons

_COMPARISON: Final = re.compile(
    r"([a-z]\w*)(%[1-9]\d{0,8})?(<=|>=|!=|==?|<|>)(.+)", re.ASCII | re.DOTALL
)
_NUMBER: Final = r"[-+]?(?:\d+(?:\.\d+)?|\.\d+)(?:e[-+]?\d+)?"
_NUMBERS: Final = re.compile(rf"({_NUMBER})(?:\.\.({_NUMBER}))?", re.ASCII)
OPERATORS: Final = ("<", "<=", ">", ">=", "=", "==", "!=")
_ORDERS: Final[dict[str, Callable[[float, float], bool]]] = {
    "<": float.__lt__,
    "<=": float.__le__,
    ">": float.__gt__,
    ">=": float.__ge__,
}
#: The fields that are not a property: a path, and fields that contain names.
_NO_PROPERTY: Final = ("graph", "attributes", "inputs", "outputs")
_FIELDS: Final = tuple(name for name in CALL_FIELDS if name not in _NO_PROPERTY)
_TENSORS: Final = (*INPUT_NAMES, *OUTPUT_NAMES)


def _steps(case: Described) -> Iterator[Step]:
    """The steps, without calls before them; for a graph, those of its main node."""
    return (step.node or step for step in case.steps[len(case.call.earlier_calls) :])


def _attended_keys(call: Call, step: Step) -> int:
    """The most keys that a query attends to, by the lengths and the window."""
    window = int(attributes_of(call).get("local_window_size", -1))
    keys = max(step.total_lengths, default=0)
    return min(keys, window) if window > 0 else keys


def _padding_tokens(step: Step) -> Iterator[int]:
    """The query tokens of each sequence that are padding."""
    tokens = step.sequence_length
    for at, total in enumerate(step.total_lengths):
        yield tokens - (step.query_lengths[at] if step.query_lengths else min(tokens, total))


#: The fields that have a value where they are not set, and the lengths, which each step has.
_IN_EFFECT: Final[dict[str, Callable[[Described], Iterable[object]]]] = {
    "cache": lambda case: (case.call.cache_kind,),
    "cache_dtype": lambda case: (case.call.cache_dtype or case.call.dtype,),
    "sequence_length": lambda case: (step.sequence_length for step in _steps(case)),
    "kv_sequence_length": lambda case: (step.new_tokens for step in _steps(case)),
    "past_sequence_length": lambda case: (
        case.call.past_sequence_length,
        *(step.total_sequence_length for step in [*_steps(case)][:-1]),
    ),
    "total_sequence_length": lambda case: (step.total_sequence_length for step in _steps(case)),
    "total_sequence_lengths": lambda case: (n for step in _steps(case) for n in step.total_lengths),
    "group_size": lambda case: (case.call.num_heads / case.call.kv_num_heads,),
    "attended_keys": lambda case: (_attended_keys(case.call, step) for step in _steps(case)),
    "padding_tokens": lambda case: (n for step in _steps(case) for n in _padding_tokens(step)),
}

#: What can be compared.
NAMES: Final = tuple(
    dict.fromkeys((*_FIELDS, *_IN_EFFECT, *ATTRIBUTE_BY_NAME, *BY_NAME, *_TENSORS))
)


class ComparisonError(ValueError):
    """A comparison is meaningless; the message gives the reason."""


def comparison_test(text: str) -> Test | None:
    """The test of a comparison in lower case; None if ``text`` is not a comparison.

    ``name=value`` with an unknown name or value is not a comparison either: it can be a part of an
    id. Raises :class:`ComparisonError` for any other comparison that is meaningless.
    """
    found = _COMPARISON.fullmatch(text)
    if found is None:
        return None
    name, divisor, operator, value = found.groups()
    equal = operator in ("=", "==")
    if why := _why_meaningless(name, divisor, operator, value):
        if equal and not divisor:
            return None
        raise ComparisonError(why)
    numbers = _NUMBERS.fullmatch(value)
    if divisor:
        by, rest = int(divisor[1:]), float(value)
        return lambda case: any(size % by == rest for size in sizes(name, case)) is equal
    if operator in _ORDERS:
        holds = _ORDERS[operator]
        if value in NAMES:
            return lambda case: any(
                holds(size, other) for size in sizes(name, case) for other in sizes(value, case)
            )
        limit = float(value)
        return lambda case: any(holds(size, limit) for size in sizes(name, case))
    if numbers and numbers[2]:
        low, high = float(numbers[1]), float(numbers[2])
        return lambda case: (
            any(low <= size <= high for size in sizes(name, case)) is not (operator == "!=")
        )
    wanted = {value, float(value) if numbers else value}
    return lambda case: wanted.isdisjoint(_values(name, case)) is not equal


def why_meaningless(text: str) -> str:
    """Why no call can satisfy the comparison ``text``, with the nearest possible one; or ""."""
    found = _COMPARISON.fullmatch(text)
    return _why_meaningless(*found.groups()) if found else ""


def _why_meaningless(name: str, divisor: str | None, operator: str, value: str) -> str:
    if name not in NAMES:
        return f"a call has no '{one_line(name, 80)}'{did_you_mean(name, NAMES)}"
    known, has_numbers = _possible(name)
    numbers = _NUMBERS.fullmatch(value)
    if divisor and (operator in _ORDERS or not has_numbers or not numbers or numbers[2]):
        return "a remainder is compared by = or != with a number, as in head_size%8=0"
    if operator in _ORDERS:
        if has_numbers and value in NAMES and _possible(value)[1]:
            return ""
        if not has_numbers:
            return f"'{name}' is no number; its values are {', '.join(known)}"
        if numbers and not numbers[2]:
            return ""
        return f"'{one_line(value, 80)}' is not a number{did_you_mean(value, NAMES)}"
    if value in known or (has_numbers and numbers):
        return ""
    choices = ", ".join((*known, *(["numbers"] if has_numbers else [])))
    near = did_you_mean(value, known) or f"; it has {choices}"
    return f"'{name}' has no value '{one_line(value, 80)}'{near}"


@cache
def _possible(name: str) -> tuple[tuple[str, ...], bool]:
    """The texts that can be values of ``name``, in lower case, and whether numbers can."""
    texts: list[str] = []
    kinds: set[object] = set()
    annotations: list[Any] = []
    if name in _FIELDS:
        annotations.append(CallFields.model_fields[name].annotation)
    while annotations:
        annotation = annotations.pop()
        if get_origin(annotation) is Literal:
            texts += get_args(annotation)
        else:
            kinds.add(annotation)
            annotations += get_args(annotation)
    if name in BY_NAME:
        texts += BY_NAME[name].values
    if name in _TENSORS:
        texts += get_args(State)
    if bool in kinds:
        texts += ("true", "false")
    attribute = ATTRIBUTE_BY_NAME.get(name)
    of_numbers = attribute is not None and attribute.kind != "string"
    if name in _IN_EFFECT and name not in _FIELDS:  # total_sequence_length
        kinds.add(int)
    known = tuple(dict.fromkeys(text.lower() for text in texts))
    return known, of_numbers or not kinds.isdisjoint((int, float))


def nearest_sizes(text: str, cases: Iterable[Described]) -> list[float]:
    """The nearest sizes below and above those that a comparison of numbers names."""
    found = _COMPARISON.fullmatch(text)
    numbers = _NUMBERS.fullmatch(found[4]) if found else None
    if not found or not numbers or found[2]:
        return []
    low, high = float(numbers[1]), float(numbers[2] or numbers[1])
    known = {size for case in cases for size in sizes(found[1], case)}
    below = [size for size in known if size <= low]
    above = [size for size in known if size >= high]
    return [*([max(below)] if below else []), *([min(above)] if above else [])]


def _values(name: str, case: Described) -> set[str | float]:
    """The values of the call with this name: texts in lower case, and numbers."""
    found: list[object] = [*_set(name, case)]
    attribute = ATTRIBUTE_BY_NAME.get(name)
    if attribute is not None and not found:
        found.append(attribute.default)
    if name in BY_NAME:
        found.append(BY_NAME[name].read(Reader(case.call, lambda: case.steps)))
    if name in _TENSORS:
        found += (
            tensor.state
            for step in _steps(case)
            for tensor in (*step.inputs, *step.outputs)
            if tensor.name == name
        )
    return {_comparable(value) for value in found if value is not None}


def sizes(name: str, case: Described) -> Iterator[float]:
    """The numbers of the call with this name; a window of -1 counts as no window."""
    for value in map(_comparable, _set(name, case)):
        if isinstance(value, float) and (name, value) != ("local_window_size", -1):
            yield value


def _comparable(value: object) -> str | float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    return str(value).lower()


def _set(name: str, case: Described) -> Iterator[object]:
    """The values of a field or an attribute if it is set, without its default."""
    if name in ATTRIBUTE_BY_NAME:
        if (value := attributes_of(case.call).get(name)) is not None:
            yield value
    elif name in _IN_EFFECT:
        yield from _IN_EFFECT[name](case)
    elif name in _FIELDS:
        value = getattr(case.call, name)
        yield from value if isinstance(value, tuple) else (value,)
