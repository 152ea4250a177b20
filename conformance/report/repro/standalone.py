"""A result as a program of its own, and as the text of a bug report.

Both need nothing of this suite: the program makes the model and its inputs from the recipes in the
results file, with NumPy and onnx, calls the runtime as its users do, and looks at the elements that
were judged worst. Its blocks stand apart by one empty line, and the same block is the same text in
every program, so that a page can hold each once.

Everything here comes out of a results file, which anybody may have written: text goes through
`clean` and into comments line by line, and into code as a literal only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from conformance.base.signature import DOMAIN, INPUTS, OP_TYPE, OUTPUTS
from conformance.report.findings import alone
from conformance.report.repro.facts import DTYPE, TWO_RUNS, of_the_other_form
from conformance.report.repro.making import KINDS
from conformance.report.repro.python import python_blocks
from conformance.report.repro.text import LINK, comment, fenced, inline, inline_code, one_line
from conformance.report.repro.tract import shell_blocks
from conformance.report.repro.web import node_blocks
from conformance.report.text import clean
from conformance.results.records import (
    CallInput,
    CallOutput,
    CaseRecord,
    ResultRecord,
    TargetRecord,
)
from conformance.results.verdicts import TABLE, Verdict

_PYTHON: Final = ("cpu", "cpu-noflash", "cuda", "tract-wheel")
_SHELL: Final = ("tract", "tract-plain")
_NODE: Final = ("webgpu", "webgpu-jsep", "wasm")
_FILES: Final = {"python": "repro.py", "sh": "repro.sh", "javascript": "repro.mjs"}
_NAMES: Final = {parameter.name for parameter in (*INPUTS, *OUTPUTS)}


def language(target: TargetRecord) -> str:
    """The program's language, as Markdown calls it: python, sh or javascript."""
    if target.ep in _SHELL:
        return "sh"
    return "javascript" if target.ep in _NODE else "python"


def filename(target: TargetRecord) -> str:
    """What the program is best called."""
    return _FILES[language(target)]


def why_not(case: CaseRecord, result: ResultRecord, target: TargetRecord) -> str | None:
    """Why there is no program of this result, in a sentence; None if there is one."""
    if target.ep not in (*_PYTHON, *_SHELL, *_NODE):
        return f"Only the program behind {one_line(target.ep)} knows how it is called."
    if result.verdict == "skip":
        return "It was not tried here, so there is nothing to show."
    connected = [tensor for tensor in case.call.inputs if tensor.state == "connected"]
    if any(tensor.recipe is None for tensor in connected):
        return "The results file is of a time when it did not say how inputs are made."
    made = [tensor for tensor in case.call.outputs if tensor.state == "connected"]
    tensors: list[CallInput | CallOutput] = [*connected, *made]
    strange = [t for t in tensors if t.dtype not in KINDS or t.name not in _NAMES]
    if strange or not made or any(_odd(tensor.shape) for tensor in connected):
        return "The results file describes tensors that this version knows nothing of."
    if case.call.shared_buffer and target.ep not in ("cpu", "cpu-noflash", "cuda", *_NODE[:2]):
        return "Past and present share memory, which this runtime cannot be told."
    return None


def _odd(shape: Sequence[object] | None) -> bool:
    return shape is None or not all(type(dim) is int and dim >= 0 for dim in shape)


def script(case: CaseRecord, result: ResultRecord, target: TargetRecord) -> str:
    """The program: it makes the call, and says what came of it on its last line.

    Where there can be none, a comment that says why.
    """
    word = language(target)
    refusal = why_not(case, result, target)
    head = _head(case, result, target)
    if refusal is not None:
        return comment([*head, "", refusal], word) + "\n"
    try:
        blocks = {"python": python_blocks, "sh": shell_blocks, "javascript": node_blocks}[word](
            case, result, target
        )
    except (ValueError, LookupError, OverflowError):  # a recipe that no file of ours holds
        return comment([*head, "", "There is no program: no input is made like that."], word) + "\n"
    shebang = {"python": "", "sh": "#!/bin/sh\n", "javascript": ""}[word]
    return "\n\n".join([shebang + comment(head, word), *blocks]) + "\n"


# ── What it says first ──────────────────────────────────────────────────────────────────────────


def _head(case: CaseRecord, result: ResultRecord, target: TargetRecord) -> list[str]:
    """The lines of the first comment."""
    contract = case.contract
    told = [
        f"{one_line(case.id)} on {one_line(result.target)}",
        f"contract: {contract.demands} ({contract.basis}), {one_line(contract.source)}",
    ]
    if contract.why:
        told.append(f"          {one_line(contract.why)}")
    told.append(f"expected: {_EXPECTED[contract.demands]}")
    told.append(f"seen:     {result.verdict}: {one_line(result.reason, 400)}")
    told += _caveats(case, result)
    if target.describe and target.describe.adapter:
        told.append(f"adapter:  {one_line(target.describe.adapter, 100)}")
    return [*told, _needs(target)]


_EXPECTED: Final = {
    "computes": "the values that the contract defines",
    "rejects": "an error that says what is wrong with the call",
    "either": "the values that follow from the rest of the contract, or an error",
}


def _caveats(case: CaseRecord, result: ResultRecord) -> Iterator[str]:
    if of_the_other_form(result):
        what = f" ({one_line(case.relation)})" if case.relation else ""
        yield f"note:     the fault is in the other form of this call{what}, which is not in here"
    if TWO_RUNS in result.reason:
        yield "note:     two runs gave other numbers; so this makes the call twice"
    if result.verdict == "wrong" and DTYPE.search(result.reason):
        yield "note:     the type of an output is wrong, which this does not look at"
    if result.verdict == "timeout":
        yield "note:     it is stopped after the time that the suite gave it"


def _needs(target: TargetRecord) -> str:
    """What must be installed, in words of a command line."""
    version = target.describe.version if target.describe else ""
    pinned = version if re.fullmatch(r"\d+(\.\d+){1,3}", version) else ""
    if target.ep in ("cpu", "cpu-noflash", "cuda"):
        package = "onnxruntime-gpu" if target.ep == "cuda" else "onnxruntime"
        return f"needs:    pip install numpy onnx {package}{'==' + pinned if pinned else ''}"
    if target.ep == "tract-wheel":
        return f"needs:    pip install numpy onnx tract{'==' + pinned if pinned else ''}"
    if target.ep in _SHELL:
        return f"needs:    pip install numpy onnx; tract {pinned} on the PATH, or TRACT=its path"
    dawn = "" if target.ep == "wasm" else f" webgpu{_dawn(target)}"
    at = f"@{pinned}" if pinned else ""
    return f"needs:    pip install numpy onnx; npm install onnxruntime-web{at}{dawn}, here"


def _dawn(target: TargetRecord) -> str:
    told = target.describe.versions.get("dawn", "") if target.describe else ""
    match = re.fullmatch(r"webgpu (\d+(?:\.\d+){1,3})", told)
    return f"@{match[1]}" if match else ""


# ── The text of a bug report ────────────────────────────────────────────────────────────────────


def issue(
    case: CaseRecord,
    result: ResultRecord,
    target: TargetRecord,
    program: str,
    *,
    elsewhere: Sequence[tuple[str, Verdict]] = (),
) -> str:
    """Markdown to paste into a bug tracker: a title, facts, what was found out, and the program.

    ``program`` is what `script` made; ``elsewhere`` has the verdicts of other targets on the case.
    """
    told = target.describe
    runtime = inline(f"{told.runtime} {told.version}" if told else target.name, 100)
    what = TABLE[result.verdict].deed
    known = result.known
    title = inline(known.why.rstrip(".") if known else case.title or case.name.replace("_", " "))
    place = f" ({inline(told.execution_provider)})" if told and told.execution_provider else ""
    lines = [f"# {OP_TYPE} {what}: {title} – {runtime}{place}", "", "## What is called", ""]
    asks = f"{inline(case.title)}." if case.title else ""
    lines += [" ".join(filter(None, [f"`{DOMAIN}.{OP_TYPE}`, one node.", asks, inline(case.why)]))]
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
    lines += ["", f"Attributes: {inline(given) or 'none'}. Outputs: {inline(outputs)}."]
    if case.call.steps > 1:
        lines += [
            f"It is a loop of {case.call.steps} calls; each call's past is the present before it."
        ]
    if case.call.shared_buffer:
        lines += ["Past and present are the same memory."]
    lines += ["", "## What happens", "", inline(result.reason, 2000)]
    if result.message and result.outcome in ("rejected", "crashed"):
        message = clean(result.message, 4000)
        lines += ["", *fenced(message, "text")]
    lines += _worst(result)
    if elsewhere:
        others = ", ".join(f"{inline(name)} {verdict}" for name, verdict in elsewhere)
        lines += ["", f"The same call elsewhere: {others}."]
    lines += ["", "## What should happen", "", _should(case)]
    if result.expectation and (finding := alone(result.expectation.link)):
        lines += ["", "## What was found out", "", finding]
    lines += ["", "## Where", ""]
    lines += [f"- {inline(name)}: {inline(value)}" for name, value in _where(target)]
    lines += ["", f"Command of the suite (gqa-conformance): {inline_code(result.reproduce)}"]
    lines += ["", "## Reproduction", ""]
    refusal = why_not(case, result, target)
    if refusal is not None:
        lines += [refusal]
    else:
        lines += [f"Save it as `{filename(target)}`; it needs nothing of that suite.", ""]
        lines += fenced(program.rstrip("\n"), language(target))
    return "\n".join(lines) + "\n"


def _should(case: CaseRecord) -> str:
    contract = case.contract
    must = {
        "computes": "It computes what the operator's documentation defines; numbers wanted are "
        "of a reference in float64, and the allowed errors are derived from the type.",
        "rejects": "It is refused, with an error that says what is wrong.",
        "either": "It computes right, or is refused.",
    }[contract.demands]
    basis = "It is specified" if contract.basis == "specified" else "It is asked for"
    why = f" {inline(contract.why)}" if contract.why else ""
    source = one_line(contract.source)
    link = f"<{source}>" if LINK.fullmatch(source) else inline(source)
    return f"{must}{why} {basis}: {link}"


def _worst(result: ResultRecord) -> Iterator[str]:
    """A table of the worst elements."""
    if of_the_other_form(result) or not result.errors:
        return
    yield from ("", "| worst element | got | want | allowed error | share of it |")
    yield "| --- | --- | --- | --- | --- |"
    for error in result.errors:
        if error.index is None:
            continue
        step = f" of call {error.step}" if error.step else ""
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
