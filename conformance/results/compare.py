"""The changes between two runs; the old run is the baseline.

Targets are compared by what they are: their releases are a property. What makes the new run worse
is in `conformance.results.regressions`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from conformance.results.differences import HEADINGS, Kind, difference
from conformance.results.differences import Change as Change
from conformance.results.pairs import Pair, pairs_of
from conformance.results.records import CaseRecord
from conformance.results.regressions import notes, reasons
from conformance.results.same import is_same_case
from conformance.results.table import Table
from conformance.results.verdicts import VERDICTS, Verdict


@dataclass(frozen=True)
class Changes:
    """All changes. Those of a kind are in the order of the cases, but unexpected new ones first."""

    by_kind: Mapping[Kind, Sequence[Change]]
    targets: tuple[Pair, ...]
    notes: tuple[str, ...]
    """Differences of the runs that are no regressions, such as another machine."""
    reasons: tuple[str, ...]
    """Why the new run is worse, one sentence each; empty if it is not."""
    cases: Mapping[str, CaseRecord]
    """The cases of all changes, as described in the new run, else in the baseline."""

    @property
    def worse(self) -> bool:
        """Whether there is a regression."""
        return bool(self.reasons)

    @property
    def verdicts(self) -> list[Verdict]:
        """Those that any of the results has."""
        every = [each for one in self.targets for each in (one.totals_before, one.totals_after)]
        return [verdict for verdict in VERDICTS if any(totals.get(verdict) for totals in every)]

    def grouped(self, found: Iterable[Change]) -> list[tuple[str, list[Change]]]:
        """``found`` by entry, target, verdicts and wrong outputs, as (entry, changes)."""
        groups: dict[tuple[object, ...], list[Change]] = {}
        for change in found:
            both = change.before, change.after
            before, after = ((r.verdict, r.wrong_outputs) if r else None for r in both)
            case = self.cases.get(change.case)
            entry = case.entry if case else change.case
            key = entry, change.target, before, after, change.known
            groups.setdefault(key, []).append(change)
        return [(str(entry), members) for (entry, *_), members in groups.items()]

    def kinds(self) -> Iterator[tuple[str, Sequence[Change]]]:
        """The kinds that have changes, each with its heading."""
        return ((HEADINGS[kind], found) for kind, found in self.by_kind.items() if found)

    def all(self) -> Iterator[Change]:
        """Every change, kind by kind."""
        return chain.from_iterable(self.by_kind.values())


def changes(new: Table, old: Table) -> Changes:
    """The changes from the baseline ``old`` to ``new``."""
    pairs = pairs_of(new, old)
    ids = list(dict.fromkeys([*new.ids, *old.ids]))
    found: dict[Kind, list[Change]] = {kind: [] for kind in HEADINGS}
    for pair in pairs:
        if pair.before is None or pair.after is None:
            continue
        before, after = pair.before.label, pair.after.label
        for id in ids:
            was, now = old.results.get((id, before)), new.results.get((id, after))
            if (changed := difference(was, now)) is not None:
                kind, sentence = changed
                if _is_redefined(id, new, old):
                    sentence += " The case itself has changed."
                found[kind].append(Change(kind, id, after, was, now, sentence))
    found["new"].sort(key=lambda change: not (change.after and change.after.unexpected))
    worse = tuple(reasons(new, old, pairs, found))
    known = {change.case for kind in found.values() for change in kind}
    cases = ((id, new.cases.get(id) or old.cases.get(id)) for id in ids if id in known)
    return Changes(
        by_kind=found,
        targets=tuple(pairs),
        notes=tuple(note for note in notes(new, old, pairs) if note not in worse),
        reasons=worse,
        cases={id: case for id, case in cases if case is not None},
    )


def _is_redefined(id: str, new: Table, old: Table) -> bool:
    """Whether the case is another one than in the baseline."""
    one, other = new.cases.get(id), old.cases.get(id)
    return one is not None and other is not None and not is_same_case(one, other)
