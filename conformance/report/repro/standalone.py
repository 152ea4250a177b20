"""The stand-alone program that reproduces a result, and the text of a bug report.

Neither needs this suite. The program makes the model and its inputs from the recipes in the results
file, with NumPy and onnx, calls the runtime as its users do, and checks the elements with the
largest errors. Its blocks are separated by one empty line, and a block has the same text in every
program that contains it, so that a page can store each once.

A results file can come from anybody: its text goes through `clean`, into comments line by line, and
into code only as a literal.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from conformance.base.remembered import of_the_last
from conformance.base.signature import DOMAIN, INPUTS, OP_TYPE, OUTPUTS, PLAIN_NAME
from conformance.base.text import clean
from conformance.case.contract import Contract
from conformance.case.tensors import MAX_ELEMENTS
from conformance.report.findings import alone
from conformance.report.repro.checks import has_fault, is_of_the_variant
from conformance.report.repro.escaping import LINK, comment, fenced, inline, inline_code, one_line
from conformance.report.repro.model_source import KINDS
from conformance.report.repro.node_program import node_blocks
from conformance.report.repro.python_program import onnxruntime_blocks, tract_wheel_blocks
from conformance.report.repro.shell_program import shell_blocks
from conformance.results.records import (
    FROM_FILE,
    CallInput,
    CallOutput,
    CaseRecord,
    ResultRecord,
    TargetRecord,
    contract_of,
)
from conformance.results.shareable import shared_command
from conformance.results.verdicts import TABLE, Verdict
from conformance.results.wrong_outputs import only_presents, wrong_in
from conformance.targets.catalogue import (
    ScriptApi,
    ScriptLanguage,
    StandaloneProgram,
    TargetEntry,
    entry_of,
)

_FILES: Final = {"python": "repro.py", "sh": "repro.sh", "javascript": "repro.mjs"}
_Writer = Callable[[CaseRecord, ResultRecord, TargetEntry, StandaloneProgram], list[str]]
_WRITERS: Final[Mapping[ScriptApi, _Writer]] = {
    "onnxruntime": onnxruntime_blocks,
    "onnxruntime-web": node_blocks,
    "tract": shell_blocks,
    "tract-wheel": tract_wheel_blocks,
}
#: The operator's tensors have at most 4.
_MOST_DIMS: Final = 8
_NAMES: Final = {parameter.name for parameter in (*INPUTS, *OUTPUTS)}


def language(target: TargetRecord) -> ScriptLanguage:
    """The program's language, as Markdown names it.

    Python for a target that has no program, so that the comment that says why has a syntax.
    """
    script = _script_of(target)
    return script.language if script else "python"


def _script_of(target: TargetRecord) -> StandaloneProgram | None:
    """None, too, for a target that this version does not know: results files can be old."""
    entry = entry_of(target.ep)
    return entry.script if entry else None


def filename(target: TargetRecord) -> str:
    """The program's file name."""
    return _FILES[language(target)]


def _why_not(case: CaseRecord, result: ResultRecord, target: TargetRecord) -> str | None:
    """Why no program can be written for this result; None if it depends on its inputs."""
    program = _script_of(target)
    if program is None:
        return f"This version of the suite cannot write a program for {one_line(target.ep)}."
    if result.verdict == "skip":
        return "The case was not run, so there is nothing to reproduce."
    if result.other_kernel:
        return "It ran without the kernel that the target names: there is nothing to reproduce."
    connected = [tensor for tensor in case.call.inputs if tensor.state == "connected"]
    unknown = [each for each in connected if each.recipe is None and each.same_as is None]
    if any((tensor.values or "").startswith(FROM_FILE) for tensor in unknown):
        return "Its input values are those of a file: the bundle has them as tensors."
    if unknown:
        return "The results file is too old: it does not say how the inputs are made."
    made = [tensor for tensor in case.call.outputs if tensor.state == "connected"]
    tensors: list[CallInput | CallOutput] = [*connected, *made]
    graph = case.call.graph
    if graph is not None:
        if not graph.content:
            return "The graph is too large for a results file; its case file names it."
        if any(tensor.recipe is None for tensor in graph.weights):
            return "The results file does not say how the constants are made."
    known = _NAMES.__contains__ if graph is None else PLAIN_NAME.fullmatch
    strange = [t for t in tensors if t.dtype not in KINDS or not known(t.name)]
    tensors += () if graph is None else graph.weights
    if strange or not made or any(_odd(tensor.shape) for tensor in connected):
        return "The results file describes tensors that this version does not know."
    later = [tensor.shape for call in case.call.later for tensor in call if tensor.shape]
    if any(map(_large, [*(tensor.shape for tensor in tensors), *later])):
        return f"An input has more than {MAX_ELEMENTS:,} elements or {_MOST_DIMS} dims."
    if case.call.shared_buffer and graph is not None:
        return "Past and present share memory, which programs for graphs do not express."
    if case.call.shared_buffer and not program.shared_buffer:
        return "Past and present share memory, which this runtime's interface cannot express."
    return None


def _odd(shape: Sequence[object] | None) -> bool:
    return shape is None or not all(type(dim) is int and dim >= 0 for dim in shape)


def _large(shape: Sequence[object] | None) -> bool:
    dims = [dim for dim in shape or () if isinstance(dim, int)]
    return len(dims) > _MOST_DIMS or math.prod(dims) > MAX_ELEMENTS


@dataclass(frozen=True)
class Program:
    """The stand-alone program of a result.

    ``text`` is its source: it makes the call and prints the verdict on its last line. ``missing``
    says in a sentence why there is no program, and ``text`` is then a comment with it.
    """

    text: str
    missing: str | None = None


def program_of(case: CaseRecord, result: ResultRecord, target: TargetRecord) -> Program:
    """The program of a result, or why there is none."""
    word = language(target)
    head = _head(case, result, target)
    missing = _why_not(case, result, target)
    entry = entry_of(target.ep)
    if missing is None and entry is not None and entry.script is not None:
        try:
            blocks = _WRITERS[entry.script.api](case, result, entry, entry.script)
            shebang = "#!/bin/sh\n" if word == "sh" else ""
            return Program("\n\n".join([shebang + comment(head, word), *blocks]) + "\n")
        except (ValueError, LookupError, OverflowError):  # as this suite never does
            missing = "The results file describes an input wrongly."
    return Program(comment([*head, "", missing or ""], word) + "\n", missing)


# ── The first comment ─────────────────────────────────────────────────────────────────────────────


def _head(case: CaseRecord, result: ResultRecord, target: TargetRecord) -> list[str]:
    """The lines of the comment at the top."""
    contract = contract_of(case, result)
    told = [
        f"{one_line(case.id)} on {one_line(result.target)}",
        f"contract: {contract.terms}, {one_line(contract.source)}",
    ]
    if contract.why:
        told.append(f"          {one_line(contract.why)}")
    if contract.disputed:
        told.append(f"disputed: {one_line(contract.disputed)}")
    told.append(f"expected: {_EXPECTED[contract.demands]}")
    told.append(f"seen:     {result.verdict}: {one_line(result.reason, 400)}")
    if result.hazard:
        told.append(f"hazard:   {one_line(result.hazard, 400)}")
    told += _caveats(case, result)
    if target.describe and target.describe.adapter:
        told.append(f"adapter:  {one_line(target.describe.adapter, 100)}")
    return [*told, *_needs(target)]


_EXPECTED: Final = {
    "computes": "the values that the contract defines",
    "rejects": "an error that says what is wrong with the call",
    "either": "the values that the contract defines, or an error",
}


def _caveats(case: CaseRecord, result: ResultRecord) -> Iterator[str]:
    if is_of_the_variant(result):
        what = f" ({one_line(case.relation)})" if case.relation else ""
        yield f"note:     the fault is in a variant of this call{what}, not in this call"
    if has_fault(result, "runs_differ"):
        yield "note:     two runs gave different numbers, so this program makes the call twice"
    if result.verdict == "wrong" and has_fault(result, "dtype"):
        yield "note:     the type of an output is wrong, which this program does not check"
    if result.verdict == "timeout":
        yield "note:     the call is stopped after the time limit of the case"


def _needs(target: TargetRecord) -> Iterator[str]:
    """The line on what must be installed, as commands; none where there is no program."""
    entry = entry_of(target.ep)
    if entry is None or entry.script is None:
        return
    api, package = entry.script.api, entry.script.package
    version = target.describe.version if target.describe else ""
    pinned = version if re.fullmatch(r"\d+(\.\d+){1,3}", version) else ""
    if api == "tract":
        yield f"needs:    pip install numpy onnx; tract {pinned} on the PATH, or TRACT=its path"
    elif api == "onnxruntime-web":
        dawn = f" webgpu{_dawn(target)}" if entry.target_class == "gpu" else ""
        at = f"@{pinned}" if pinned else ""
        yield f"needs:    pip install numpy onnx; npm install {package}{at}{dawn}, here"
    elif plugin := entry.script.plugin:
        runtime = target.describe.versions.get("onnxruntime", "") if target.describe else ""
        pinned = f"=={runtime}" if re.fullmatch(r"\d+(\.\d+){1,3}", runtime) else ""
        yield f"needs:    pip install numpy onnx {package}{pinned}, and {one_line(plugin)}"
    else:
        yield f"needs:    pip install numpy onnx {package}{'==' + pinned if pinned else ''}"


def _dawn(target: TargetRecord) -> str:
    told = target.describe.versions.get("dawn", "") if target.describe else ""
    match = re.fullmatch(r"webgpu (\d+(?:\.\d+){1,3})", told)
    return f"@{match[1]}" if match else ""


# ── The text of a bug report ────────────────────────────────────────────────────────────────────


def issue(
    case: CaseRecord,
    result: ResultRecord,
    target: TargetRecord,
    program: Program,
    *,
    elsewhere: Sequence[tuple[str, Verdict]] = (),
) -> str:
    """Markdown for a bug tracker: a title, the call, the result, the finding, and the program.

    ``program`` is what `program_of` made; ``elsewhere`` has the verdicts of other targets.
    """
    told = target.describe
    runtime = inline(f"{told.runtime} {told.version}" if told else target.name, 100)
    what = "has a hazard" if result.hazard else TABLE[result.verdict].deed
    what = "runs with another kernel" if result.other_kernel else what
    known = result.known
    title = inline(known.why.rstrip(".") if known else case.title or case.name.replace("_", " "))
    place = f" ({inline(told.execution_provider)})" if told and told.execution_provider else ""
    lines = [f"# {OP_TYPE} {what}: {title} – {runtime}{place}", *_call(case)]
    lines += ["", "## Actual result", "", inline(result.reason, 2000)]
    if result.wrong_outputs:
        right = " The output is right." if only_presents(result) else ""
        lines += ["", f"Wrong in {wrong_in(result, inline)}.{right}"]
    if result.hazard:
        lines += [
            "",
            f"The operator's documentation does not define this: {inline(result.hazard, 400)}",
        ]
    if result.message and result.outcome in ("rejected", "crashed"):
        message = clean(result.message, 4000)
        lines += ["", *fenced(message, "text")]
    lines += _worst(result)
    if elsewhere:
        others = ", ".join(f"{inline(name)} {verdict}" for name, verdict in elsewhere)
        lines += ["", f"The same call on other targets: {others}."]
    lines += ["", "## Expected result", "", _should(contract_of(case, result))]
    if result.expectation and (finding := alone(result.expectation.link)):
        lines += ["", "## Analysis", "", finding]
    lines += ["", "## Environment", ""]
    lines += [f"- {inline(name)}: {inline(value)}" for name, value in _where(target)]
    lines += [
        "",
        f"Command of the suite (gqa-conformance): {inline_code(shared_command(result.reproduce))}",
    ]
    lines += ["", "## Reproduction", ""]
    if program.missing is not None:
        lines += [program.missing]
    else:
        lines += [f"Save it as `{filename(target)}`; it does not need the suite.", ""]
        lines += fenced(program.text.rstrip("\n"), language(target))
    return "\n".join(lines) + "\n"


@of_the_last
def _call(case: CaseRecord) -> list[str]:
    """The lines about the call: its tensors and attributes."""
    asks = f"{inline(case.title)}." if case.title else ""
    model = f"`{DOMAIN}.{OP_TYPE}`, one node."
    if (graph := case.call.graph) is not None:
        nodes = ", ".join(f"{name} {count}" for name, count in graph.nodes.items())
        model = f"A graph of {sum(graph.nodes.values())} nodes: {inline(nodes)}."
    lines = ["", "## The call", "", " ".join(filter(None, [model, asks, inline(case.why)]))]
    lines += ["", "| input | type | shape | values |", "| --- | --- | --- | --- |"]
    for tensor in case.call.inputs:
        if tensor.state == "connected":
            cells = (
                tensor.name,
                str(tensor.dtype),
                str(list(tensor.shape or ())),
                one_line(tensor.values or "", 200),
            )
            lines.append(f"| {' | '.join(map(inline, cells))} |")
    given = ", ".join(f"{name} {value}" for name, value in case.call.attributes.items())
    outputs = ", ".join(o.name for o in case.call.outputs if o.state == "connected")
    of = "" if graph is None else f" of the first {OP_TYPE}"
    lines += ["", f"Attributes{of}: {inline(given) or 'none'}. Outputs: {inline(outputs)}."]
    if graph is not None and graph.weights:
        lines += [f"{len(graph.weights)} constants have drawn values; the program makes them."]
    if case.call.steps > 1:
        lines += [f"It is a loop of {case.call.steps} calls; each past is the previous present."]
    if case.call.shared_buffer:
        lines += ["Past and present are the same memory."]
    return lines


def _should(contract: Contract) -> str:
    must = {
        "computes": "The runtime computes the values that the operator's documentation defines. "
        "Expected values are those of a float64 reference; the error budgets are derived from the "
        "types and magnitudes.",
        "rejects": "The runtime rejects the call, with an error that says what is wrong.",
        "either": "The runtime computes the right values, or rejects the call.",
    }[contract.demands]
    why = f" {inline(contract.why)}" if contract.why else ""
    basis = "Source" if contract.demands == "either" else contract.basis.capitalize()
    text = f"{must}{why} {basis}: {_link(contract.source)}"
    return f"{text} (disputed by {_link(contract.disputed)})" if contract.disputed else text


def _link(text: str) -> str:
    """A source as Markdown."""
    source = one_line(text)
    return f"<{source}>" if LINK.fullmatch(source) else inline(source)


def _worst(result: ResultRecord) -> Iterator[str]:
    """A table of the worst elements."""
    if is_of_the_variant(result) or not result.errors:
        return
    yield from ("", "| worst element | got | expected | error budget | share of the budget |")
    yield "| --- | --- | --- | --- | --- |"
    for error in result.errors:
        if error.index is None:
            continue
        step = f" of step {error.step}" if error.step else ""
        place = inline(f"{error.output}{list(error.index)}{step}")
        figures = (error.got, error.want, error.budget, error.share)
        digits = ("9", "9", "3", "3")
        told = [
            "" if x is None else format(x, f".{n}g") for x, n in zip(figures, digits, strict=True)
        ]
        yield f"| {place} | {' | '.join(told)} |"


def _where(target: TargetRecord) -> Iterator[tuple[str, str]]:
    told = target.describe
    if told is None:
        yield "target", target.name
        return
    yield told.runtime, told.version
    if told.execution_provider:
        yield "execution provider", told.execution_provider
    if told.device:
        yield "device", told.device
    for name, value in told.versions.items():
        if name != told.runtime and len(value) <= 120 and name != "binary":
            yield name, value
