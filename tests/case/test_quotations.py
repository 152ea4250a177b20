"""Quotations stand word for word in their sources: in contracts, and on the page of the oracle."""

from __future__ import annotations

import pytest
from citations import citations
from quoted import quotations, sources, stands_in, unfounded
from shipped import shipped_cases

from conformance.base.paths import data_path
from conformance.maintain.quotations import operator_text
from conformance.targets.tools import ONNXRUNTIME_VERSION


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    """The sources; the operator's text is that of the installed wheel, which must be the pinned."""
    runtime = pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    if runtime.__version__ != ONNXRUNTIME_VERSION:
        pytest.skip(f"needs onnxruntime {ONNXRUNTIME_VERSION}, not {runtime.__version__}")
    return sources(*citations(), operator_text())


def test_every_specified_contract_quotes_its_source(texts: dict[str, str]) -> None:
    found = unfounded(shipped_cases(), citations()[0], texts)
    assert not found, "\n".join([f"{len(found)} contracts:", *found])


def test_quotations_on_the_page_of_the_oracle_stand_in_a_source(texts: dict[str, str]) -> None:
    page = (data_path("docs") / "oracle.md").read_text(encoding="utf-8")
    quoted = quotations(page)
    assert len(quoted) > 30
    assert [q for q in quoted if not any(stands_in(q, text) for text in texts.values())] == []
