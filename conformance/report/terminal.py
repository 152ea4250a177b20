"""A result as lines of text, for ``gqa run``, pytest and JUnit."""

from __future__ import annotations

import math
from collections.abc import Iterator

from conformance.base.text import clean
from conformance.base.words import listed
from conformance.report.error_picture import picture, text_of
from conformance.results.faults import factor
from conformance.results.records import (
    CaseRecord,
    InfrastructureRecord,
    OutputErrorRecord,
    ResultRecord,
    contract_of,
)
from conformance.results.verdicts import note_of, verdict_word
from conformance.results.wrong_outputs import wrong_in

#: The number of lines that are shown of a message or of stderr; the results file has all.
_MOST_LINES = 12


def tell(case: CaseRecord, result: ResultRecord) -> Iterator[str]:
    """The lines about a result: verdict, reason, contract, and the command that reproduces it.

    They are not cleaned.
    """
    mark = "vague" if result.vague else "hazard" if result.hazard else ""
    note = note_of(result) or mark
    stage = f" at {result.stage}" if result.stage else ""
    what = f"{verdict_word(result.verdict)}{stage}{f' ({note})' if note else ''}"
    yield f"{case.id} on {result.target}: {what}"
    yield f"  reason    {result.reason}"
    if result.kernels:
        yield f"  kernel    {listed(result.kernels)}"
    if result.wrong_outputs:
        yield f"  wrong in  {wrong_in(result)}"
    if result.hazard:
        yield f"  hazard    {result.hazard}"
    if result.message and result.message != result.reason:
        code = f"{result.code}: " if result.code else ""
        yield from _block("message", code + result.message)
    contract = contract_of(case, result)
    words = f", naming one of: {', '.join(contract.mentions)}" if contract.mentions else ""
    yield f"  contract  {contract.terms}{words}"
    if contract.why:
        yield f"            {contract.why}"
    yield f"            {contract.source}"
    if contract.disputed:
        yield f"  disputed  {contract.disputed}"
    if case.relation:
        yield f"  relation  {case.relation}"
    worst = max((e for e in result.errors), key=lambda e: e.share or 0.0, default=None)
    if worst is not None and result.verdict != "pass":
        yield f"  worst     {worst_element(worst, case.call.steps)}"
        scores = (e for e in result.errors if e.output == "output_qk" and e is not worst)
        for error in (worst, *scores):
            for number, line in enumerate(text_of(picture(error))):
                yield f"  {'' if number else 'where':<9} {line}"
    if result.insensitive:
        yield f"  warning   {result.insensitive}"
    if result.expectation is not None:
        known = result.expectation
        yield f"  expected  {verdict_word(known.verdict)} ({known.file}:{known.line}): {known.why}"
        yield f"            {known.link}"
    if result.stderr.strip() and result.verdict in ("crash", "timeout"):
        yield from _block("stderr", result.stderr)
    for link in case.links:
        yield f"  see       {link}"
    yield f"  reproduce {result.reproduce}"


def tell_trouble(trouble: InfrastructureRecord) -> str:
    """A sentence about an infrastructure failure, and a line with the command that fixes it."""
    about = f" ({trouble.case})" if trouble.case else ""
    fix = f"\n  fix: {trouble.fix}" if trouble.fix else ""
    message = "\n  │ ".join(trouble.message.splitlines())
    return f"Infrastructure, {trouble.target}{about}: {message}{fix}"


def worst_element(error: OutputErrorRecord, steps: int) -> str:
    """The worst element of an output: index, actual and expected value, and share of the budget.

    Nine digits are enough to distinguish any two float32 values.
    """
    step = f" of step {error.step}" if steps > 1 else ""
    where = ", ".join(map(str, error.index or ()))
    got, want = error.got or 0.0, error.want or 0.0
    text = f"{error.output}[{where}]{step}: got {got:.9g}, expected {want:.9g}"
    if not math.isfinite(got):
        return f"{text}, which is never allowed"
    if not error.budget:
        return f"{text}; error {abs(got - want):.3g}, but it must be exact"
    allowed = f"allowed {error.budget:.3g} ({factor(error.share or 0.0)} times the budget)"
    return f"{text}; error {abs(got - want):.3g}, {allowed}"


def _block(title: str, text: str) -> Iterator[str]:
    """The lines of a text from outside, marked so that none looks like one of ours."""
    lines = clean(text).strip().splitlines() or [""]
    for number, line in enumerate(lines[:_MOST_LINES]):
        yield f"  {title if number == 0 else '':<9} {'│ ' if number else ''}{line[:500]}"
    if len(lines) > _MOST_LINES:
        yield f"            … {len(lines) - _MOST_LINES} more lines; see the results file"
