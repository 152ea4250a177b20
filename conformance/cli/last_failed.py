"""``gqa run --lf``: runs the cases that failed when they were last run on each target.

The cache folder has a file for each target and command of its runner: another interpreter or binary
is another target. A run changes only the notes on the cases that it runs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from conformance.base.files import read_plain, replacing
from conformance.base.paths import cache_root
from conformance.case.case import Case
from conformance.case.corpus import is_shipped
from conformance.results.records import InfrastructureRecord
from conformance.run.assessment import CaseResult
from conformance.run.target import Plan
from conformance.targets.registry import Target

#: The option's name.
OPTION: Final = "--lf"

#: The largest size of such a file; a larger one was written by another program.
_MOST_BYTES: Final = 1 << 26


class LastRun:
    """The cases of a plan that failed; a case fails if it has an unexpected result or none."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._failed: dict[str, bool] = {}

    def note(self, case: Case, record: CaseResult) -> None:
        """Note whether a case has failed."""
        failed = isinstance(record, InfrastructureRecord) or record.unexpected
        self._failed[_name(case)] = failed

    def give_up(self) -> None:
        """Note that all other cases of the plan have failed."""
        for case in self._plan.cases:
            self._failed.setdefault(_name(case), True)

    def keep(self) -> None:
        """Write the notes; a cache that cannot be written is no error of the run."""
        if not self._failed:
            return
        failed = {name for name, failed in self._failed.items() if failed}
        failed |= _failed_on(self._plan.target) - self._failed.keys()
        text = json.dumps({"target": self._plan.target.label, "failed": sorted(failed)}, indent=1)
        with suppress(OSError):
            place = _place(self._plan.target)
            place.parent.mkdir(parents=True, exist_ok=True)
            with replacing(place) as file:
                file.write(text.encode())


def only_last_failed(plans: Sequence[Plan]) -> tuple[list[Plan], str]:
    """The plans with only the cases that failed, and a sentence about them.

    All cases, if none of them failed.
    """
    chosen = []
    for plan in plans:
        failed = _failed_on(plan.target)
        chosen.append(replace(plan, cases=tuple(c for c in plan.cases if _name(c) in failed)))
    number, total = (sum(len(plan.cases) for plan in each) for each in (chosen, plans))
    if not number:
        return list(plans), f"{OPTION}: no case failed last time, so all run."
    chosen = [plan for plan in chosen if plan.cases]
    where = ", ".join(f"{len(plan.cases)} on {plan.target.label}" for plan in chosen)
    return chosen, f"{OPTION}: {number} of {total} failed last time: {where}."


def _failed_on(target: Target) -> set[str]:
    """The names of the cases that failed; empty if there are no notes, or no readable ones."""
    try:
        noted = json.loads(read_plain(_place(target), _MOST_BYTES))
        return {str(name) for name in noted["failed"]}
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return set()


def _place(target: Target) -> Path:
    key = json.dumps([target.label, *target.command.argv])
    return cache_root() / "last_failed" / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"


def _name(case: Case) -> str:
    """The id of a case; of a case in a user's file, the path of the file and the label."""
    return case.id if is_shipped(case) else f"{case.file.resolve()}::{case.label}"
