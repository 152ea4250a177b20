"""The smallest calls that still fail: of ``gqa run --shrink``, and of each run with failures."""

from __future__ import annotations

import json
import math
import shlex
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from conformance.base.paths import cache_root, shown
from conformance.base.words import plural
from conformance.case.case import Case
from conformance.case.tensors import input_elements
from conformance.cli.common import write_file
from conformance.cli.terminal import RunSummary
from conformance.diagnosis.smallest import case_text, fields_of, smallest
from conformance.harness.runner import RunnerFailed
from conformance.results.causes import Cause, causes, fault_of
from conformance.results.errors import ResultsError
from conformance.results.records import ResultRecord
from conformance.results.verdicts import is_red, was_tried
from conformance.run.engine import TargetRun
from conformance.run.target import TargetPlan

Failing = tuple[Case, ResultRecord]


@dataclass(frozen=True)
class Effort:
    """How many causes are made smaller, with how many runs for each, and in how many seconds.

    ``folder`` is where the case files go. ``thorough``: the user asked for it, so that hangs and
    known defects are made smaller, too, and what cannot be made smaller is mentioned.
    """

    most_causes: int
    most_runs: int
    seconds: float
    folder: Path
    thorough: bool


def effort_for(asked: bool | None = None, partial: bool = False) -> Effort | None:
    """The effort for a run as the user ``asked`` for it; None: not if nobody did and the run is
    ``partial``, or of a program."""
    if asked:
        return Effort(100, 500, math.inf, Path("gqa-shrunk"), True)
    return (
        None if partial or asked is False else Effort(3, 60, 10.0, cache_root() / "shrunk", False)
    )


def make_smaller(summary: RunSummary, effort: Effort | None) -> None:
    """Add to the summary the smallest call of each cause of failures."""
    if effort is None or summary.interrupted:
        return
    try:
        summary.smallest += smallest_calls(summary, effort)
    except KeyboardInterrupt:
        summary.interrupted = True


def smallest_calls(summary: RunSummary, effort: Effort) -> Iterator[str]:
    """A text for each cause: the call in words and as fields, what it needs, how to run it.

    Never of results that did not repeat.
    """
    until = time.monotonic() + effort.seconds
    unstable = {(record.case, record.target) for record in summary.instability}
    failing = [
        (case, result)
        for case, result in summary.results
        if result.unexpected or (effort.thorough and result.known)
        if was_tried(result) and result.verdict != "pass"
        if not result.flaky and (case.id, result.target) not in unstable
        if effort.thorough or result.verdict != "timeout"
    ]
    places: set[Path] = set()
    for cause in causes(failing, lambda pair: pair[1])[: effort.most_causes]:
        if time.monotonic() < until and (
            text := _smallest_of(cause, summary, effort, until, places)
        ):
            yield text


def _smallest_of(
    cause: Cause[Failing], summary: RunSummary, effort: Effort, until: float, places: set[Path]
) -> str:
    """The text for one cause, whose simplest case is made smaller; ``places`` are taken."""
    case, result = min(cause.members, key=lambda pair: sum(map(input_elements, pair[0].steps)))
    (ready,) = (each for each in summary.targets if each.name == result.target)
    fault = fault_of(result.model_copy(update={"expectation": None}))
    provider = ready.execution_provider
    is_red_here = result.unexpected or is_red(result, case.contract.on(provider).basis)
    with TargetRun(TargetPlan(ready.target, (), ()), ready=ready) as run:

        def still_fails(candidate: Case) -> bool:
            with suppress(RunnerFailed):
                record = run.once(candidate).record
                if isinstance(record, ResultRecord):
                    return fault_of(record) == fault and record.unexpected >= is_red_here
            return False

        found = smallest(case, still_fails, effort.most_runs, provider=provider, until=until)
        run.rest()
        is_smaller = fields_of(found.case) != fields_of(case) and still_fails(found.case)
    head = f"{case.id} on {result.target}, after {plural(found.runs, 'run')}"
    if not is_smaller:
        return f"  {head}: not smaller than it is" if effort.thorough else ""
    needs = found.sentence[:1].upper() + found.sentence[1:] + ". " * bool(found.sentence)
    why = f"{needs}Made of {case.id} ({cause.verdict} on {result.target})."
    place = _place(effort.folder, case, places)
    lines = [f"{head}{'' if found.complete else '; --shrink searches further'}:"]
    lines.append(f"  {found.case.title}: {_fields_text(found.case)}")
    lines += [f"  {found.sentence}"] * bool(found.sentence)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        write_file(place, "the smallest call", case_text(found.case, why))
        lines.append(f"  {shlex.join(['gqa', 'run', shown(place), *ready.arguments])}")
    except (OSError, ResultsError) as error:
        lines.append(f"  {error}")
    return "\n".join(f"  {line}" for line in lines)


def _place(folder: Path, case: Case, taken: set[Path]) -> Path:
    """The file for the smallest call of a case: a new one in this run."""
    stem = f"{case.theme}-{case.name}"
    numbered = (folder / f"{stem}{f'-{n}' if n > 1 else ''}.yaml" for n in range(1, 1000))
    place = next(each for each in numbered if each not in taken)
    taken.add(place)
    return place


def _fields_text(case: Case) -> str:
    fields = fields_of(case).items()
    texts = (
        f"{name} {value if isinstance(value, str) else json.dumps(value)}" for name, value in fields
    )
    return ", ".join(texts) or "every field at its default"
