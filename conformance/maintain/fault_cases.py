"""cases/faults_prefill.yaml and cases/faults_decode.yaml: what each fault needs, in each region.

``python -m conformance.maintain.generate cases/faults_prefill.yaml`` writes one of them. A fault of
a kernel is on in a region of calls only, and many faults show only with special numbers there: two
scores far apart, a number halfway between two codes, ``smooth_softmax`` 0. The mutants declare what
each fault needs and where it can be on (``mutants/needs.py``, ``mutants/regions.py``). The rows are
a covering array of these: what each fault needs meets each region.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from typing import Any, Final

import numpy as np

from conformance.maintain import dense_cases
from conformance.maintain.case_text import MadeEntry, file_text
from conformance.maintain.dense_cases import Group
from conformance.maintain.fault_rows import (
    FACTORS,
    FEATURES,
    GROUPS,
    VALUES,
    Row,
    allowed,
    dtypes_of,
    group_of,
    meets,
    words_of,
)
from conformance.maintain.fault_values import values_of
from conformance.maintain.power import known_mutants, known_regions
from conformance.maintain.region_cases import Fields, cost, size_of
from conformance.maintain.region_run import impossible
from conformance.maintain.regions import SIZES as RANGES
from conformance.maintain.regions import Needs, joined

#: The usual cost of a row, and how many times the least cost in its region a row may have.
USUAL: Final = 1 << 16
SPARE: Final = (4, 32)
#: A row costs at most this, or twice the least cost in its region if that is more.
HIGHEST: Final = 1 << 24
#: The cost of a row from which on slow kernels need more time than usual.
LONG: Final = 1 << 23
#: The fewest cells that a row is the first to meet.
FEWEST: Final = 3
#: Rows that are tried for a cell, of which no values are sensitive.
MOST_TRIES: Final = 4
#: Candidates for each row, and tries for a candidate.
CANDIDATES: Final = 32
TRIES: Final = 4


@dataclass
class Wanted:
    """What is still to be met: the needs of faults, by the regions in which they can be on."""

    needs: list[list[Needs]] = field(default_factory=list)
    regions: list[Needs] = field(default_factory=list)
    left: Any = None

    def __post_init__(self) -> None:
        regions = known_regions()
        places: dict[str, int] = {}
        cells: dict[tuple[int, int], None] = {}
        self.regions = [region.needs for region in regions]
        for mutant in known_mutants():
            if mutant.everywhere:
                continue
            key = json.dumps(mutant.needs)
            if key not in places:
                places[key] = len(self.needs)
                self.needs.append(list(mutant.needs))
            for number, region in enumerate(regions):
                if not impossible(mutant, region):
                    cells[places[key], number] = None
        self.left = np.zeros((len(self.needs), len(self.regions)), bool)
        for cell in cells:
            self.left[cell] = True

    def least(self, cell: tuple[int, int]) -> int:
        """About the least cost of a row in the cell."""
        needs, region = cell
        return min(least_cost(joined(one, self.regions[region])) for one in self.needs[needs])

    def met(self, row: Row) -> Any:
        """Which of the cells that are left the row meets."""
        words = words_of(row)
        found = np.zeros_like(self.left)
        for dtype in dtypes_of(row):
            words["dtype"] = {dtype}
            needs = [any(meets(words, one) for one in several) for several in self.needs]
            regions = [meets(words, one) for one in self.regions]
            found |= np.outer(needs, regions)
        return found & self.left


class Maker:
    """Makes random rows that meet needs."""

    def __init__(self, numbers: random.Random) -> None:
        self.random = numbers

    def candidates(
        self, group: Group, most: int, needs: Sequence[Needs], region: Needs
    ) -> Iterator[Row]:
        """Rows of the group that meet one of the ``needs`` in the region."""
        for _ in range(CANDIDATES):
            row = self.row(group, most, joined(self.random.choice(needs), region))
            if row is not None:
                yield row

    def row(self, group: Group, most: int, needs: Needs) -> Row | None:
        """A random row of the group that has what is needed and costs at most ``most``."""
        levels = {name: self._levels(group, name, needs) for name in FACTORS}
        if not all(levels.values()):
            return None
        for _ in range(TRIES):
            row = self._filled(most, levels)
            if row is None:
                continue
            if meets(words_of(row), needs):
                return row
        return None

    def _levels(self, group: Group, factor: str, needs: Needs) -> list[str]:
        """The levels of a factor that can meet the needs, as far as it alone decides."""
        levels = list(group.plain.get(factor, FACTORS[factor]))
        feature, values = VALUES.get(factor, (factor, {}))
        if factor == "window" and "window" in needs:
            own = {"shorter", "longer"} & set(needs["window"])
            levels = [one for one in levels if one == "whole" or own]
            return [one for one in levels if one != "whole" or "none" in needs["window"]]
        if factor == "dtype" and "dtype" in needs:
            dtypes = {"bfloat16": {"bfloat16"}, "floats": {"float16", "float32"}}
            return [one for one in levels if dtypes[one] & set(needs["dtype"])]
        if factor == "head_size":
            rest = needs.get("sixteens", ("rest", "none"))
            levels = [one for one in levels if ("rest" if int(one) % 16 else "none") in rest]
            return _within(needs, "head_size", levels)
        if factor == "phase":
            least, most = _range(needs, "queries")
            numbers = {one: int(f"{one}_1".split("_")[1]) for one in levels if one != "prefill"}
            levels = [one for one in levels if least <= numbers.get(one, least) <= most]
        if factor == "heads":
            for place, name in enumerate(("num_heads", "kv_num_heads")):
                levels = _within(needs, name, levels, place)
            groups = needs.get("group")
            levels = [one for one in levels if groups is None or str(group_of(one)) in groups]
        if factor == "batch":
            levels = _within(needs, "batch_size", levels)
        if factor == "keys":
            least, most = _range(needs, "keys")
            if set(needs.get("phase", ())) == {"prefill"}:
                fewest, greatest = _range(needs, "queries")
                least, most = max(least, fewest), min(most, greatest)
            return [one for one in levels if max(1, 2 * int(one)) >= least and int(one) < most]
        if feature in needs:
            levels = [one for one in levels if values.get(one, one) in needs[feature]]
        special = {"hidden" if one == "hidden_tile" else one for one in needs.get("numbers", ())}
        return [one for one in levels if one in special] or levels

    def _filled(self, most: int, levels: Mapping[str, Sequence[str]]) -> Row | None:
        """A random row of these levels; a feature is plain half of the times."""
        order = sorted(FACTORS, key=lambda name: (len(levels[name]) > 1, self.random.random()))
        row: Row = {}
        for name in order:
            found = list(levels[name])
            self.random.shuffle(found)
            plain = FACTORS[name][0]
            if name in FEATURES and plain in found and self.random.random() < 0.5:
                found.remove(plain)
                found.insert(0, plain)
            for level in found:
                row[name] = level
                if allowed(most, row, name):
                    break
            else:
                return None
        return {name: row[name] for name in FACTORS}


def rows() -> Iterator[tuple[Row, int, Fields]]:
    """Each row with the number of cells that it is the first to meet, and its call's fields."""
    wanted = Wanted()
    maker = Maker(random.Random(0))
    tries = np.zeros(wanted.left.shape, int)
    least = {cell: wanted.least(cell) for cell in zip(*np.nonzero(wanted.left), strict=True)}
    cells = sorted(least, key=lambda cell: -least[cell])
    for group, spare in product(GROUPS, SPARE):
        made = 0
        for cell in cells:
            if made >= group.rows:
                break
            if not wanted.left[cell] or tries[cell] >= MOST_TRIES:
                continue
            most = max(USUAL, min(spare * least[cell], max(HIGHEST, 2 * least[cell])))
            needs, region = wanted.needs[cell[0]], wanted.regions[cell[1]]
            found = maker.candidates(group, most, needs, region)
            candidates = [(row, wanted.met(row)) for row in found]
            candidates.sort(key=lambda one: -one[1].sum() / (1 + cost(size_of(one[0])) / most))
            for row, met in candidates[:2]:
                if met.sum() < FEWEST:
                    continue
                fields = values_of(row)
                if fields is not None:
                    wanted.left &= ~met
                    made += 1
                    yield row, int(met.sum()), fields
                    break
                tries[cell] += 1


def _range(needs: Needs, name: str) -> tuple[float, float]:
    """The range of a size that the needs leave."""
    least, most = needs.get(name, (1, math.inf))
    return float(least), float(most)


def _within(needs: Needs, name: str, levels: Sequence[str], place: int = 0) -> list[str]:
    """The levels whose number at the ``place`` lies in the range of a size."""
    least, most = _range(needs, name)
    return [one for one in levels if least <= int(one.split(":")[place]) <= most]


def least_cost(needs: Needs) -> int:
    """About the least cost of a row that meets the needs."""
    least = {name: int(needs[name][0]) if name in needs else 1 for name in RANGES}
    prompt = set(needs.get("phase", ())) == {"prefill"}
    queries = max(least["keys"], least["queries"]) if prompt else least["queries"]
    keys = max(least["keys"], queries, 16)
    size, heads = max(least["head_size"], 8), max(least["num_heads"], least["kv_num_heads"], 2)
    return heads * least["batch_size"] * ((keys + queries) * size + 4 * queries * keys)


@cache
def _made() -> list[tuple[Row, int, Fields]]:
    return list(rows())


def entry_of(row: Row, fields: Fields, why: str, number: int) -> MadeEntry:
    """The entry of a row in a case file."""
    if cost(size_of(row)) > LONG:
        fields = {**fields, "time_limit_seconds": 120.0}
    return dense_cases.entry_of(row, number, why, fields, dtypes_of(row), FEATURES)


def text(theme: str) -> str:
    """The file of prompts, cases/faults_prefill.yaml, or that of calls on a past."""
    prefill = theme == "faults_prefill"
    entries = [
        entry_of(row, fields, f"What {met} faults or more need meets a region here first.", number)
        for number, (row, met, fields) in enumerate(_made(), 1)
        if (row["phase"] == "prefill") == prefill
    ]
    calls = "prompts" if prefill else "calls on a past"
    return file_text(
        theme,
        f"Would each fault show in each region of {calls}?",
        "conformance/maintain/fault_cases.py says what meets what",
        entries,
    )
