"""Whether a case can show a fault: measured, or recorded for the themes of the corpus.

``cases/sensitive.json`` has the SHA-256 of each theme's file as it was when all its cases were
found sensitive. A run measures a case only if its file is another one: to measure takes a third of
the time in which a bundle is made. ``tests/test_sensitivity.py`` measures the whole corpus.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from functools import cache, lru_cache
from pathlib import Path
from typing import Final

from conformance.base.paths import data_path
from conformance.bundle.prepare import answers_to
from conformance.bundle.script import script_of
from conformance.bundle.sensitivity import combined, effects, insensitive, sufficient
from conformance.case.call import Call, GivenCall, GraphCall
from conformance.case.case import Case
from conformance.case.corpus import shipped_files

#: The record, in the folder of the corpus.
RECORD: Final = "sensitive.json"


def why_insensitive(case: Case) -> str | None:
    """Why the case cannot show a fault, as :func:`insensitive` says; None if it can.

    Raises :class:`conformance.case.given.GivenError`.
    """
    return None if _is_recorded(case.file) else _measured(case)


def record_text(cases: Sequence[Case]) -> str:
    """The record of the files of these ``cases``; ends the command if one is insensitive."""
    for case in cases:
        why = _measured(case)
        if why is not None:
            raise SystemExit(f"{case.id}: {why}")
    files = sorted({case.file for case in cases})
    return json.dumps({file.name: _digest(file) for file in files}, indent=1) + "\n"


def _measured(case: Case) -> str | None:
    """As `why_insensitive`, whatever is recorded. What must be rejected has no values."""
    if case.contract.demands == "rejects":
        return None
    return insensitive(case, required_effects(case.call))


def required_effects(call: Call) -> dict[str, float]:
    """The required effects of the active features of ``call``, in error budgets.

    Raises :class:`conformance.case.given.GivenError`.
    """
    return _effects(call, every=False)


def every_effect(call: Call) -> dict[str, float]:
    """As `required_effects`, with those effects that only count as coverage."""
    return _effects(call, every=True)


def _effects(call: Call, *, every: bool) -> dict[str, float]:
    """The effects of a call: the largest over its steps. Values of a model are as they are."""
    found: dict[str, float] = {}
    if isinstance(call, GivenCall | GraphCall):
        return found
    script = script_of(call)
    usual = answers_to(script)
    if usual.unjudged is not None or script.attributes is None:
        return found
    for inputs, answer in zip(usual.inputs, usual.steps, strict=True):
        skipped = sufficient(found)
        references, units = answer.references, answer.units
        moved = effects(inputs, script.attributes, references, units, skipped, every=every)
        found = combined((found, moved))
    return found


@lru_cache(maxsize=1024)
def _is_recorded(file: Path) -> bool:
    """Whether the file is one of the corpus, and as it was when its cases were measured."""
    shipped = shipped_files().get(file.stem)
    return (
        shipped is not None
        and file.resolve() == shipped.resolve()
        and _digest(file) == _recorded().get(file.name)
    )


@cache
def _recorded() -> dict[str, str]:
    """The record; empty if it cannot be read, so that everything is measured."""
    found: dict[str, str] = {}
    with suppress(OSError, ValueError):
        found = json.loads((data_path("cases") / RECORD).read_bytes())
    return found


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
