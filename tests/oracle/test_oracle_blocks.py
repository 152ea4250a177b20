"""Large calls, whose attention is computed in blocks of queries."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from memory import peak_kib
from tables import tables

from conformance.bundle.effects import effects_of_step
from conformance.bundle.expected import Expected
from conformance.bundle.script import script_of
from conformance.operator.call import Call, checked_call
from conformance.operator.tensors import attributes_of
from conformance.oracle import Reference, block_pass
from conformance.oracle.query_values import why_hidden
from conformance.oracle.reference import MAX_AT_ONCE, Computation, compute
from conformance.oracle.tolerance import arithmetic_budget, budgets, past_errors, shares

TABLES = tables(__file__)

#: The module; `conformance.oracle.reference` is its function.
ORACLE = sys.modules[Computation.__module__]

#: Calls with a window, padding, a bias, a sink, a past, output_qk, and codes.
CALLS: dict[str, dict[str, Any]] = TABLES["calls"]


def references_of(call: Call, monkeypatch: pytest.MonkeyPatch, scores: int) -> dict[str, Reference]:
    """The oracle's references, in blocks of so many scores; 0: at once."""
    if scores:
        monkeypatch.setattr(ORACLE, "MAX_AT_ONCE", 1)
        monkeypatch.setattr(ORACLE, "_BLOCK", scores)
    script = script_of(call)
    return script.compute(script.steps[0].inputs)


def test_a_call_in_blocks_has_the_bits_of_the_call_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In blocks of 64 queries: products of matrices are computed in whole tiles of that."""
    call = Call(
        sequence_length=256, head_size=32, rotary="half_split", dtype="float16", qk_output=1
    )
    whole = references_of(call, monkeypatch, 0)
    blocks = references_of(call, monkeypatch, 64 * 4 * 256)
    for name, unit in budgets(whole).items():
        assert whole[name].value.tobytes() == blocks[name].value.tobytes()
        assert whole[name].defined.tobytes() == blocks[name].defined.tobytes()
        assert unit.tobytes() == budgets(blocks)[name].tobytes()
    one, other = (arithmetic_budget("output", found["output"]) for found in (whole, blocks))
    assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("fields", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("queries", [1, 7, 64])
def test_blocks_of_any_size_agree(
    fields: dict[str, Any], queries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = checked_call(fields)
    total = call.sequence_length + call.past_sequence_length
    whole = references_of(call, monkeypatch, 0)
    units = budgets(whole)
    blocks = references_of(call, monkeypatch, queries * call.batch_size * call.num_heads * total)
    for name, unit in budgets(blocks).items():
        one, other = whole[name], blocks[name]
        np.testing.assert_array_equal(one.defined, other.defined)
        np.testing.assert_allclose(other.value, one.value, rtol=1e-13, atol=1e-14)
        np.testing.assert_allclose(unit[one.defined], units[name][one.defined], rtol=1e-9)
        assert one.watched.keys() == other.watched.keys()
        for why, there in one.watched.items():
            np.testing.assert_array_equal(there, other.watched[why])


def test_the_errors_of_a_past_count_in_blocks_too(monkeypatch: pytest.MonkeyPatch) -> None:
    call = Call(loop=(40, 30), rotary="half_split", dtype="float16")
    script = script_of(call)
    first = script.compute(script.steps[0].inputs)
    past = {name: first[name].value.astype(np.float16) for name in ("present_key", "present_value")}
    inputs = script.steps[1].inputs | {f"past{name[7:]}": array for name, array in past.items()}
    errors = past_errors(first, None)
    whole = budgets(script.compute(inputs), errors)["output"]
    monkeypatch.setattr(ORACLE, "MAX_AT_ONCE", 1)
    monkeypatch.setattr(ORACLE, "_BLOCK", 4 * 70 * 7)
    np.testing.assert_allclose(budgets(script.compute(inputs), errors)["output"], whole, rtol=1e-9)
    assert np.all(budgets(script.compute(inputs))["output"] < whole)


def test_a_large_call_takes_little_memory_and_has_no_effects() -> None:
    """At once, its scores would take 2 GiB. Its queries can be looked at one by one."""
    call = Call(sequence_length=3700, num_heads=2, kv_num_heads=1, head_size=8)
    script = script_of(call)
    inputs, attributes = script.steps[0].inputs, attributes_of(call)
    before = peak_kib()
    found = compute(inputs, attributes, script.outputs)
    assert found.is_large
    assert MAX_AT_ONCE < 2 * 3700**2
    references = script.compute(inputs)
    budgets(references)
    assert peak_kib() - before < 400 << 10
    attention, row = found.block_of(3000)
    output, logits = attention.output[0, 0, 1, row], attention.logits[0, 0, 1, row]
    np.testing.assert_allclose(output, references["output"].value[0, 3000, 8:], rtol=1e-12)
    assert why_hidden(found.call, 0, 3000, logits)[3000:3002] == ["", "causal"]
    expected = {name: Expected(name, one) for name, one in references.items()}
    assert effects_of_step(inputs, attributes, expected) == {}


@pytest.mark.parametrize("fields", CALLS.values(), ids=CALLS)
def test_the_worst_element_is_found_by_bounds_of_the_budgets(
    fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is off, the largest share and its place are those of the exact budgets."""
    call = checked_call({**fields, "qk_output": None} if fields.get("qk_output") else fields)
    whole = references_of(call, monkeypatch, 0)["output"]
    monkeypatch.setattr(ORACLE, "_LEAST_PRODUCTS", 1)
    for name, value in {"_BLOCK": 600, "_ROWS": 3, "_FEW": 1}.items():
        monkeypatch.setattr(block_pass, name, value)
    made = references_of(call, monkeypatch, 0)["output"]
    assert made.bounded is not None
    np.testing.assert_array_equal(made.defined, whole.defined)
    np.testing.assert_allclose(made.value, whole.value, rtol=1e-13, atol=1e-14)
    units = budgets({"output": whole})["output"].reshape(-1)
    at = np.flatnonzero(whole.defined)
    assert np.all(made.bounded.low[at] <= units[at] * (1 + 1e-9))
    assert np.all(made.bounded.high[at] >= units[at] * (1 - 1e-9))
    np.testing.assert_allclose(made.bounded.exact(at), units[at], rtol=1e-9)
    random = np.random.RandomState(0)
    for most in (0.0, 1e-3, 0.9, 1e3):
        off = most * units * random.uniform(-1, 1, units.shape)
        got = (whole.value.reshape(-1) + np.nan_to_num(off)).reshape(whole.value.shape)
        want = Expected("output", made)
        found, exact = want.worst(got), Expected("output", whole).unlike(got)
        one, other = (shares(f.got, f.value, f.unit, "cpu") for f in (found, exact))
        assert one.max() == pytest.approx(other.max(), rel=1e-6, abs=1e-9)
        if most:
            assert found.at[one.argmax()] == exact.at[other.argmax()]
            assert want.unit_at(found.at[one.argmax()]) == pytest.approx(
                units[found.at[one.argmax()]], rel=1e-9
            )
