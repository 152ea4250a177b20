"""The recorded cells: the cases that detect each fault in each region, in ``mutants/regions.json``.

The file is small: it has the regions of each case as bits, and for each mutant the cases that fill
its cells, without saying which case fills which. Parts of a call are filled by a mutant's cases,
not by a case alone, so they are bits of the mutant.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from conformance.maintain.power import MUTANTS, PowerError
from conformance.maintain.region_run import Cells

RECORD: Final = MUTANTS / "regions.json"
FIX: Final = "gqa power --regions --record"


@dataclass(frozen=True)
class OfMutant:
    """The ``cases`` that fill a mutant's cells, the parts that they fill, the largest shares where
    the fault is within the error budget, and the regions in which it is not detected."""

    cases: tuple[str, ...] = ()
    parts: frozenset[str] = frozenset()
    within: Mapping[str, float] = field(default_factory=dict)
    missing: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Recorded:
    """``regions`` in their order, the regions of each of the ``cases``, and the ``mutants``."""

    regions: tuple[str, ...]
    cases: dict[str, frozenset[str]]
    mutants: dict[str, OfMutant]

    @staticmethod
    def of(cells: Cells) -> Recorded:
        """What is to be recorded of cells that have been filled."""
        parts = {region.name for region in cells.regions if region.part is not None}
        mutants: dict[str, OfMutant] = {}
        cases: dict[str, frozenset[str]] = {}
        for mutant in cells.mutants:
            if mutant.everywhere:
                continue
            filled = cells.killers[mutant.name]
            cases |= {case: cells.seen[case] for case in filled}
            small = cells.small(mutant)
            mutants[mutant.name] = OfMutant(
                tuple(filled),
                frozenset(region for regions in filled.values() for region in regions) & parts,
                {region: cells.within[mutant.name, region] for region in sorted(small)},
                frozenset(cells.missing(mutant)),
            )
        return Recorded(tuple(region.name for region in cells.regions), cases, mutants)

    def restore(self, cells: Cells) -> None:
        """Fill the cells as they are recorded."""
        for name, of in self.mutants.items():
            allowed = {region for region in cells.open[name] if (name, region) in cells.excluded}
            left = of.missing.union(of.within, allowed - self._filled(of))
            cells.fill(name, cells.open[name] - left)
            cells.within |= {(name, region): share for region, share in of.within.items()}

    def _filled(self, of: OfMutant) -> frozenset[str]:
        """The regions in which a case detects the mutant."""
        return of.parts.union(*(self.cases[case] for case in of.cases))

    def updated(self, newer: Recorded) -> Recorded:
        """The record with the mutants of a ``newer`` one."""
        if self.regions != newer.regions:
            return newer
        return Recorded(self.regions, self.cases | newer.cases, self.mutants | newer.mutants)

    @staticmethod
    def read(file: Path = RECORD) -> Recorded:
        """The recorded cells. Raises :class:`conformance.maintain.power.PowerError`."""
        try:
            data = json.loads(file.read_text(encoding="utf-8"))
            regions = tuple(data["regions"])
            ids = list(data["cases"])
            return Recorded(
                regions,
                {case: _names(bits, regions) for case, bits in data["cases"].items()},
                {
                    name: OfMutant(
                        tuple(ids[number] for number in of["cases"]),
                        _names(of["parts"], regions),
                        of["within"],
                        _names(of["missing"], regions),
                    )
                    for name, of in data["mutants"].items()
                },
            )
        except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise PowerError(f"{file} cannot be read: {error!r}. Fix: {FIX}") from None

    def write(self, file: Path = RECORD) -> None:
        """Write the file, a case and a mutant on each line."""
        place = {case: number for number, case in enumerate(self.cases)}
        cases = {case: _bits(names, self.regions) for case, names in self.cases.items()}
        mutants = {
            name: {
                "cases": [place[case] for case in of.cases],
                "parts": _bits(of.parts, self.regions),
                "missing": _bits(of.missing, self.regions),
                "within": {region: float(f"{share:.2g}") for region, share in of.within.items()},
            }
            for name, of in self.mutants.items()
        }
        whole: dict[str, Any] = {"regions": self.regions, "cases": cases, "mutants": mutants}
        text = ",\n".join(f"{json.dumps(key)}: {_lines(of)}" for key, of in whole.items())
        file.write_text(f"{{{text}}}\n", encoding="utf-8")

    def stale(self, cells: Cells, corpus: Collection[str]) -> str:
        """Why the record does not fit ``cells`` that are not filled yet; empty if it does."""
        if list(self.regions) != [region.name for region in cells.regions]:
            return "the regions have changed"
        names = [mutant.name for mutant in cells.mutants if not mutant.everywhere]
        for name in sorted(set(names) ^ set(self.mutants)):
            return f"the mutant {name} is {'new' if name in names else 'gone'}"
        for case in self.cases:
            if case not in corpus:
                return f"the case {case} no longer exists"
        for mutant in cells.mutants:
            if mutant.everywhere:
                continue
            of = self.mutants[mutant.name]
            recorded = self._filled(of).union(of.missing, of.within)
            for region in sorted(cells.missing(mutant) - recorded):
                return f"no case is recorded for {mutant.name} in {region}"
        return ""


def _bits(names: Iterable[str], regions: Sequence[str]) -> str:
    chosen = set(names)
    return f"{sum(1 << number for number, name in enumerate(regions) if name in chosen):x}"


def _names(bits: str, regions: Sequence[str]) -> frozenset[str]:
    number = int(bits, 16)
    return frozenset(name for place, name in enumerate(regions) if number >> place & 1)


def _lines(of: Mapping[str, Any] | Sequence[str]) -> str:
    """JSON with an entry of a mapping on each line."""
    if not isinstance(of, Mapping):
        return json.dumps(of)
    return "{\n" + ",\n".join(f" {json.dumps(k)}: {json.dumps(v)}" for k, v in of.items()) + "}"
