"""Draws legal calls, and illegal ones one step beside a case that must be refused.

A drawn call has the values of some features as cases of the corpus have them, with lengths, sizes
and input values of its own. What is legal is said by the parts of the operator, their rules and the
shapes alone: a call that one of them excludes is drawn again.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

from conformance.base.yaml_source import InputError
from conformance.case.case import Case, misfits
from conformance.case.contract import Contract
from conformance.case.relations import RELATIONS
from conformance.diagnosis.shared import effort
from conformance.operator.call import (
    CALL_FIELDS,
    Call,
    EarlierCall,
    ElementOverride,
    InputField,
    InputOverride,
    Values,
)
from conformance.operator.features import BY_NAME, FEATURES
from conformance.operator.part import FieldChanges
from conformance.operator.parts.key_value import BORROWS
from conformance.operator.parts.session import EARLIER_CALLS
from conformance.operator.rules import why_excluded
from conformance.operator.signature import INPUTS
from conformance.run.assessment import prepared_case

#: The theme of drawn calls, and the file that they would be in.
THEME: Final = "fuzz"
FILE: Final = Path(f"{THEME}.yaml")
QUESTION: Final = "Does a call that nobody has written do what its parts do?"
TIME_LIMIT_SECONDS: Final = 20.0

#: The shares of calls that are illegal, that have attributes which switch something off, as many
#: exports have, that have constants if they can, that follow other calls on the session, that have
#: a relation, whose lengths are a column, as in some exports, whose unused rows are filled, whose
#: bias hides keys, …
ILLEGAL: Final = 0.06
SWITCHED_OFF: Final = 0.1
CONSTANT: Final = 0.2
LATER: Final = 0.15
RELATED: Final = 0.1
COLUMN: Final = 0.05
FILLED: Final = 0.35
MASKED: Final = 0.5
#: … of loops that take tokens back, of inputs with other values, of odd head sizes, of earlier
#: calls with another batch, and of those that are illegal.
TAKEN_BACK: Final = 0.3
REDRAWN: Final = 0.25
ODD: Final = 0.15
OTHER_BATCH: Final = 0.4
REFUSED: Final = 0.1
#: The share that is drawn of the calls with an avoided value. So many calls are drawn for one that
#: has none, or that leaves an illegal case illegal: there may be none.
SELDOM: Final = 0.05
TRIES: Final = 100
#: The numbers of features that are not at their plain values.
CHANGED: Final = (1, 2, 3, 3, 4, 4, 5, 6)
#: Kernels work on tiles of these sizes: lengths are drawn at their edges, too. A past can be too
#: long for shared memory, or for positions of 16 bits.
TILES: Final = (8, 16, 32, 64, 128, 256, 512, 1024, 2048)
LONG: Final = (*TILES, 8192, 32768, 65536)
AT_EDGES: Final = 0.3
FEW: Final = 20
BATCHES: Final = (1, 1, 1, 1, 2, 2, 2, 3, 4, 5, 8, 16)
KV_HEADS: Final = (1, 1, 2, 2, 3, 4, 5, 8)
GROUPS: Final = (1, 1, 2, 2, 3, 4, 5, 7, 8, 16)
HEAD_SIZES: Final = (
    8, 16, 16, 16, 24, 32, 40, 48, 64, 64, 72, 80, 96, 112, 128, 128, 192, 256, 512,
)  # fmt: skip
ODD_HEAD_SIZES: Final = (2, 4, 6, 10, 12, 18, 20, 34, 65, 100)
PHASES: Final = ("prefill", "decode", "decode", "chunk", "chunk", "loop")
MOST_CALLS: Final = 12
#: The largest effort of a call is 2 to a power between these: small calls are the most.
POWERS: Final = (13.0, 23.0)

#: How inputs are drawn, besides as the call implies.
VALUES: Final = (
    Values(kind="marked"),
    Values(low=-0.5, high=0.5),
    Values(low=-4.0, high=4.0),
    Values(low=-30.0, high=30.0),
    Values(low=0.0, high=1.0, odd_heads=-1.0),
    Values(low=-2.0, high=2.0, step=1.0),
)
#: Inputs that make an earlier call illegal: kernels check them in this order.
ILLEGAL_INPUTS: Final = {
    "value": InputOverride(shape=("batch_size+1", "kv_sequence_length", "kv_hidden_size")),
    "key": InputOverride(shape=("batch_size", "kv_sequence_length+1", "kv_hidden_size")),
    "seqlens_k": InputOverride(values=Values(kind="constant", value=2.0**17)),
}
#: Attributes that each release knows, at values that switch something off.
OFF: Final = {"local_window_size": -1, "smooth_softmax": 0, "softcap": 0.0}
#: What rows hold that nothing reads.
FILLINGS: Final = (math.nan, math.inf, -math.inf, 3e38, -60_000.0, 1e-40, -0.0)

#: How a bias hides keys, and the most rows of one that does.
HIDING: Final = (-math.inf, -math.inf, -10_000.0)
MASKED_ROWS: Final = 64

#: Fields of features whose values follow from the drawn lengths.
_LENGTHS: Final = (
    "kv_sequence_length", "max_sequence_length", "total_sequence_lengths", "total_sequence_length",
    "query_seqlens", "rotary_dim", "rotary_cache_length", "local_window_size",
)  # fmt: skip
#: The fields in which donors differ.
_FIELDS: Final = (
    *sorted({name for feature in FEATURES for name in feature.off}),
    *("attributes", "inputs", "outputs"),
)
_WEIGHTS: Final = frozenset(one.name for one in INPUTS if one.is_weight)
_HEADS: Final = ("num_heads", "kv_num_heads", "head_size")
_PLAIN: Final = Call()


@dataclass(frozen=True)
class Donors:
    """What drawn calls are made of: the fields of each value of a feature, and refused calls.

    ``values`` has none of the plain values. ``nodes``: instead, all fields of the nodes of a model,
    but for the lengths and the batch.
    """

    values: Mapping[str, Mapping[str, Sequence[FieldChanges]]]
    refused: Sequence[Case]
    nodes: Sequence[FieldChanges] = ()

    @classmethod
    def of(cls, cases: Iterable[Case]) -> Donors:
        """The donors that these cases are; a graph and a call with its own values is none."""
        values: dict[str, dict[str, list[FieldChanges]]] = {
            each.name: {} for each in FEATURES if each.off and each is not EARLIER_CALLS
        }
        refused, seen = [], set[str]()
        for case in cases:
            call = case.written_call
            fields = repr([getattr(call, name) for name in _FIELDS])
            if case.is_graph or call.values_from is not None or fields in seen:
                continue
            seen.add(fields)
            if case.contract.demands == "rejects":
                if effort(case) < 2 ** POWERS[1]:
                    refused.append(case)
                continue
            if case.written_contract is not None and case.contract.demands != "computes":
                continue  # its fields do not mean what their feature does
            for name, known in values.items():
                value = case.features[name]
                if value is None or value == BY_NAME[name].plain:
                    continue
                changes = {each: getattr(call, each) for each in BY_NAME[name].off}
                if changes not in (some := known.setdefault(value, [])):
                    some.append(changes)
        return cls(values, refused)

    @classmethod
    def of_model(cls, cases: Iterable[Case]) -> Donors:
        """The donors that the nodes of a model are; ``cases`` are their calls.

        Nodes with too many heads to be drawn are none.
        """
        small = (case for case in cases if not case.is_graph and effort(case) < 2 ** POWERS[1])
        return cls({}, (), [_node_fields(case.written_call) for case in small])

    @cached_property
    def changeable(self) -> list[str]:
        """The features that have values."""
        return [name for name, values in self.values.items() if values]

    def draw(self, random: Random) -> dict[str, Any]:
        """The fields of some features' drawn values, or those of a node."""
        if self.nodes:
            return {**random.choice(self.nodes)}
        names = self.changeable
        fields: dict[str, Any] = {}
        for name in random.sample(names, min(len(names), random.choice(CHANGED))):
            value = random.choice([*self.values[name].values()])
            fields |= random.choice(value)
        return fields


def _node_fields(call: Call) -> FieldChanges:
    """The fields that all calls of a node have; lengths that are given are drawn anew."""
    written = {name: getattr(call, name) for name in CALL_FIELDS}
    fields = {name: value for name, value in written.items() if value != getattr(_PLAIN, name)}
    for name in ("batch_size", "sequence_length", "past_sequence_length", "loop"):
        fields.pop(name, None)
    if call.cache_kind != "none":
        fields["cache"] = call.cache_kind
    return fields | {name: written[name] for name in _HEADS}


class DrawnCall(NamedTuple):
    """A drawn call with its number.

    ``beside``: the case that must be refused, if the call is made of one.
    """

    number: int
    case: Case
    beside: Case | None = None


class Drawing:
    """Draws calls: each is a function of the donors, the seed, its number and what is avoided."""

    def __init__(self, donors: Donors, seed: int) -> None:
        self.donors = donors
        self.seed = seed

    def call(self, number: int, avoided: Collection[str] = ()) -> DrawnCall:
        """The call with this number; few calls have one of the values that are ``avoided``."""
        random = Random(f"{self.seed} {number}")
        refused = self.donors.refused and random.random() < ILLEGAL
        beside = random.choice(self.donors.refused) if refused else None
        for _ in range(TRIES):
            if beside is not None:
                case = self._refused(random, number, beside)
            elif case := self._allowed(random, number):
                is_avoided = any(value in avoided for value in values_of(case))
                case = None if is_avoided and random.random() > SELDOM else case
            if case is not None:
                return DrawnCall(number, case, beside)
        while (case := self._allowed(random, number)) is None:
            pass
        return DrawnCall(number, case)

    def _allowed(self, random: Random, number: int) -> Case | None:
        """A call that is not refused by contract, or None."""
        fields = self.donors.draw(random)
        fields["dtype"] = fields.get("dtype") or _PLAIN.dtype
        window = fields.get("local_window_size") if self.donors.nodes else None
        _draw_sizes(random, fields)
        _draw_lengths(random, fields, PHASES, window)
        if not self.donors.nodes and random.random() < SWITCHED_OFF:
            fields |= {name: value for name, value in OFF.items() if fields.get(name) is None}
        case = _legal(_form(number, Call(**fields)))
        if case is None or effort(case) > 2 ** random.uniform(*POWERS):
            return None
        if case.contract.demands == "rejects":
            return None
        if (names := _possible_constants(case)) and random.random() < CONSTANT:
            constants = tuple(random.sample(names, random.randint(1, len(names))))
            case = _legal(
                replace(case, written_call=replace(case.written_call, constants=constants))
            )
            if case is None:
                return None
        if random.random() < LATER:
            return _after_others(random, case, fields)
        inputs = _draw_values(random, case)
        relation = None
        if random.random() < RELATED:
            decided = (name for name, each in RELATIONS.items() if not each.undecided)
            fit = [name for name in decided if not RELATIONS[name].misfit(case.call)]
            relation = random.choice(fit) if fit else None
        if not inputs and relation is None:
            return case
        call = replace(case.written_call, inputs=inputs)
        return _legal(replace(case, written_call=call, relation=relation))

    def _refused(self, random: Random, number: int, beside: Case) -> Case | None:
        """A call with the fields of one that must be refused, and with features that it has not.

        The features make it illegal in no other way, and leave it as illegal as it was.
        """
        call = beside.written_call
        added = {
            name: value
            for name, value in self.donors.draw(random).items()
            if name not in _LENGTHS and getattr(call, name) == getattr(_PLAIN, name)
        }
        case = _form(number, replace(call, **added), beside.contract)
        try:
            _ = case.steps, case.features
            if any(misfits(case.call, "rejects")) or not _wrong(beside) <= _wrong(case):
                return None
            own, of_beside = (prepared_case(each).own for each in (case, beside))
            same = own.is_unjudged_like(of_beside) and _given(beside) <= _given(case)
            return case if same else None
        except InputError:
            return None


def values_of(case: Case) -> Iterator[str]:
    """The values of the features of a case, as ``name=value``."""
    return (f"{name}={value}" for name, value in case.features.items() if value)


def _possible_constants(case: Case) -> list[str]:
    """The inputs that can be constants of the model."""
    inputs = (each for each in case.steps[0].inputs if each.connected and not each.same_as)
    return [each.name for each in inputs if each.name in _WEIGHTS]


def _form(number: int, call: Call, contract: Contract | None = None) -> Case:
    return Case(
        id=f"{THEME}/call_{number}",
        theme=THEME,
        name=f"call_{number}",
        axes={},
        file=FILE,
        line=1,
        question=QUESTION,
        written_title=None,
        written_call=call,
        written_contract=contract,
        why="",
        tags=(),
        links=(),
        time_limit_seconds=TIME_LIMIT_SECONDS,
    )


def _legal(case: Case) -> Case | None:
    """The case if no part excludes it, else None."""
    try:
        if any(misfits(case.call, "computes", case.relation)):
            return None
        _ = case.steps, case.contract
    except InputError:
        return None
    return None if any(map(why_excluded, case.features_of_calls)) else case


def _wrong(case: Case) -> set[str]:
    """What excludes a case: names of fields, and sentences on its features."""
    excluded = filter(None, map(why_excluded, case.features_of_calls))
    fields = (field for field, _ in misfits(case.call, "computes"))
    return {*fields, *(sentence for _, sentence in excluded)}


def _given(case: Case) -> set[str]:
    """The tensors of a case, and the number of new tokens."""
    step = case.steps[-1]
    inputs = {each.name for each in step.inputs if each.connected}
    return {*inputs, *step.connected_outputs, f"{step.new_tokens} new tokens"}


# Sizes and lengths


def _draw_sizes(random: Random, fields: dict[str, Any]) -> None:
    """Draw the batch, and the heads and their size unless they are those of a node."""
    ragged = fields.get("total_sequence_lengths") is not None
    fields["batch_size"] = random.choice([n for n in BATCHES if n > 1 or not ragged])
    if "head_size" in fields:
        return
    fields["kv_num_heads"] = random.choice(KV_HEADS)
    fields["num_heads"] = fields["kv_num_heads"] * random.choice(GROUPS)
    odd = random.random() < ODD
    fields["head_size"] = size = random.choice(ODD_HEAD_SIZES if odd else HEAD_SIZES)
    if fields.get("rotary_dim"):
        fields["rotary_dim"] = max(2, random.choice((size // 2, size // 4, size - 2, 8, 16)) & ~1)


def _tokens(random: Random, edges: Sequence[int] = TILES) -> int:
    """A number of tokens: a few, or one beside an edge."""
    if random.random() >= AT_EDGES:
        return random.randint(1, FEW)
    edge = edges[min(random.randrange(len(edges)), random.randrange(len(edges)))]
    return edge + random.choice((-1, 0, 1))


def _draw_lengths(
    random: Random, fields: dict[str, Any], phases: Sequence[str], window: int | None = None
) -> None:
    """Draw the tokens of the call or of each call of a loop, and all lengths that follow.

    ``window`` is the size of the window if that is not drawn.
    """
    wanted = {name for name in _LENGTHS if fields.get(name) is not None}
    fields |= dict.fromkeys(wanted - {"rotary_dim"})
    borrows = fields.get("key_value") in BORROWS
    phase = random.choice(phases)
    calls: tuple[int, ...] = (1,) if phase == "decode" else (_tokens(random),)
    past = 0 if phase == "prefill" and not borrows else _tokens(random, LONG)
    if phase == "loop":
        number = random.randint(2, random.randint(2, MOST_CALLS))
        calls = tuple(random.choice((1, 1, min(_tokens(random), 40))) for _ in range(number))
        past *= borrows or random.random() < 0.5
        fields["loop"] = calls
    else:
        fields["sequence_length"] = calls[0]
    fields["past_sequence_length"] = past = max(past, *calls) if borrows else past
    totals, queries = _draw_sequences(random, fields, calls, wanted, borrows)
    most = max(itertools.chain(*totals, (past,)))
    if queries is not None:  # a whole chunk fits, with its padding
        most += max(calls)
    rows = most + random.choice((0, 0, 1, 7, -most % 64))
    if "local_window_size" in wanted or fields.get("sliding_window_cache"):
        near = random.choice((most, max(calls), 16, 64))
        drawn = max(1, random.choice((1, 2, 3, near - 1, near, near + 1)))
        fields["local_window_size"] = drawn if window is None else window
    if "max_sequence_length" in wanted:
        sliding = fields["local_window_size"] if fields.get("sliding_window_cache") else most
        fields["max_sequence_length"] = rows + sliding - most
    if "rotary_cache_length" in wanted:
        fields["rotary_cache_length"] = rows
    if "total_sequence_length" in wanted and len(calls) == 1:
        fields["total_sequence_length"] = rows
    if queries is not None:
        fields["query_seqlens"] = queries if "loop" in fields else queries[0]


def _after_others(random: Random, case: Case, fields: Mapping[str, Any]) -> Case:
    """The case after calls of other lengths on the session, some of another batch or illegal."""
    phases = ["prefill", "decode", "chunk"][: 1 if case.call.cache_kind == "none" else None]
    demands = case.contract.demands
    for _ in range(random.randint(1, random.randint(1, MOST_CALLS - 1))):
        own = {name: value for name, value in fields.items() if name != "loop"}
        if random.random() < OTHER_BATCH:
            own["batch_size"] = random.choice(BATCHES)
        _draw_lengths(random, own, phases, fields.get("local_window_size"))
        if fields.get("sliding_window_cache"):
            own["max_sequence_length"] = fields["max_sequence_length"]
        different = (name for name in EarlierCall.model_fields if own.get(name) != fields.get(name))
        changes = {name: own.get(name) for name in different}
        if random.random() < REFUSED:
            name = random.choice([*ILLEGAL_INPUTS])
            changes |= {"refused": True, "inputs": {name: ILLEGAL_INPUTS[name]}}
        one = EarlierCall(**changes)
        call = replace(case.written_call, earlier_calls=(*case.written_call.earlier_calls, one))
        after = _legal(replace(case, written_call=call))
        if after and after.contract.demands == demands and effort(after) <= 2 ** POWERS[1]:
            case = after
    return case


def _draw_sequences(
    random: Random, fields: dict[str, Any], calls: Sequence[int], wanted: set[str], borrows: bool
) -> tuple[list[tuple[int, ...]], tuple[tuple[int, ...], ...] | None]:
    """Draw the tokens of each sequence after each call, and its query tokens if they are given."""
    batch, past = fields["batch_size"], fields["past_sequence_length"]
    ragged = "total_sequence_lengths" in wanted
    back = len(calls) > 1 and not borrows and random.random() < TAKEN_BACK
    least = max(calls) if borrows else min(past, 1)
    tokens = [random.randint(least, past) if ragged else past for _ in range(batch)]
    tokens[random.randrange(batch)] = past
    totals, queries = [], []
    for index, length in enumerate(calls):
        added = [length] * batch
        if "query_seqlens" in wanted:
            added = [random.randint(0 if before else 1, length) for before in tokens]
            queries.append(tuple(added))
        elif ragged and not past and not index:  # padding on the right
            added = [random.randint(1, length) for _ in tokens]
            added[random.randrange(batch)] = length
        if back and index and random.random() < 0.5:
            tokens = [random.randint(max(1, before - 4), before) for before in tokens]
        tokens = [
            before + (0 if borrows else new) for before, new in zip(tokens, added, strict=True)
        ]
        totals.append(tuple(tokens))
    if back:
        fields["total_sequence_lengths"] = tuple(totals)
    elif ragged or queries:
        fields["total_sequence_lengths"] = totals[0]
    return totals, tuple(queries) or None


# Values


def _draw_values(random: Random, case: Case) -> dict[str, InputField]:
    """How inputs are drawn that are not as the call implies; what nothing reads can be anything."""
    drawn: dict[str, InputOverride] = {}
    connected = {tensor.name: tensor for tensor in case.steps[0].inputs if tensor.connected}
    for name in ("query", "key", "value", "past_key", "past_value"):
        tensor = connected.get(name)
        if tensor is not None and tensor.values is not None and random.random() < REDRAWN:
            drawn[name] = InputOverride(values=random.choice(VALUES))
    if random.random() < COLUMN:
        drawn["seqlens_k"] = InputOverride(shape=("batch_size", 1))
    if random.random() < FILLED:
        number = random.choice(FILLINGS)
        for name, elements in _unused(random, case).items():
            tensor = connected.get(name)
            if tensor is not None and tensor.dtype in ("float32", "float16", "bfloat16"):
                some = tuple(ElementOverride(at=at, count=n, value=number) for at, n in elements)
                drawn[name] = drawn.get(name, InputOverride()).model_copy(update={"elements": some})
    is_biased = "attention_bias" in connected and random.random() < MASKED
    if is_biased and (hidden := _masked(random, case)):
        drawn["attention_bias"] = InputOverride(elements=hidden)
    return {**drawn}


def _masked(random: Random, case: Case) -> tuple[ElementOverride, ...]:
    """The elements of a bias that hide the first tokens of the past from all query tokens.

    None if the bias has many rows, or is that of a loop.
    """
    step = case.steps[0]
    *rows, _ = step.input("attention_bias").shape or ()
    queries = step.query_lengths or (step.sequence_length,) * len(step.total_lengths)
    most = min(map(operator.sub, step.total_lengths, queries), default=0)
    if most < 1 or math.prod(rows) > MASKED_ROWS or case.call.loop:
        return ()
    count = random.choice((most, random.randint(1, most), max(1, most // 64 * 64)))
    number = random.choice(HIDING)
    places = itertools.product(*map(range, rows))
    return tuple(ElementOverride(at=(*place, 0), count=count, value=number) for place in places)


def _unused(random: Random, case: Case) -> dict[str, list[tuple[tuple[int, ...], int]]]:
    """The rows of inputs of the first call that belong to no token: leading indices, and a count.

    Rows of a cache behind a sequence, and rows of padding.
    """
    call, step = case.call, case.steps[0]
    rows: dict[str, list[tuple[tuple[int, ...], int]]] = {}
    past = next((each.shape for each in step.inputs if each.name == "past_key"), None)
    for at, total in enumerate(step.total_lengths):
        new = (
            min(step.sequence_length, total)
            if step.query_lengths is None
            else step.query_lengths[at]
        )
        held = total - (new if step.new_tokens else 0)
        if past is not None and held < past[2]:
            for head, name in itertools.product(range(past[1]), ("past_key", "past_value")):
                rows.setdefault(name, []).append(((at, head, held), past[2] - held))
        for name in ("query", "key", "value") if not call.loop else ():  # else of all its calls
            length = step.sequence_length if name == "query" else step.new_tokens
            if new < length:
                rows.setdefault(name, []).append(((at, new), length - new))
    return rows
