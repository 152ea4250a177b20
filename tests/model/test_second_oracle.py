"""onnx's reference evaluator, a second oracle: it runs the corpus in standard operators.

It and the suite's oracle share no line; the evaluator gets the call in a form that we write. Where
they differ, the evaluator, the form or the oracle is wrong: ``expectations/standard.yaml`` has what
the form cannot do, and no defect of the evaluator is known that the form meets.
"""

from __future__ import annotations

from zlib import crc32

import numpy as np
import onnx
import pytest
from judged import Values, ran
from onnx.reference import ReferenceEvaluator
from shipped import shipped_cases

from conformance.base.paths import data_path
from conformance.bundle.prepare import Prepared, prepare
from conformance.case.case import Case
from conformance.expectations.read import load_expectations
from conformance.judge.verdict import judge
from conformance.rewriting.standard import standard_model

KNOWN = load_expectations([data_path("expectations") / "standard.yaml"])
#: The parts of the corpus that are tests of their own, and of how many calls a push tries one.
PARTS, ONE_OF = 16, 400
#: Of more tokens, as of 2³¹, the form would compute a number each.
MOST_TOKENS = 1 << 20


def computed(prepared: Prepared, model: onnx.ModelProto) -> Values:
    """What the evaluator computes, a loop with its own presents."""
    evaluator = ReferenceEvaluator(model)
    names = prepared.script.outputs
    made: Values = []
    for step in prepared.script.steps:
        past = {name: made[-1][of][:, :, : step.keep] for name, of in step.carry.items()}
        given = {**past, **step.inputs, **step.buffers}
        with np.errstate(all="ignore"):
            arrays = evaluator.run([*names], {n: given[n] for n in evaluator.input_names})
        made.append(dict(zip(names, map(np.asarray, arrays), strict=True)))
    return made


def difference(case: Case) -> str:
    """Why the evaluator's results are not those of the oracle; "" if they are."""
    prepared = prepare(case.call)
    inputs = [step.inputs for step in prepared.script.steps]
    if any(
        each.get("total_sequence_length", np.zeros(1)).max(initial=0) > MOST_TOKENS
        for each in inputs
    ):
        return ""
    made = standard_model(prepared.script.model)
    if made.left:
        return f"no form: {made.left[0][1]}"
    if not all(onnx.defs.has(node.op_type, node.domain) for node in made.model.graph.node):
        return ""  # a graph with contributed operators, which the evaluator does not have
    try:
        values = computed(prepared, made.model)
    except Exception as error:  # of several classes
        return f"{type(error).__name__}: {error}"
    found = judge(case, prepared, ran(values), execution_provider=None, target_class="cpu")
    return "" if found.verdict == "pass" else found.reason


def differences(cases: list[Case]) -> dict[str, str]:
    """Those that are neither what a form cannot do, nor a refusal of what may be refused."""
    found = {}
    for case in cases:
        why = difference(case)
        may_refuse = case.contract.demands == "either" and not why.startswith("It ran, ")
        if why and not may_refuse and not any(line.covers(case) for line in KNOWN):
            found[case.id] = why
    return found


def cases(one_of: int, at: int) -> list[Case]:
    """One of so many cases, of those that have values."""
    some = (case for case in shipped_cases() if crc32(case.id.encode()) % one_of == at)
    return [case for case in some if case.contract.demands in ("computes", "either")]


@pytest.mark.push
def test_the_reference_evaluator_agrees_with_the_oracle_in_some_calls() -> None:
    some = cases(ONE_OF, 0)
    assert len(some) > 10
    assert differences(some) == {}


@pytest.mark.night
@pytest.mark.parametrize("part", range(PARTS))
def test_the_reference_evaluator_agrees_with_the_oracle(part: int) -> None:
    assert differences(cases(PARTS, part)) == {}


def test_a_wrong_result_is_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    (case,) = [case for case in shipped_cases() if case.id == "smoke/decode[dtype=float32]"]
    assert differences([case]) == {}
    real = ReferenceEvaluator.run

    def wrong(self: ReferenceEvaluator, *arguments: object) -> list[np.ndarray]:
        return [array + np.float32(1e-3) for array in real(self, *arguments)]

    monkeypatch.setattr(ReferenceEvaluator, "run", wrong)
    assert list(differences([case])) == [case.id]
