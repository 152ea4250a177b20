"""``docs/oracle.md``: each statement says on what it rests, and each quotation is the schema's."""

from __future__ import annotations

import re

import pytest

from conformance.base.paths import ROOT
from conformance.base.readings import READINGS
from conformance.base.signature import DOMAIN, OP_TYPE

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


def test_each_quotation_is_in_the_schema_word_by_word() -> None:
    state = pytest.importorskip("onnxruntime.capi.onnxruntime_pybind11_state")
    (schema,) = (
        s for s in state.get_all_operator_schema() if (s.domain, s.name) == (DOMAIN, OP_TYPE)
    )
    parts = (*schema.attributes.values(), *schema.inputs, *schema.outputs)
    words = " ".join(" ".join([schema.doc, *(part.description for part in parts)]).split())
    text = PAGE.read_text(encoding="utf-8")
    quoted = re.findall(r'"([^"]+)"', text[: text.index("## Seeing the values")])
    assert len(quoted) > 30
    assert [quote for quote in quoted if " ".join(quote.split()) not in words] == []


def test_each_reading_is_described() -> None:
    text = rules()
    assert [name for name in READINGS if f"`{name}` (*either*)" not in text] == []
