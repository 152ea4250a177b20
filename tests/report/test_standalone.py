"""A result as a standalone program: it has the suite's inputs and prints the suite's verdict."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from browsing import Open
from graph_models import graph_cases
from shipped import shipped_cases
from synthetic_runs import of_results, result, target
from tables import tables

from conformance.base.paths import CACHE_VARIABLE, ROOT, data_path
from conformance.bundle.script import script_of
from conformance.case.case import Case
from conformance.cli.export import how_to_run
from conformance.report.html import render
from conformance.report.repro.issue import issue
from conformance.report.repro.reproduction import program_of, template_text
from conformance.results.descriptions import case_record
from conformance.results.records import (
    CaseRecord,
    OutputErrorRecord,
    ResultRecord,
    RunsDiffer,
    TargetDescription,
    TargetRecord,
    WrongDtype,
    WrongShape,
)
from conformance.results.table import tabulate
from conformance.results.verdicts import Verdict
from conformance.run.engine import PlanRun
from conformance.run.target import Plan
from conformance.targets.registry import target_for

TABLES = tables(__file__)

#: Of each test README's command runs one example, see support/tiers.py.
ONE_EXAMPLE = True

CORPUS = shipped_cases()
BY_ID = {case.id: case for case in CORPUS}


def drawn(record: CaseRecord) -> dict[str, Any]:
    """The functions of a program that make the model and the inputs."""
    data = json.loads("\n".join(program_of(record, result(), target()).data))
    names: dict[str, Any] = {"DATA": data}
    exec((data_path("reports") / "programs" / "inputs.py").read_text(), names)
    return names


def parts(model: onnx.ModelProto) -> list[str]:
    """The parts of a model in words, since two NaN are not equal: its constants, and the rest."""
    rest = onnx.ModelProto()
    rest.CopyFrom(model)
    del rest.graph.initializer[:]
    return [*sorted(map(str, model.graph.initializer)), str(rest)]


def differences(cases: Sequence[Case]) -> list[str]:
    """Models and inputs that a program makes differently from the suite."""
    found = []
    for case in cases:
        script, record = script_of(case.call), case_record(case)
        names = drawn(record)
        twins = {tensor.name: tensor.same_as or tensor.name for tensor in record.call.inputs}
        calls, model = names["inputs"](), onnx.load_model_from_string(names["model"]())
        if parts(model) != parts(script.model):
            found.append(f"{case.id}: the model")
        assert len(calls) == len(script.steps)
        for index, (step, call) in enumerate(zip(script.steps, calls, strict=True)):
            for name, wanted in step.inputs.items():
                got = call.get(twins[name])
                if got is not None and (got.shape, got.tobytes()) != (
                    wanted.shape,
                    wanted.tobytes(),
                ):
                    found.append(f"{case.id}: {name} of call {index}")
            assert {*step.connected} - {*step.carry} <= call.keys() <= {*step.connected}
    return found


@pytest.mark.night
def test_a_program_generates_the_model_and_the_inputs_of_every_case() -> None:
    assert differences(CORPUS) == []


def test_a_program_generates_the_model_and_the_inputs_of_a_case_of_each_kind() -> None:
    kinds = (
        "constants/",
        "blocks/decoder",
        "same_tensor/",
        "loop/",
        "quantised_cache/",
        "rewind/",
        "session/",
    )
    chosen = [case for case in CORPUS if case.id.startswith(kinds)]
    assert len({case.theme for case in chosen}) >= 4
    assert differences(chosen[::7]) == []


def test_float8_and_bfloat16_are_rounded_as_the_suite_rounds_them() -> None:
    """Also numbers halfway between two, and those that no input of the corpus has."""
    odd = [np.nan, np.inf, -np.inf, 464.1, -0.0, 1 + 2**-8, 1 + 3 * 2**-8]
    numbers = np.concatenate([np.arange(-600.0, 600.0), np.arange(-64, 64) * 2.0**-11, odd])
    names = drawn(case_record(BY_ID["smoke/decode[dtype=float32]"]))
    exec((data_path("reports") / "programs" / "checks.py").read_text(), names)
    for helper, word in (("bfloat16", "bfloat16"), ("float8", "float8_e4m3fn")):
        with np.errstate(all="ignore"):
            wanted = numbers.astype(getattr(ml_dtypes, word))
            bits = names[helper](numbers)
        assert bits.tobytes() == wanted.tobytes()
        dtype = word.replace("_", "")
        read = names["values_of"](bits.tobytes(), dtype, bits.shape)
        np.testing.assert_array_equal(read, wanted.astype(np.float64))


# ── The programs, run ───────────────────────────────────────────────────────────────────────────

#: A call that passes, one with wrong results, one that is accepted but must be rejected, one that
#: is rejected, one that crashes: on ONNX Runtime 1.31 and tract 0.23. On another release the
#: verdict may differ, and the program must print that one as well.
CPU = TABLES["cpu"]
TRACT = TABLES["tract"]
OPENVINO = TABLES["openvino"]
QNN = TABLES["qnn"]
WEB = TABLES["web"]
LOOP = "loop/window[dtype=float16]"
SHARED_ON_GPU = "decoding/static[dtype=float32,shared_buffer=true]"


def slow(ep: str, *ids: str) -> list[Any]:
    return [pytest.param(ep, each, marks=pytest.mark.night) for each in ids]


RUNS = [
    *[("cpu", each) for each in CPU],
    *slow("cpu-noflash", CPU[0], CPU[5]),
    *slow("cpu-threads", CPU[0]),
    *[("exec", each) for each in (CPU[0], CPU[1], CPU[4], CPU[5], *CPU[-3:])],
    *[("tract", each) for each in TRACT],
    *slow("tract", LOOP),
    *slow("tract-plain", *TRACT, LOOP),
    *[("tract-wheel", each) for each in (TRACT[0], TRACT[-1])],
    *slow("tract-wheel", *TRACT[1:-1], LOOP),
    *[("openvino", each) for each in OPENVINO[:2]],
    *slow("openvino", *OPENVINO[2:]),
    *slow("qnn", *QNN),
    *[("wasm", each) for each in (WEB[1], WEB[-1])],
    *slow("wasm", *WEB),
    *[("node", each) for each in (CPU[0], CPU[-1])],
    *slow("node", *CPU[1:-1]),
    *slow("webgpu", *WEB, SHARED_ON_GPU),
    *slow("node-webgpu", *WEB, SHARED_ON_GPU),
    *slow("webgpu-jsep", *WEB[:2], SHARED_ON_GPU),
]


class Suite:
    """The suite's verdict on a case on a target; a runner is started once."""

    def __init__(self) -> None:
        self._runs: dict[str, PlanRun] = {}

    def ask(self, ep: str, case: Case) -> tuple[ResultRecord, TargetRecord]:
        if ep not in self._runs:
            self._runs[ep] = PlanRun(Plan(target_for(ep), (), ()))
        run = self._runs[ep]
        if run.ready.described is None:
            pytest.skip(f"needs {run.ready.target.entry.needs}: {run.ready.unavailable}")
        record = run.run_one(case).record
        if record.verdict == "skip":
            pytest.skip(record.reason)
        return record, run.ready.record()

    def close(self) -> None:
        for run in self._runs.values():
            run.__exit__(None)


@pytest.fixture(scope="module")
def suite(shared_cache: Path) -> Iterator[Suite]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE_VARIABLE, str(shared_cache))
        opened = Suite()
        yield opened
        opened.close()


def said(result: ResultRecord, target: TargetRecord, case: CaseRecord, folder: Path) -> list[str]:
    """The program's output, run by the command that `gqa export` prints, in a fresh shell."""
    made = program_of(case, result, target)
    assert made.missing is None
    program = folder / made.filename
    program.write_text(made.text, encoding="utf-8")
    return in_a_fresh_shell(how_to_run(program, made, target_for(target.ep)), folder)


def in_a_fresh_shell(command: str, folder: Path, seconds: float = 120) -> list[str]:
    """The lines of standard output, and the last of standard error: nothing is set but PATH.

    The exit status is that of the verdict.
    """
    home = folder / "home"
    home.mkdir()
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=folder,
        env={"PATH": os.defpath + ":/usr/local/bin", "HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    # Qualcomm's library writes a line of its own when its buffer is flushed.
    lines = [line for line in done.stdout.splitlines() if "LIBNATIVE" not in line]
    *_, last = ["", *lines]
    if last.startswith("verdict: "):
        assert done.returncode == (0 if last == "verdict: pass" else 1)
    return [*lines, done.stderr[-2000:]]


@pytest.fixture
def runner(tmp_path: Path) -> Path:
    """A program that speaks the runner protocol: that of ONNX Runtime on the CPU."""
    path = tmp_path / "runner"
    path.write_text(
        f"#!/bin/sh\nexec {sys.executable} {ROOT}/runners/onnxruntime/runner.py --ep cpu\n"
    )
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(("ep", "case_id"), RUNS)
def test_program_verdict(suite: Suite, tmp_path: Path, runner: Path, ep: str, case_id: str) -> None:
    """A program prints the verdict of the suite."""
    case = BY_ID[case_id]
    result, target = suite.ask(f"exec:{runner}" if ep == "exec" else ep, case)
    record = case_record(case)
    *lines, errors = said(result, target, record, tmp_path)
    assert lines[-1:] == [f"verdict: {result.verdict}"], f"{lines}\n{errors}"
    if result.verdict == "wrong":
        assert any("WRONG" in line or "should have" in line for line in lines)


@pytest.mark.parametrize("ep", ["cpu", "exec"])
def test_a_graph_program_shares_pasts(suite: Suite, tmp_path: Path, runner: Path, ep: str) -> None:
    """A program for a graph shares each past with its present."""
    block = (ROOT / "cases" / "blocks" / "borrowing_window_float32.onnx").read_bytes()
    fields = "past_sequence_length: 4\nmax_sequence_length: 9\nshared_buffer: true"
    (case,) = graph_cases(tmp_path, block, fields)
    result, target = suite.ask(f"exec:{runner}" if ep == "exec" else ep, case)
    record = case_record(case)
    data = json.loads("\n".join(program_of(record, result, target).data))
    assert data["share"] == {"past_key": "present_key", "past_value": "present_value"}
    *lines, errors = said(result, target, record, tmp_path)
    assert lines[-1:] == [f"verdict: {result.verdict}"], f"{lines}\n{errors}"
    assert program_of(record, result, TargetRecord(name="tract", ep="tract")).missing == (
        "An output uses memory of the program, which this runtime's interface cannot express."
    )


def commands(text: str) -> list[str]:
    """The commands in the first comment of a program that install what it needs and run it."""
    _, _, told = text.partition("to run: ")
    lines = (line.lstrip("#/") for line in told.splitlines()[1:])
    return [line.strip() for line in itertools.takewhile(lambda line: line[:3] == "   ", lines)]


@pytest.mark.night
@pytest.mark.parametrize(
    ("ep", "case_id"),
    [
        *itertools.product(["cpu", "exec"], CPU[:2]),
        *itertools.product(["tract", "tract-wheel"], TRACT[:2]),
        *itertools.product(["openvino"], OPENVINO[:2]),
        *itertools.product(["qnn"], QNN[:2]),
        *itertools.product(["wasm", "node", "node-webgpu", "webgpu", "webgpu-jsep"], WEB[:2]),
    ],
)
def test_commands_run_it(suite: Suite, tmp_path: Path, runner: Path, ep: str, case_id: str) -> None:
    """As printed, in an empty folder. tract is not built anew, which takes a quarter of an hour."""
    case = BY_ID[case_id]
    result, target = suite.ask(f"exec:{runner}" if ep == "exec" else ep, case)
    made = program_of(case_record(case), result, target)
    (tmp_path / made.filename).write_text(made.text)
    told = commands(made.text)
    if ep == "tract":
        version = target.describe.version if target.describe else ""
        built = f"cargo install tract-cli --version {version} --locked --root ."
        assert built in told
        told.remove(built)
        program = target_for(ep).program
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "tract").symlink_to(program.path)
    command = " && ".join(told).replace("RUNNER", str(runner))
    *lines, errors = in_a_fresh_shell(command, tmp_path, seconds=600)
    assert lines[-1:] == [f"verdict: {result.verdict}"], f"{lines}\n{errors}"


@pytest.mark.parametrize(
    "ep", ["cpu", "exec", "tract", pytest.param("wasm", marks=pytest.mark.night)]
)
def test_a_call_that_hangs_is_stopped(suite: Suite, tmp_path: Path, runner: Path, ep: str) -> None:
    case = BY_ID[CPU[0]]
    result, target = suite.ask(f"exec:{runner}" if ep == "exec" else ep, case)
    hanging = result.model_copy(update={"verdict": "timeout", "time_limit": 1e-6})
    *lines, errors = said(hanging, target, case_record(case), tmp_path)
    assert lines[-1:] == ["verdict: timeout"], f"{lines}\n{errors}"


def test_two_runs_that_differ_are_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    faults = (RunsDiffer(output="output"),)
    data = data_of(*hostile(), faults=faults)
    names: dict[str, Any] = {"DATA": {**data, "elements": []}}
    exec((data_path("reports") / "programs" / "checks.py").read_text(), names)
    for other, verdict in ((0.0, "pass"), (1.0, "wrong")):
        with pytest.raises(SystemExit):
            names["check"]([{"output": np.array(value)} for value in (0.0, other)])
        assert capsys.readouterr().out.endswith(f"verdict: {verdict}\n")


# ── What is in the text ─────────────────────────────────────────────────────────────────────────

EVIL = (
    "a\nimport os; os._exit(7)\n\rEND\n*/ process.exit(7) //\u2028process.exit(7)\x85x\x0cy\u202e"
    "`````\n~~~\n${process.exit(7)} `reboot` \"'''\\ </script> @somebody #1 \x1b[31m\x00"
)
TARGETS = ("cpu", "cuda", "tract-wheel", "tract", "webgpu", "exec:" + EVIL)


def told(name: str = "cpu") -> TargetRecord:
    describe = TargetDescription(
        runtime=EVIL, version=EVIL, device=EVIL, adapter=EVIL, versions={EVIL: EVIL, "dawn": EVIL}
    )
    return TargetRecord(name=EVIL, ep=name, describe=describe)


def hostile(verdict: Verdict = "wrong") -> tuple[CaseRecord, ResultRecord]:
    """Text that tries to escape, in every place where a results file may have text."""
    case = case_record(BY_ID["smoke/decode[dtype=float32]"])
    inputs = tuple(
        tensor.model_copy(update={"values": EVIL, "dims": tuple(EVIL for _ in tensor.shape or ())})
        for tensor in case.call.inputs
    )
    query = inputs[0]
    recipe = query.recipe.model_copy(update={"stream": EVIL})
    inputs = (query.model_copy(update={"recipe": recipe}), *inputs[1:])
    call = case.call.model_copy(
        update={"inputs": inputs, "attributes": {**case.call.attributes, EVIL: EVIL}}
    )
    contract = case.contract.model_copy(update={"source": EVIL, "why": EVIL})
    texts = ("id", "theme", "question", "name", "title", "why", "relation")
    case = case.model_copy(
        update={**dict.fromkeys(texts, EVIL), "contract": contract, "call": call}
    )
    error = OutputErrorRecord(output=EVIL, index=(0,), got=1.0, want=2.0, budget=0.5, share=2.0)
    errors = (error, error.model_copy(update={"output": "output", "want": math.nan}))
    evil = dict.fromkeys(("case", "target", "message", "reason", "stderr", "reproduce"), EVIL)
    hostile = result(verdict=verdict, unexpected=True)
    return case, hostile.model_copy(update={**evil, "errors": errors})


def data_of(
    case: CaseRecord, result: ResultRecord, ep: str = "cpu", **fields: Any
) -> dict[str, Any]:
    """The data of the program for the result with other fields."""
    changed = result.model_copy(update=fields)
    made = program_of(case, changed, TargetRecord(name=ep, ep=ep))
    return json.loads("\n".join(made.data))  # type: ignore[no-any-return]


@pytest.mark.parametrize("ep", TARGETS)
def test_no_text_escapes_a_comment_or_a_literal(ep: str) -> None:
    made = program_of(*hostile(), told(ep))
    mark = "//" if ep == "webgpu" else "#"
    assert all(line.startswith(mark) for line in made.head)
    data = "\n".join(made.data)
    assert re.fullmatch(r"[\n -~]*", data)
    assert not set("`$<'") & set(data)
    assert not re.search(r"\\[\\\"]", data)
    assert json.loads(data)["inputs"]["query"]["recipe"]["stream"] == EVIL
    template = template_text(made.template)
    assert template.count("__DATA__") == 1
    assert made.text == "\n".join(made.head) + "\n\n" + template.replace("__DATA__", data)
    if made.language == "python":
        compile(made.text, "repro.py", "exec")


def test_a_strange_graph_gives_no_program() -> None:
    case = next(case for case in CORPUS if case.is_graph)
    record, result, target = case_record(case), hostile()[1], told("tract")
    assert program_of(record, result, target).missing is None
    call = record.call

    def missing(**fields: Any) -> str | None:
        changed = record.model_copy(update={"call": call.model_copy(update=fields)})
        return program_of(changed, result, target).missing

    first, *rest = call.inputs
    outside = first.model_copy(update={"name": "../../outside"})
    assert missing(inputs=(outside, *rest)) == (
        "The results file describes tensors that this version does not know."
    )
    unmade = first.model_copy(update={"recipe": None})
    reason = "The results file describes an input wrongly."
    assert missing(inputs=(unmade, *rest)) == reason
    assert missing(graph=call.graph.model_copy(update={"content": ""})) == (
        "The graph is too large for a results file; its case file names it."
    )
    weights = tuple(w.model_copy(update={"recipe": None}) for w in call.graph.weights)
    assert missing(graph=call.graph.model_copy(update={"weights": weights})) == reason


def test_a_report_reads_as_a_person_would_write_it(suite: Suite) -> None:
    case = BY_ID[CPU[1]]
    result, target = suite.ask("cpu", case)
    record = case_record(case)
    text = issue(record, result, target, program_of(record, result, target))
    for part in (
        f"onnxruntime {target.describe.version}" if target.describe else "",
        "## The call",
        "| query | float32 |",
        "local\\_window\\_size 4294967297",
        "## Actual result",
        "## Expected result",
        f"<{case.contract.source}>",
        f"`{result.reproduce}`",
        "```python\n# bounds_attributes/local_window_size[",
    ):
        assert part in text
    assert "/tmp/" not in text
    strange, result = hostile("unsupported")
    message = "```\n````python\nout"
    given = strange, result.model_copy(update={"message": message}), told()
    text = issue(*given, program_of(*given))
    assert re.search(r"(?m)^`{5}text$", text)
    assert " @somebody" not in text.split("\n", 1)[0]


def test_the_page_has_the_program_and_the_bug_report(show: Open, tmp_path: Path) -> None:
    record = case_record(BY_ID[CPU[0]])
    results = [result(record.id, name, "wrong") for name in ("cpu@1.31.1", "webgpu@1.30.0")]
    tab = show(render(tabulate([of_results(tmp_path / "run", results, [record])])), f"#{record.id}")
    buttons = tab.locator("#matrix > tbody > :is(.single, .member) > td > button").all()
    for number, button in enumerate(buttons[:2]):
        button.click()
        tab.get_by_text("Bug report", exact=True).click()
        made = program_of(record, results[number], target(results[number].target))
        shown = [pre.evaluate("pre => pre.textContent") for pre in tab.locator("#panel pre").all()]
        *_, report = shown
        if number == 0:
            assert made.text in shown
            assert report.endswith(f"\n```python\n{made.text}```\n")
        else:
            assert "\n\ngqa export, with this case" in report
    assert len(buttons) == 2


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"faults": (RunsDiffer(output="output"),)}, "makes the call twice"),
        ({"of_variant": True}, "not in this call"),
        (
            {"faults": (WrongDtype(output="output", got="float32", want="float16"),)},
            "the type of an output is wrong",
        ),
    ],
)
def test_a_program_names_what_it_cannot_show(fields: dict[str, Any], says: str) -> None:
    case, result = hostile()
    made = program_of(case, result.model_copy(update=fields), told())
    assert says in "\n".join(made.head)
    assert data_of(case, result, **fields)["runs"] == (2 if "twice" in says else 1)


def test_the_figures_of_a_variant_are_not_looked_at() -> None:
    elements = (OutputErrorRecord(output="output", index=(0,), want=2.0, budget=0.5),)
    figures = [["output", 0, [0], 2.0, 0.5]]
    assert data_of(*hostile(), errors=elements)["elements"] == figures
    assert data_of(*hostile(), errors=elements, of_variant=True)["elements"] == []


def test_a_program_has_the_time_the_threads_and_the_environment_of_its_target() -> None:
    data = data_of(*hostile("timeout"), "cpu-threads", time_limit=2.5)
    assert (data["seconds"], data["runtime"]["threads"]) == (2.5, 4)
    data = data_of(*hostile(), "cuda-xqa")
    assert data["runtime"]["environment"]["ORT_ENABLE_XQA"] == "1"
    assert data["runtime"]["alone"]


@pytest.mark.push
def test_a_program_for_a_long_loop_checks_the_worst_step() -> None:
    errors = tuple(
        OutputErrorRecord(
            output="output", step=step, index=(0, 0, 0), want=0.0, budget=1.0, share=float(step)
        )
        for step in range(100)
    )
    shapes = tuple(WrongShape(output="output", step=n, got=(1, 2), want=(1, 3)) for n in range(100))
    data = data_of(*hostile(), errors=errors, faults=shapes)
    assert ["output", 99, [0, 0, 0], 0.0, 1.0] in data["elements"]
    assert len(data["elements"]) + len(data["shapes"]) < 30
    assert data["shapes"][0] == ["output", 0, [1, 3]]
