"""``python -m conformance.maintain.covering`` adds rows to cases/covering/pairs.yaml.

The goals are the pairs of values of features that no rule forbids and no row has. A candidate is a
row with those fields of another case of the corpus that are not the default, so a new feature gets
rows once there are cases of it. The candidate with the most goals is kept, with values that make
all its features show. Rows are only added: ids and values of those before never change.
"""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence, Set
from dataclasses import replace
from typing import Any, Final

from pydantic import ValidationError

from conformance.base.yaml_source import InputError
from conformance.bundle.sensitivity import NO_EFFECT, effects, part_of, shortfalls
from conformance.case.call import Call
from conformance.case.case import Case, EffectName, misfits
from conformance.case.corpus import find, shipped_files
from conformance.case.features import REST, RULES
from conformance.case.load import load_file
from conformance.case.wording import words
from conformance.maintain.coverage import Pair, legal_pairs, pairs_of

#: The dtypes of every row; rows that show their features in it have bfloat16, too.
DTYPES: Final = ("float32", "float16")
#: The theme that gets new rows.
THEME: Final = "pairs"
#: The number of cases that are tried for a value in a phase, and of candidates for the same goals.
TRIES: Final = 3
#: Seeds and values of queries that are tried for a row, in this order.
SEEDS: Final = 4
QUERIES: Final = (
    None,
    {"kind": "marked"},
    {"low": -0.5, "high": 0.5},
    {"low": -1.5, "high": 1.5},
    {"low": -4.0, "high": 4.0},
)


def goals_of(rows: Iterable[Case]) -> set[Pair]:
    """The legal pairs that no row has. A dtype is an axis of every row, and so in no goal."""
    there = {pair for row in rows for pair in pairs_of(row.features)}
    return {
        pair
        for pair in legal_pairs()
        if pair not in there and all(name != "dtype" for name, _ in pair)
    }


def new_rows(rows: Sequence[Case], corpus: Iterable[Case], left: set[Pair]) -> Iterator[Case]:
    """Rows for the goals ``left``, which are removed from it as rows have them."""
    candidates = _candidates(rows, corpus, left)
    while best := max(candidates, key=lambda goals: len(goals & left), default=None):
        if not best & left:
            return
        row = telling(candidates[best].pop(0))
        if row is not None:
            left -= best
            yield row
        elif not candidates[best]:
            del candidates[best]


def _candidates(
    rows: Sequence[Case], corpus: Iterable[Case], goals: Set[Pair]
) -> dict[frozenset[Pair], list[Case]]:
    """Candidates by the goals that they have.

    The other cases are those with the fewest fields for each value in each phase.
    """
    values = {value for pair in goals for value in pair}
    others: dict[object, list[Case]] = {}
    for case in sorted(corpus, key=lambda case: (len(case.insensitive_to), len(_fields(case)))):
        if case.counts_for_coverage and not {None, REST} & {*case.features.values()}:
            for value in case.features.items() & values:
                others.setdefault((value, case.features["phase"]), []).append(case)
    chosen = {case.id: case for cases in others.values() for case in cases[:TRIES]}
    found: dict[frozenset[Pair], list[Case]] = {}
    for row, other in itertools.product(rows, chosen.values()):
        if row.call.dtype == DTYPES[0] and (made := _crossed(row, other)):
            covered = found.setdefault(frozenset(pairs_of(made.features)) & goals, [])
            if len(covered) < TRIES:
                covered.append(made)
    return found


def _fields(case: Case) -> dict[str, Any]:
    """The fields of the call that are not the default, as a case file has them."""
    return case.written_call.model_dump(mode="json", exclude_defaults=True, exclude={"dtype"})


def _crossed(row: Case, other: Case) -> Case | None:
    """The row with the fields of another case, None if that is not a call that may compute."""
    try:
        call = Call.model_validate({**_fields(row), **_fields(other)})
        hidden = tuple(dict.fromkeys((*row.insensitive_to, *other.insensitive_to)))
        case = replace(
            row, written_call=call, written_title=None, written_contract=None, insensitive_to=hidden
        )
        computes = case.contract.demands != "rejects" and not any(misfits(call, "computes"))
    except (ValidationError, InputError):
        return None
    return case if computes and not any(rule.forbids(case.features) for rule in RULES) else None


def telling(case: Case) -> Case | None:
    """The case with the first values that show all its features, None if there are none.

    Only parts in its ``insensitive_to`` may have no effect; those that have none stay there.
    """
    fields = _fields(case)
    inputs = fields.get("inputs", {})
    for seed, query in itertools.product(range(SEEDS), QUERIES):
        other = {"query": {**inputs.get("query", {}), "values": query}} if query else {}
        call = Call.model_validate({**fields, "seed": seed, "inputs": {**inputs, **other}})
        moved = effects(call)
        small = {part_of(name) for name, effect in moved.items() if effect < NO_EFFECT}
        hidden = tuple(part for part in case.insensitive_to if part in small)
        if all(shows_all(call, dtype, hidden) for dtype in DTYPES):
            return replace(case, written_call=call, insensitive_to=hidden)
    return None


def shows_all(call: Call, dtype: str, hidden: Sequence[EffectName]) -> bool:
    """Whether the effects of the call in a dtype reach their thresholds, but for ``hidden``."""
    call = Call.model_validate({**call.model_dump(exclude_unset=True), "dtype": dtype})
    return not any(shortfalls(effects(call), hidden))


def line_of(row: Case, taken: Collection[str]) -> str:
    """The row as a line of a case file, with a title that is not ``taken``."""
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
    """Add rows for the pairs that no row has; 1 if a pair is left."""
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
    sys.exit(main())
