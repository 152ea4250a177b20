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
from functools import cache
from pathlib import Path
from typing import Final

from conformance.base.target_names import split_release
from conformance.case.case import Case
from conformance.case.corpus import find
from conformance.expectations.match import known_instability
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
from conformance.run.recording import ANOTHER_EXPECTATION, compared
from conformance.targets.catalogue import entry_of
from conformance.targets.registry import target_for

#: The text that a run appends to the reason of an unexpected result.
_COMPARED: Final = re.compile(
    rf" (?:\S+:\d+{ANOTHER_EXPECTATION}|(?:It was not tried|Not run) alone).*\Z",
    re.DOTALL,
)


class CurrentExpectations:
    """Compares results of a file with the current expectations of its targets."""

    def __init__(self, targets: Iterable[TargetRecord], cases: Iterable[Case]) -> None:
        self._cases = {case.id: case for case in cases}
        self._targets = {target.name: target for target in targets}
        lines = cache(lambda ep: load_expectations(target_for(ep).expectations))
        #: The lines for the version and adapter of each target.
        self._lines = {
            name: [each for each in lines(split_release(target.ep)[0]) if each.known.holds_for(*on)]
            for name, target in self._targets.items()
            for on in [_on(target)]
        }

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
            _on(target),
            self._lines[target.name],
        )

    def explained(self, record: InstabilityRecord) -> InstabilityRecord:
        """A result that did not repeat, with its current expectation."""
        if (case := self._cases.get(record.case)) is None:
            return record
        known = known_instability(case, record.verdict, self._lines[record.target])
        message = _COMPARED.sub("", record.message)
        update = {"message": message, "unexpected": known is None, "expectation": known}
        return record.model_copy(update=update)


def _on(target: TargetRecord) -> tuple[str, str | None]:
    """The version and the adapter of a target."""
    return (target.describe.version, target.describe.adapter) if target.describe else ("", None)


def renewed(path: Path, cases: Iterable[Case]) -> Iterator[tuple[Record, bytes]]:
    """The records and lines of a results file, updated to the current expectations.

    Raises `ResultsError` if the file cannot be read.
    """
    expected: CurrentExpectations | None = None
    unexpected = 0
    for line, record in stream(path, []):
        match record:
            case Header():
                expected = CurrentExpectations(record.targets, cases)
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
