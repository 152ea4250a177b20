"""``docs/oracle.md``: each statement says on what it rests."""

from __future__ import annotations

import re

import pytest

from conformance.base.paths import ROOT
from conformance.base.readings import READINGS

PAGE = ROOT / "docs" / "oracle.md"
MARK = re.compile(r"\*(specified|established|requested|either|undefined)\*")
#: A link to a thread that decided it.
THREAD = re.compile(r"\b[\w-]+/[\w-]+#\d+")

pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="not a checkout")


def rules() -> str:
    """The page without what is about the program, from the first statement on."""
    text = PAGE.read_text(encoding="utf-8")
    return text[text.index("## Tokens") : text.index("## Seeing the values")]


def statements() -> list[str]:
    """Each item of a list, and each row of a table after its head, on one line."""
    items = re.findall(r"^(?:- |\d\. ).*(?:\n +\S.*)*", rules(), re.MULTILINE)
    tables = re.findall(r"^\|.*\n\|[ |-]+\n((?:\|.*\n)+)", rules(), re.MULTILINE)
    rows = [row for table in tables for row in table.splitlines()]
    return [" ".join(item.split()) for item in (*items, *rows)]


def test_each_statement_says_on_what_it_rests() -> None:
    found = statements()
    assert len(found) > 40
    assert [statement for statement in found if not MARK.search(statement)] == []


def test_what_is_specified_is_quoted_or_links_its_decision() -> None:
    for statement in statements():
        if "*specified*" in statement:
            assert '"' in statement or THREAD.search(statement), statement


def test_each_reading_is_described() -> None:
    text = rules()
    assert [name for name in READINGS if f"`{name}` (*either*)" not in text] == []
