"""Quotations stand word for word in their sources: in contracts, and on the page of the oracle."""

from __future__ import annotations

from dataclasses import replace

import pytest
from citations import Thread, citations
from quoted import OPERATOR, quotations, sources, stands_in, unfounded
from shipped import shipped_cases

from conformance.base.paths import data_path
from conformance.case.case import Case
from conformance.case.contract import Contract, ProviderContract
from conformance.case.load import load
from conformance.maintain.quotations import operator_text
from conformance.targets.tools import ONNXRUNTIME_VERSION


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    """The sources; the operator's text is that of the installed wheel, which must be the pinned."""
    runtime = pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    if runtime.__version__ != ONNXRUNTIME_VERSION:
        pytest.skip(f"needs onnxruntime {ONNXRUNTIME_VERSION}, not {runtime.__version__}")
    return sources(*citations(), operator_text())


@pytest.fixture(scope="module")
def case() -> Case:
    return load([data_path("cases") / "smoke.yaml"])[0]


def test_every_specified_contract_quotes_its_source(texts: dict[str, str]) -> None:
    found = unfounded(shipped_cases(), citations()[0], texts)
    assert not found, "\n".join([f"{len(found)} contracts:", *found])


def test_quotations_on_the_page_of_the_oracle_stand_in_a_source(texts: dict[str, str]) -> None:
    page = (data_path("docs") / "oracle.md").read_text(encoding="utf-8")
    quoted = quotations(page)
    assert len(quoted) > 30
    assert [q for q in quoted if not any(stands_in(q, text) for text in texts.values())] == []


# ── What is wrong is reported ────────────────────────────────────────────────────────────────────


def test_quotations_are_the_words_in_double_quotes() -> None:
    text = (
        'It says "a b", and\n"c\nd". `"code"` is none, \'nor this\'.\n\nA lone " here.\n\nAnd "e".'
    )
    assert quotations(text) == ["a b", "c\nd", "e"]


@pytest.mark.parametrize(
    ("quotation", "stands"),
    [
        ("the quick brown fox", True),
        ("the quick\n  brown fox", True),
        ("the … fox jumps", True),
        ("The quick", False),
        ("the slow brown fox", False),
        ("fox … quick", False),
    ],
)
def test_a_quotation_stands_word_for_word(quotation: str, stands: bool) -> None:
    assert stands_in(quotation, "Once **the** quick `brown`\nfox jumps.") is stands


THREADS = {
    "o/r#11": Thread(kind="pull", title="t", state="merged", cited_for="f", quotes=("It must.",)),
    "o/r#12": Thread(kind="issue", title="t", state="closed", cited_for="f", quotes=("It must.",)),
    "o/r#13": Thread(kind="pull", found=False, tried="searched", cited_for="f"),
}
MERGED, ISSUE, LOST = (f"https://github.com/o/r/{x}" for x in ("pull/11", "issues/12", "pull/13"))
TEXTS = sources(THREADS, {"https://o.org/page": ("as here",)}, "Must be 0 or 1.")


def complaints(case: Case, **fields: object) -> list[str]:
    contract = Contract.model_validate({"source": OPERATOR, "why": '"Must be 0 or 1."', **fields})
    return unfounded([replace(case, written_contract=contract)], THREADS, TEXTS)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"source": MERGED, "why": 'A merged decision: "It must."'},
        {"source": "https://o.org/page", "why": 'So says "as here".'},
        {"basis": "established", "why": "No text says so; the kernels agree."},
        {"demands": "either", "why": "The text does not say."},
        {"basis": "requested", "source": ISSUE, "why": "It is asked for."},
        {"disputed": MERGED},
    ],
)
def test_a_contract_that_its_source_carries(case: Case, fields: dict[str, object]) -> None:
    assert complaints(case, **fields) == []


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"why": "It is so."}, "`why` quotes nothing from"),
        ({"why": '"Must be 0, 1 or 2."'}, '"Must be 0, 1 or 2." is not in'),
        ({"source": MERGED}, '"Must be 0 or 1." is not in https://github.com/o/r/pull/11'),
        ({"source": "https://o.org/other"}, '"Must be 0 or 1." is not in https://o.org/other'),
        ({"basis": "established", "why": 'It "may".'}, '"may" is not in'),
        ({"demands": "either", "why": 'It "may".'}, '"may" is not in'),
        ({"source": ISSUE, "why": '"It must."'}, "is not merged, so it specifies nothing"),
        (
            {"basis": "requested", "source": LOST, "why": "So."},
            "was not found, so nothing can rest on it",
        ),
        ({"disputed": ISSUE}, "is not a merged pull request"),
    ],
)
def test_a_contract_that_its_source_does_not_carry(
    case: Case, fields: dict[str, object], sentence: str
) -> None:
    (found,) = complaints(case, **fields)
    assert sentence in found
    assert found.startswith(f"{case.id.partition('[')[0]}: ")


def test_a_contract_of_a_provider_is_checked_too(case: Case) -> None:
    provider = ProviderContract(demands="rejects", why="It is so.")
    (found,) = complaints(case, providers={"SomeProvider": provider})
    assert "on SomeProvider: `why` quotes nothing" in found
