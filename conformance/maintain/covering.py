"""``python -m conformance.maintain.covering`` adds rows to two themes in cases/covering.

The goals are combinations of values that no rule excludes: pairs that no row of pairs.yaml has, and
triples that no case of the corpus shows. A row begins with the two values that lack the most. Then
values are added for as long as the row gains goals: each with the fields of the simplest cases that
have it, so a new feature gets rows once the corpus has cases with it. The row gets values for which
the result depends on as many of its features as possible; the others count for no goal. Rows are
only added: ids and values of existing rows never change.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np
from pydantic import ValidationError

from conformance.base.yaml_source import InputError
from conformance.bundle.effects import NO_EFFECT, THRESHOLDS, effects, part_of, shortfalls
from conformance.case.case import Case, EffectName, misfits
from conformance.case.corpus import find, shipped_files
from conformance.diagnosis.shared import effort
from conformance.maintain import run_command
from conformance.maintain.coverage import (
    INDEX,
    LEFT,
    SIZE_CLASSES,
    VALUES,
    Combinations,
    FeatureValue,
    are_pairs,
    combinations,
    excluded_by,
    listed,
    name_of,
    possible,
    values_of,
)
from conformance.operator.call import checked_call
from conformance.operator.parts.key_value import BORROWS
from conformance.operator.rules import RULES
from conformance.operator.sources import CPU, CUDA, WEBGPU

#: The dtypes that a row can have, in each of which it must show its features.
DTYPES: Final = ("float32", "float16", "bfloat16")
#: The themes that get new rows, and the most rows that a theme has.
PAIRS: Final = "pairs"
TRIPLES: Final = "triples"
MOST_ROWS: Final = 700
#: The number of cases whose fields give a value in a phase, and of values tried for a longer row.
DONORS: Final = 2
TRIED: Final = 40
SIMPLEST: Final = 2
#: The fields that say how many tokens a call has; if a row has none of them, it is a decode.
LENGTHS: Final = {"sequence_length", "past_sequence_length", "loop"}
DECODE: Final = {"past_sequence_length": 10}
#: After so many rows in turn that show too little, no more are made.
FAILURES: Final = 200
#: The fewest triples of a row, by the execution provider that computes it; "": maybe none does.
LEAST: Final = {CPU: 20, CUDA: 15, WEBGPU: 15, "": 6}
#: So large a call is worth a goal: small rows come first. None is larger than the largest.
SIZE_OF_A_GOAL: Final = 3_000
LARGEST: Final = 2_500_000
#: The most unused rows of a static cache, and of rotary tables.
MOST_UNUSED: Final = 16
#: So many values without a gain are tried, and a further dtype must add as many goals.
PATIENCE: Final = 4
#: The number of seeds that are tried for a row, and the values of its query.
SEEDS: Final = 4
QUERIES: Final = (
    None,
    {"kind": "marked"},
    {"low": -4.0, "high": 4.0},
    {"low": -1.5, "high": 1.5},
    {"low": -0.5, "high": 0.5},
)

#: The fields of a call that are not the default, as in a case file.
WrittenFields = Mapping[str, Any]


@dataclass(frozen=True)
class CoveringRow:
    """A call with the numbers of its values in `VALUES`, its goals and its size (`size_of`)."""

    entry: WrittenFields
    values: list[int]
    goals: float
    size: float = 0.0
    dtypes: Sequence[str] = ()

    @property
    def worth(self) -> float:
        """What a search prefers: many goals and small calls."""
        return self.goals - self.size / SIZE_OF_A_GOAL


class Generator:
    """Makes rows for the goals ``left``; the goals that a row shows are removed from ``left``.

    The fields for a value are those of the simplest cases of the ``corpus``.
    """

    def __init__(self, corpus: Iterable[Case], left: Combinations) -> None:
        self.left = left
        self._donors: dict[int, list[WrittenFields]] = {
            INDEX[one]: [*fields] for one, fields in SIZE_CLASSES.items()
        }
        self._provider = ""
        self._rows_with = Counter[str]()
        counts: dict[tuple[int, str | None], int] = {}
        order = sorted(corpus, key=lambda one: (len(one.insensitive_to), len(fields_of(one))))
        self._form = replace(order[0], insensitive_to=(), written_title=None)
        for case in order:
            if case.written_contract or not case.counts_for_coverage:
                continue
            for value in (INDEX[one] for one in values_of(case) - SIZE_CLASSES.keys()):
                key = value, case.features["phase"]
                if VALUES[value][0] != "dtype" and counts.setdefault(key, 0) < DONORS:
                    counts[key] += 1
                    least = _relative(self._least(fields_of(case), value))
                    if least not in self._donors.setdefault(value, []):
                        self._donors[value].append(least)

    def _least(self, fields: dict[str, Any], value: int) -> dict[str, Any]:
        """The fields without which the call does not show the value."""
        inputs = fields.get("inputs", {})
        for name in (*fields, *inputs):
            fewer = {key: field for key, field in fields.items() if key != name}
            if name in inputs:
                rest = {key: of for key, of in fields.get("inputs", {}).items() if key != name}
                fewer["inputs"] = rest
            if self._has(fewer, value):
                fields = fewer
        return {key: field for key, field in fields.items() if key != "inputs" or field}

    def _has(self, fields: WrittenFields, value: int) -> bool:
        """Whether the call is legal and shows the value."""
        row = self._checked(_relative(fields))
        if row is None or value not in row.values:
            return False
        made = _absolute(row.entry)
        dtypes, hidden = shown_in(made, DTYPES[:1])
        case = replace(self._form, written_call=checked_call(made), insensitive_to=hidden)
        return bool(dtypes) and VALUES[value] in values_of(case)

    def rows(self, least: int = 1, provider: str = "") -> Iterator[dict[str, Any]]:
        """Entries of a case file with at ``least`` so many goals, until no more can be made.

        ``provider``: an execution provider that computes them all.
        """
        self._provider = provider
        hopeless, failures = np.zeros(self.left.shape[:2], bool), 0
        while failures < FAILURES:
            counts = np.where(hopeless, 0, self.left.sum(axis=2))
            one, other = (int(n) for n in np.unravel_index(counts.argmax(), counts.shape))
            if not counts[one, other]:
                return
            row = self._row(one, other)
            failures += row is not None
            shown = row and self._shown(row)
            if shown and shown.goals >= least:
                failures = 0
                self.left[np.ix_(shown.values, shown.values, shown.values)] = False
                self._rows_with.update(shown.entry["matrix"]["dtype"])
                yield {**shown.entry}
            if self.left[one, other].sum() == counts[one, other]:
                hopeless[[one, other], [other, one]] = True

    def _row(self, one: int, other: int) -> CoveringRow | None:
        """A row with these two values and many goals; None if no case can have both."""
        longer = [self._joined(fields, other) for fields in self._donors.get(one, [])]
        best = None
        while longer:
            rows = [row for row in itertools.chain(*longer) if {one, other} <= {*row.values}]
            row = max(rows, key=lambda row: row.worth, default=None)
            if row is None or (best and row.worth <= best.worth):
                break
            best = row
            gains = self.left[np.ix_(best.values, best.values)].sum(axis=(0, 1))
            gains *= possible()[one, other]
            tried = [int(n) for n in np.argsort(-gains, kind="stable")[:TRIED] if gains[n]]
            longer = [self._joined(best.entry, value, SIMPLEST) for value in tried]
        return best

    def _joined(
        self, entry: WrittenFields, value: int, most: int | None = None
    ) -> Iterator[CoveringRow]:
        """The legal rows made of ``entry`` and the fields of the simplest cases with ``value``."""
        for fields in self._donors.get(value, [])[:most]:
            for joined in (_merged(entry, fields), _merged(fields, entry)):
                if row := self._checked(joined):
                    yield row

    def _checked(self, entry: WrittenFields) -> CoveringRow | None:
        """The row, or None if it must be rejected or is too large."""
        try:
            call = checked_call(_absolute(entry))
            case = replace(self._form, written_call=call, written_contract=None)
            contract = case.contract.on(self._provider)
            rejected = contract.demands == "rejects" or any(misfits(call, "computes"))
            rejected |= bool(contract.readings)  # in few calls these differ
        except (ValidationError, InputError):
            return None
        if self._provider and not computed(case, self._provider):
            return None
        if rejected or any(rule.forbids(case.features) for rule in (*RULES, *LEFT)):
            return None
        step = case.steps[-1]
        if step.total_sequence_length < max(2, step.sequence_length):
            return None  # the probability of a single key is 1; a query before all keys has none
        if (size := size_of(case)) > LARGEST:
            return None
        dtypes = {("dtype", name) for name in DTYPES}
        values = [INDEX[value] for value in sorted(values_of(case) | dtypes)]
        return CoveringRow(entry, values, self._goals(values), size)

    def _shown(self, row: CoveringRow) -> CoveringRow | None:
        """The row with the values that show the most goals; None if none show any.

        Parts without an effect are listed in ``insensitive_to``, and show nothing.
        """
        best, entry, tries = None, _absolute(row.entry), 0
        inputs = entry.get("inputs", {})
        for seed, query in itertools.product(range(SEEDS), QUERIES):
            other = {"query": {**inputs.get("query", {}), "values": query}} if query else {}
            drawn = {**entry, **({"seed": seed} if seed else {})}
            if inputs or other:
                drawn["inputs"] = {**inputs, **other}
            made, hidden = self._made(drawn, DTYPES[:1])
            tries += 1
            if made.goals > (best.goals if best else 0.0):
                best, tries = made, 0
            if not hidden or tries == PATIENCE:
                break
        if best is None:
            return None
        made, hidden = self._made(best.entry, DTYPES)
        entry = {**best.entry, **({"insensitive_to": [*hidden]} if hidden else {})}
        return replace(made, entry=entry | {"matrix": {"dtype": list(made.dtypes)}})

    def _made(
        self, entry: WrittenFields, among: Sequence[str]
    ) -> tuple[CoveringRow, tuple[EffectName, ...]]:
        """The row with what it shows in some of these dtypes, and the parts that it does not."""
        dtypes, hidden = shown_in(entry, among)
        case = replace(self._form, written_call=checked_call(entry), insensitive_to=hidden)
        at, dtypes = self._with_dtypes(values_of(case), dtypes)
        return CoveringRow(entry, at, self._goals(at), dtypes=dtypes), hidden

    def _with_dtypes(
        self, values: set[FeatureValue], dtypes: Sequence[str]
    ) -> tuple[list[int], list[str]]:
        """The numbers of the values, with one or more of the ``dtypes``; and these dtypes.

        The first is not bfloat16, which few kernels have; of two, the one that fewer rows have.
        Others must add goals.
        """
        at = [INDEX[value] for value in sorted(values) if value[0] != "dtype"]
        goals = {one: self._goals([*at, INDEX["dtype", one]]) for one in dtypes}
        common = [one for one in dtypes if one != "bfloat16"]
        if not common:
            return [], []
        first = max(common, key=lambda one: (goals[one], -self._rows_with[one]))
        least = self._goals(at) + PATIENCE
        chosen = [first, *(one for one in dtypes if one != first and goals[one] >= least)]
        return [*at, *(INDEX["dtype", one] for one in chosen)], chosen

    def _goals(self, values: Sequence[int]) -> float:
        """The number of goals that these values have."""
        return float(self.left[np.ix_(values, values, values)].sum()) / 6


def computed(case: Case, provider: str) -> bool:
    """Whether an execution provider must compute the call, and has its types."""
    contract = case.contract.on(provider)
    if provider == CPU and case.features["quantised"] in ("float8_tensor", "float8_channel"):
        return False
    return contract.demands == "computes" and contract.basis != "requested"


def size_of(case: Case) -> float:
    """How large a call is: the elements of its cache, and a fifth of its products of scores."""
    call, rows = case.call, max(step.total_sequence_length for step in case.steps)
    rows = max(rows, call.max_sequence_length or 0) * len(case.steps)
    return call.batch_size * call.kv_num_heads * call.head_size * rows + effort(case) / 5


def fields_of(case: Case) -> dict[str, Any]:
    """The fields of the call of a case, without its dtype."""
    fields = case.written_call.as_written("json")
    fields.pop("dtype", None)
    return fields


#: The fields with a number for each sequence, and what the numbers are relative to.
COUNTS: Final[Mapping[str, Literal["total", "queries"]]] = {
    "total_sequence_lengths": "total",
    "query_seqlens": "queries",
}
#: A number relative to the tokens of the longest sequence, or of query.
Relative = tuple[Literal["total", "queries"], int]


def _lengths(entry: WrittenFields) -> dict[str, int]:
    """The tokens of the longest sequence after the last call, and those of query."""
    calls = entry.get("loop") or [entry.get("sequence_length", 1)]
    new = 0 if entry.get("key_value") in BORROWS else sum(calls)
    return {"total": entry.get("past_sequence_length", 0) + new, "queries": calls[-1]}


def _relative(fields: Mapping[str, Any]) -> WrittenFields:
    """The fields with lengths that are relative to those of the call, so that these can change."""
    lengths, made = _lengths(fields), dict(fields)

    def relative(number: int, to: Literal["total", "queries"]) -> Relative:
        return to, number - lengths[to]

    for name in ("max_sequence_length", "total_sequence_length", "rotary_cache_length"):
        if name in fields and not (fields.get("sliding_window_cache") and name.startswith("max")):
            made[name] = "total", min(fields[name] - lengths["total"], MOST_UNUSED)
    if (window := fields.get("local_window_size", -1)) >= lengths["total"]:
        made["local_window_size"] = relative(window, "total")
    for name, to in COUNTS.items():
        if name in fields and not any(isinstance(number, list) for number in fields[name]):
            made[name] = [relative(number, to) if number else 0 for number in fields[name]]
    return made


def _absolute(entry: WrittenFields) -> dict[str, Any]:
    """The fields with all lengths as numbers, and lists as long as the batch."""
    lengths, made = _lengths(entry), dict(entry)

    def absolute(value: Any) -> Any:
        return lengths[value[0]] + value[1] if isinstance(value, tuple) else value

    for name, value in entry.items():
        made[name] = absolute(value)
        if name in COUNTS and not any(isinstance(number, list) for number in value):
            counts = (
                max(1, absolute(number)) if number else 0 for number in itertools.cycle(value)
            )
            made[name] = [*itertools.islice(counts, entry.get("batch_size", 1))]
    return made


def _merged(one: WrittenFields, other: WrittenFields) -> WrittenFields:
    """The fields of both; of fields and inputs that both have, those of the ``other``."""
    inputs = {**one.get("inputs", {}), **other.get("inputs", {})}
    joined = {**one, **other, **({"inputs": inputs} if inputs else {})}
    return joined if joined.keys() & LENGTHS else {**joined, **DECODE}


def shown_in(
    entry: WrittenFields, among: Sequence[str] = DTYPES
) -> tuple[list[str], tuple[EffectName, ...]]:
    """The dtypes in which the call shows the same parts, and the parts that it does not show.

    In each of them an effect is either large enough, or so small that its part has none.
    """
    dtypes: list[str] = []
    hidden: tuple[EffectName, ...] = ()
    for dtype in among:
        moved = effects(checked_call({**entry, "dtype": dtype}))
        moved = {name: effect for name, effect in moved.items() if name in THRESHOLDS}
        if not moved:
            continue
        if not dtypes:
            small = {part_of(name) for name, effect in moved.items() if effect < NO_EFFECT}
            hidden = tuple(sorted(small))
        if not any(shortfalls(moved, hidden)):
            dtypes.append(dtype)
    return dtypes, hidden


def lines(rows: Iterable[Mapping[str, Any]], form: Case, taken: Iterable[str]) -> Iterator[str]:
    """Rows as lines of a case file, with titles and names that none of the titles ``taken`` has."""
    used = {_name(title) for title in taken}
    for row in rows:
        call = checked_call({k: v for k, v in row.items() if k not in ("insensitive_to", "matrix")})
        title = replace(form, written_call=call, written_title=None).title
        numbered = (f"{title[:70]} ({number})" for number in itertools.count(2))
        title = next(one for one in itertools.chain([title], numbered) if _name(one) not in used)
        used.add(_name(title))
        yield json.dumps({"name": _name(title), "title": title, **row})


def _name(title: str) -> str:
    return "_".join(re.findall(r"\w+", title.lower()))


def goals_of(theme: str, corpus: Iterable[Case]) -> Combinations:
    """The goals of a theme: the pairs that no row has, or the triples that no case shows.

    A row of pairs has the dtypes and sizes that it happens to have.
    """
    if theme != PAIRS:
        shown = (values_of(case) for case in corpus if case.counts_for_coverage)
        return possible() & ~are_pairs() & ~excluded_by(LEFT) & ~combinations(shown)
    there = combinations(
        [value for value in VALUES if case.features.get(value[0]) == value[1]]
        for case in corpus
        if case.theme == theme
    )
    goals = possible() & are_pairs() & ~there
    free = [INDEX[value] for value in VALUES if value in SIZE_CLASSES or value[0] == "dtype"]
    goals[free] = goals[:, free] = goals[:, :, free] = False
    return goals


def rows_for(theme: str, corpus: Sequence[Case], left: Combinations) -> Iterator[dict[str, Any]]:
    """New rows of a theme, first those that an execution provider computes."""
    generator = Generator(corpus, left)
    if theme == PAIRS:
        yield from generator.rows()
    else:
        for provider, least in LEAST.items():
            yield from generator.rows(least, provider)


def main() -> int:
    """Add rows for the goals of both themes; returns 1 if a pair is left."""
    pairs = 0
    for theme in (PAIRS, TRIPLES):
        file, corpus = shipped_files()[theme], find(()).named
        left = goals_of(theme, corpus)
        before = int(left.sum()) // 6
        taken = {case.title for case in corpus if case.theme == theme}
        most = max(0, MOST_ROWS - len(taken)) if before else 0
        made = lines(itertools.islice(rows_for(theme, corpus, left), most), corpus[0], taken)
        new = [f"  - {line}" for line in made]
        if new:
            text = file.read_text(encoding="utf-8").rstrip("\n")
            file.write_text("\n".join([text, *new, ""]), encoding="utf-8")
        print(f"{file}: {len(new)} rows added; {int(left.sum()) // 6:,} of {before:,} goals left.")
        for combination in listed(left & are_pairs()):
            print(f"No row for {name_of(combination)}: write a case that has both.")
            pairs = 1
    return pairs


if __name__ == "__main__":
    run_command(main, "Adds rows to cases/covering for combinations of values without one.")
