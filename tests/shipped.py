"""The shipped cases, loaded once for all tests of a process."""

from __future__ import annotations

from functools import cache

from conformance.base.paths import data_path
from conformance.case.case import Case
from conformance.case.load import load


@cache
def shipped_cases() -> tuple[Case, ...]:
    """The corpus, in the order of its files. Loading it takes more than a second."""
    return tuple(load([data_path("cases")]))


def cases_of_theme(theme: str) -> list[Case]:
    """The shipped cases of one file."""
    return [case for case in shipped_cases() if case.theme == theme]
