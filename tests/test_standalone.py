"""A result as a standalone program: it has the suite's inputs and prints the suite's verdict."""

from __future__ import annotations

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
import pytest
from shipped import shipped_cases

from conformance.base.paths import CACHE_VARIABLE
from conformance.bundle.script import script_of
from conformance.case.case import Case
from conformance.report.repro import standalone
from conformance.report.repro.model_source import HELPERS, IMPORTS, model_source
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
from conformance.results.verdicts import Verdict
from conformance.run.engine import TargetRun
from conformance.run.records import case_record
from conformance.run.target import TargetPlan
from conformance.targets.registry import target_for

CORPUS = shipped_cases()


def made(record: CaseRecord) -> dict[str, Any]:
    """The values that the code blocks of a program create."""
    names: dict[str, Any] = {}
    code = "\n\n".join([IMPORTS, *model_source(record)])
    assert not re.search("[`$]", code), "it stands in a template of JavaScript"
    assert code.isascii()
    exec(code, names)
    return names


def differences(cases: Sequence[Case]) -> list[str]:
    """Inputs that the program generates differently from the suite, compared byte by byte."""
    found = []
    for case in cases:
        script, record = script_of(case.call), case_record(case)
        names = made(record)
        twins = {tensor.name: tensor.same_as or tensor.name for tensor in record.call.inputs}
        assert len(names["calls"]) == len(script.steps)
        for index, (step, call) in enumerate(zip(script.steps, names["calls"], strict=True)):
            for name, wanted in step.inputs.items():
                got = {**names.get("constants", {}), **call}[twins[name]]
                same = got.shape == wanted.shape and got.itemsize == wanted.itemsize
                if not same or got.tobytes() != wanted.tobytes():
                    found.append(f"{case.id}: {name} of call {index}")
        ours, theirs = (
            {
                "inputs as the graph declares them": [*map(str, model.graph.input)],
                "outputs as the graph declares them": [*map(str, model.graph.output)],
                "names of the node": [[*node.input, "", *node.output] for node in model.graph.node],
                "attributes": sorted(map(str, model.graph.node[0].attribute)),
                "version": model.ir_version,
            }
            for model in (script.model, names["model"])
        )
        found += [f"{case.id}: {part}" for part in ours if ours[part] != theirs[part]]
    return found


@pytest.mark.slow
def test_a_program_generates_the_inputs_of_every_case() -> None:
    assert differences(CORPUS) == []


def test_float8_and_bfloat16_are_rounded_as_the_suite_rounds_them() -> None:
    """Also numbers halfway between two, and those that no input of the corpus has."""
    odd = [np.nan, np.inf, -np.inf, 464.1, -0.0, 1 + 2**-8, 1 + 3 * 2**-8]
    numbers = np.concatenate([np.arange(-600.0, 600.0), np.arange(-64, 64) * 2.0**-11, odd])
    for helper, dtype in (("bfloat16", "bfloat16"), ("float8", "float8_e4m3fn")):
        names: dict[str, Any] = {}
        exec(IMPORTS + HELPERS[helper], names)
        with np.errstate(all="ignore"):
            wanted = numbers.astype(getattr(ml_dtypes, dtype))
        assert names[helper](numbers).tobytes() == wanted.tobytes()


# ── The programs, run ───────────────────────────────────────────────────────────────────────────

#: A call that passes, one with wrong results, one that is accepted but must be rejected, one that
#: is rejected, one that crashes: on ONNX Runtime 1.31 and tract 0.23. On another release the
#: verdict may differ, and the program must print that one as well.
CPU = (
    "smoke/decode[dtype=float32]",
    "bounds_attributes/local_window_size[dtype=float32,local_window_size=4294967297]",
    "bounds_attributes/local_window_size_without_meaning[dtype=float32,local_window_size=0]",
    "bounds_heads/odd_head_size[dtype=float32,head_size=1,call=prompt]",
    "bounds_lengths/no_sequence[dtype=float32,step=prompt]",
    "decoding/static[dtype=float16,shared_buffer=true]",
    "decoding/concatenated[dtype=float32,rotary=half_split]",
    "pairs/decode_float8_tensor[dtype=float32]",
)
TRACT = (
    "bounds_heads/head_size[dtype=float32,head_size=24]",
    "known_bugs/one_token_for_each_of_several[dtype=float32,cache_is=static]",
    "bounds_attributes/local_window_size_without_meaning[dtype=float32,local_window_size=0]",
    "bounds_heads/head_size_packed[dtype=float32,head_size=8]",
    "bounds_heads/num_heads[dtype=float32,value=zero]",
)
WEB = (
    "smoke/decode[dtype=float32]",
    "smoke/borrowed[dtype=float32]",
    "bounds_heads/num_heads[dtype=float32,value=two_to_the_32_more]",
    "bounds_heads/odd_head_size[dtype=float32,head_size=1,call=prompt]",
    "smoke/prompt[dtype=float16,sequence_length=40]",
    "smoke/quantised[dtype=float32]",
)
LOOP = "loop/window[dtype=float16]"
SHARED_ON_GPU = "decoding/static[dtype=float32,shared_buffer=true]"


def slow(ep: str, *ids: str) -> list[Any]:
    return [pytest.param(ep, each, marks=pytest.mark.slow) for each in ids]


RUNS = [
    *[("cpu", each) for each in CPU],
    *slow("cpu-noflash", CPU[0], CPU[5]),
    *slow("cpu-threads", CPU[0]),
    *[("tract", each) for each in TRACT],
    *slow("tract", LOOP),
    *slow("tract-plain", *TRACT, LOOP),
    *[("tract-wheel", TRACT[0])],
    *slow("tract-wheel", *TRACT[1:], LOOP),
    ("wasm", WEB[1]),
    *slow("wasm", *WEB),
    *slow("webgpu", *WEB, SHARED_ON_GPU),
    *slow("webgpu-jsep", *WEB[:2], SHARED_ON_GPU),
]


class Suite:
    """The suite's verdict on a case on a target; a runner is started once."""

    def __init__(self) -> None:
        self._runs: dict[str, TargetRun] = {}

    def ask(self, ep: str, case: Case) -> tuple[ResultRecord, TargetRecord]:
        if ep not in self._runs:
            self._runs[ep] = TargetRun(TargetPlan(target_for(ep), (), ()))
        run = self._runs[ep]
        if run.ready.described is None:
            pytest.skip(f"needs {run.ready.target.needs}: {run.ready.unavailable}")
        record = run.run_one(case).record
        assert isinstance(record, ResultRecord)
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
    """The program's output, run as a user runs it, without access to the suite."""
    program = folder / standalone.filename(target)
    program.write_text(standalone.program_of(case, result, target).text, encoding="utf-8")
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", CACHE_VARIABLE)}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    environment.setdefault("XDG_RUNTIME_DIR", str(folder))
    where, command = folder, [sys.executable, str(program)]
    found = target_for(target.ep).program
    if program.suffix == ".sh":
        assert found is not None
        environment["TRACT"], command = str(found.path), ["sh", str(program)]
    elif program.suffix == ".mjs":
        assert found is not None
        where, command = found.path, ["node", str(program)]
        adapter = target.describe.adapter if target.describe else None
        if adapter in DRIVERS and DRIVERS[adapter].exists():
            environment["VK_DRIVER_FILES"] = str(DRIVERS[adapter])
    done = subprocess.run(
        command, cwd=where, env=environment, capture_output=True, text=True, timeout=120
    )
    return [*done.stdout.splitlines(), done.stderr[-2000:]]


DRIVERS = {
    "lavapipe": Path("/usr/share/vulkan/icd.d/lvp_icd.json"),
    "swiftshader": Path("/usr/lib/chromium/vk_swiftshader_icd.json"),
}
BY_ID = {case.id: case for case in CORPUS}


@pytest.mark.parametrize(("ep", "case_id"), RUNS)
def test_a_program_prints_the_verdict_of_the_suite(
    suite: Suite, tmp_path: Path, ep: str, case_id: str
) -> None:
    case = BY_ID[case_id]
    result, target = suite.ask(ep, case)
    record = case_record(case)
    assert standalone.program_of(record, result, target).missing is None
    *lines, errors = said(result, target, record, tmp_path)
    assert lines[-1:] == [f"verdict: {result.verdict}"], f"{lines}\n{errors}"
    if result.verdict == "wrong":
        assert any("WRONG" in line or "should have" in line for line in lines)


# ── What is in the text ─────────────────────────────────────────────────────────────────────────

EVIL = (
    "a\nimport os; os._exit(7)\n\rEND\n*/ process.exit(7) //\u2028process.exit(7)\x85x\x0cy\u202e"
    "`````\n~~~\n${process.exit(7)} `reboot` \"'''\\ </script> @somebody #1 \x1b[31m\x00"
)
TARGETS = ("cpu", "cuda", "cuda-flash", "tract-wheel", "tract", "webgpu", "wasm")


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
    assert query.recipe is not None
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
    result = ResultRecord(
        case=EVIL,
        target=EVIL,
        verdict=verdict,
        unexpected=True,
        outcome="rejected",
        message=EVIL,
        reason=EVIL,
        errors=(error, error.model_copy(update={"output": "output", "want": math.nan})),
        stderr=EVIL,
        reproduce=EVIL,
    )
    return case, result


def text_of(case: CaseRecord, result: ResultRecord, ep: str = "cpu", **fields: Any) -> str:
    """The program for the result with other fields."""
    changed = result.model_copy(update=fields)
    return standalone.program_of(case, changed, TargetRecord(name=ep, ep=ep)).text


@pytest.mark.parametrize("ep", TARGETS)
def test_no_text_escapes_a_comment_or_a_literal(ep: str) -> None:
    text = standalone.program_of(*hostile(), told(ep)).text
    blocks = text.split("\n\n")
    mark = "//" if ep in ("webgpu", "wasm") else "#"
    head = blocks[0].removeprefix("#!/bin/sh\n").split("\n")
    assert all(line.startswith(mark) for line in head)
    code = "\n\n".join(blocks[1:])
    for word in ("`reboot", "</script", "\nEND\n*/", "\"'''"):
        assert word not in code
    assert not any(word in text for word in ("\x1b", "\x00", "\u202e", "\u2028", "\x85", "\x0c"))
    assert "${process.exit" not in "\n\n".join(blocks[1:])


def test_a_strange_graph_gives_no_program() -> None:
    case = next(case for case in CORPUS if case.is_graph)
    record, result, target = case_record(case), hostile()[1], told("tract")
    assert standalone.program_of(record, result, target).missing is None
    call = record.call

    def missing(**fields: Any) -> str | None:
        changed = record.model_copy(update={"call": call.model_copy(update=fields)})
        return standalone.program_of(changed, result, target).missing

    first, *rest = call.inputs
    outside = first.model_copy(update={"name": "../../outside"})
    assert missing(inputs=(outside, *rest)) == (
        "The results file describes tensors that this version does not know."
    )
    unmade = first.model_copy(update={"recipe": None})
    assert "does not say how the inputs are made" in str(missing(inputs=(unmade, *rest)))
    assert call.graph is not None
    assert missing(graph=call.graph.model_copy(update={"content": ""})) == (
        "The graph is too large for a results file; its case file names it."
    )
    weights = tuple(w.model_copy(update={"recipe": None}) for w in call.graph.weights)
    assert missing(graph=call.graph.model_copy(update={"weights": weights})) == (
        "The results file does not say how the constants are made."
    )


def test_a_report_reads_as_a_person_would_write_it(suite: Suite) -> None:
    case = BY_ID[CPU[1]]
    result, target = suite.ask("cpu", case)
    text = standalone.issue(
        case_record(case), result, target, standalone.program_of(case_record(case), result, target)
    )
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
    strange, result = hostile()
    message = "```\n````python\nout"
    given = strange, result.model_copy(update={"message": message}), told()
    text = standalone.issue(*given, standalone.Program(""))
    assert re.search(r"(?m)^`{5}text$", text)
    assert " @somebody" not in text.split("\n", 1)[0]


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
    text = text_of(*hostile(), **fields)
    assert says in text
    assert ("calls * 2" in text) == ("twice" in says)
    sentence = "two runs on the same input differ; output has dtype float32; the variant differs"
    assert says not in text_of(*hostile(), reason=sentence)


def test_the_figures_of_a_variant_are_not_looked_at() -> None:
    elements = (OutputErrorRecord(output="output", index=(0,), want=2.0, budget=0.5),)
    figures = '("output", 0, (0,), 2.0, 0.5),'
    assert figures in text_of(*hostile(), errors=elements)
    assert figures not in text_of(*hostile(), errors=elements, of_variant=True)


def test_a_program_has_the_time_the_threads_and_the_libraries_of_its_target() -> None:
    text = text_of(*hostile("timeout"), "cpu-threads", time_limit=2.5)
    assert "timeout=2.5)" in text
    assert "options.intra_op_num_threads = 4\n" in text
    cuda, load = text_of(*hostile(), "cuda"), "    onnxruntime.preload_dlls()"
    assert cuda.index(load) < cuda.index("InferenceSession(")
    assert load not in text


def test_a_program_for_a_long_loop_checks_the_worst_step() -> None:
    errors = tuple(
        OutputErrorRecord(
            output="output", step=step, index=(0, 0, 0), want=0.0, budget=1.0, share=float(step)
        )
        for step in range(100)
    )
    shapes = tuple(WrongShape(output="output", step=n, got=(1, 2), want=(1, 3)) for n in range(100))
    text = text_of(*hostile(), errors=errors, faults=shapes)
    assert '("output", 99, (0, 0, 0), 0.0, 1.0),' in text
    assert text.count('("output", ') < 30
    assert '("output", 0, (1, 3)),' in text
