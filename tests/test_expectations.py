"""Tests expectations: which line is for a case, how a result may differ, and errors in files."""

from __future__ import annotations

import fnmatch
import itertools
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import jsonschema
import pytest
import synthetic_runs as runs
from case_files import cases_of, write
from shipped import shipped_cases

from conformance.base.paths import ROOT, data_path
from conformance.base.yaml_source import InputError, read_yaml
from conformance.case.case import Case
from conformance.case.contract import Contract
from conformance.harness.outcomes import Crashed, Outcome, Rejected, TimedOut, Unavailable
from conformance.harness.protocol import DescribedAnswer
from conformance.harness.runner import RunnerFailed
from conformance.judge.expectations import (
    Expectation,
    Known,
    check_stale,
    expectations_schema,
    id_pattern,
    load_expectations,
)
from conformance.model.known import KnownTarget
from conformance.results.records import (
    BeyondBudget,
    Fault,
    InfrastructureRecord,
    RelationBroken,
    ResultRecord,
    RunsDiffer,
    WrongDtype,
    WrongShape,
)
from conformance.run.assessment import PreparedCase, assess
from conformance.run.engine import TargetRun
from conformance.run.target import DescribedTarget, TargetPlan, target_plans
from conformance.targets.registry import target_for
from conformance.targets.tools import ONNXRUNTIME_VERSION

HEAD = "target: cpu\nexpectations:\n"
LINE = """\
  - cases: theme/a[*
    versions: ">=1.27"
    verdict: unsupported
    link: https://example.org/1
    why: It is not done yet.
"""


def expectation(**fields: Any) -> Expectation:
    """An expectation of ``cpu.yaml``, on line 7."""
    known = {
        "cases": "theme/a",
        "versions": ">=1.27",
        "verdict": "unsupported",
        "link": "https://example.org/1",
        "why": "It is not done yet.",
    }
    return Expectation(Known.model_validate({**known, **fields}), Path("cpu.yaml"), 7)


def complaints(folder: Path, text: str, name: str = "cpu.yaml") -> list[str]:
    """The errors of a file, each as ``name:line:column: sentence``."""
    file = write(folder, text, name)
    with pytest.raises(InputError) as caught:
        load_expectations([file])
    return [str(problem).removeprefix(f"{folder}/") for problem in caught.value.problems]


# Which outputs are wrong


def wrong(faults: Sequence[Fault]) -> ResultRecord:
    return runs.result(verdict="wrong", faults=faults, errors=())


KEY = BeyondBudget(
    output="present_key", index=(0,), got=0.0, want=1.0, budget=0.1, share=10.0, step=None
)
OUTPUT = KEY.model_copy(update={"output": "output"})
SCORES = KEY.model_copy(update={"output": "output_qk"})


SHAPE = WrongShape(output="present_key", got=(1, 2), want=(1, 3))
NAN = BeyondBudget(
    output="output", index=(0, 0), got=math.nan, want=1.0, budget=1e-6, share=math.inf
)
BROKEN = RelationBroken(
    output="output", name="packed_qkv", index=(0,), got=1.0, other=2.0, budget=0.0, share=math.inf
)
DIFFER = RunsDiffer(output="output")


@pytest.mark.parametrize(
    ("fields", "faults", "differs"),
    [
        ({}, (KEY, OUTPUT, SCORES), None),
        ({"wrong": "presents"}, (KEY,), None),
        (
            {"wrong": ["presents"]},
            (KEY, OUTPUT),
            "it is wrong in output, which the line does not name",
        ),
        (
            {"wrong": ["presents"]},
            (KEY, OUTPUT, SCORES),
            "it is wrong in output and output_qk, which the line does not name",
        ),
        (
            {"wrong": ["output"]},
            (OUTPUT, KEY),
            "it is wrong in presents, which the line does not name",
        ),
        ({"wrong": ["output", "presents"]}, (KEY, OUTPUT), None),
        ({"wrong": ["output", "presents"]}, (KEY,), None),
        ({"wrong": ["presents"]}, (OUTPUT,), "it is wrong in output, which the line does not name"),
        ({}, (DIFFER, NAN), "two runs differ, which the line does not mention"),
        ({"varies": True}, (DIFFER, NAN), None),
        ({"fault": "runs_differ"}, (DIFFER, NAN), None),
        (
            {"fault": {"kind": "shape", "output": "present_*"}},
            (NAN,),
            "the first fault is not one with kind: shape, output: present_*",
        ),
    ],
)
def test_a_line_says_in_what_a_wrong_result_differs(
    fields: dict[str, Any], faults: tuple[Fault, ...], differs: str | None
) -> None:
    line = expectation(verdict="wrong", **fields)
    assert line.differs(wrong(faults)) == differs


def test_only_what_ran_has_wrong_outputs(tmp_path: Path) -> None:
    (complaint,) = complaints(tmp_path, HEAD + LINE + "    wrong: [presents]\n")
    assert "'wrong' lists wrong outputs, but the verdict is unsupported" in complaint
    (complaint,) = complaints(tmp_path, HEAD + LINE + "    wrong: [present]\n")
    assert "wrong" in complaint


# Which line is for a case


def case_called(case_id: str) -> Case:
    """A case in which only the id and the contract matter."""
    return cast(Case, SimpleNamespace(id=case_id, contract=Contract(source="a text")))


def expectation_for(
    case: Case, version: str, adapter: str | None, lines: Iterable[Expectation]
) -> Expectation | None:
    return KnownTarget("cpu", version, adapter, [*lines]).expected(case)


@pytest.mark.parametrize(
    ("pattern", "case", "covered"),
    [
        ("theme/a", "theme/a", True),
        ("theme/a", "theme/a[x=1]", False),
        ("theme/a", "theme/ab", False),
        ("theme/a[*", "theme/a[x=1,y=2]", True),
        ("theme/a[*", "theme/ax=1]", False),
        ("theme/a[x=1]", "theme/a[x=1]", True),
        ("theme/a[x=1]", "theme/ax", False),
        ("theme/a[x=1]", "theme/a1", False),
        ("theme/*[x=?]", "theme/a[x=1]", False),
        ("theme/*[x=1.5]", "theme/a[x=1.5]", True),
        ("theme/*[x=1.5]", "theme/a[x=145]", False),
        ("*", "theme/a[x=1]", True),
        ("*dtype=float16*", "theme/a[dtype=float16,b=2]", True),
        ("*dtype=float16*", "theme/a[dtype=float32]", False),
        ("theme/*/b", "theme/a", False),
        ("THEME/a", "theme/a", False),
    ],
)
def test_only_the_star_is_a_wildcard(pattern: str, case: str, covered: bool) -> None:
    assert expectation(cases=pattern).covers(case_called(case)) is covered


@pytest.mark.parametrize(
    ("fields", "version", "adapter", "holds"),
    [
        ({}, "1.27.0", None, True),
        ({}, "1.26.9", None, False),
        ({"versions": ">=1.27,<1.32"}, "1.31.1", None, True),
        ({"versions": ">=1.27,<1.32"}, "1.32.0", None, False),
        ({"versions": ">=1.27,<1.31"}, "1.31.0-dev.20261101-0a1b2c3", None, True),
        ({"versions": ">=1.31"}, "1.31.0-dev.20261101-0a1b2c3", None, False),
        ({}, "my build", None, False),
        ({}, "1" * 5_000, None, False),
        ({}, "1.31.1", "lavapipe", True),
        ({"adapters": ["lavapipe"]}, "1.31.1", "lavapipe", True),
        ({"adapters": ["lavapipe"]}, "1.26.0", "lavapipe", False),
        ({"adapters": ["lavapipe"]}, "1.31.1", "swiftshader", False),
        ({"adapters": ["lavapipe"]}, "1.31.1", "lavapipe-2", False),
        ({"adapters": ["lavapipe"]}, "1.31.1", None, False),
        ({"adapters": ["swiftshader", "lavapipe"]}, "1.31.1", "lavapipe", True),
        ({"adapters": ["nvidia-*"]}, "1.31.1", "nvidia-blackwell", True),
        ({"adapters": ["nvidia-*"]}, "1.31.1", "nvidia", False),
        ({"adapters": ["*"]}, "1.31.1", "lavapipe", True),
        ({"adapters": ["*"]}, "1.31.1", None, False),
    ],
)
def test_an_expectation_applies_to_its_versions_and_adapters(
    fields: dict[str, Any], version: str, adapter: str | None, holds: bool
) -> None:
    assert expectation(**fields).known.holds_for(version, adapter) is holds


def test_an_expectation_covers_all_its_patterns() -> None:
    line = expectation(cases=["theme/a[*", "theme/b"])
    cases = ("theme/a[x=1]", "theme/b", "theme/a", "theme/b[x=1]", "theme/ba[x=1]")
    assert [line.covers(case_called(case)) for case in cases] == [True, True, False, False, False]


def test_the_first_expectation_for_the_adapter_applies() -> None:
    of_one, of_all = expectation(adapters=["lavapipe"]), expectation()
    for adapter, line in (("lavapipe", of_one), ("swiftshader", of_all), (None, of_all)):
        assert expectation_for(case_called("theme/a"), "1.31.1", adapter, [of_one, of_all]) is line


def test_the_first_expectation_for_case_and_version_applies() -> None:
    old, exact, wide = (
        expectation(versions="<1.27"),
        expectation(cases="theme/a*", why="first"),
        expectation(cases="*", why="second"),
    )
    lines = [old, exact, wide]
    assert expectation_for(case_called("theme/a[x=1]"), "1.31.1", None, lines) is exact
    assert expectation_for(case_called("theme/b"), "1.31.1", None, lines) is wide
    assert expectation_for(case_called("theme/a"), "1.20.0", None, lines) is old
    assert expectation_for(case_called("theme/b"), "1.20.0", None, lines) is None
    assert expectation_for(case_called("theme/a"), "1.31.1", None, []) is None


def test_an_expectation_with_features_covers_calls_that_have_them(tmp_path: Path) -> None:
    body = """\
- {name: capped, softcap: 2.0}
- {name: plain}
- {name: turned, rotary: interleaved, softcap: 2.0}
"""
    cases = cases_of(tmp_path, body)
    turned = expectation(cases="*", features={"rotary": ["interleaved", "partial_interleaved"]})
    capped = expectation(cases="*", features={"softcap": ["given"]})
    both = expectation(cases="*", features={**turned.known.features, **capped.known.features})
    assert [expectation_for(case, "1.31.1", None, [turned, capped]) for case in cases] == [
        capped,
        None,
        turned,
    ]
    assert [both.covers(case) for case in cases] == [False, False, True]


@pytest.mark.parametrize(
    ("verdict", "demands"),
    [
        ("unsupported", ["computes"]),
        ("accepted", ["rejects"]),
        ("wrong", ["computes", "either"]),
        ("crash", ["computes", "rejects", "either"]),
    ],
)
def test_an_expectation_covers_only_cases_that_can_get_its_verdict(
    verdict: str, demands: list[str]
) -> None:
    line = expectation(cases="*", verdict=verdict)
    every = {name: case_called("theme/a") for name in ("computes", "rejects", "either")}
    for name, of_it in every.items():
        of_it.contract = Contract(demands=name, source="a text")
    assert [name for name, of_it in every.items() if line.covers(of_it)] == demands


def test_an_expectation_goes_by_the_contract_on_its_targets_execution_provider(
    tmp_path: Path,
) -> None:
    body = """
- name: a
  contract:
    source: a text
    providers: {CPUExecutionProvider: {demands: rejects}}
"""
    (case,) = cases_of(tmp_path, body)
    text = "- {cases: '*', versions: '>=1', verdict: unsupported, link: 'https://a', why: So.}"
    lines = {}
    for target in ("cpu", "webgpu", "tract"):
        file = write(tmp_path, f"target: {target}\nexpectations:\n{text}\n", f"{target}.yaml")
        (lines[target],) = load_expectations([file])
    assert {target: line.covers(case) for target, line in lines.items()} == {
        "cpu": False,
        "webgpu": True,
        "tract": True,
    }


# Results and their lines


def described(adapter: str | None = None) -> DescribedAnswer:
    return DescribedAnswer(
        id=1,
        outcome="described",
        runtime="onnxruntime",
        version="1.31.1",
        execution_provider="CPUExecutionProvider",
        device="a CPU",
        adapter=adapter,
        dtypes=("float32", "int32"),
    )


@pytest.fixture
def case(tmp_path: Path) -> Case:
    """``theme/a``, whose contract says computes."""
    return cases_of(tmp_path, "- name: a")[0]


def result(
    case: Case,
    outcome: Outcome,
    *lines: Expectation,
    adapter: str | None = None,
) -> ResultRecord:
    """The record of ``outcome`` on cpu, compared with ``lines``."""
    ready = DescribedTarget(target_for("cpu"), described(adapter), None, None)
    record = assess(PreparedCase(case), ready, lines, lambda job: outcome).record
    assert isinstance(record, ResultRecord)
    return record


def rejected(message: str = "present_key is missing", stage: Any = "run") -> Rejected:
    return Rejected(stage=stage, step=0, code="FAIL", message=message)


DIED = Crashed(signal="SIGSEGV", message="The runner died of SIGSEGV.")
PANICKED = "attempt to divide by zero"
LATE = TimedOut(seconds=3.0)


def of_crash(message: str) -> Expectation:
    """A crash whose message has these words."""
    return expectation(verdict="crash", message=message)


@pytest.mark.parametrize(
    ("outcome", "lines", "unexpected", "says"),
    [
        (rejected(), [], True, None),
        (rejected(), [expectation(versions="<1.31")], True, None),
        (rejected(), [expectation(cases="theme/b")], True, None),
        (rejected(), [expectation(verdict="crash")], True, "the verdict is unsupported, not crash"),
        (rejected(), [expectation(stage="load")], True, "the stage is run, not load"),
        (rejected(), [expectation(message="rank")], True, "the message does not contain 'rank'"),
        (DIED, [expectation(verdict="wrong")], True, "the verdict is crash, not wrong"),
        (DIED, [of_crash("SIGSEGV")], False, ""),
        (DIED, [of_crash("SIGABRT")], True, "the message does not contain 'SIGABRT'"),
        (
            Crashed(signal="SIGABRT", message=f"It died; {PANICKED}."),
            [of_crash(PANICKED)],
            False,
            "",
        ),
        # A message is that of the runtime: neither what else it printed, nor the judge's sentence.
        (
            replace(DIED, message="It died.", stderr=f"{PANICKED} was avoided\n"),
            [of_crash(PANICKED)],
            True,
            f"the message does not contain '{PANICKED}'",
        ),
        (LATE, [expectation(verdict="timeout")], False, ""),
        (LATE, [expectation(verdict="timeout", message="No ans")], True, "does not contain"),
        (Unavailable(reason="There is no device."), [expectation()], False, None),
        # A kernel variant may pass where the usual target does not.
        (
            rejected(),
            [expectation(cases="*", verdict="pass"), expectation(cases="*")],
            True,
            "the verdict is unsupported, not pass",
        ),
    ],
)
def test_a_result_is_compared_with_the_first_line_that_applies(
    case: Case, outcome: Outcome, lines: list[Expectation], unexpected: bool, says: str | None
) -> None:
    record = result(case, outcome, *lines)
    assert (record.unexpected, record.expectation is None) == (unexpected, says is None)
    if unexpected and says is not None:
        assert "cpu.yaml:7 has another expectation for >=1.27: " in record.reason
        assert says in record.reason
        assert record.reason.endswith("end that range of versions, or change the line.")


def test_a_result_as_expected_is_not_unexpected(case: Case) -> None:
    record = result(case, rejected(), expectation(stage="run", message="present_key"))
    assert (record.verdict, record.unexpected) == ("unsupported", False)
    known = record.expectation
    assert known is not None
    assert (known.file, known.line, known.verdict) == ("cpu.yaml", 7, "unsupported")
    assert (known.link, known.why) == ("https://example.org/1", "It is not done yet.")


def test_a_better_verdict_is_unexpected_and_names_the_expectation(tmp_path: Path) -> None:
    body = "- name: a\n  contract: {demands: rejects, source: a document}"
    (case,) = cases_of(tmp_path, body)
    record = result(case, rejected(), expectation(verdict="accepted"))
    assert (record.verdict, record.unexpected) == ("pass", True)
    assert (
        "cpu.yaml:7 has another expectation for >=1.27: the verdict is pass, not accepted"
        in record.reason
    )


def test_an_expectation_for_other_adapters_does_not_apply(case: Case) -> None:
    line = expectation(adapters=["swiftshader", "lavapipe"], stage="load")
    for adapter in (None, "nvidia-blackwell"):
        record = result(case, rejected(), line, adapter=adapter)
        assert (record.unexpected, record.expectation) == (True, None)
    record = result(case, rejected(stage="load"), line, adapter="lavapipe")
    assert (record.unexpected, record.target) == (False, "cpu@1.31.1+lavapipe")
    differs = result(case, rejected(), line, adapter="lavapipe").reason
    assert (
        "cpu.yaml:7 has another expectation for >=1.27 on swiftshader, lavapipe: the stage"
        in differs
    )


def test_a_clean_rejection_of_a_requested_call_is_never_unexpected(tmp_path: Path) -> None:
    body = "- name: a\n  contract: {basis: requested, source: an issue}"
    (case,) = cases_of(tmp_path, body)
    assert not result(case, rejected()).unexpected
    assert result(case, Crashed(signal="SIGSEGV", message="It died.")).unexpected


LARGE = NAN.model_copy(update={"got": math.inf, "share": 9.0})


def test_a_process_that_reads_by_mistake_may_end() -> None:
    crash = runs.result(verdict="crash")
    line = expectation(verdict="wrong")
    assert line.differs(crash) == "the verdict is crash, not wrong"
    assert expectation(verdict="wrong", may_crash=True).differs(crash) is None


@pytest.mark.parametrize(
    ("fault", "faults", "known"),
    [
        ("shape", [SHAPE, NAN], True),
        ("shape", [NAN, SHAPE], False),  # the first one counts
        ("shape", [], False),
        ("beyond_budget", [NAN], True),
        ("dtype", [WrongDtype(output="output", got="float32", want="float16")], True),
        ({"kind": "shape", "output": "present_key"}, [SHAPE], True),
        ({"kind": "shape", "output": "present_value"}, [SHAPE], False),
        ({"kind": "beyond_budget", "output": "present_key"}, [SHAPE], False),
        ({"output": "present_*"}, [SHAPE], True),
        ({"output": "present_*"}, [NAN], False),
        ({"got": "nan"}, [NAN], True),
        ({"got": "nan"}, [LARGE], False),
        ({"got": "inf"}, [LARGE], True),
        ({"got": "nan"}, [SHAPE], False),
        ({"relation": "packed_qkv"}, [BROKEN], True),
        ({"relation": "long_window"}, [BROKEN], False),
        ({"relation": "packed_qkv"}, [NAN], False),
        ("relation", [BROKEN], True),
    ],
)
def test_a_wrong_result_is_known_by_its_first_fault(
    fault: Any, faults: list[Fault], known: bool
) -> None:
    line = expectation(verdict="wrong", fault=fault)
    assert (line.differs(wrong(faults)) is None) is known


def test_a_fallback_is_known_by_its_placement() -> None:
    line = expectation(verdict="fallback", placement="CPUExecutionProvider")
    assert line.differs(runs.result(verdict="fallback", placement="CPUExecutionProvider")) is None
    other = runs.result(verdict="fallback", placement="JsExecutionProvider")
    assert line.differs(other) == "it ran on JsExecutionProvider, not on CPUExecutionProvider"


def test_an_exec_target_has_no_expectations() -> None:
    assert target_for("exec:./mine").expectations == ()


def test_a_kernel_variants_expectation_has_precedence(tmp_path: Path) -> None:
    own, usual = target_for("cpu-noflash").expectations
    assert (own.name, usual) == ("cpu-noflash.yaml", *target_for("cpu").expectations)
    files = [
        write(tmp_path, f"target: {name}\nexpectations:\n{LINE}", f"{name}.yaml")
        for name in ("cpu-noflash", "cpu")
    ]
    known = expectation_for(case_called("theme/a[x]"), "1.31.0", None, load_expectations(files))
    assert known is not None
    assert known.file == files[0]


# Expectations that match nothing


A_OR_B = expectation(cases=["theme/a", "theme/b"])
MIXED = expectation(cases=["theme/a", "theme/c", "other/x"])
ELSEWHERE = [expectation(cases="other/x"), expectation(cases="*nothing*")]
PASS_A, ALL = expectation(verdict="pass"), expectation(cases="theme/*")
PASS_BOTH = expectation(cases=["theme/a", "theme/b"], verdict="pass")


@pytest.mark.parametrize(
    ("lines", "whole", "found"),
    [
        ([A_OR_B], True, []),
        ([expectation(), expectation(cases="theme/c*")], False, ["no case matches 'theme/c*'"]),
        ([MIXED], False, ["no case matches 'theme/c'"]),
        ([MIXED], True, ["no case matches 'other/x'", "no case matches 'theme/c'"]),
        # of a theme that is not loaded
        (ELSEWHERE, False, []),
        (ELSEWHERE, True, ["no case matches '*nothing*'", "no case matches 'other/x'"]),
        # a pass excludes cases from a later line
        ([PASS_A, ALL], True, []),
        ([ALL, PASS_A], True, ["no later line matches 'theme/a'"]),
        ([PASS_BOTH, expectation()], True, ["no later line matches 'theme/b'"]),
    ],
)
def test_a_pattern_of_a_loaded_theme_that_matches_nothing_is_an_error(
    tmp_path: Path, lines: list[Expectation], whole: bool, found: list[str]
) -> None:
    said = []
    try:
        check_stale(lines, cases_of(tmp_path, "- name: a\n- name: b"), whole=whole)
    except InputError as error:
        said = [str(problem) for problem in error.problems]
    assert sorted(said) == [f"cpu.yaml:7:1: {one}; remove or correct this line" for one in found]


# Invalid files


def test_expectations_are_read_with_their_line_numbers(tmp_path: Path) -> None:
    second = LINE.replace("theme/a[*", "[theme/b, theme/c]")
    lines = load_expectations([write(tmp_path, f"{HEAD}{LINE}\n{second}", "cpu.yaml")])
    assert [(line.known.cases, line.line) for line in lines] == [
        (("theme/a[*",), 3),
        (("theme/b", "theme/c"), 9),
    ]


def test_a_missing_file_and_an_empty_list_give_no_expectations(tmp_path: Path) -> None:
    assert load_expectations([tmp_path / "cpu.yaml"]) == []
    assert load_expectations([write(tmp_path, "target: cpu\n", "cpu.yaml")]) == []


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("verdict:", "verdct:", "cpu.yaml:5:5: unknown field 'verdct'; did you mean 'verdict'?"),
        ("unsupported", "unsuported", "cpu.yaml:5:14: verdict: found 'unsuported', allowed: "),
        ("unsupported", "skip", "cpu.yaml:5:14: verdict: found 'skip', allowed: crash, timeout"),
        (
            "link:",
            "features: {softcup: [given]}\n    link:",
            "cpu.yaml:6:15: features: 'softcup' is not a feature; allowed: ",
        ),
        (
            "link:",
            "features: {softcap: [some]}\n    link:",
            "cpu.yaml:6:15: features: 'some' is not a value of softcap; allowed: ",
        ),
        (
            "link:",
            "features: {'{x!r}': [given]}\n    link:",
            "cpu.yaml:6:15: features: '{x!r}' is not a feature; allowed: ",
        ),
        ('">=1.27"', "1.27", "cpu.yaml:4:15: versions: "),
        ('">=1.27"', f"'>={'1' * 4_500}'", "cpu.yaml:4:15: versions: is not a range of versions"),
        ('">=1.27"', '"since 1.27"', "cpu.yaml:4:15: versions: is not a range of versions"),
        ("theme/a[*", '""', "cpu.yaml:3:12: cases: "),
        ("theme/a[*", '[theme/a, ""]', "cpu.yaml:3:22: cases: "),
        ("theme/a[*", "[]", "cpu.yaml:3:12: cases: "),
        ("theme/a[*", "7", "cpu.yaml:3:12: cases: "),
        ("link:", "adapters: []\n    link:", "cpu.yaml:6:15: adapters: "),
        ("link:", "fault: shap\n    link:", "cpu.yaml:6:12: kind: found 'shap', allowed: runs"),
        ("link:", "fault: {got: 1}\n    link:", "cpu.yaml:6:18: got: found 1, allowed: nan"),
        ("link:", "adapters: lavapipe\n    link:", "cpu.yaml:6:15: adapters: "),
        ("https://example.org/1", '""', "cpu.yaml:6:11: link: "),
        ("    why: It is not done yet.\n", "", "cpu.yaml:3:5: the field 'why' is missing"),
        (
            "    why: It is",
            "    stage: compile\n    why: It is",
            "cpu.yaml:7:12: stage: found 'compile', allowed: load, run",
        ),
        ("verdict: unsupported", "verdict: [", "cpu.yaml:7:8: bad YAML: "),
        ("target: cpu\n", "", "cpu.yaml:1:1: the field 'target' is missing"),
        ("target: cpu", "target: cuda", "cpu.yaml:1:9: the target is 'cuda', but the file is for"),
        ("expectations:", "expectation:", "cpu.yaml:2:1: unknown field 'expectation'"),
    ],
)
def test_a_bad_file_is_reported_with_its_line(
    tmp_path: Path, old: str, new: str, says: str
) -> None:
    text = HEAD + LINE
    assert old in text
    said = complaints(tmp_path, text.replace(old, new, 1))
    assert any(line.startswith(says) for line in said), said


@pytest.mark.parametrize("text", ["- a\n", "just words\n", "", "target: cpu\nexpectations: {}\n"])
def test_a_file_with_other_content(tmp_path: Path, text: str) -> None:
    assert complaints(tmp_path, text)


def test_all_errors_of_a_file_come_at_once(tmp_path: Path) -> None:
    broken = LINE.replace("verdict: unsupported", "verdict: bad").replace("why:", "wy:")
    said = complaints(tmp_path, HEAD + broken + broken)
    assert [line.split(":")[1] for line in said] == ["3", "5", "7", "8", "10", "12"]


def test_a_bad_file_stops_the_run_before_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, HEAD + LINE.replace("why:", "wy:"), "expectations/cpu.yaml")
    monkeypatch.setattr("conformance.targets.registry.data_path", lambda name: tmp_path / name)
    with pytest.raises(InputError, match=r"cpu\.yaml:7:5: unknown field 'wy'"):
        target_plans([], [target_for("cpu")])


# The shipped files


def shipped() -> list[Expectation]:
    return load_expectations(target_for("cpu").expectations)


def test_the_schema_is_that_of_the_model() -> None:
    written = (data_path("expectations") / "schema.json").read_text(encoding="utf-8")
    assert json.loads(written) == expectations_schema()


def test_the_schema_agrees_with_the_loader() -> None:
    schema = expectations_schema()
    data = read_yaml(data_path("expectations") / "cpu.yaml").data
    jsonschema.validate(data, schema)
    data["expectations"][0].update(cases=["a/*", "b/*"], adapters=["lavapipe"])
    jsonschema.validate(data, schema)
    for field in ("cases", "adapters"):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(
                {**data, "expectations": [{**data["expectations"][0], field: []}]}, schema
            )
    data["expectations"][0]["verdict"] = "fine"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, schema)


@pytest.mark.parametrize(
    "file", sorted(data_path("expectations").glob("*.yaml")), ids=lambda f: f.stem
)
def test_shipped_expectations_match_the_corpus_and_have_reasons(file: Path) -> None:
    lines = load_expectations([file])
    usual = target_for(file.stem).expectations
    check_stale(load_expectations(usual), shipped_cases(), whole=True)
    assert lines
    for line in lines:
        link = line.known.link
        page = ROOT / link
        assert link.startswith("https://") or not ROOT.joinpath("docs").is_dir() or page.is_file()
        assert line.known.why.endswith(".")
        assert line.known.versions


def test_no_shipped_expectation_hides_another() -> None:
    lines = shipped()
    for case in shipped_cases():
        covering = [
            line
            for line in lines
            if line.covers(case) and line.known.holds_for(ONNXRUNTIME_VERSION)
        ]
        assert len(covering) <= 1, case.id


@pytest.mark.parametrize(
    "file", sorted(data_path("expectations").glob("*.yaml")), ids=lambda f: f.stem
)
def test_each_shipped_expectation_applies_to_some_case(file: Path) -> None:
    lines = load_expectations([file])
    # Lines for several adapters or ranges of versions may be for the same cases.
    adapters = {None, *(adapter for line in lines for adapter in line.known.adapters)}
    first = {
        next(
            (n for n, line in enumerate(lines) if line.covers(case) and line.known.on(adapter)),
            None,
        )
        for case in shipped_cases()
        for adapter in adapters
    }
    ranges = {line.known.versions for line in lines}
    idle = [line.known.cases for n, line in enumerate(lines) if n not in first]
    assert idle == [] or len(ranges) > 2, idle


# A target that is abandoned


def test_the_record_of_a_runner_that_failed_names_the_target_once(case: Case) -> None:
    with TargetRun(TargetPlan(target_for("exec:/no/such"), (), ())) as run:
        assert run.ready.broken
        with pytest.raises(RunnerFailed) as caught:
            run.run_one(case)
        record = run.trouble(caught.value)
    sentence = "The runner /no/such cannot be started: No such file or directory."
    assert record == InfrastructureRecord(target="exec:/no/such", message=sentence)
    assert run.ready.unavailable == sentence


def test_a_case_of_a_runner_that_did_not_start_is_not_a_skip(case: Case) -> None:
    with (
        TargetRun(TargetPlan(target_for("exec:/no/such"), (case,), ())) as run,
        pytest.raises(RunnerFailed),
    ):
        run.run_one(case)


@pytest.mark.parametrize("text", ["a*b*c", "*", "a*", "*a", "a", "**a**", "ab*ba", "a*aa*a", "*.*"])
def test_a_pattern_matches_as_in_a_shell(text: str) -> None:
    """Every `*` is tried everywhere by `fnmatch`, which has no other special character here."""
    for length in range(6):
        for letters in itertools.product("abc.", repeat=length):
            word = "".join(letters)
            matches = id_pattern(text).fullmatch(word) is not None
            assert matches == fnmatch.fnmatchcase(word, text), word


def test_a_pattern_of_many_stars_takes_little_time() -> None:
    assert id_pattern("*a" * 2_000 + "b").fullmatch("a" * 5_000) is None
