"""Tests expectations: which line is for a case, how a result may differ, and errors in files."""

from __future__ import annotations

import fnmatch
import itertools
import math
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import jsonschema
import pytest
import synthetic_runs as runs
from case_files import cases_of, write
from goldens import check_golden
from pydantic import ValidationError
from shipped import shipped_cases

from conformance.base.paths import ROOT, data_path
from conformance.base.yaml_source import InputError, read_yaml
from conformance.case.case import Case
from conformance.case.contract import Contract
from conformance.expectations.known import Known, expectations_schema, id_pattern
from conformance.expectations.match import Expectation, check_stale, known_instability
from conformance.expectations.read import load_expectations
from conformance.harness.outcomes import Crashed, Outcome, Rejected, TimedOut, Unavailable
from conformance.results.records import (
    Fault,
    RelationBroken,
    ResultRecord,
    RunsDiffer,
    WrongDtype,
    WrongShape,
)
from conformance.results.verdicts import flaky_text
from conformance.run.assessment import Assessment, PreparedCase
from conformance.run.recording import compared
from conformance.targets.registry import target_for
from conformance.targets.tools import ONNXRUNTIME_VERSION

#: Of each test README's command runs one example, see support/tiers.py.
ONE_EXAMPLE = True

LINE = """\
  - {cases: "theme/a[*", versions: ">=1.27", verdict: unsupported,
     link: "https://example.org/1", why: It is not done yet.}
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


# What a line says of a result


OUTPUT, SCORES, KEY = map(runs.beyond, ("output", "output_qk", "present_key"))
NAN, LARGE = runs.beyond(got=math.nan), runs.beyond(got=math.inf)
SHAPE = WrongShape(output="present_key", got=(1, 2), want=(1, 3))
DTYPE = WrongDtype(output="output", got="float32", want="float16")
DIFFER = RunsDiffer(output="output")
BROKEN = RelationBroken(
    output="output", name="packed_qkv", index=(0,), got=1.0, other=2.0, budget=0.0, share=9.0
)


def wrong(*faults: Fault) -> ResultRecord:
    return runs.result(verdict="wrong", faults=faults, errors=())


RECORDS = {
    "presents": wrong(KEY),
    "output": wrong(OUTPUT),
    "presents and output": wrong(KEY, OUTPUT),
    "output and presents": wrong(OUTPUT, KEY),
    "all outputs": wrong(KEY, OUTPUT, SCORES),
    "nan": wrong(NAN),
    "inf": wrong(LARGE),
    "a shape": wrong(SHAPE),
    "a shape and nan": wrong(SHAPE, NAN),
    "nan and a shape": wrong(NAN, SHAPE),
    "a dtype": wrong(DTYPE),
    "runs that differ and nan": wrong(DIFFER, NAN),
    "a relation": wrong(BROKEN),
    "no fault": wrong(),
    "a crash": runs.result(verdict="crash"),
    "a fallback to the CPU": runs.result(verdict="fallback"),
}
FIELDS: tuple[dict[str, Any], ...] = (
    *({}, {"varies": "crash"}, {"varies": "values"}),
    *({"wrong": wrong} for wrong in ("presents", ["output"], ["output", "presents"])),
    *({"fault": fault} for fault in ("runs_differ", "shape", "beyond_budget", "dtype", "relation")),
    *({"fault": {"kind": "shape", "output": f"present_{part}"}} for part in ("key", "value", "*")),
    *({"fault": {"kind": "beyond_budget", "output": "present_key"}},),
    *({"fault": {"output": "present_*"}}, {"fault": {"got": "nan"}}, {"fault": {"got": "inf"}}),
    *({"fault": {"relation": name}} for name in ("packed_qkv", "long_window")),
    *({"verdict": "fallback", "placement": f"{name}ExecutionProvider"} for name in ("CPU", "Js")),
)


def test_in_what_a_result_differs_from_a_line() -> None:
    """The first fault counts, and a process that reads by mistake may end."""
    told = []
    for fields in FIELDS:
        line = expectation(**{"verdict": "wrong", **fields})
        told.append(f"=== {fields}")
        told += [f"{name}: {line.differs(each) or 'known'}" for name, each in RECORDS.items()]
    check_golden("lines.txt", "\n".join(told) + "\n")


WRONG = runs.result(verdict="wrong", reason="It ran.")
SEEN = {
    "wrong": WRONG,
    "wrong, and two runs differ": WRONG.model_copy(update={"faults": (DIFFER,)}),
    **{name: runs.result(verdict=name, reason="") for name in ("pass", "crash", "timeout")},
}
LATE_TOO = {"varies": ["crash", "timeout"]}
FLAKY = {"varies": "pass", "rate": {"failed": 3, "runs": 10}}
ALONE = {"varies": "alone"}


@pytest.mark.parametrize(
    ("expected", "seen", "said"),
    [
        (None, "pass", "as expected"),
        (None, "wrong", "unexpected"),
        ({}, "wrong", "known"),
        ({"message": "rank"}, "wrong", "unexpected: the message does not contain 'rank'"),
        (
            *({}, "wrong, and two runs differ"),
            "unexpected: two runs differ, which the line does not mention",
        ),
        ({}, "pass", "unexpected: the verdict is pass, not wrong"),
        ({}, "crash", "unexpected: the verdict is crash, not wrong"),
        ({"varies": "values"}, "wrong, and two runs differ", "known"),
        ({"varies": "values"}, "wrong", "known"),
        ({"varies": "values"}, "crash", "unexpected: the verdict is crash, not wrong"),
        ({"varies": "crash"}, "crash", "known"),
        ({"varies": "crash", "wrong": "presents"}, "crash", "known"),
        (LATE_TOO, "timeout", "known"),
        (LATE_TOO, "pass", "unexpected: the verdict is pass, not wrong or crash or timeout"),
        (FLAKY, "wrong", "known: flaky, 3 of 10 runs"),
        (FLAKY, "pass", "known: flaky, 3 of 10 runs"),
        (FLAKY, "crash", "unexpected: the verdict is crash, not wrong or pass"),
        (ALONE, "wrong", "unexpected"),
        (ALONE, "pass", "as expected"),
        ({"verdict": "pass"}, "pass", "as expected"),
        ({"verdict": "pass"}, "wrong", "unexpected: the verdict is wrong, not pass"),
    ],
)
def test_what_is_said_of_a_result(
    case: Case, expected: dict[str, Any] | None, seen: str, said: str
) -> None:
    """The table above `known_result`, row by row."""
    lines = [] if expected is None else [expectation(**{"verdict": "wrong", **expected})]
    record = compared(case, SEEN[seen], "specified", ("1.31.1", None), lines)
    how = re.search(r" for >=1\.27: (.*); end that range", record.reason)
    told = how[1] if how else flaky_text(record.flaky) if record.flaky else ""
    known = "known" if record.known else "as expected"
    what = "unexpected" if record.unexpected else known
    assert (f"{what}: {told}" if told else what) == said


@pytest.mark.parametrize(
    ("expected", "seen", "is_known"),
    [
        (ALONE, "wrong", True),
        (ALONE, "crash", False),
        ({"varies": ["alone", "crash"]}, "crash", True),
        ({"varies": "values"}, "wrong", True),
        ({"varies": "crash"}, "crash", True),
        (FLAKY, "wrong", True),
        (FLAKY, "timeout", False),
        ({}, "wrong", False),
        ({**ALONE, "cases": "theme/b"}, "wrong", False),
    ],
)
def test_whether_a_result_that_did_not_recur_alone_is_known(
    case: Case, expected: dict[str, Any], seen: Any, is_known: bool
) -> None:
    """The second part of that table."""
    line = expectation(**{"verdict": "wrong", **expected})
    assert known_instability(case, seen, [line]) == (line.record if is_known else None)


@pytest.mark.parametrize(
    "fields",
    [
        {"varies": "pass", "rate": {"failed": 3, "runs": 2}},
        {"varies": "pass", "rate": {"failed": 0, "runs": 2}},
        {"varies": "values", "rate": {"failed": 1, "runs": 2}},
        {"varies": "wrong"},
        {"verdict": "pass", "varies": "crash"},
    ],
)
def test_a_line_that_varies_needs_another_verdict_and_a_share(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        expectation(**{"verdict": "wrong", **fields})


# Which line is for a case


def case_called(case_id: str) -> Case:
    """A case in which only the id and the contract matter."""
    return cast(Case, SimpleNamespace(id=case_id, contract=Contract(source="a text")))


def expectation_for(
    case: Case, version: str, adapter: str | None, lines: Iterable[Expectation]
) -> Expectation | None:
    on = (one for one in lines if one.covers(case) and one.known.holds_for(version, adapter))
    return next(on, None)


NIGHTLY = "1.31.0-dev.20261101-0a1b2c3"
ON: tuple[tuple[str, str | None], ...] = (
    *(
        (v, None)
        for v in ("1.26.9", "1.27.0", NIGHTLY, "1.31.1", "1.32.0", "my build", "1" * 5_000)
    ),
    *(("1.31.1", name) for name in ("lavapipe", "lavapipe-2", "swiftshader", "nvidia")),
    *(("1.31.1", "nvidia-blackwell"), ("1.26.0", "lavapipe")),
)


def test_an_expectation_applies_to_its_versions_and_adapters() -> None:
    told = []
    for versions in (">=1.27", ">=1.27,<1.32", ">=1.27,<1.31", ">=1.31"):
        for adapters in ((), ["lavapipe"], ["swiftshader", "lavapipe"], ["nvidia-*"], ["*"]):
            fields = {"adapters": tuple(adapters)} if adapters else {}
            known = expectation(versions=versions, **fields).known
            on = ["+".join(filter(None, one)) for one in ON if known.holds_for(*one)]
            told.append(
                f"{versions} on {', '.join(adapters) or 'all'}: {', '.join(on) or 'none'}\n"
            )
    check_golden("versions.txt", "".join(told))


def test_the_first_expectation_for_case_version_and_adapter_applies() -> None:
    of_one, old = expectation(adapters=["lavapipe"]), expectation(versions="<1.27")
    exact, wide = expectation(cases="theme/a*"), expectation(cases="*")
    lines = [of_one, old, exact, wide]
    for name, version, adapter, line in (
        ("theme/a", "1.31.1", "lavapipe", of_one),
        ("theme/a", "1.31.1", "swiftshader", exact),
        ("theme/a[x=1]", "1.31.1", None, exact),
        ("theme/b", "1.31.1", None, wide),
        ("theme/a", "1.20.0", None, old),
        ("theme/b", "1.20.0", None, None),
    ):
        assert expectation_for(case_called(name), version, adapter, lines) is line


def test_an_expectation_with_features_covers_calls_that_have_them(tmp_path: Path) -> None:
    capped_and_plain = "- {name: capped, softcap: 2.0}\n- {name: plain}\n"
    turned_too = "- {name: turned, rotary: interleaved, softcap: 2.0}\n"
    cases = cases_of(tmp_path, capped_and_plain + turned_too)
    turned = expectation(cases="*", features={"rotary": ["interleaved", "partial_interleaved"]})
    capped = expectation(cases="*", features={"softcap": ["given"]})
    both = expectation(cases="*", features={**turned.known.features, **capped.known.features})
    found = [expectation_for(case, "1.31.1", None, [turned, capped]) for case in cases]
    assert found == [capped, None, turned]
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
    contract = "{source: a text, providers: {CPUExecutionProvider: {demands: rejects}}}"
    (case,) = cases_of(tmp_path, f"- {{name: a, contract: {contract}}}")
    text = "- {cases: '*', versions: '>=1', verdict: unsupported, link: 'https://a', why: So.}"
    lines = {}
    for target in ("cpu", "webgpu", "tract"):
        file = write(tmp_path, f"target: {target}\nexpectations:\n{text}\n", f"{target}.yaml")
        (lines[target],) = load_expectations([file])
    covered = {target: line.covers(case) for target, line in lines.items()}
    assert covered == {"cpu": False, "webgpu": True, "tract": True}


# Results and their lines


@pytest.fixture
def case(tmp_path: Path) -> Case:
    """``theme/a``, whose contract says computes."""
    return cases_of(tmp_path, "- name: a")[0]


def result(case: Case, outcome: Outcome, *lines: Expectation) -> ResultRecord:
    """The record of ``outcome`` on cpu, compared with ``lines``."""
    assessment = Assessment(PreparedCase(case), runs.described(), lambda job: outcome)
    record = assessment.result(lines).record
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
    ("outcome", "lines", "unexpected", "applies"),
    [
        (rejected(), [expectation(versions="<1.31")], True, False),
        (rejected(), [expectation(cases="theme/b")], True, False),
        (rejected(), [expectation(stage="load")], True, True),
        (rejected(), [expectation(stage="run", message="present_key")], False, True),
        (DIED, [of_crash("SIGSEGV")], False, True),
        (DIED, [of_crash("SIGABRT")], True, True),
        (replace(DIED, message=f"It died; {PANICKED}."), [of_crash(PANICKED)], False, True),
        # A message is that of the runtime: neither what else it printed, nor the judge's sentence.
        (
            replace(DIED, message="It died.", stderr=f"{PANICKED} was avoided\n"),
            [of_crash(PANICKED)],
            *(True, True),
        ),
        (LATE, [expectation(verdict="timeout")], False, True),
        (LATE, [expectation(verdict="timeout", message="No ans")], True, True),
        (Unavailable(reason="There is no device."), [expectation()], False, False),
        # A kernel variant may pass where the usual target does not.
        (rejected(), [expectation(verdict="pass"), expectation(cases="*")], True, True),
    ],
)
def test_a_result_is_compared_with_the_first_line_that_applies(
    case: Case, outcome: Outcome, lines: list[Expectation], unexpected: bool, applies: bool
) -> None:
    record = result(case, outcome, *lines)
    assert (record.unexpected, record.expectation is not None) == (unexpected, applies)
    assert ("cpu.yaml:7 has another" in record.reason) is (unexpected and applies)


def test_a_clean_rejection_of_a_requested_call_is_never_unexpected(tmp_path: Path) -> None:
    body = "- name: a\n  contract: {basis: requested, source: an issue}"
    (case,) = cases_of(tmp_path, body)
    assert not result(case, rejected()).unexpected
    assert result(case, Crashed(signal="SIGSEGV", message="It died.")).unexpected


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


def test_a_pattern_of_a_loaded_theme_that_matches_nothing_is_an_error(tmp_path: Path) -> None:
    """Of all cases, and of those of a theme; a `pass` excludes cases from a later line."""
    cases, told = cases_of(tmp_path, "- name: a\n- name: b"), []
    mixed = expectation(cases=["theme/a", "theme/c", "other/x"])
    passes, wide = expectation(verdict="pass"), expectation(cases="theme/*")
    both = expectation(cases=["theme/a", "theme/b"], verdict="pass")
    for lines in (
        [expectation(cases=["theme/a", "theme/b"])],
        [expectation(), expectation(cases="theme/c*")],
        *([mixed], [passes, wide], [wide, passes], [both, expectation()]),
        [expectation(cases="other/x"), expectation(cases="*nothing*")],
    ):
        told.append(f"=== {[(line.known.cases, line.known.verdict) for line in lines]}")
        for whole in (True, False):
            try:
                check_stale(lines, cases, whole=whole)
            except InputError as error:
                where = "all cases" if whole else "a theme"
                told += sorted(f"{where}: {problem}" for problem in error.problems)
    check_golden("stale.txt", "\n".join(told) + "\n")


# The shipped files


def test_the_schema_agrees_with_the_loader() -> None:
    schema = expectations_schema()
    data = read_yaml(data_path("expectations") / "cpu.yaml").data
    data["expectations"][0].update(cases=["a/*", "b/*"], adapters=["lavapipe"])
    jsonschema.validate(data, schema)
    for field, value in (("cases", []), ("adapters", []), ("verdict", "fine")):
        line = {**data["expectations"][0], field: value}
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**data, "expectations": [line]}, schema)


@pytest.mark.parametrize(
    "file", sorted(data_path("expectations").glob("*.yaml")), ids=lambda file: file.stem
)
def test_each_shipped_expectation_has_a_reason_and_applies_to_some_case(file: Path) -> None:
    ep = "standard:cpu" if file.stem == "standard" else file.stem
    check_stale(load_expectations(target_for(ep).expectations), shipped_cases(), whole=True)
    lines = load_expectations([file])
    for known in (line.known for line in lines):
        there = known.link.startswith("https://") or ROOT.joinpath(known.link).is_file()
        assert there or not ROOT.joinpath("docs").is_dir()
        assert known.why.endswith(".")
        assert known.versions
    # Lines for several adapters or ranges of versions may be for the same cases.
    adapters = {None, *(adapter for line in lines for adapter in line.known.adapters)}
    covering = [[line for line in lines if line.covers(case)] for case in shipped_cases()]
    first = {
        next((line.line for line in some if line.known.on(adapter)), None)
        for some in covering
        for adapter in adapters
    }
    deciding = [line for line in lines if "alone" not in line.known.varies]
    idle = [line.known.cases for line in deciding if line.line not in first]
    assert idle == [] or len({line.known.versions for line in lines}) > 2, idle


def test_no_shipped_expectation_hides_another() -> None:
    every = load_expectations(target_for("cpu").expectations)
    lines = [line for line in every if line.known.holds_for(ONNXRUNTIME_VERSION)]
    for case in shipped_cases():
        assert sum(line.covers(case) for line in lines) <= 1, case.id


@pytest.mark.parametrize(
    "text", ["a*b*c", "*", "a*", "*a", "a", "**a**", "ab*ba", "a*aa*a", "*.*", "*[b=?]", "a[*"]
)
def test_only_the_star_is_a_wildcard(text: str) -> None:
    """Unlike in a shell, for which the other special characters are quoted here."""
    quoted = re.sub(r"[?[]", r"[\g<0>]", text)
    words = ("".join(letters) for n in range(6) for letters in itertools.product("abc.", repeat=n))
    for word in (*words, "a[b=?]", "a[b=1]", "A[b=?]", "a[b=?]c"):
        matches = id_pattern(text).fullmatch(word) is not None
        assert matches == fnmatch.fnmatchcase(word, quoted), word


def test_a_pattern_of_many_stars_takes_little_time() -> None:
    assert id_pattern("*a" * 2_000 + "b").fullmatch("a" * 5_000) is None
