"""The shipped cases, loaded once for all tests of a process, with what is derived from them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from conformance.base.paths import data_path
from conformance.case.case import Case
from conformance.case.load import case_files, load_file


@cache
def shipped_cases() -> tuple[Case, ...]:
    """The corpus, in the order of its files. Loading it takes more than a second."""
    return tuple(case for file in case_files([data_path("cases")]) for case in _shipped(file))


def load_once(file: Path, *, checked: bool = True) -> list[Case]:
    """As `load_file`, but a shipped file is read by the first call only."""
    shipped = file.is_relative_to(data_path("cases"))
    return [*_shipped(file)] if shipped else load_file(file, checked=checked)


@cache
def _shipped(file: Path) -> tuple[Case, ...]:
    return tuple(load_file(file))


def cases_of_theme(theme: str) -> list[Case]:
    """The shipped cases of one file."""
    return [case for case in shipped_cases() if case.theme == theme]
