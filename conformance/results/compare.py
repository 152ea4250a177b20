"""The changes from an old run, the baseline, to a new one.

Two releases of a target can be compared. `conformance.results.regressions` says whether the new run
is worse.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from conformance.results.causes import symptom
from conformance.results.differences import HEADINGS, DifferenceKind, difference
from conformance.results.differences import Change as Change
from conformance.results.pairs import Pair, pairs_of
from conformance.results.records import CaseRecord
from conformance.results.regressions import notes, reasons
from conformance.results.same import is_same_case
from conformance.results.table import Table
from conformance.results.verdicts import VERDICTS, Verdict


@dataclass(frozen=True)
class RunDifferences:
    """All changes between two runs, by kind. Within a kind they are in the order of the cases;
    among new results, unexpected ones come first."""

    by_kind: Mapping[DifferenceKind, Sequence[Change]]
    targets: tuple[Pair, ...]
    notes: tuple[str, ...]
    """Differences between the runs that are not regressions, such as another machine."""
    reasons: tuple[str, ...]
    """Why the new run is worse, a sentence for each reason; empty if it is not worse."""
    cases: Mapping[str, CaseRecord]
    """The cases that have changes, as the new run describes them, or else the baseline."""
    right: Mapping[str, Sequence[str]]
    """The cases that pass before and now, by target; only if another case is newly broken."""

    @property
    def worse(self) -> bool:
        """Whether there is a regression."""
        return bool(self.reasons)

    @property
    def verdicts(self) -> list[Verdict]:
        """The verdicts that occur in either run."""
        every = [each for one in self.targets for each in (one.totals_before, one.totals_after)]
        return [verdict for verdict in VERDICTS if any(totals.get(verdict) for totals in every)]

    def grouped(self, changes: Iterable[Change]) -> list[tuple[list[str], list[Change]]]:
        """``changes`` by cause, as (entries, changes): of one target, with the same verdicts and
        wrong outputs before and now, and the same known defect or symptom."""
        groups: dict[tuple[object, ...], list[Change]] = {}
        for change in changes:
            both = change.before, change.after
            before, after = ((r.verdict, r.wrong_outputs) if r else None for r in both)
            worst = next((r for r in reversed(both) if r and r.verdict != "pass"), None)
            cause = worst and (worst.known.why if worst.known else symptom(worst))
            key = change.target, before, after, change.known, cause
            groups.setdefault(key, []).append(change)
        return [([*dict.fromkeys(map(self._entry, those))], those) for those in groups.values()]

    def _entry(self, change: Change) -> str:
        """The entry of a case; its id if the case is not described."""
        case = self.cases.get(change.case)
        return case.entry if case else change.case

    def kinds(self) -> Iterator[tuple[str, Sequence[Change]]]:
        """The heading and the changes of each kind that has any."""
        return ((HEADINGS[kind], changes) for kind, changes in self.by_kind.items() if changes)

    def all(self) -> Iterator[Change]:
        """Every change, kind by kind."""
        return chain.from_iterable(self.by_kind.values())


def changes(new: Table, old: Table) -> RunDifferences:
    """The changes from the baseline ``old`` to ``new``."""
    pairs = pairs_of(new, old)
    ids = list(dict.fromkeys([*new.ids, *old.ids]))
    by_kind: dict[DifferenceKind, list[Change]] = {kind: [] for kind in HEADINGS}
    right: dict[str, list[str]] = {}
    for pair in pairs:
        if pair.before is None or pair.after is None:
            continue
        before, after = pair.before.label, pair.after.label
        for id in ids:
            was, now = old.results.get((id, before)), new.results.get((id, after))
            if was and now and was.verdict == now.verdict == "pass":
                right.setdefault(after, []).append(id)
            if (changed := difference(was, now)) is not None:
                kind, sentence = changed
                if _is_redefined(id, new, old):
                    sentence += " The case itself has changed."
                by_kind[kind].append(Change(kind, id, after, was, now, sentence))
    by_kind["new"].sort(key=lambda change: not (change.after and change.after.unexpected))
    worse = tuple(reasons(new, old, pairs, by_kind))
    known = {change.case for kind in by_kind.values() for change in kind}
    cases = ((id, new.cases.get(id) or old.cases.get(id)) for id in ids if id in known)
    return RunDifferences(
        by_kind=by_kind,
        targets=tuple(pairs),
        notes=tuple(note for note in notes(new, old, pairs) if note not in worse),
        reasons=worse,
        cases={id: case for id, case in cases if case is not None},
        right=right if by_kind["broken"] else {},
    )


def _is_redefined(id: str, new: Table, old: Table) -> bool:
    """Whether the two runs have different cases by this id."""
    one, other = (table.changed.get(id) or table.cases.get(id) for table in (new, old))
    if one is None or other is None:
        return False
    if isinstance(one, str) or isinstance(other, str):
        return one != other
    return not is_same_case(one, other)
