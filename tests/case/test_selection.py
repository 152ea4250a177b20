"""``-k``: pytest's own grammar, compared with pytest's own parser, and parts of ids as words."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest
from _pytest.mark import expression as pytests
from generated import example, given, settings, st
from tables import tables

from conformance.case.selection import SelectionError, compile_expression

TABLES = tables(__file__)

NAMES = ("window.yaml", "decode[dtype=float16,local_window_size=5,heads=mha,ep=cpu]", "Ground")

WORDS = [
    "decode", "DECODE", "float16", "float32", "window", "ground", "cpu", "nothing", "[dtype",
    "size", "mha]", "yaml", ".", "+", "a:b", "x/y", "-1", "orange", "android", "nothing_or",
    "None", "True", "OR", "Not", "é", "\\",
]  # fmt: skip
TOKENS = st.sampled_from([*WORDS, *["and", "or", "not", "(", ")"] * 5])
GAPS = st.sampled_from([" ", "  ", "\t", ""])


def well_formed() -> st.SearchStrategy[str]:
    return st.recursive(
        st.sampled_from(WORDS),
        lambda inner: st.one_of(
            inner.map("not {}".format),
            inner.map("({})".format),
            inner.map("( {} )".format),
            st.tuples(inner, inner).map("{0[0]} and {0[1]}".format),
            st.tuples(inner, inner).map("{0[0]} or {0[1]}".format),
        ),
        max_leaves=8,
    )


def by_pytest(text: str, names: Iterable[str]) -> bool | None:
    """pytest's result for ``-k text``; None if it rejects the expression."""
    if not text.lstrip():
        return True  # no expression: pytest deselects nothing
    try:
        expression = pytests.Expression.compile(text)
    except (SyntaxError, getattr(pytests, "ParseError", SyntaxError)):  # before pytest 9
        return None
    return expression.evaluate(lambda word, /, **rest: found(word, names))


def found(word: str, names: Iterable[str]) -> bool:
    """Our rule for a word, as a regular expression."""
    before = r"(?<![^\W_])" if word[0].isalnum() else ""
    after = r"(?!\.?\d)" if word[-1].isdigit() else ""
    return any(re.search(before + re.escape(word) + after, name, re.IGNORECASE) for name in names)


def by_us(text: str, names: Iterable[str]) -> bool | None:
    try:
        return compile_expression(text)(names)
    except SelectionError:
        return None


@settings(max_examples=200)
@given(text=well_formed())
@example(text="not decode and float16 or window")
@example(text="window or decode and nothing")
@example(text="not (window or nothing)")
@example(text="not not nothing")
def test_an_expression_means_the_same_as_in_pytest(text: str) -> None:
    assert by_pytest(text, NAMES) is not None
    assert by_us(text, NAMES) == by_pytest(text, NAMES)


@settings(max_examples=300)
@given(pairs=st.lists(st.tuples(TOKENS, GAPS), max_size=9))
@example(pairs=[])
@example(pairs=[("(", ""), (")", "")])
@example(pairs=[("decode", ""), ("(", ""), ("cpu", ""), (")", "")])
def test_expressions_that_pytest_rejects_are_rejected(pairs: list[tuple[str, str]]) -> None:
    text = "".join(token + gap for token, gap in pairs)
    assert by_us(text, NAMES) == by_pytest(text, NAMES)


@settings(max_examples=150)
@given(text=st.text(st.characters(codec="utf-8")))
def test_any_text_is_an_expression_or_an_error_of_one_sentence(text: str) -> None:
    """An expression that pytest accepts means the same; in addition a part of an id is a word."""
    wanted = by_pytest(text, NAMES)
    found = by_us(text, NAMES)
    assert wanted is None or found == wanted


@pytest.mark.parametrize("text", ["", "  ", "\t\n"])
def test_no_expression_selects_everything(text: str) -> None:
    assert compile_expression(text)([]) is True


def test_expressions_of_parts_of_an_id() -> None:
    assert compile_expression("dtype=float16 and not heads=mqa")(NAMES)
    assert compile_expression("(dtype=float32 or heads=mha)and cpu")(NAMES)
    assert compile_expression("a")([]) is False
    assert compile_expression("not a")([]) is True
    with pytest.raises(SelectionError):
        compile_expression(" or ".join(["a"] * 1001))


@pytest.mark.parametrize(("word", "name", "selected"), TABLES["words"])
def test_a_word_matches_from_the_start_of_a_word_on(word: str, name: str, selected: bool) -> None:
    assert compile_expression(word)([name]) is selected
    assert compile_expression(f"not {word}")([name]) is not selected
    assert found(word, [name]) is selected
