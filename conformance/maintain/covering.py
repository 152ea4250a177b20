"""``python -m conformance.maintain.covering`` adds rows to cases/covering/pairs.yaml.

The goals are pairs of feature values that no rule excludes and no row has. A candidate is a row
combined with the fields of another case of the corpus that are not the default; so a new feature
gets rows once the corpus has cases with it. The candidate with the most goals is kept, with values
for which the result depends on all its features. Rows are only added: ids and values of existing
rows never change.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence, Set
from dataclasses import replace
from typing import Any, Final

from pydantic import ValidationError

from conformance.base.yaml_source import InputError
from conformance.bundle.effects import NO_EFFECT, effects, part_of, shortfalls
from conformance.case.case import Case, EffectName, misfits
from conformance.case.corpus import find, shipped_files
from conformance.case.load import load_file
from conformance.maintain import run_command
from conformance.maintain.coverage import FeaturePair, legal_pairs, pairs_of
from conformance.operator.call import Call, checked_call
from conformance.operator.parts.sizes import REST
from conformance.operator.rules import RULES
from conformance.operator.wording import words

#: The dtypes of every row; bfloat16 is added if the result depends on all features in it.
DTYPES: Final = ("float32", "float16")
#: The theme that gets new rows.
THEME: Final = "pairs"
#: The largest number of cases for a value in a phase, and of candidates for the same goals.
TRIES: Final = 3
#: The number of seeds that are tried for a row, and the values of its query.
SEEDS: Final = 4
QUERIES: Final = (
    None,
    {"kind": "marked"},
    {"low": -0.5, "high": 0.5},
    {"low": -1.5, "high": 1.5},
    {"low": -4.0, "high": 4.0},
)


def goals_of(rows: Iterable[Case]) -> set[FeaturePair]:
    """The legal pairs that no row has, without dtypes, which are an axis of every row."""
    there = {pair for row in rows for pair in pairs_of(row.features)}
    return {
        pair
        for pair in legal_pairs()
        if pair not in there and all(name != "dtype" for name, _ in pair)
    }


def new_rows(
    rows: Sequence[Case], corpus: Iterable[Case], left: set[FeaturePair]
) -> Iterator[Case]:
    """New rows for the goals ``left``; the goals of each row are removed from ``left``."""
    candidates = _candidates(rows, corpus, left)
    while best := max(candidates, key=lambda goals: len(goals & left), default=None):
        if not best & left:
            return
        row = with_visible_features(candidates[best].pop(0))
        if row is not None:
            left -= best
            yield row
        elif not candidates[best]:
            del candidates[best]


def _candidates(
    rows: Sequence[Case], corpus: Iterable[Case], goals: Set[FeaturePair]
) -> dict[frozenset[FeaturePair], list[Case]]:
    """The candidates, grouped by their goals.

    Rows are combined with the cases that have the fewest fields for each value in each phase.
    """
    values = {value for pair in goals for value in pair}
    others: dict[object, list[Case]] = {}
    for case in sorted(corpus, key=lambda case: (len(case.insensitive_to), len(_fields(case)))):
        if case.counts_for_coverage and not {None, REST} & {*case.features.values()}:
            for value in case.features.items() & values:
                others.setdefault((value, case.features["phase"]), []).append(case)
    chosen = {case.id: case for cases in others.values() for case in cases[:TRIES]}
    candidates: dict[frozenset[FeaturePair], list[Case]] = {}
    for row, other in itertools.product(rows, chosen.values()):
        if row.call.dtype == DTYPES[0] and (made := _crossed(row, other)):
            covered = candidates.setdefault(frozenset(pairs_of(made.features)) & goals, [])
            if len(covered) < TRIES:
                covered.append(made)
    return candidates


def _fields(case: Case) -> dict[str, Any]:
    """The fields of the call that are not the default, as in a case file."""
    fields = case.written_call.as_written("json")
    fields.pop("dtype", None)
    return fields


def _crossed(row: Case, other: Case) -> Case | None:
    """The row combined with the fields of another case; None if that call must be rejected."""
    try:
        call = checked_call({**_fields(row), **_fields(other)})
        hidden = tuple(dict.fromkeys((*row.insensitive_to, *other.insensitive_to)))
        case = replace(
            row, written_call=call, written_title=None, written_contract=None, insensitive_to=hidden
        )
        computes = case.contract.demands != "rejects" and not any(misfits(call, "computes"))
    except (ValidationError, InputError):
        return None
    return case if computes and not any(rule.forbids(case.features) for rule in RULES) else None


def with_visible_features(case: Case) -> Case | None:
    """The case with the first values for which its result depends on all its features.

    None if there are no such values. Only parts in ``insensitive_to`` may have no effect; parts
    that have one are removed from it.
    """
    fields = _fields(case)
    inputs = fields.get("inputs", {})
    for seed, query in itertools.product(range(SEEDS), QUERIES):
        other = {"query": {**inputs.get("query", {}), "values": query}} if query else {}
        call = checked_call({**fields, "seed": seed, "inputs": {**inputs, **other}})
        moved = effects(call)
        small = {part_of(name) for name, effect in moved.items() if effect < NO_EFFECT}
        hidden = tuple(part for part in case.insensitive_to if part in small)
        if all(shows_all(call, dtype, hidden) for dtype in DTYPES):
            return replace(case, written_call=call, insensitive_to=hidden)
    return None


def shows_all(call: Call, dtype: str, hidden: Sequence[EffectName]) -> bool:
    """Whether all effects of the call in a dtype reach their thresholds, except ``hidden``."""
    call = checked_call({**call.as_written(), "dtype": dtype})
    return not any(shortfalls(effects(call), hidden))


def line_of(row: Case, taken: Collection[str]) -> str:
    """The row as a line of a case file, with a title that is not in ``taken``."""
    more = shows_all(row.call, "bfloat16", row.insensitive_to)
    numbered = (f"{row.title[:70]} ({number})" for number in itertools.count(2))
    entry = {
        "name": "_".join(re.findall(r"\w+", words(row.features).lower())),
        "title": next(t for t in itertools.chain([row.title], numbered) if t not in taken),
        **_fields(row),
        **({"insensitive_to": row.insensitive_to} if row.insensitive_to else {}),
        "matrix": {"dtype": [*DTYPES, *(["bfloat16"] if more else [])]},
    }
    return json.dumps(entry)


def main() -> int:
    """Add rows for the pairs that no row has; returns 1 if a pair is left."""
    file = shipped_files()[THEME]
    rows = load_file(file)
    left = goals_of(rows)
    titles = {row.title for row in rows}
    lines = []
    for row in new_rows(rows, find(()).named, left):
        lines.append(line_of(row, titles))
        titles.add(json.loads(lines[-1])["title"])
    if lines:
        text = file.read_text(encoding="utf-8").rstrip("\n")
        file.write_text("\n".join([text, *(f"  - {line}" for line in lines), ""]), encoding="utf-8")
    print(f"{len(lines)} rows added to {file}")
    for one, other in sorted(left):
        print(f"No row for {' '.join(one)} × {' '.join(other)}: write a case that has both.")
    return int(bool(left))


if __name__ == "__main__":
    run_command(main, "Adds rows to cases/covering/pairs.yaml for pairs of values without one.")
