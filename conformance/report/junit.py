"""JUnit XML: a test suite for each target, a test for each case.

Unexpected results are failures, infrastructure failures are errors, and cases that could not be run
are skipped. All other tests pass, known defects too, whose output describes the defect. A target on
which no case could be run has one more test, with an error. So has a target with results that did
not repeat; that test fails.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from conformance.base.text import clean, one_line
from conformance.report.terminal import tell
from conformance.results.instability import instability_examples, instability_text, is_unstable
from conformance.results.records import InstabilityRecord, ResultRecord
from conformance.results.shareable import shared_command
from conformance.results.table import Cell, Column, Table
from conformance.results.uncalled import uncalled_sentences
from conformance.results.verdicts import VERDICTS, verdict_word

#: The longest text of an attribute, which CI systems show on one line.
_LINE = 500

#: The name of the test suite for problems of whole runs.
RUN = "gqa-conformance"


@dataclass
class _Suite:
    """A test suite under construction; ``column`` is None if it belongs to no column."""

    name: str
    column: Column | None = None
    tests: list[Element] = field(default_factory=list)
    cells: list[Cell] = field(default_factory=list)
    unstable: int = 0

    def test(self, classname: str, name: str) -> Element:
        """Add a test."""
        test = Element("testcase", {"classname": _line(classname), "name": clean(name, 2_000)})
        self.tests.append(test)
        return test

    def number(self, outcome: str) -> int:
        """The number of tests with this outcome: ``failure``, ``error`` or ``skipped``."""
        return sum(test.find(outcome) is not None for test in self.tests)


def junit(table: Table) -> str:
    """The table as an XML document."""
    suites = {column.label: _Suite(column.label, column) for column in table.columns}
    for cell in table.cells:
        _add_result(suites[cell.label], cell)
    for suite in suites.values():
        if suite.tests and suite.number("skipped") == len(suite.tests):
            _add_untested(suite)
    for label, trouble in table.infrastructure:
        suite = suites.setdefault(label, _Suite(label))
        case = table.cases.get(trouble.case or "")
        theme = case.theme if case else "infrastructure"
        # A case may have both a result and a failure, and test names must be unique.
        again = " (infrastructure)" if (trouble.case, label) in table.results else ""
        name = f"{trouble.case}{again}" if trouble.case is not None else "target"
        _add_error(suite.test(theme, name), trouble.message, trouble.fix)
    for label, records in table.instability.items():
        _add_instability(suites.setdefault(label, _Suite(label)), records)
    whole = _Suite(RUN)
    for number, problem in enumerate(table.problems, 1):
        # An incomplete run must not look successful.
        _add_error(whole.test("run", f"problem {number}"), problem)
    return _document([*suites.values(), *([whole] if whole.tests else [])])


def _add_result(suite: _Suite, cell: Cell) -> None:
    result = cell.result
    test = suite.test(cell.theme, result.case)
    suite.cells.append(cell)
    if (seconds := _seconds(result)) is not None:
        test.set("time", f"{seconds:.6f}")
    if result.unexpected:
        message = f"{_verdict(cell)}: {result.reason}"
        _add(test, "failure", result.verdict, message, _details(cell))
    elif result.verdict == "skip":
        SubElement(test, "skipped", {"message": _line(result.reason)})
    elif result.verdict != "pass" or result.expectation is not None or result.hazard:
        SubElement(test, "system-out").text = _text(_details(cell))
    if result.stderr.strip():
        SubElement(test, "system-err").text = _text([result.stderr])


def _add(test: Element, outcome: str, kind: str, message: str, lines: Iterable[str]) -> None:
    """Add a failure or an error to a test."""
    about = {"type": kind, "message": _line(message)}
    SubElement(test, outcome, about).text = _text(lines)


def _add_error(test: Element, message: str, fix: str | None = None) -> None:
    _add(test, "error", "infrastructure", message, [message, *([f"fix: {fix}"] if fix else [])])


def _add_untested(suite: _Suite) -> None:
    """Add an error to a target that skipped every case, because skipped tests look like success."""
    reason = _line(suite.cells[0].result.reason)
    fix = suite.column.target.fix if suite.column else None
    _add_error(suite.test("infrastructure", suite.name), reason, fix)


def _add_instability(suite: _Suite, records: Sequence[InstabilityRecord]) -> None:
    """Add a test for results of the target that did not repeat.

    It fails, unless expectations cover all of them.
    """
    test, text = suite.test("instability", "target"), instability_text(records)
    suite.unstable = len(records)
    if is_unstable(records):
        _add(test, "failure", "instability", text, instability_examples(records))
    else:
        SubElement(test, "system-out").text = _text([text, *instability_examples(records)])


def _verdict(cell: Cell) -> str:
    """The verdict with its note: `wrong (only in presents)`."""
    word = verdict_word(cell.verdict)
    return f"{word} ({cell.note})" if cell.note else word


def _details(cell: Cell) -> Iterable[str]:
    """The lines about a result, as ``gqa run`` prints them."""
    if cell.case is None:
        return [f"{_verdict(cell)}: {cell.result.reason}"]
    # stderr has an element of its own
    changed = {"stderr": "", "reproduce": shared_command(cell.result.reproduce)}
    return tell(cell.case, cell.result.model_copy(update=changed))


def _seconds(result: ResultRecord) -> float | None:
    total = result.ms.total if result.ms else None
    # A time that is not finite, or takes years, would make the sum meaningless.
    return total / 1000 if total is not None and math.isfinite(total) and 0 <= total < 1e9 else None


def _document(suites: Sequence[_Suite]) -> str:
    root = Element("testsuites", {"name": RUN, "tests": str(sum(len(s.tests) for s in suites))})
    for name, outcome in (("failures", "failure"), ("errors", "error")):
        root.set(name, str(sum(suite.number(outcome) for suite in suites)))
    root.extend(map(_suite, suites))
    indent(root)
    text = tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _suite(suite: _Suite) -> Element:
    seconds = (_seconds(cell.result) or 0.0 for cell in suite.cells)
    about = {
        "name": _line(suite.name),
        "tests": str(len(suite.tests)),
        "failures": str(suite.number("failure")),
        "errors": str(suite.number("error")),
        "skipped": str(suite.number("skipped")),
        "time": f"{sum(seconds):.3f}",
    }
    element = Element("testsuite", about)
    if suite.column is not None:
        element.set("timestamp", suite.column.run.header.start.isoformat(timespec="seconds"))
        properties = SubElement(element, "properties")
        for name, value in _properties(suite, suite.column):
            SubElement(properties, "property", {"name": _line(name), "value": _line(value)})
    element.extend(suite.tests)
    return element


def _properties(suite: _Suite, column: Column) -> Iterator[tuple[str, str]]:
    verdicts = Counter(cell.verdict for cell in suite.cells)
    for verdict in VERDICTS:
        yield f"verdict.{verdict}", str(verdicts[verdict])
    yield "instability", str(suite.unstable)
    yield "wrong_only_in_presents", str(sum(cell.only_presents for cell in suite.cells))
    target, header = column.target, column.run.header
    yield "suite", header.suite
    yield "corpus", header.corpus
    yield "selection", header.selection.text
    if target.unavailable is not None:
        yield "unavailable", target.unavailable
    if target.describe is not None:
        yield "runtime", f"{target.describe.runtime} {target.describe.version}"
        yield "device", target.describe.device or ""
        for sentence in uncalled_sentences([target]):
            yield "uncalled", sentence
        for name, version in target.describe.versions.items():
            yield f"version.{name}", version


def _line(text: str) -> str:
    return one_line(text, _LINE)


def _text(lines: Iterable[str]) -> str:
    return clean("\n".join(lines))
