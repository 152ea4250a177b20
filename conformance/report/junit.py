"""JUnit XML: a test suite for each target, a test for each case.

Unexpected results are failures, infrastructure failures are errors, and cases that could not be run
are skipped. A target on which no case could be run is one more test, with an error; the instability
of a target is another, which fails. Everything else passes, also known defects; their output
describes the defect.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from conformance.base.text import clean, one_line
from conformance.results.instability import instability_examples, instability_text, is_unstable
from conformance.results.records import (
    InstabilityRecord,
    ResultRecord,
)
from conformance.results.shareable import shared_command
from conformance.results.table import Cell, Column, Table
from conformance.results.uncalled import uncalled_sentences
from conformance.results.verdicts import VERDICTS
from conformance.results.wrong_outputs import wrong_in

#: CI systems show an attribute on one line; the element has the full text.
_LINE = 500

#: The test suite for problems of a whole run.
RUN = "gqa-conformance"


@dataclass
class _Suite:
    """A test suite under construction."""

    name: str
    column: Column | None = None
    tests: list[Element] = field(default_factory=list)
    failures: int = 0
    errors: int = 0
    skipped: int = 0
    unstable: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    only_presents: int = 0
    seconds: float = 0.0


def junit(table: Table) -> str:
    """The run as an XML document."""
    suites = {column.label: _Suite(column.label, column) for column in table.columns}
    for cell in table.cells:
        _add_result(suites[cell.label], cell)
    for suite in suites.values():
        if suite.tests and suite.skipped == len(suite.tests):
            _add_untested(suite)
    for label, trouble in table.infrastructure:
        suite = suites.setdefault(label, _Suite(label))
        case = table.cases.get(trouble.case or "")
        theme = case.theme if case else "infrastructure"
        # A case may have both a result and a failure, and test names must be unique.
        again = " (infrastructure)" if (trouble.case, label) in table.results else ""
        name = f"{trouble.case}{again}" if trouble.case is not None else "target"
        fix = f"\nfix: {trouble.fix}" if trouble.fix else ""
        _add_error(suite, theme, name, trouble.message, trouble.message + fix)
    for label, records in table.instability.items():
        suite = suites.setdefault(label, _Suite(label))
        _add_instability(suite, records)
    whole = _Suite(RUN)
    for number, problem in enumerate(table.problems, 1):
        # An incomplete run must not look like a successful one.
        _add_error(whole, "run", f"problem {number}", problem, problem)
    return _document([*suites.values(), *([whole] if whole.tests else [])])


def _add_result(suite: _Suite, cell: Cell) -> None:
    result = cell.result
    test = _test(suite, cell.theme, result.case)
    suite.verdicts[cell.verdict] += 1
    suite.only_presents += cell.only_presents
    seconds = _seconds(result)
    if seconds is not None:
        test.set("time", f"{seconds:.6f}")
        suite.seconds += seconds
    if result.unexpected:
        suite.failures += 1
        failure = SubElement(test, "failure")
        failure.set("type", result.verdict)
        failure.set("message", _line(f"{_verdict(cell)}: {result.reason}"))
        failure.text = _text(_details(cell))
    elif result.verdict == "skip":
        suite.skipped += 1
        SubElement(test, "skipped").set("message", _line(result.reason))
    elif result.verdict != "pass" or result.expectation is not None or result.hazard:
        SubElement(test, "system-out").text = _text(_details(cell))
    if result.stderr.strip():
        SubElement(test, "system-err").text = _text([result.stderr])


def _add_error(suite: _Suite, classname: str, name: str, message: str, text: str) -> None:
    test = _test(suite, classname, name)
    suite.errors += 1
    error = SubElement(test, "error")
    error.set("type", "infrastructure")
    error.set("message", _line(message))
    error.text = _text([text])


def _add_untested(suite: _Suite) -> None:
    """An error for a target that has skipped every case: skipped tests alone pass for success."""
    target = suite.column.target if suite.column else None
    skipped = suite.tests[0].find("skipped")
    reason = (skipped.get("message") if skipped is not None else None) or ""
    fix = f"\nfix: {target.fix}" if target and target.fix else ""
    _add_error(suite, "infrastructure", suite.name, reason, reason + fix)


def _add_instability(suite: _Suite, records: Sequence[InstabilityRecord]) -> None:
    """A test of the target itself, which fails: a run with instability is no success.

    It passes where expectations cover all.
    """
    test, text = _test(suite, "instability", "target"), instability_text(records)
    suite.unstable = len(records)
    if is_unstable(records):
        suite.failures += 1
        failure = SubElement(test, "failure")
        failure.set("type", "instability")
        failure.set("message", _line(text))
        failure.text = _text(instability_examples(records))
    else:
        SubElement(test, "system-out").text = _text([text, *instability_examples(records)])


def _test(suite: _Suite, classname: str, name: str) -> Element:
    test = Element("testcase")
    test.set("classname", _line(classname))
    test.set("name", clean(name, 2_000))
    suite.tests.append(test)
    return test


def _verdict(cell: Cell) -> str:
    """The verdict with its note: `wrong (only in presents)`."""
    return f"{cell.verdict} ({cell.note})" if cell.note else cell.verdict


def _details(cell: Cell) -> Iterator[str]:
    result, contract = cell.result, cell.contract
    yield f"{_verdict(cell)}: {result.reason}"
    if result.wrong_outputs:
        yield f"wrong in: {wrong_in(result)}"
    if result.hazard:
        yield f"hazard: {result.hazard}"
    if result.message and result.message != result.reason:
        yield f"message: {f'{result.code}: ' if result.code else ''}{result.message}"
    if contract is not None:
        yield f"contract: {contract.terms}, {contract.source}"
        if contract.disputed:
            yield f"disputed: {contract.disputed}"
    known = result.expectation
    if known is not None:
        yield f"expected: {known.verdict} ({known.file}:{known.line}): {known.why}\n{known.link}"
    yield f"reproduce: {shared_command(result.reproduce)}"


def _seconds(result: ResultRecord) -> float | None:
    total = result.ms.total if result.ms else None
    # A time that is not finite, or longer than years, would make the sum meaningless.
    return total / 1000 if total is not None and math.isfinite(total) and 0 <= total < 1e9 else None


def _document(suites: Iterable[_Suite]) -> str:
    root = Element("testsuites")
    root.set("name", RUN)
    made = [(suite, _suite(suite)) for suite in suites]
    for name, total in (
        ("tests", sum(len(suite.tests) for suite, _ in made)),
        ("failures", sum(suite.failures for suite, _ in made)),
        ("errors", sum(suite.errors for suite, _ in made)),
    ):
        root.set(name, str(total))
    root.extend(element for _, element in made)
    indent(root)
    text = tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _suite(suite: _Suite) -> Element:
    element = Element("testsuite")
    for name, value in (
        ("name", _line(suite.name)),
        ("tests", str(len(suite.tests))),
        ("failures", str(suite.failures)),
        ("errors", str(suite.errors)),
        ("skipped", str(suite.skipped)),
        ("time", f"{suite.seconds:.3f}"),
    ):
        element.set(name, value)
    if suite.column is not None:
        element.set("timestamp", suite.column.run.header.start.isoformat(timespec="seconds"))
        properties = SubElement(element, "properties")
        for name, value in _properties(suite, suite.column):
            one = SubElement(properties, "property")
            one.set("name", _line(name))
            one.set("value", _line(value))
    element.extend(suite.tests)
    return element


def _properties(suite: _Suite, column: Column) -> Iterator[tuple[str, str]]:
    for verdict in VERDICTS:
        yield f"verdict.{verdict}", str(suite.verdicts[verdict])
    yield "instability", str(suite.unstable)
    yield "wrong_only_in_presents", str(suite.only_presents)
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
