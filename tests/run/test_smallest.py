"""The smallest call that still fails: the search, and what comes of it."""

from __future__ import annotations

import json
import math
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from as_user import Desk, Gqa
from case_files import cases_of, write_given
from tables import tables

from conformance.base.paths import ROOT
from conformance.bundle.inputs import draw_inputs
from conformance.case.case import Case
from conformance.case.corpus import find
from conformance.case.load import load_file
from conformance.case.selection import compile_expression
from conformance.case.steps import steps_of
from conformance.cli import failures
from conformance.cli.failures import effort_for, smallest_calls
from conformance.cli.terminal import RunSummary
from conformance.diagnosis.smallest import calls_alone, case_text, fields_of, smallest
from conformance.operator.call import Call
from conformance.results.records import InstabilityRecord, ResultRecord

TABLES = tables(__file__)
#: A call with a bit of everything, whose contract follows from its features.
RICH = TABLES["rich"]


@pytest.mark.parametrize(("body", "fails", "fields", "has"), TABLES["searches"])
def test_what_does_not_matter_is_left_out(
    tmp_path: Path, body: str, fails: str, fields: dict[str, object], has: str
) -> None:
    (case,) = cases_of(tmp_path, TABLES[body])
    is_failure = compile_expression(fails)
    found = smallest(case, lambda each: is_failure((), each), 200)
    assert found.complete
    assert is_failure((), found.case)
    told = f"This smallest call has {has}." if has else ""
    assert (json.loads(json.dumps(fields_of(found.case))), found.sentence) == (fields, told)


def test_what_the_smallest_call_does_not_share_with_other_failures_is_said(tmp_path: Path) -> None:
    """A fault of every softcap, met in a call that it takes a sink to be wrong in."""
    (case,) = cases_of(tmp_path, RICH)
    found = smallest(case, lambda each: bool(each.call.softcap and each.call.head_sink), 200)
    others = find(["softcap"]).named[:9]
    failing = [case, *others]
    assert found.beside(failing, ["softcap"]) == ["Not shared by 9 of 10 failures: head_sink."]
    shared = found.beside(failing, ["ragged", "past_sequence_length>1"])
    assert shared[0] == "It lacks what the failures share: `ragged` or `past_sequence_length>1`."
    assert found.beside([case], []) == []


def test_a_search_has_a_bound_and_runs_no_call_twice() -> None:
    (case,) = find(["decoding/ragged[dtype=float32,buffer=concatenated]"]).named
    seen: list[str] = []

    def fails(candidate: Case) -> bool:
        seen.append(repr(fields_of(candidate)))
        assert candidate.contract.demands == "computes"
        return candidate.call.batch_size > 1

    found = smallest(case, fails, 4)
    assert (found.runs, found.complete, len(seen)) == (4, False, 4)
    whole = smallest(case, fails, 60)
    assert whole.complete
    assert whole.runs == len(set(seen[4:])) == len(seen[4:]) < 60
    assert smallest(case, fails, 60, until=time.monotonic()).runs == 0


def test_a_relation_whose_contract_is_written_can_stay() -> None:
    (case,) = find(["query_seqlens/in_padded_chunks[dtype=float32,how=plain]"]).named
    provider = "CPUExecutionProvider"
    found = smallest(case, lambda each: each.relation is not None, 60, provider=provider)
    assert (found.case.relation, found.case.call.num_heads) == (case.relation, 1)


def test_a_variant_becomes_a_call_of_its_own(tmp_path: Path) -> None:
    """A fault of static caches has no second name because a variant has shown it."""
    body = "- name: odd\n  past_sequence_length: 9\n  relation: static_cache"
    (case,) = cases_of(tmp_path, body)

    def fails(candidate: Case) -> bool:
        return "static" in (candidate.call.cache_kind, (candidate.relation or "")[:6])

    found = smallest(case, fails, 200)
    assert (found.case.call.cache_kind, found.case.relation) == ("static", None)
    assert [*found.needs] == ["cache"]


def test_the_calls_of_a_session_can_stand_alone(tmp_path: Path) -> None:
    """Each keeps the kind of its cache, also without a past."""
    body = """
- name: odd
  past_sequence_length: 7
  cache_dtype: int8
  kv_cache_bit_width: 8
  k_quant_type: PER_TENSOR
  v_quant_type: PER_TENSOR
  earlier_calls: [{batch_size: 2}, {sequence_length: 6, past_sequence_length: 0}]"""
    (case,) = cases_of(tmp_path, body)
    alone = [each.call for each in calls_alone(case, None)]
    tokens = [(call.sequence_length, call.past_sequence_length) for call in alone]
    assert tokens == [(1, 7), (1, 7), (6, 0)]
    assert {(call.cache_kind, call.earlier_calls) for call in alone} == {("concatenated", ())}


def test_a_feature_goes_from_all_calls_of_a_session(tmp_path: Path) -> None:
    body = """
- name: odd
  past_sequence_length: 7
  query_seqlens: [1]
  earlier_calls: [{batch_size: 2, query_seqlens: [0, 1]}]"""
    (case,) = cases_of(tmp_path, body)

    def fails(candidate: Case) -> bool:
        return {each.batch_size for each in candidate.call.calls} > {1}

    found = smallest(replace(case, written_contract=None), fails, 200).case.call
    assert [each.query_seqlens for each in found.calls] == [None, None]


def test_a_call_without_values_stays_one_for_the_same_reason() -> None:
    """Of a call that must be rejected, any valid one would be right to be accepted."""
    (case,) = find(["bounds_lengths/seqlens_k[dtype=float32,last=minus_one]"]).named
    found = smallest(case, lambda candidate: True)
    assert "inputs" in fields_of(found.case)
    assert found.case.contract == case.contract
    assert found.case.call.num_heads == 1


def test_of_a_demand_that_nothing_explains_no_other_call_is_known(tmp_path: Path) -> None:
    contract = "{demands: rejects, source: a document}"
    (case,) = cases_of(tmp_path, f"- name: odd\n  batch_size: 4\n  contract: {contract}")
    assert smallest(case, lambda candidate: True).runs == 0


def test_a_call_keeps_what_the_illegal_case_has_of_which_it_is_made(tmp_path: Path) -> None:
    """Such a case need not be illegal by its shapes, and the rest of the call is legal."""
    name = "qk_norm_refusals/epsilon_without_a_norm[dtype=float32,epsilon=not_a_number]"
    (beside,) = find([name]).named
    call = replace(beside.written_call, softcap=2.0, past_sequence_length=7, batch_size=3)
    found = smallest(replace(beside, written_call=call), lambda each: True, beside=beside)
    assert found.complete
    small = {"sequence_length": 4, "num_heads": 1, "kv_num_heads": 1, "k_norm_epsilon": math.nan}
    assert repr(fields_of(found.case)) == repr(small)


def test_values_of_a_file_are_replaced_by_drawn_ones(tmp_path: Path) -> None:
    """Only then can anything else be simpler."""
    call = Call(sequence_length=3)
    write_given(tmp_path / "values.npz", draw_inputs(call, steps_of(call)[0]))
    (case,) = cases_of(tmp_path, "- {name: a, sequence_length: 3, values_from: values.npz}")
    assert smallest(case, lambda each: each.written_call.values_from is not None).case is case
    assert "values_from" not in fields_of(smallest(case, lambda each: True).case)


def test_a_smallest_case_is_a_case_file(tmp_path: Path) -> None:
    (case,) = find(["attention_bias/prompt[dtype=float32,attention_bias=full]"]).named
    found = smallest(case, lambda each: each.call.attention_bias != "none")
    file = tmp_path / "small.yaml"
    file.write_text(case_text([(found.case, "Has a bias.")]))
    (loaded,) = load_file(file)
    assert fields_of(loaded) == fields_of(found.case)
    assert (loaded.title, loaded.why) == ("Prompt, MHA, attention bias", "Has a bias.")
    assert loaded.time_limit_seconds == case.time_limit_seconds


# On the command line


def run_of(case: Case, **fields: object) -> RunSummary:
    """A run with one failure, which nothing can repeat."""
    about = {"case": case.id, "target": "cpu@1.31.1", "reason": "It died.", "reproduce": ""}
    summary = RunSummary()
    record = {"verdict": "crash", "outcome": "crashed", "message": "It died."}
    record = {**record, "kind": "result", "unexpected": True, **about, **fields}
    summary.add(case, ResultRecord.model_validate(record))
    return summary


def test_what_may_not_repeat_is_not_shrunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (case,) = find(["decode_shapes"]).named[:1]
    monkeypatch.setattr(failures, "_smallest_of", lambda cause, *rest: cause.example.case)
    brief, thorough = effort_for(), effort_for(True, partial=True)
    assert brief is not None
    assert thorough is not None
    assert effort_for(partial=True) is None
    assert effort_for(False) is None
    assert list(smallest_calls(run_of(case), brief)) == [case.id]
    hang = {"verdict": "timeout", "outcome": "timed_out", "message": None, "time_limit": 9.0}
    assert list(smallest_calls(run_of(case, **hang), brief)) == []
    assert list(smallest_calls(run_of(case, **hang), thorough)) == [case.id]
    unstable = run_of(case)
    met = {"target": "cpu@1.31.1", "case": case.id, "verdict": "wrong", "message": "", "before": ""}
    unstable.instability.append(InstabilityRecord.model_validate({**met, "unexpected": True}))
    assert list(smallest_calls(unstable, thorough)) == []


def test_ctrl_c_ends_only_the_search(gqa: Gqa, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C ends a search and the results stay."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(failures, "smallest", interrupted)
    desk.runner("wrong_values")
    done = gqa("run", "three.yaml", "--ep", "exec:programs/wrong_values", "--results", "r.jsonl")
    assert done.status == 130
    assert "3 results, 1 unexpected, interrupted" in done.out
    assert (desk.folder / "r.jsonl").is_file()


@pytest.mark.push
def test_a_mutants_fault_stays_to_the_end(gqa: Gqa, desk: Desk) -> None:
    words = (
        sys.executable,
        str(ROOT / "mutants" / "runner.py"),
        "--mutant",
        "chunk_starts_by_the_total",
    )
    desk.program("mutant", *words)
    case = (
        "pairs/decode_static_packed_batch_ragged_mha_half_split_positions_window_static_dims_chunks"
        "[dtype=float32]"
    )
    on = ("--ep", "exec:programs/mutant")
    before = {*desk.folder.rglob("*")}
    assert gqa("run", case, *on).status == 1
    assert {*desk.folder.rglob("*")} == before, "a run writes only the files that the user names"
    file = desk.folder / "small.yaml"
    assert gqa("run", case, *on, "--save-shrunk", "small.yaml").status == 1
    (small,) = load_file(file)
    assert small.call.query_seqlens == (1, 1)
    assert "of different lengths" in small.why
    again = gqa("run", str(file), *on)
    assert again.status == 1
    assert "wrong" in again.out
    assert gqa("run", str(file), "--ep", "cpu").status == 0
    assert gqa("export", str(file), "exported", *on).status == 0


def test_a_hang_costs_a_run_that_ends_with_it_one_time_limit(gqa: Gqa, desk: Desk) -> None:
    desk.runner("hangs")
    start = time.monotonic()
    done = gqa("run", "three.yaml", "-x", "--ep", "exec:programs/hangs")
    assert time.monotonic() - start < 2 * 6.0
    assert done.status == 1
    assert "Not run alone: the run ends with it." in done.out
