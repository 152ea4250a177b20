"""cases/power_regions.yaml: calls that detect faults in regions where no other case does.

``gqa power --regions --record`` records in which regions a fault is not detected
(``mutants/regions.json``). ``python -m conformance.maintain.missing_cases`` searches a call for
each of these, and adds it to the file if a run of the fault shows that it is detected. Record again
afterwards.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from conformance.base.paths import data_path
from conformance.case.case import Case
from conformance.case.load import load
from conformance.maintain.case_text import MadeEntry, entry_lines, file_text
from conformance.maintain.fault_cases import Maker, entry_of, least_cost
from conformance.maintain.fault_rows import GROUPS, Row
from conformance.maintain.fault_values import values_of
from conformance.maintain.power import Mutant, known_mutants, known_regions
from conformance.maintain.region_record import Recorded
from conformance.maintain.region_run import Cells
from conformance.maintain.region_worker import Worker
from conformance.maintain.regions import Region, joined

THEME: Final = "power_regions"
#: Rows that are tried for a fault in a region, and how many times the least cost each may have.
TRIES: Final = 40
SPARE: Final = 8
USUAL: Final = 1 << 16


def found_rows(cells: Cells, worker: Worker, number: int) -> Iterator[MadeEntry]:
    """An entry for each row that fills cells; the first has the number."""
    maker = Maker(random.Random(number))
    cheapest = sorted(cells.holes(), key=lambda hole: least_cost(hole[1].needs))
    for mutant, region in cheapest:
        for row in _rows(maker, mutant, region):
            if region.name not in cells.open[mutant.name]:
                break
            fields = values_of(row)
            if fields is None:
                continue
            entry = entry_of(row, fields, f"{mutant.name} shows in {region.name}.", number)
            if sum(_fills(cells, worker, case) for case in _cases(entry)):
                number += 1
                yield entry


def _rows(maker: Maker, mutant: Mutant, region: Region) -> Iterator[Row]:
    for _ in range(TRIES):
        needs = joined(maker.random.choice(list(mutant.needs)), region.needs)
        row = maker.row(GROUPS[-1], max(USUAL, SPARE * least_cost(needs)), needs)
        if row is not None:
            yield row


def _cases(entry: MadeEntry) -> list[Case]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"{THEME}.yaml"
        file.write_text(_text([entry]), encoding="utf-8")
        return list(load([file]))


def _text(entries: list[MadeEntry]) -> str:
    question = "Are faults detected where no other case shows them?"
    return file_text(THEME, question, "each `why` names a fault", entries, "missing_cases")


def _fills(cells: Cells, worker: Worker, case: Case) -> bool:
    """Run the faults on the case, and say whether that fills cells."""
    before = sum(map(len, cells.open.values()))
    seen = worker.seen(case)
    if seen.regions:
        cells.take(seen, worker.trials(case, cells.roles(seen)))
    return sum(map(len, cells.open.values())) < before


def main() -> int:
    """Add cases for what is recorded as not detected; the exit status is 1 if something is left."""
    cells = Cells(known_mutants(), known_regions())
    Recorded.read().restore(cells)
    file = data_path("cases") / f"{THEME}.yaml"
    worker, number = Worker(), 1
    if file.is_file():
        cases = load([file])
        number += len({case.name for case in cases})
        for case in cases:
            _fills(cells, worker, case)
    for entry in found_rows(cells, worker, number):
        if file.is_file():
            more = "\n".join(entry_lines([entry], f"row_{number}"))
            text = f"{file.read_text(encoding='utf-8')}\n{more}"
        else:
            text = _text([entry])
        file.write_text(text, encoding="utf-8")
        number += 1
        print(entry.name)
    left = [(mutant.name, region.name) for mutant, region in cells.holes()]
    for name, region in left:
        print(f"not found: {name} in {region}", file=sys.stderr)
    return int(bool(left))


if __name__ == "__main__":
    sys.exit(main())
