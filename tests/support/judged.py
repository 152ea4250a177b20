"""Outcomes made by hand, and the judge's verdict on them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from onnx import numpy_helper

from conformance.base.array_types import NUMPY
from conformance.base.paths import data_path
from conformance.bundle.prepare import Prepared, prepare
from conformance.case.case import Case
from conformance.case.contract import Contract
from conformance.case.load import load
from conformance.harness.outcomes import Outcome, Ran, Rejected
from conformance.judge.verdict import Judgement, judge
from conformance.operator.call import Call

#: For each step of a case, each output's values.
Values = list[dict[str, np.ndarray]]


PROMPT = Call(sequence_length=5)


COMPUTES = Contract(source="a document")


EITHER = Contract(demands="either", source="a document", mentions=("present",))


SOME = load([data_path("cases") / "smoke.yaml"])[0]


def case_of(call: Call, contract: Contract = COMPUTES) -> Case:
    """A case of ``call``."""
    return replace(SOME, written_call=call, written_contract=contract)


def right_by(bundle: Prepared) -> Values:
    """What a correct runtime returns; zeros where nothing is defined."""
    return [
        {name: np.nan_to_num(want.value).astype(NUMPY[want.dtype]) for name, want in step.items()}
        for step in bundle.expected
    ]


def right(call: Call) -> Values:
    """As `right_by`, of a call."""
    return right_by(prepare(call))


def ran(*runs: Values, placement: str | None = None) -> Ran:
    """The outcome of a runner that wrote ``runs``."""
    written = tuple(
        tuple({name: file(values, name) for name, values in outputs.items()} for outputs in run)
        for run in runs
    )
    return Ran(runs=written, placement=placement, load_ms=0.1, run_ms=0.1)


def file(values: np.ndarray, name: str) -> bytes:
    return numpy_helper.from_array(values, name).SerializeToString()


def verdict_on(
    outcome: Outcome,
    call: Call = PROMPT,
    contract: Contract = COMPUTES,
    provider: str | None = None,
    bundle: Prepared | None = None,
    kernel: str | None = None,
) -> Judgement:
    """The judgement, for a target of the class cpu."""
    made = judge(
        case_of(call, contract),
        bundle or prepare(call),
        outcome,
        execution_provider=provider,
        target_class="cpu",
        kernel=kernel,
    )
    assert made.reason.endswith(".")
    assert "\n" not in made.reason
    return made


def rejected(message: str, stage: Any = "run") -> Rejected:
    return Rejected(stage=stage, step=0, code="FAIL", message=message)
