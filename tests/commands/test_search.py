"""Expressions of ``gqa list`` and ``-k`` as a user sees them: what is found, and why nothing is."""

from __future__ import annotations

import pytest

from conformance.case.corpus import names_cases


@pytest.mark.parametrize(
    ("argument", "is_one"),
    [
        ("smoke", True),
        ("smoke/prompt", True),
        ("window/prompt[dtype=float32,local_window_size=4]", True),
        ("smoke/prompt[ep=cpu]", True),
        ("nowhere.yaml", True),
        ("nowhere.yaml::a b", True),
        ("../nowhere/", True),
        ("model.onnx", True),
        ("not smoke", False),
        ("window and smoke", False),
        ("smok", False),
        ("head_size>=64", False),
        ("", False),
    ],
)
def test_what_names_cases_and_what_is_an_expression(argument: str, is_one: bool) -> None:
    assert names_cases(argument) is is_one
