"""What is said of a part of the operator: its values, what each rests on, and what is impossible.

A part is a module in :mod:`conformance.operator.parts`, with a :class:`Part` named ``PART``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Literal, Protocol

from conformance.operator.call import Call, Values
from conformance.operator.replacement import Replacement
from conformance.operator.signature import Axis
from conformance.operator.sources import DOCUMENTATION
from conformance.operator.tensors import Step, Tensor, attributes_of

Demands = Literal["computes", "rejects", "either"]
Basis = Literal["specified", "established", "requested"]

#: New values of some fields of a call.
FieldChanges = Mapping[str, Any]
#: The value of each feature of a call.
Row = Mapping[str, str]
#: The fields of a contract, as in a case file.
Terms = dict[str, Any]
#: Whether a call is impossible, the field that is wrong, and a sentence that says why.
Objection = tuple[object, str, str]
#: The attributes of a node.
AttributeValues = Mapping[str, int | float | str]
#: A feature's name and some of its values (:meth:`Feature.of`).
Condition = tuple[str, tuple[str, ...]]


# What a value rests on


@dataclass(frozen=True)
class Ground:
    """The basis of a value's meaning.

    ``words``: for `specified`, the words of ``source``, letter by letter; for `established`, the
    question that no text answers, or a sentence; for `requested`, a sentence.
    """

    basis: Basis
    source: str
    words: str


def specified(words: str, source: str = DOCUMENTATION) -> Ground:
    """A text says it in these ``words``."""
    return Ground("specified", source, words)


def established(question: str, source: str) -> Ground:
    """No text answers the ``question``; the kernels at ``source`` agree."""
    return Ground("established", source, question)


def quoted(words: str) -> str:
    """``words`` as a quotation, without the full stop at their end."""
    return f'"{words.removesuffix(".")}"'


@dataclass(frozen=True)
class Decision:
    """What a text demands of single execution providers for the calls with these ``values``."""

    values: tuple[Condition, ...]
    providers: tuple[str, ...]
    demands: Demands
    why: str
    mentions: tuple[str, ...] = ()
    source: str = DOCUMENTATION

    @property
    def terms(self) -> Terms:
        """The differences of the contract for these providers."""
        terms: Terms = {
            "demands": self.demands,
            "basis": "specified",
            "source": self.source,
            "why": self.why,
        }
        return terms | ({"mentions": [*self.mentions]} if self.mentions else {})


@dataclass(frozen=True)
class Honoured:
    """An input that only some execution ``providers`` honour; others may reject it.

    ``partly``: what one of these providers must do with calls that it does not honour.
    ``adds_mentions``: a rejection may also name what else the call may be rejected for.
    """

    values: tuple[Condition, ...]
    providers: tuple[str, ...]
    why: str
    mentions: tuple[str, ...]
    partly: tuple[Decision, ...] = ()
    adds_mentions: bool = False


def has(row: Mapping[str, str | None], values: Sequence[Condition]) -> bool:
    """Whether ``row`` has one of the values of each feature in ``values``."""
    for name, wanted in values:  # noqa: SIM110  # a generator takes four times as long
        if row.get(name) not in wanted:
            return False
    return True


def must_be(attributes: AttributeValues, name: str, *allowed: int) -> Objection:
    """The objection to an attribute with none of the ``allowed`` values."""
    sentence = f"{name} must be {' or '.join(map(str, allowed))}"
    return attributes.get(name, 0) not in allowed, name, sentence


# Features and their values


@dataclass(frozen=True)
class Value:
    """A value of a feature.

    ``title``: its words in the title of a case; the plain value of a feature usually has none.
    ``search``: the words that ``-k`` knows it by, separated by spaces. ``ground``: what its meaning
    rests on; None if it adds nothing to a plain call. ``paired``: each pair with it needs a case.
    """

    title: str = ""
    search: str = ""
    ground: Ground | None = None
    paired: bool = True


@dataclass(frozen=True, eq=False)
class Feature:
    """A property in which calls differ; the first of ``values`` is the plain one.

    ``read`` returns a call's value, or None if the value is not listed (calls that are invalid on
    purpose, and requested readings of the operator that nothing specifies). ``off`` are the fields
    whose defaults turn it off, and ``plainer`` changes to a plainer value. ``shown_by`` are the
    effects of which one must be seen in a case that shows the feature. ``is_implied``: whether a
    value goes without saying in a title, beside the other features.
    """

    name: str
    values: Mapping[str, Value]
    read: Callable[[Reader], str | None]
    off: tuple[str, ...] = ()
    plainer: tuple[FieldChanges, ...] = ()
    shown_by: tuple[str, ...] = ()
    is_implied: Callable[[str, Mapping[str, str | None]], bool] | None = None

    @property
    def plain(self) -> str:
        """The plain value."""
        return next(iter(self.values))

    @cached_property
    def others(self) -> tuple[str, ...]:
        """All values but the plain one."""
        return (*self.values,)[1:]

    @cached_property
    def paired(self) -> tuple[str, ...]:
        """The values for which pairs are required."""
        return tuple(name for name, value in self.values.items() if value.paired)

    def of(self, *values: str) -> Condition:
        """The condition that a call has one of these ``values``, which must be known."""
        if unknown := {*values} - self.values.keys():
            raise ValueError(f"{self.name} has no value {unknown.pop()}")
        return self.name, values

    @property
    def given(self) -> Condition:
        """The condition that a call has any but the plain value."""
        return self.name, self.others

    def implied(self, value: str, features: Mapping[str, str | None]) -> bool:
        """Whether the value is the plain one, or follows from the other ``features``."""
        if self.is_implied is None:
            return value == self.plain
        return self.is_implied(value, features)


class Reader:
    """A call with its attributes and its tensors, from which features are read.

    In a loop the last step counts: its lengths decide whether a window is short or long. In a graph
    the main node counts. ``derive_steps`` is called if a feature needs the tensors.
    """

    def __init__(self, call: Call, derive_steps: Callable[[], tuple[Step, ...]]) -> None:
        self.call = call
        self._derive_steps = derive_steps

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """The steps of the call without those before it, or those of the main node of a graph."""
        steps = self._derive_steps()[len(self.call.earlier_calls) :]
        return tuple(step.node or step for step in steps)

    @property
    def step(self) -> Step:
        """The last step."""
        return self.steps[-1]

    @cached_property
    def attributes(self) -> dict[str, int | float | str]:
        """The attributes of the node."""
        return attributes_of(self.call)

    def tensor(self, name: str) -> Tensor | None:
        """The input ``name`` if it is connected."""
        tensor = self.step.input(name)
        return tensor if tensor.connected else None


# Nodes of graphs


class KnownDims(Protocol):
    """What is known about the dtype and the dims of a tensor of a graph."""

    @property
    def dtype(self) -> str | None:
        """The dtype; None if it is unknown."""

    def dim(self, axis: int) -> int | str | None:
        """The dim: its size or its name; None if nothing is known about it."""

    def size(self, axis: int) -> int | None:
        """The dim if it is a number."""


class OperatorNode(Protocol):
    """A node of the operator in a graph, such as `conformance.graph.nodes.AttentionNode`."""

    @property
    def inputs(self) -> Mapping[str, str]:
        """The connected inputs, by the operator's names, with the names of the tensors."""

    @property
    def outputs(self) -> Mapping[str, str]:
        """The same for the outputs."""

    @property
    def attributes(self) -> AttributeValues:
        """The attributes that are set."""

    def type(self, parameter: str) -> KnownDims:
        """What is known about an input or output."""


# Inputs


@dataclass(frozen=True)
class InputRule:
    """When an input is connected, its dims in a call, and its values.

    ``axes``: the dims, where they are not those of the signature. ``values``: how values are drawn
    in a call of so many keys; None if they follow from the call. ``numbers``: the numbers that
    follow from it, which are repeated until they fill the shape; ``meaning`` says in words what
    they are. ``same_in_a_loop``: all calls of a loop must have the same values.
    """

    connected: Callable[[Call], object]
    axes: Callable[[Call], tuple[Axis, ...]] | None = None
    values: Callable[[Call, int], Values] | None = None
    numbers: Callable[[Step], Sequence[int]] | None = None
    meaning: str = ""
    same_in_a_loop: bool = False


@lru_cache(maxsize=1024)
def uniform(low: float, high: float, odd_heads: float = 1.0) -> Values:
    """Values between ``low`` and ``high``; made once for each range, for speed."""
    return Values(low=low, high=high, odd_heads=odd_heads)


@dataclass(frozen=True)
class Part:
    """A part of the operator.

    ``inputs`` and ``outputs`` are those that it adds to a call, each with the rule for when it is
    connected. ``read_as``: the fields of the call, as the oracle reads it, that have a dim for
    sequences or heads, and their dims. ``effects`` are the names of what a case must show of it
    (``insensitive_to`` names those that it cannot). ``of_node`` returns the fields of a call that a
    node of a graph has of it. ``impossible`` yields what no call can be built of, and ``excluded``
    what the operator's documentation excludes. ``replacements`` yields what a faulty kernel uses in
    place of its inputs and attributes; only measuring them imports NumPy.
    """

    features: tuple[Feature, ...] = ()
    inputs: Mapping[str, InputRule] = field(default_factory=dict)
    outputs: Mapping[str, Callable[[Call], object]] = field(default_factory=dict)
    read_as: Mapping[str, tuple[Axis, ...]] = field(default_factory=dict)
    effects: tuple[str, ...] = ()
    of_node: Callable[[OperatorNode], FieldChanges] | None = None
    impossible: Callable[[Call], Iterator[Objection]] | None = None
    excluded: Callable[[Call, AttributeValues], Iterator[Objection]] | None = None
    honoured: tuple[Honoured, ...] = ()
    decisions: tuple[Decision, ...] = ()
    replacements: Callable[[], Iterable[Replacement]] = tuple
