"""What a person reads in a terminal: a result told in lines, the same in ``gqa run`` and pytest."""

from __future__ import annotations

import math
from collections.abc import Iterator

from conformance.report.text import clean
from conformance.results.records import (
    CaseRecord,
    InfrastructureRecord,
    OutputErrorRecord,
    ResultRecord,
)
from conformance.results.verdicts import acceptance_of

#: A message or stderr tail in the terminal is cut to so many lines; the results file has it all.
_MOST_LINES = 12


def tell(case: CaseRecord, result: ResultRecord) -> Iterator[str]:
    """The lines that say what came of a case and how to see it again."""
    acceptance = acceptance_of(result)
    note = f" ({acceptance.note})" if acceptance else " (vague)" if result.vague else ""
    stage = f" at {result.stage}" if result.stage else ""
    yield f"{case.id} on {result.target}: {result.verdict}{stage}{note}"
    yield f"  why       {clean(result.reason)}"
    if result.message and result.message != result.reason:
        code = f"{result.code}: " if result.code else ""
        yield from _block("message", code + result.message)
    contract = case.contract
    words = f", naming one of: {', '.join(contract.mentions)}" if contract.mentions else ""
    yield f"  contract  {contract.demands} ({contract.basis}){words}"
    if contract.why:
        yield f"            {contract.why}"
    yield f"            {contract.source}"
    if case.relation:
        yield f"  relation  {case.relation}"
    worst = max((e for e in result.errors), key=lambda e: e.share or 0.0, default=None)
    if worst is not None and result.verdict != "pass":
        yield f"  worst     {worst_element(worst, case.call.steps)}"
    if result.expectation is not None:
        known = result.expectation
        yield f"  expected  {known.verdict} ({known.file}:{known.line}): {known.why}"
        yield f"            {known.link}"
    if result.stderr.strip() and result.verdict in ("crash", "timeout"):
        yield from _block("stderr", result.stderr)
    for link in case.links:
        yield f"  see       {link}"
    yield f"  again     {result.reproduce}"


def tell_trouble(trouble: InfrastructureRecord) -> str:
    """What did not work, with the command that mends it on a line of its own."""
    about = f" ({trouble.case})" if trouble.case else ""
    mend = f"\n  mend it with: {clean(trouble.fix)}" if trouble.fix else ""
    return f"Infrastructure, {trouble.target}{about}: {clean(trouble.message)}{mend}"


def worst_element(error: OutputErrorRecord, steps: int) -> str:
    """The worst element of an output: where, what is there, what should be, how bad that is.

    Nine digits tell any two float32 apart.
    """
    call = f" of call {error.step}" if steps > 1 else ""
    where = ", ".join(map(str, error.index or ()))
    got, want = error.got or 0.0, error.want or 0.0
    text = f"{error.output}[{where}]{call}: got {got:.9g}, want {want:.9g}"
    if not math.isfinite(got):
        return f"{text}, which no budget allows"
    if not error.budget:
        return f"{text}; off by {abs(got - want):.3g}, and it must be exact"
    allowed = f"allowed {error.budget:.3g} ({error.share:.3g} of the budget)"
    return f"{text}; off by {abs(got - want):.3g}, {allowed}"


def _block(title: str, text: str) -> Iterator[str]:
    lines = clean(text).strip().splitlines() or [""]
    for number, line in enumerate(lines[:_MOST_LINES]):
        yield f"  {title if number == 0 else '':<9} {line[:500]}"
    if len(lines) > _MOST_LINES:
        yield f"            … {len(lines) - _MOST_LINES} more lines; the results file has them all"
