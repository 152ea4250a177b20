"""How outcomes become records: a case with its variant, and cases that are not run at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from as_user import Desk, Gqa
from case_files import cases_of
from onnx import numpy_helper
from synthetic_runs import described

from conformance.base.array_types import NUMPY
from conformance.base.paths import data_path
from conformance.bundle.prepare import Prepared
from conformance.case.case import Case
from conformance.case.corpus import find
from conformance.harness.jobs import Job
from conformance.harness.outcomes import Outcome, Ran, Rejected
from conformance.results.records import InfrastructureRecord, ResultRecord
from conformance.run.assessment import Assessed, Assessment, PreparedCase
from conformance.run.engine import PlanRun
from conformance.run.recording import header, selection_of
from conformance.run.target import DescribedTarget, Plan, target_plans
from conformance.targets.registry import target_for

#: The window is longer than the sequence, so the case cannot show whether it is read.
INSENSITIVE = "- {name: wide, sequence_length: 4, local_window_size: 9}"
RELATED = """\
- name: related
  relation: scale_in_query
  batch_size: 2
  scale: 0.25
"""
NO = Rejected(stage="run", step=0, code=None, message="no")


@pytest.fixture
def related(tmp_path: Path) -> Case:
    return cases_of(tmp_path, RELATED)[0]


#: What a runtime does with a call.
Runtime = Callable[[Prepared], Outcome]


def assessed(
    case: Case,
    runtime: Runtime,
    of_variant: Runtime | None = None,
    ready: DescribedTarget | None = None,
) -> Assessed:
    """The case on a runtime, which does something else with the variant if that is given."""
    made = PreparedCase(case)

    def run(job: Job) -> Outcome:
        return (of_variant or runtime)(made.variant) if job.variant else runtime(made.own)

    return Assessment(made, ready or described(), run).result(())


def result(case: Case, runtime: Runtime, of_variant: Runtime | None = None) -> ResultRecord:
    record = assessed(case, runtime, of_variant).record
    return record


def correct(made: Prepared, factor: float = 1.0, outputs: Sequence[str] = ("output",)) -> Ran:
    """The outcome of a runtime with the expected values, the ``outputs`` times ``factor``."""
    files: list[dict[str, bytes]] = []
    for expected in made.expected:
        files.append({})
        for name, want in expected.items():
            values = np.nan_to_num(want.value) * (factor if name in outputs else 1.0)
            tensor = numpy_helper.from_array(values.astype(NUMPY[want.dtype]), name)
            files[-1][name] = tensor.SerializeToString()
    run = tuple(files)
    return Ran(runs=(run, run), placement="CPUExecutionProvider", load_ms=0.1, run_ms=0.1)


def test_a_case_passes_with_its_variant(related: Case) -> None:
    found = assessed(related, correct)
    assert len(found.outcomes) == 2
    record = found.record
    assert (record.verdict, record.of_variant, record.faults) == ("pass", False, ())
    assert record.relation.identical


def test_a_case_that_fails_needs_no_variant(related: Case) -> None:
    found = assessed(related, lambda job: NO)
    assert len(found.outcomes) == 1
    record = found.record
    assert (record.verdict, record.of_variant, record.message) == ("unsupported", False, "no")


def test_no_values_are_computed_for_a_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "- {name: open, sequence_length: 2, contract: {source: x, demands: either}}"
    (case,) = cases_of(tmp_path, body)
    monkeypatch.delattr("conformance.bundle.prepare.computed_steps")
    assert result(case, lambda job: NO).verdict == "pass"


def test_a_case_without_values_is_not_compared_with_its_variant(tmp_path: Path) -> None:
    may = "contract: {source: x, demands: either}, rotary: half_split, rotary_cache_length: 2"
    body = f"- {{name: related, relation: packed_qkv, sequence_length: 2, {may}}}"
    (case,) = cases_of(tmp_path, body)
    case = replace(case, written_call=replace(case.written_call, rotary_cache_length=1))
    outcome = Ran(runs=(({},),) * 2, placement="CPUExecutionProvider", load_ms=0.1, run_ms=0.1)
    record = result(case, lambda job: outcome)
    assert (record.verdict, record.relation) == ("pass", None)
    assert "no row in cos_cache" in str(record.hazard)


def test_the_record_of_a_failing_variant_says_so(related: Case) -> None:
    record = result(related, correct, lambda job: NO)
    assert (record.verdict, record.of_variant, record.relation) == ("unsupported", True, None)
    assert record.reason.startswith(
        "The variant (the same call with the query multiplied by four and "
    )


def test_a_broken_relation_is_a_fault_with_its_fields(related: Case) -> None:
    """Both are within their budgets, but the relation demands the same bits."""
    record = result(related, correct, lambda made: correct(made, 1 + 2**-23))
    assert (record.verdict, record.of_variant) == ("wrong", False)
    (fault,) = record.faults
    assert (fault.name, fault.output, fault.budget) == ("scale_in_query", "output", 0.0)
    assert fault.got != fault.other
    assert record.relation.share == fault.share == float("inf")


def test_every_output_in_which_a_relation_is_broken_is_known(tmp_path: Path) -> None:
    (rotated,) = cases_of(tmp_path, f"{RELATED}  rotary: half_split")

    def nudged(made: Prepared) -> Outcome:
        return correct(made, 1 + 2**-23, outputs=("output", "present_key"))

    record = result(rotated, correct, nudged)
    assert {fault.kind for fault in record.faults} == {"relation"}
    assert record.wrong_outputs == ("output", "presents")
    assert record.reason.count("the same call") == 1
    assert record.reason.endswith(" wrong, too.")


# Cases that are not run


def in_the_corpus(case: Case) -> Case:
    return replace(case, file=data_path("cases") / case.file.name)


def test_an_insensitive_case_is_not_sent_to_the_runner(tmp_path: Path, desk: Desk) -> None:
    wide, plain = cases_of(tmp_path, f"{INSENSITIVE}\n- name: plain")
    wide = in_the_corpus(wide)
    with PlanRun(Plan(target_for(desk.runner("correct")), (wide, plain), ())) as run:
        problem, result = (run.run_one(case).record for case in (wide, plain))
    assert isinstance(result, ResultRecord)
    assert isinstance(problem, InfrastructureRecord)
    assert problem.message.startswith("The case cannot show a fault in window: ")


def test_the_digest_of_the_case_files_is_that_on_every_target() -> None:
    """`gqa diff` says by it that case files differ."""
    cases = find(["smoke"]).loaded
    plans = [
        target_plans(cases, [target_for(ep)]) for ep in ("cpu", "cuda", "ort-plugin:nxrt_ep_cpu")
    ]
    headers = [header(plan, (), selection_of(plan, "", only_failed=False)) for plan in plans]
    digests = {header.corpus for header in headers}
    assert len(digests) == 1


# What cannot be prepared


def test_heads_of_no_elements_are_a_case_like_others(tmp_path: Path) -> None:
    fields = "head_size: 0, past_sequence_length: 3, cache_dtype: int8, k_quant_type: PER_CHANNEL"
    entry = f"- {{name: nothing, {fields}, v_quant_type: PER_CHANNEL}}"
    (case,) = cases_of(tmp_path, entry)
    assert result(case, lambda _: NO).verdict == "unsupported"


@pytest.mark.parametrize("name", ["draw_inputs", "tensor_of"])
def test_what_goes_wrong_in_preparing_is_a_sentence_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gqa: Gqa, name: str
) -> None:
    def wrong(*_: object, **__: object) -> None:
        raise ZeroDivisionError("by nothing\n  fix: evil")

    where = "script" if name == "draw_inputs" else "prepare"
    monkeypatch.setattr(f"conformance.bundle.{where}.{name}", wrong)
    (case,) = cases_of(tmp_path, "- {name: odd}")
    record = assessed(case, lambda made: [made.inputs, NO][1]).record
    assert isinstance(record, InfrastructureRecord)
    place = f"{case.file}:6:1: odd: it cannot be prepared: by nothing fix: evil ("
    assert record.message.startswith(place)
    assert "ZeroDivisionError in test_assessment.py, line " in record.message
    if name == "draw_inputs":
        done = gqa("show", f"{case.file}::odd")
        assert (done.status, done.err.startswith(place)) == (2, True), done.both
