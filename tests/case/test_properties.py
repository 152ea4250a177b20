"""Words and comparisons of expressions: what they are about, and that each has an answer."""

from __future__ import annotations

import pytest
from shipped import shipped_cases
from tables import tables

from conformance.case.properties import NAMES, OPERATORS
from conformance.case.selection import SelectionError, compile_expression
from conformance.operator.call import CALL_FIELDS
from conformance.operator.features import FEATURES
from conformance.operator.signature import ATTRIBUTE_BY_NAME, INPUT_NAMES, OUTPUT_NAMES

TABLES = tables(__file__)


@pytest.mark.parametrize(("text", "name", "selected"), TABLES["axes"])
def test_an_axis_of_the_same_name_counts(text: str, name: str, selected: bool) -> None:
    assert compile_expression(text)([name]) is selected


@pytest.mark.parametrize("operator", OPERATORS)
def test_every_comparison_has_an_answer_for_every_call(operator: str) -> None:
    """Also for calls that are invalid on purpose, whose attributes can be anything."""
    odd = [case for case in shipped_cases() if case.theme.startswith("bounds_")][::14]
    assert len(odd) > 50
    for name in NAMES:
        for value in ("-1", "0.5", "1e999", "1..3", "none", "true", "connected", "9" * 9999, "x=1"):
            try:
                expression = compile_expression(f"{name}{operator}{value}")
            except SelectionError:
                continue
            found = [case for case in odd if expression((), case)]
            if operator == "!=":
                equal = compile_expression(f"{name}={value}")
                assert [case for case in odd if not equal((), case)] == found


def test_of_a_graph_the_main_node_counts() -> None:
    borrows = [case for case in shipped_cases() if case.call.graph and case.steps[0].node]
    assert borrows
    for case in borrows:
        assert compile_expression("past_key=connected or past_key=omitted")((), case)
        heads = case.call.num_heads
        assert compile_expression(f"num_heads={heads} and dtype={case.call.dtype}")((), case)


def test_everything_that_a_call_has_can_be_compared() -> None:
    fields = set(CALL_FIELDS) - {"graph", "attributes", "inputs", "outputs"}
    derived = {"group_size", "attended_keys", "padding_tokens"}
    names = {*fields, *derived, *ATTRIBUTE_BY_NAME, *INPUT_NAMES, *OUTPUT_NAMES}
    assert {*NAMES} == names | {feature.name for feature in FEATURES}
