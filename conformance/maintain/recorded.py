"""Updates recorded results to the current expectations.

The result of a runtime does not change, but the expectation that covers it can.
``python -m conformance.maintain.recorded FILE…`` rewrites each file with the current expectations,
as a run would write it, and prints the number of unexpected results.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from conformance.case.case import Case
from conformance.case.corpus import find
from conformance.expectations.match import Expectation, known_instability
from conformance.expectations.read import load_expectations
from conformance.maintain import run_command
from conformance.results.packed import packing
from conformance.results.reader import stream
from conformance.results.records import (
    Footer,
    Header,
    InstabilityRecord,
    Record,
    ResultRecord,
    TargetRecord,
)
from conformance.run.records import ANOTHER_EXPECTATION, compared
from conformance.targets.catalogue import entry_of
from conformance.targets.registry import target_for

#: The text that a run appends to the reason of an unexpected result.
_COMPARED: Final = re.compile(
    rf" (?:\S+:\d+{ANOTHER_EXPECTATION}|(?:It was not tried|Not run) alone).*\Z",
    re.DOTALL,
)


class Expected:
    """Compares results of a file with the current expectations of its targets."""

    def __init__(self, targets: Iterable[TargetRecord], cases: Iterable[Case]) -> None:
        self._cases = {case.id: case for case in cases}
        self._targets = {target.name: target for target in targets}
        self._lines: dict[tuple[str, str], list[Expectation]] = {}
        self._files: dict[str, list[Expectation]] = {}

    def compared(self, result: ResultRecord) -> ResultRecord:
        """The result with its current expectation; unchanged if the case no longer exists."""
        case = self._cases.get(result.case)
        target = self._targets[result.target]
        if case is None or target.describe is None:
            return result
        entry = entry_of(target.ep)
        contract = case.contract.on(entry.execution_provider if entry else None)
        reason = _COMPARED.sub("", result.reason)
        return compared(
            case,
            result.model_copy(update={"reason": reason}),
            contract.basis,
            (target.describe.version, target.describe.adapter),
            self._lines_for(target, case),
        )

    def explained(self, record: InstabilityRecord) -> InstabilityRecord:
        """A result that did not repeat, with its current expectation."""
        target = self._targets[record.target]
        if target.describe is None:
            return record
        case = self._cases.get(record.case)
        known = None
        if case is not None:
            on = target.describe.version, target.describe.adapter
            lines = (line for line in self._file_of(target) if line.known.holds_for(*on))
            known = known_instability(case, record.verdict, lines)
        return record.model_copy(
            update={
                "message": _COMPARED.sub("", record.message),
                "unexpected": known is None,
                "expectation": known,
            }
        )

    def _file_of(self, target: TargetRecord) -> list[Expectation]:
        """All lines of the target."""
        ep = target.ep.partition("@")[0]
        if ep not in self._files:
            self._files[ep] = load_expectations(target_for(ep).expectations)
        return self._files[ep]

    def _lines_for(self, target: TargetRecord, case: Case) -> list[Expectation]:
        """The lines of the target that cover the case in any release."""
        key = target.ep.partition("@")[0], case.id
        if key not in self._lines:
            self._lines[key] = [line for line in self._file_of(target) if line.covers(case)]
        return self._lines[key]


def renewed(path: Path, cases: Iterable[Case]) -> Iterator[tuple[Record, bytes]]:
    """The records and lines of a results file, updated to the current expectations.

    Raises `ResultsError` if the file cannot be read.
    """
    expected: Expected | None = None
    unexpected = 0
    for line, record in stream(path, []):
        match record:
            case Header():
                expected = Expected(record.targets, cases)
            case ResultRecord() if expected is not None:
                now = expected.compared(record)
                unexpected += now.unexpected
                yield now, line if now == record else _line(line, now)
                continue
            case InstabilityRecord() if expected is not None:
                record = expected.explained(record)
                line = record.model_dump_json().encode() + b"\n"
            case Footer():
                record = record.model_copy(update={"unexpected": unexpected})
                line = record.model_dump_json().encode() + b"\n"
        yield record, line


def _line(line: bytes, now: ResultRecord) -> bytes:
    """``line`` with the expectation and the reason of ``now``."""
    values = json.loads(line) | {"unexpected": now.unexpected, "reason": now.reason}
    values.pop("expectation", None)
    if now.expectation is not None:
        values["expectation"] = now.expectation.model_dump(mode="json")
    return json.dumps(values, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Rewrite each file; the exit status is 1 if a result is unexpected."""
    parser = argparse.ArgumentParser(description="Updates recorded results to the expectations.")
    parser.add_argument("files", nargs="+", metavar="FILE", help="a results file")
    files = parser.parse_args(arguments).files
    cases = list(find(()).named)
    status = 0
    for name in files:
        path = Path(name)
        results = unexpected = 0
        with packing(path) as out:
            for record, line in renewed(path, cases):
                out.write(line)
                results += isinstance(record, ResultRecord)
                if isinstance(record, ResultRecord | InstabilityRecord):
                    unexpected += record.unexpected
        print(f"{path}: {results} results, {unexpected} unexpected")
        status = status or int(unexpected > 0)
    return status


if __name__ == "__main__":
    run_command(main)
