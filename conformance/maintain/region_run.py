"""Which fault the corpus detects in which region: the cells, and the runs that fill them.

For a case whose calls all lie in a region, the mutant in the region equals the mutant everywhere.
So one run of a mutant on a case gives the verdict for all regions that contain the case; where its
wrong elements lie gives the parts of the call. A mutant is run only on cases in cells that no
earlier run has filled, and a loop with some of its calls in a region does not count for it.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Final

from conformance.case.case import Case
from conformance.maintain.power import Mutant, PowerError, Watch
from conformance.maintain.region_worker import Seen, Trial, Worker
from conformance.maintain.regions import Region, excluded, joined

#: The time that a run costs besides the kernel's own, in seconds.
_OVERHEAD: Final = 0.002


def impossible(mutant: Mutant, region: Region) -> str:
    """Why the fault cannot be on in the region; empty if it can."""
    if mutant.everywhere:
        return mutant.everywhere
    if region.part is not None and not mutant.outputs:
        return "A rejection, a type, a shape and a single element have no parts."
    if region.part is not None and region.part.axis == "key":
        if not mutant.faulty_keys:
            return "Its step makes nothing for each key."
        if mutant.faulty_keys <= region.part.first:
            return "It is at fault for earlier keys only."
    elif region.part is not None and not set(region.outputs) & set(mutant.outputs):
        return "The outputs that it changes have no such part."
    why = ""
    for needs in mutant.needs:
        why = excluded(joined(needs, region.needs))
        if not why:
            return ""
    if mutant.area == "refusals":
        return f"No call in the region must be computed and shows it. {why}"
    return why


@dataclass
class Cells:
    """A cell for each mutant and region.

    ``excluded`` has the reason of cells that no call can be in. The cells of refusals in regions of
    sliding-window caches are open as well, until a case fills them: texts let a kernel reject such
    a cache if it is longer than its window, and cases demand one that is as long.
    ``killers`` has the cases that detect a mutant, with the regions that each of them fills;
    ``seen`` the regions of these cases; ``within`` the largest share of the budget where no case
    detects a fault of rounding.
    """

    mutants: Sequence[Mutant]
    regions: Sequence[Region]
    excluded: dict[tuple[str, str], str] = field(default_factory=dict)
    open: dict[str, set[str]] = field(default_factory=dict)
    killers: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    within: dict[tuple[str, str], float] = field(default_factory=dict)
    seen: dict[str, frozenset[str]] = field(default_factory=dict)
    runs: int = 0

    def __post_init__(self) -> None:
        for mutant in self.mutants:
            self.open[mutant.name], self.killers[mutant.name] = set(), {}
            for region in self.regions:
                why = impossible(mutant, region)
                if why:
                    self.excluded[mutant.name, region.name] = why
                window_cache = "sliding_window" in region.needs.get("cache", ())
                allowed = mutant.area == "refusals" and not mutant.everywhere and window_cache
                if not why or allowed:
                    self.open[mutant.name].add(region.name)

    def roles(self, seen: Seen) -> list[str]:
        """The mutants that could fill an open cell with the case, some in a region only."""
        around = self._around(seen)
        later = {
            region.name
            for region in self.regions
            if region.part is not None
            and region.part.axis == "key"
            and region.part.first < seen.keys
        }
        roles = []
        for name, cells in self.open.items():
            if cells & around:
                roles.append(name)
            roles += (f"{name}@{region}" for region in sorted(cells & later))
        return roles

    def take(self, seen: Seen, trials: Iterable[Trial]) -> None:
        """Fill the cells that the case shows."""
        for trial in trials:
            self.runs += 1
            name, _, one = trial.role.partition("@")
            if not trial.differs:
                continue
            if trial.killed:
                shown = {one} if one else seen.regions | self._parts(trial)
                regions = self.open[name] & shown
                if not regions:
                    continue
                self.fill(name, regions)
                self.seen[seen.case] = seen.regions
                self.killers[name].setdefault(seen.case, []).extend(sorted(regions))
            elif trial.share > 0:
                for region in self.open[name] & ({one} if one else self._around(seen)):
                    before = self.within.get((name, region), 0.0)
                    self.within[name, region] = max(before, trial.share)

    def fill(self, name: str, regions: Collection[str]) -> None:
        """A case detects the mutant in the ``regions``."""
        self.open[name].difference_update(regions)
        for region in regions:
            self.excluded.pop((name, region), None)

    def missing(self, mutant: Mutant) -> set[str]:
        """The regions in which the mutant can be on, but nothing shows it."""
        return {
            region
            for region in self.open[mutant.name] - self.small(mutant)
            if (mutant.name, region) not in self.excluded
        }

    def _around(self, seen: Seen) -> frozenset[str]:
        """The regions that the case lies in, and the parts that its call has."""
        return seen.regions | {
            region.name
            for region in self.regions
            if region.part is not None and region.part.first <= seen.reach.get(region.part.axis, -1)
        }

    def _parts(self, trial: Trial) -> set[str]:
        """The regions that are parts of a call in which the fault shows."""
        return {
            region.name
            for region in self.regions
            if region.part is not None
            and any(
                axes.get(region.part.axis, -1) >= region.part.first for axes in trial.reach.values()
            )
        }

    def small(self, mutant: Mutant) -> set[str]:
        """The regions in which an error of rounding is within the budget."""
        return {
            region
            for region in self.open[mutant.name]
            if mutant.small and (mutant.name, region) in self.within
        }

    def holes(self) -> Iterator[tuple[Mutant, Region]]:
        """The cells that nothing fills, without those where the fault is within the budget."""
        missing = {mutant.name: self.missing(mutant) for mutant in self.mutants}
        for region in self.regions:
            for mutant in self.mutants:
                if region.name in missing[mutant.name]:
                    yield mutant, region


_worker: Worker | None = None


def _start() -> None:
    global _worker
    _worker = Worker()


def _see(case: Case) -> Seen:
    assert _worker is not None
    return _worker.seen(case)


def _try(case: Case, roles: Sequence[str]) -> list[Trial]:
    assert _worker is not None
    return list(_worker.trials(case, roles))


def fill(
    cells: Cells,
    cases: Sequence[Case],
    jobs: int = 1,
    only: Mapping[str, Collection[str]] | None = None,
    watch: Watch = lambda what, done, total: None,
) -> None:
    """Run the mutants on the cases until no case can fill an open cell.

    ``only`` maps a mutant to the ids of the cases it is run on; None: all cases.

    Raises :class:`conformance.maintain.power.PowerError`.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # the processes share the cores
    context = get_context("spawn")
    try:
        with ProcessPoolExecutor(jobs, mp_context=context, initializer=_start) as pool:
            found: list[tuple[Case, Seen]] = []
            for number, (case, seen) in enumerate(
                zip(cases, pool.map(_see, cases, chunksize=8), strict=True)
            ):
                watch("the correct kernel", number + 1, len(cases))
                if seen.regions:
                    found.append((case, seen))
            found = _ordered(found)
            waiting: dict[Future[list[Trial]], Seen] = {}
            for number, (case, seen) in enumerate(found):
                watch("mutants in regions", number + 1, len(found))
                roles = cells.roles(seen)
                if only is not None:
                    roles = [role for role in roles if case.id in only[role.partition("@")[0]]]
                if not roles:
                    continue
                while len(waiting) > jobs:
                    _collect(cells, waiting)
                waiting[pool.submit(_try, case, roles)] = seen
            while waiting:
                _collect(cells, waiting)
    except BrokenProcessPool as error:
        raise PowerError(f"A process of mutants ended: {error}") from None


def _collect(cells: Cells, waiting: dict[Future[list[Trial]], Seen]) -> None:
    done, _ = wait(waiting, return_when=FIRST_COMPLETED)
    for future in done:
        cells.take(waiting.pop(future), future.result())


def _ordered(found: Sequence[tuple[Case, Seen]]) -> list[tuple[Case, Seen]]:
    """The cases in many and in rare regions first, and those that take little time."""
    sizes: dict[str, int] = {}
    for _, seen in found:
        for region in seen.regions:
            sizes[region] = sizes.get(region, 0) + 1

    def worth(one: tuple[Case, Seen]) -> float:
        rare = sum(1 / sizes[region] for region in one[1].regions)
        return -rare / (one[1].seconds + _OVERHEAD)

    return sorted(found, key=worth)
