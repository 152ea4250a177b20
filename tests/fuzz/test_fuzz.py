"""Fuzzing: what is drawn, how faults are named, and the command ``gqa fuzz``."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from as_user import Gqa, in_this_process
from case_files import cases_of
from shipped import cases_of_theme
from synthetic_runs import result

from conformance import __version__
from conformance.base.paths import data_path
from conformance.case.load import load_file
from conformance.diagnosis.shared import effort
from conformance.diagnosis.smallest import case_text
from conformance.fuzz import campaign, state
from conformance.fuzz.drawing import POWERS, Donors, Drawing, DrawnCall, values_of
from conformance.fuzz.naming import NamedFault, signature_of
from conformance.fuzz.state import CampaignState
from conformance.fuzz.target_faults import NewFault, TargetFaults
from conformance.harness.runner import RunnerFailed
from conformance.operator.call import Call
from conformance.operator.features import BY_NAME
from conformance.operator.rules import why_excluded
from conformance.results.records import RunsDiffer, WrongShape
from conformance.run.assessment import prepared_case
from conformance.run.shard import Shard

THEMES = (
    "smoke",
    "window",
    "rotary",
    "ragged",
    "static_cache",
    "query_seqlens",
    "loop",
    "refusals",
)


@pytest.fixture(scope="module")
def donors() -> Donors:
    return Donors.of(case for theme in THEMES for case in cases_of_theme(theme))


@pytest.fixture(scope="module")
def drawn(donors: Donors) -> list[DrawnCall]:
    return [Drawing(donors, 1).call(number) for number in range(300)]


@pytest.fixture
def gqa(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Gqa]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(campaign, "FIRST", 60)
    with in_this_process(monkeypatch, capsys) as call:
        yield call


def kernel(folder: Path, mutant: str = "correct") -> str:
    """The target that is the kernel in NumPy with a fault."""
    program = folder / mutant.partition("@")[0]
    runner = data_path("mutants") / "runner.py"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{runner}" --mutant "{mutant}"\n')
    program.chmod(0o755)
    return f"exec:{program}"


# Drawing


def test_a_call_follows_from_seed_and_number(donors: Donors, drawn: list[DrawnCall]) -> None:
    assert Drawing(donors, 1).call(37).case.call == drawn[37].case.call
    assert Drawing(donors, 2).call(37).case.call != drawn[37].case.call


def test_what_was_derived_of_a_call_while_it_was_drawn_is_kept(drawn: list[DrawnCall]) -> None:
    for one in drawn:
        assert {"steps", "features"} <= vars(one.case).keys()
        assert one.case.id == f"fuzz/call_{one.number}"


def test_what_is_added_to_an_illegal_case_does_not_make_it_legal() -> None:
    """As a borrowed cache does: then nothing is joined in a present, which may be left out."""
    themes = ("omitted_present", "shared_kv")
    drawing = Drawing(Donors.of(case for theme in themes for case in cases_of_theme(theme)), 1)
    drawn = [drawing.call(number) for number in range(400)]
    refused = [one.case.features for one in drawn if one.beside is not None]
    assert refused
    assert all(why_excluded(features) for features in refused)


def test_an_illegal_case_keeps_the_tensors_that_its_contract_is_about() -> None:
    """Without presents, it does not matter that the documentation gives them no type."""
    about = next(case for case in cases_of_theme("quantised_cache") if case.name == "without_past")
    others = (
        case for case in cases_of_theme("omitted_present") if case.contract.demands != "rejects"
    )
    drawing = Drawing(Donors.of([about, *others]), 1)
    drawn = [drawing.call(number) for number in range(600)]
    refused = [one.case for one in drawn if one.beside is not None]
    assert any(one.case.features["presents"] == "none" for one in drawn)
    assert refused
    assert all("present_key" in case.steps[0].connected_outputs for case in refused)


def test_an_illegal_case_to_which_nothing_can_be_added_is_not_drawn() -> None:
    """What can be added here takes away the presents, or key and value."""
    names = (
        "quantised_cache/without_past[dtype=float32]",
        "omitted_present/without_past_heads[dtype=float32,heads=mha]",
    )
    cases = [*cases_of_theme("quantised_cache"), *cases_of_theme("omitted_present")]
    drawing = Drawing(Donors.of(case for case in cases if case.id in names), 1)
    assert not any(drawing.call(number).beside for number in range(60))


def test_a_case_file_can_have_every_drawn_call(tmp_path: Path, drawn: list[DrawnCall]) -> None:
    legal = [one for one in drawn if one.beside is None]
    file = tmp_path / "fuzz.yaml"
    file.write_text(case_text([(one.case, "drawn") for one in legal]))
    read = load_file(file)  # which refuses illegal calls
    assert [case.call.json() for case in read] == [one.case.call.json() for one in legal]


def test_what_is_drawn(drawn: list[DrawnCall]) -> None:
    """Several features at once, small and large sizes, loops, unused rows, and illegal calls."""
    legal = [one.case for one in drawn if one.beside is None]
    changed = [
        sum(value != BY_NAME[name].plain for name, value in case.features.items()) for case in legal
    ]
    assert sum(changed) / len(changed) >= 4
    assert max(map(effort, legal)) <= 2 ** POWERS[1]
    assert any(len(case.steps) > 5 for case in legal)
    assert any(max(case.steps[0].total_lengths) % 64 == 1 < 64 < effort(case) for case in legal)
    filled = [each for case in legal for each in case.call.inputs.values() if each.elements]  # type: ignore[union-attr]
    assert filled
    assert any("attention_bias" in case.call.inputs for case in legal)  # which hides keys
    assert any(case.relation for case in legal)
    assert any(case.call.constants for case in legal)
    earlier = [each for case in legal for each in case.call.earlier_calls]
    assert any(each.batch_size for each in earlier)
    assert any(each.refused for each in earlier)
    assert max(len(case.call.earlier_calls) for case in legal) > 2
    refused = [(one.case, one.beside) for one in drawn if one.beside is not None]
    assert refused
    assert all(case.contract.demands == "rejects" for case, _ in refused)
    for pair in refused:  # what is added to an illegal case is legal
        own, of_beside = (prepared_case(each).own for each in pair)
        assert own.is_unjudged_like(of_beside)


def test_attributes_that_switch_something_off_leave_the_others_as_they_are(tmp_path: Path) -> None:
    """The window cache has no buffer: a field that is not set."""
    body = "- {name: a, past_sequence_length: 9, local_window_size: 8, sliding_window_cache: 1}"
    drawing = Drawing(Donors.of(cases_of(tmp_path, body)), 1)
    calls = [drawing.call(number).case.call for number in range(400)]
    off = [call for call in calls if call.smooth_softmax == 0 and call.softcap == 0.0]
    assert any(call.sliding_window_cache and call.earlier_calls for call in off)


def test_values_that_the_targets_refuse_are_drawn_seldom(donors: Donors) -> None:
    drawing = Drawing(donors, 3)
    calls = [drawing.call(number, {"batch=more", "rotary=half_split"}) for number in range(150)]
    legal = [{*values_of(one.case)} for one in calls if one.beside is None]
    refused = [values for values in legal if values & {"batch=more", "rotary=half_split"}]
    assert 0 < len(refused) < len(legal) / 4
    all_values = {value for values in legal for value in values}
    assert drawing.call(0, all_values).case.call.json()  # and one is drawn if there is no other


def test_a_value_is_refused_if_many_calls_were_and_others_were_not() -> None:
    tried = {"window=none": 200, "window=shorter": 60, "softcap=given": 10}
    campaigns = (
        CampaignState({}, {Shard(1, 1): 0}, features=tried, computed=computed)
        for computed in ({}, {"window=none": 1}, {"window=none": 1, "window=shorter": 1})
    )
    assert [each.refused for each in campaigns] == [[], ["window=shorter"], []]


def test_calls_of_a_model_are_those_of_its_nodes() -> None:
    nodes = cases_of_theme("models")
    drawing = Drawing(Donors.of_model(nodes), 1)
    drawn = [drawing.call(number).case.call for number in range(100)]
    kept = ("num_heads", "kv_num_heads", "head_size", "scale", "local_window_size", "rotary")

    def fields(call: Call) -> tuple[object, ...]:
        return tuple(getattr(call, name) for name in kept)

    assert {*map(fields, drawn)} <= {fields(case.call) for case in nodes}
    assert len({(call.batch_size, call.past_sequence_length) for call in drawn}) > 30
    assert any(call.earlier_calls for call in drawn)
    huge = Call(num_heads=16, kv_num_heads=1, head_size=2**20)
    assert not Donors.of_model([replace(nodes[0], written_call=huge)]).nodes


# Naming


def test_refusals_of_other_operands_are_one_fault(drawn: list[DrawnCall]) -> None:
    says = 'In Node, ("gqa") : (%s,"",) -> ("output": tensor(float),) , Error Unrecognized %s'
    signatures = {
        signature_of(drawn[0].case, result(verdict="unsupported", message=says % each), None)
        for each in (
            ('"query": tensor(float)', "attribute: causal"),
            ('"query": tensor(float16),"key": tensor(float16)', "attribute: causal"),
            ('"query": tensor(float)', "attribute: sliding_window_cache"),
        )
    }
    assert len(signatures) == 2


def test_results_that_differ_in_some_runs_are_one_fault(drawn: list[DrawnCall]) -> None:
    """Memory that nobody wrote holds the same numbers in some runs, and others in others."""
    differ, wrong = RunsDiffer(output="output"), WrongShape(output="output", got=(1,), want=(2,))
    first, second = (
        signature_of(drawn[0].case, result(verdict="wrong", faults=faults), None)
        for faults in ((differ, wrong), (wrong,))
    )
    assert first == second
    alone = signature_of(drawn[0].case, result(verdict="wrong", faults=(differ,)), None)
    assert alone != first


# The command


@pytest.mark.push
def test_no_false_alarm(tmp_path: Path, gqa: Gqa) -> None:
    done = gqa("fuzz", "--ep", kernel(tmp_path), "--calls", "300", "--jobs", "1")
    assert (done.status, done.err) == (0, "")
    assert re.search(r"\d pass, \d+ rightly refused; 0 new faults", done.out)


@pytest.mark.push
def test_a_fault_is_told_once_and_small(tmp_path: Path, gqa: Gqa) -> None:
    target = kernel(tmp_path, "window_one_longer")
    command = ("fuzz", "--ep", target, "--from", "window", "--jobs", "1")
    done = gqa(*command, "--calls", "60")
    assert done.status == 1
    (file,) = (tmp_path / "fuzz").glob("*.yaml")
    (case,) = load_file(file)
    assert done.out.count(f"gqa run fuzz/{file.name}") == 1
    assert effort(case) <= 400
    again = gqa("run", str(file), "--ep", target, "--no-explain")
    assert again.status == 1
    assert "wrong" in again.out
    state = json.loads((tmp_path / "fuzz" / "campaign.json").read_text())
    (fault,) = state["faults"]
    assert state["done"] == {"1/1": 60}
    assert fault["calls"] > 1
    more = gqa(*command, "--calls", "120")  # it goes on, and the fault is known to the campaign
    assert "gqa run" not in more.out
    state = json.loads((tmp_path / "fuzz" / "campaign.json").read_text())
    assert (state["done"], len(state["faults"])) == ({"1/1": 120}, 1)


def with_fault(folder: Path, **fault: object) -> None:
    """Give a fault to the campaign in a folder."""
    file = folder / "campaign.json"
    state = json.loads(file.read_text())
    signature = ["wrong", "", "beyond_budget"]
    state["faults"] = [{"target": "mutant@1.0", "signature": signature, "number": 0, **fault}]
    file.write_text(json.dumps(state))


@pytest.mark.push
@pytest.mark.parametrize("needs", [{}, {"head_size": None}, {"no_feature": "of_today"}])
def test_a_fault_hides_no_other(tmp_path: Path, gqa: Gqa, needs: dict[str, str | None]) -> None:
    """One of certain sizes explains a call only if what else the call has does not matter."""
    target = kernel(tmp_path, "window_one_longer")
    command = ("fuzz", "--ep", target, "--from", "window", "--jobs", "1", "--calls")
    gqa(*command, "1")
    with_fault(tmp_path / "fuzz", needs=needs)
    done = gqa(*command, "40")
    assert (done.status, done.err) == (1, "")
    assert done.out.count("wrong on mutant@1.0: ") == 1
    state = json.loads((tmp_path / "fuzz" / "campaign.json").read_text())
    first, second = state["faults"]
    assert (first["calls"], second["needs"]) == (1, {"window": "shorter"})


@pytest.mark.push
def test_a_general_fault_hides_none_that_needs_more(tmp_path: Path, gqa: Gqa) -> None:
    """Calls with a softcap and no window pass."""
    target = kernel(tmp_path, "window_one_longer@get('softcap', 0) > 0")
    command = ("fuzz", "--ep", target, "--from", "window", "--from", "softcap", "-j", "1")
    gqa(*command, "--calls", "1")
    with_fault(tmp_path / "fuzz", needs={"softcap": "given"})
    gqa(*command, "--calls", "60")
    state = json.loads((tmp_path / "fuzz" / "campaign.json").read_text())
    needs = [fault["needs"] for fault in state["faults"]]
    assert {"softcap": "given", "window": "shorter"} in needs
    assert state["faults"][0]["calls"] == 1


@pytest.mark.push
def test_naming_goes_on_when_a_runner_was_given_up(
    tmp_path: Path, gqa: Gqa, monkeypatch: pytest.MonkeyPatch
) -> None:
    named, given_up = TargetFaults.named, RunnerFailed("It did not start.")

    def given_up_once(target: TargetFaults, drawn: DrawnCall, *rest: Any) -> NewFault | None:
        with monkeypatch.context() as once:
            if not target.unstable:
                once.setattr(target.run._session, "_failed", given_up)
                target.note_unstable("wrong", "It did not recur.", 0)
            return named(target, drawn, *rest)

    monkeypatch.setattr(TargetFaults, "named", given_up_once)
    target = kernel(tmp_path, "window_one_longer")
    gqa("fuzz", "--ep", target, "--from", "window", "--jobs", "1", "--calls", "40")
    state = json.loads((tmp_path / "fuzz" / "campaign.json").read_text())
    assert [fault["needs"] for fault in state["faults"]] == [{"window": "shorter"}]
    assert state["unstable"] == {"mutant@1.0": {"wrong": 1}}


@pytest.mark.push
def test_a_fault_in_an_earlier_call_is_no_fault_of_the_session(tmp_path: Path, gqa: Gqa) -> None:
    target = kernel(tmp_path, "half_of_the_keys_of_prompts")
    command = ("fuzz", "--ep", target, "--from", "smoke", "--jobs", "1", "--calls")
    gqa(*command, "1")
    with_fault(tmp_path / "fuzz", needs={})
    gqa(*command, "150")
    state = json.loads((tmp_path / "fuzz" / "campaign.json").read_text())
    assert [fault["needs"] for fault in state["faults"]] == [{}]
    assert state["features"]["earlier_calls=given"] > 10


@pytest.mark.parametrize(
    ("needs", "later", "place", "covered"),
    [
        ({"softcap": "given"}, {"softcap": "given", "window": "shorter"}, "", True),
        ({"softcap": "given", "window": "shorter"}, {"softcap": "given"}, "", False),
        ({}, {"softcap": "given"}, "", False),
        ({"softcap": "given", "head_size": None}, {"softcap": "given"}, "", False),
        ({}, {}, "", True),
        ({"softcap": "given"}, {"softcap": "given"}, "only in presents", True),
        ({}, {}, "only in presents", False),
    ],
)
def test_which_faults_are_one(
    needs: dict[str, str | None], later: dict[str, str | None], place: str, covered: bool
) -> None:
    first = NamedFault("cpu@1", ("wrong", "", "shape"), needs, 1)
    second = NamedFault("cpu@1", ("wrong", place, "shape"), later, 2)
    assert first.covers(second) is covered
    assert not replace(first, target="cpu@2").covers(second)


@pytest.mark.push
def test_what_does_not_recur_is_no_success(tmp_path: Path, gqa: Gqa) -> None:
    """Only the first process is wrong."""
    wrong, right = (
        kernel(tmp_path, each).removeprefix("exec:") for each in ("window_one_longer", "correct")
    )
    program, begun = tmp_path / "chance", tmp_path / "begun"
    program.write_text(f"#!/bin/sh\n[ -e {begun} ] && exec {right}\n>{begun}\nexec {wrong}\n")
    program.chmod(0o755)
    done = gqa("fuzz", "--ep", f"exec:{program}", "--from", "window", "-j", "1", "--calls", "40")
    assert done.status == 1
    assert "Not seen again: " in done.out
    assert "wrong on mutant@1.0, but not when tried again" in done.out
    state = json.loads((tmp_path / "fuzz" / "campaign.json").read_text())
    assert state["faults"] == []
    assert state["unstable"]["mutant@1.0"]["wrong"] >= 1


@pytest.mark.push
def test_a_call_that_passes_is_no_fault(tmp_path: Path, gqa: Gqa) -> None:
    target = kernel(tmp_path)
    line = {"cases": "*", "features": {"window": ["shorter"]}, "versions": ">=0"}
    line |= {"verdict": "wrong", "link": "http://a.b", "why": "It was."}
    (tmp_path / "known.yaml").write_text(json.dumps({"target": target, "expectations": [line]}))
    command = ("fuzz", "--ep", target, "--from", "window", "--jobs", "1", "--calls", "40")
    done = gqa(*command, "--expectations", "known.yaml")
    assert (done.status, done.out.count("pass on ")) == (0, 0)
    assert "or the expectation covers too much, as a call passes: known.yaml:1 (call " in done.out


def test_a_link_in_the_folder_is_not_followed(tmp_path: Path, gqa: Gqa) -> None:
    (tmp_path / "fuzz").mkdir()
    (tmp_path / "fuzz" / "campaign.json").symlink_to(tmp_path / "other")
    done = gqa("fuzz", "--ep", kernel(tmp_path), "--from", "smoke", "--calls", "2")
    assert done.status == 3
    assert done.err.endswith("campaign.json: it is a link.\n")
    assert not (tmp_path / "other").exists()


@pytest.mark.push
def test_known_results_are_counted(tmp_path: Path, gqa: Gqa) -> None:
    target = kernel(tmp_path, "window_one_longer")
    line = {"cases": "*", "features": {"window": ["shorter"]}, "versions": ">=0"}
    line |= {"verdict": "wrong", "link": "http://a.b", "why": "The window is too long."}
    own = {"target": target, "expectations": [line]}
    (tmp_path / "known.yaml").write_text(json.dumps(own))
    command = ("fuzz", "--ep", target, "--from", "window", "--jobs", "1", "--calls", "60")
    done = gqa(*command, "--expectations", "known.yaml")
    assert (done.status, done.err) == (0, "")
    state = json.loads((tmp_path / "fuzz" / "campaign.json").read_text())
    ((place, calls),) = (each for known in state["known"].values() for each in known.items())
    assert f"{calls:8,}  known: {place}" in done.out.splitlines()
    assert [state["faults"], place] == [[], "known.yaml:1"]


@pytest.mark.push
def test_a_campaign_leaves_out_what_its_target_refuses(
    tmp_path: Path, gqa: Gqa, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "ENOUGH", 20)
    command = ("fuzz", "--ep", kernel(tmp_path, "refuses_batches"), "--from", "smoke")
    done = gqa(*command, "--calls", "240", "--jobs", "1")
    assert done.out.count("refused on ") == 1
    found = json.loads((tmp_path / "fuzz" / "campaign.json").read_text())
    assert set(found["computed"]) < set(found["features"])
    assert "batch=more" not in found["computed"]
    assert found["features"]["batch=more"] < found["features"]["batch=one"] / 2


@pytest.mark.push
def test_a_campaign_goes_on_with_the_calls_that_it_would_have_drawn(
    tmp_path: Path, gqa: Gqa, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is avoided changes at the ends of rounds, and not where --calls ended one."""
    monkeypatch.setattr(state, "ENOUGH", 20)
    command = ("fuzz", "--ep", kernel(tmp_path, "refuses_batches"), "--from", "smoke", "-j", "1")
    for calls, out in ((90, "parts"), (150, "parts"), (150, "whole")):
        gqa(*command, "--calls", str(calls), "--out", out)
    parts, whole = (
        json.loads(Path(out, "campaign.json").read_text()) for out in ("parts", "whole")
    )
    assert parts == whole
    assert whole["avoided"]


@pytest.mark.push
def test_a_crash_of_a_legal_call_is_told(tmp_path: Path, gqa: Gqa) -> None:
    target = kernel(tmp_path, "crashes_where_borrowed_presents_are_omitted")
    themes = ("--from", "shared_kv", "--from", "omitted_present")
    done = gqa("fuzz", "--ep", target, *themes, "--calls", "60", "--jobs", "1")
    assert done.status == 1
    assert "crash on mutant@1.0: " in done.out
    assert "The runner died of SIGSEGV." in done.out
    assert "Not seen again" not in done.out


@pytest.mark.push
def test_what_was_found_before_a_runner_failed_is_told(tmp_path: Path, gqa: Gqa) -> None:
    """The runner starts three times only, each time for 40 requests."""
    runner = kernel(tmp_path, "window_one_longer").removeprefix("exec:")
    starts, program = tmp_path / "starts", tmp_path / "late"
    starts.write_text("")
    limit = f'[ "$(wc -l <"{starts}")" -lt 3 ] || exit 7; echo >>"{starts}"'
    program.write_text(f'#!/bin/sh\n{limit}\nsed -u 40q | "{runner}"\n')
    program.chmod(0o755)
    command = ("fuzz", "--ep", f"exec:{program}", "--from", "window", "--jobs", "1")
    done = gqa(*command, "--calls", "60")
    assert "Not seen again: It ran, but output is" in done.out  # as nothing starts any more
    assert done.status == 3
    assert "status 7" in done.out


def test_a_target_that_is_not_there_is_no_success(gqa: Gqa) -> None:
    done = gqa("fuzz", "--ep", "ort-plugin:no_such_plugin", "--from", "smoke", "--calls", "5")
    assert done.status == 3
    assert "no_such_plugin" in done.both
    assert len(done.both.splitlines()) == 1


@pytest.mark.push
def test_two_builds_are_compared(tmp_path: Path, gqa: Gqa) -> None:
    both = [kernel(tmp_path, "window_one_longer"), kernel(tmp_path)]
    command = ("fuzz", "--from", "window", "--calls", "60", "--jobs", "1", "--against")
    done = gqa(*command, "--ep", both[0], "--ep", both[1])
    assert done.status == 1
    assert done.out.count("wrong on mutant@1.0: ") == 1
    assert f"--ep {both[0]} --ep {both[1]}" in done.out  # the worse one first
    assert "  On mutant@1.0#2: pass.\n" in done.out
    assert "As if a local window sees one token more" in done.out
    assert done.out.splitlines().count("mutant@1.0#2: 60 pass") == 1
    copy = shutil.copy(tmp_path / "correct", tmp_path / "copy")
    again = gqa(*command, "--ep", both[1], "--ep", f"exec:{copy}", "--out", "same")
    assert again.status == 0
    one = gqa(*command, "--ep", both[0], "--out", "one")
    assert (one.status, one.err) == (
        2,
        "--against compares two targets; this campaign has 1.\n",
    )


@pytest.mark.push
@pytest.mark.push
def test_a_model_is_drawn_from(tmp_path: Path, gqa: Gqa) -> None:
    model = data_path("cases") / "exported" / "graphs" / "gemma4_tiny_mobius_cpu.onnx"
    command = ("fuzz", "--ep", kernel(tmp_path), "--from", str(model), "--jobs", "1", "--calls")
    for number in ("20", "30"):  # which goes on
        done = gqa(*command, number)
        assert (done.status, done.err) == (0, "")
    assert "30 calls: 30 pass; 0 new faults" in done.out
    state = json.loads((Path("fuzz") / "campaign.json").read_text())
    assert {"key_value=zero_length", "window=shorter"} & state["features"].keys()


def test_a_campaign_ends_when_its_cases_change(tmp_path: Path, gqa: Gqa) -> None:
    own = tmp_path / "own.yaml"
    shutil.copy(data_path("cases") / "window.yaml", own)
    command = ("fuzz", "--ep", kernel(tmp_path), "--from", "own.yaml", "--jobs", "1")
    assert gqa(*command, "--calls", "2").status == 0
    assert "fuzz has 2 calls, and goes on." in gqa(*command, "--calls", "4").out
    own.write_text(f"{own.read_text()}# changed\n")
    done = gqa(*command, "--calls", "6")
    assert (done.status, done.out) == (2, "")
    assert "fuzz/campaign.json is of a campaign with corpus '" in done.err
    assert len(done.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--shard", "3/2"), "--shard: '3/2' is not a shard: it takes NUMBER/OF, such as 3/8."),
        (("--seconds", "nan"), "--seconds: nan is no number of seconds."),
        (
            ("--from", "smoke/prompt[dtype=float32,sequence_length=5]"),
            "these have no feature to draw, or too many heads",
        ),
        (("--from", "a.onnx"), "a.onnx: cannot be read: No such file or directory."),
        (("--from", "a.onnx", "--from", "window"), "models and cases do not mix; name one kind."),
        (("--seed", "2"), "with --seed '0', not '2'; name another folder: --out."),
        (("--shard", "2/3"), "with --shard '1/1', not '2/3'; name another folder: --out."),
        (("--out", "broken"), "is no campaign: it is not the JSON of one. Delete it, or name"),
        (("--out", "negative"), "is no campaign: done.1/1 is wrong. Delete it, or name"),
    ],
)
def test_bad_input(tmp_path: Path, gqa: Gqa, options: tuple[str, ...], sentence: str) -> None:
    target = kernel(tmp_path)
    settings = {
        "suite": __version__,
        "--ep": target,
        "--seed": "0",
        "--from": "",
        "--against": "no",
    }
    for folder, content in (
        ("broken", "["),
        ("negative", json.dumps({"settings": settings, "done": {"1/1": -1}})),
        ("fuzz", json.dumps({"settings": settings, "done": {"1/1": 5}})),
    ):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "campaign.json").write_text(content)
    if "--from" in options:
        options = (*options, "--out", "other")
    done = gqa("fuzz", "--ep", target, *options)
    assert done.status == 2
    assert sentence in done.err
    assert len(done.err.splitlines()) == 1
