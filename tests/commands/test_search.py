"""Expressions of ``gqa list`` and ``-k`` as a user sees them: what is found, and why nothing is."""

from __future__ import annotations

import pytest
from tables import tables

from conformance.case.corpus import names_cases

TABLES = tables(__file__)


@pytest.mark.parametrize(("argument", "is_one"), TABLES["arguments"])
def test_what_names_cases_and_what_is_an_expression(argument: str, is_one: bool) -> None:
    assert names_cases(argument) is is_one
