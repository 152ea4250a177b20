"""Arbitrary text, made safe to display."""

from __future__ import annotations

import time

import pytest

from conformance.base.text import clean


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("tab\tand\nline", "tab\tand\nline"),
        ("a\r\nb\rc", "a\nb\nc"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b[38;2;1;2;3mtrue\x1b[K colour", "true colour"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x9b31mone byte", "one byte"),
        ("\x1b(Bcharset", "charset"),
        ("NUL \x00 BEL \x07 DEL \x7f", "NUL ⟨U+0000⟩ BEL ⟨U+0007⟩ DEL ⟨U+007F⟩"),
        ("unfinished \x1b", "unfinished ⟨U+001B⟩"),
        ("\u202egpj.exe\u202c", "⟨U+202E⟩gpj.exe⟨U+202C⟩"),
        ("\u2066\u2069\u200f\u061c", "⟨U+2066⟩⟨U+2069⟩⟨U+200F⟩⟨U+061C⟩"),
        ("zero\u200bwidth\ufeff\xad\u2028", "zero⟨U+200B⟩width⟨U+FEFF⟩⟨U+00AD⟩⟨U+2028⟩"),
        ("\ud800", "⟨U+D800⟩"),
        ("\U000e0041", "⟨U+E0041⟩"),
        ("naïve 😀 مرحبا 日本 ≤", "naïve 😀 مرحبا 日本 ≤"),
    ],
)
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
