"""Arbitrary text, made safe to display."""

from __future__ import annotations

import time

import pytest
from tables import tables

from conformance.base.text import clean

TABLES = tables(__file__)


@pytest.mark.parametrize(("text", "shown"), TABLES["shown"])
def test_text_is_made_visible(text: str, shown: str) -> None:
    assert clean(text) == shown


def test_long_text_keeps_both_ends_and_counts_the_rest() -> None:
    shown = clean("begin" + "x" * 1_000_000 + "end")
    assert shown.startswith("beginxxx")
    assert shown.endswith("xxxend")
    assert "984,008 characters omitted; see the results file" in shown
    assert len(shown) < 16_200
    assert clean("x" * 16_000) == "x" * 16_000


@pytest.mark.parametrize("piece", ["\x1b", "\x1b[", "\x1b]", "\x1b[1;", "\x9d", "\x00", "\x1b\\"])
def test_a_megabyte_of_control_sequences_is_cleaned_at_once(piece: str) -> None:
    start = time.process_time()
    clean(piece * (1_000_000 // len(piece)))
    assert time.process_time() - start < 1
