"""The stand-alone program that reproduces a result: a template and data.

The program does not need this suite. It contains the model, draws the inputs from the recipes in
the results file, calls the runtime as its users do, and checks the elements with the largest
errors. The templates are in ``reports/programs``; programs differ only in their data.

A results file can come from anybody. Its text is put into the comment line by line, and into the
data as JSON without characters that can end a literal of Python or JavaScript.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Final

import onnx
from onnx import helper

from conformance.base.paths import data_path
from conformance.base.remembered import cache_few, cache_last
from conformance.base.text import one_line
from conformance.bundle.model import declare, filled_model, model_of
from conformance.bundle.script import ALIASES, CARRY
from conformance.case.graph import parsed, shared_pasts
from conformance.operator.signature import DOMAIN, OP_TYPE, OUTPUTS, PLAIN_NAME
from conformance.report.repro.checks import (
    has_fault,
    is_of_the_variant,
    verdicts,
    wrong_elements,
    wrong_shapes,
)
from conformance.report.repro.escaping import comment
from conformance.results.records import (
    FROM_FILE,
    CallInput,
    CallOutput,
    CallRecord,
    CaseRecord,
    GraphRecord,
    LaterInput,
    ResultRecord,
    TargetRecord,
    contract_of,
)
from conformance.results.verdicts import verdict_word
from conformance.targets.catalogue import StandaloneProgram, device_word, entry_of, script_of

#: The placeholder for the data in a template.
PLACEHOLDER: Final = "__DATA__"
_INCLUDE: Final = re.compile(r"^from (inputs|checks) import .*\n", re.M)

#: The time limit in seconds, if the call did not exceed its own.
_SECONDS: Final = 600.0
#: The largest size of a decompressed graph in a results file, in bytes.
_GRAPH_BYTES: Final = 1 << 22
_RANKS: Final = {output.name: output.rank for output in OUTPUTS}
_ELSEWHERE: Final = "the suite found the fault in a variant of this call, not in this one"


@dataclass(frozen=True)
class ReproductionProgram:
    """The stand-alone program of a result. It prints the verdict as its last line.

    ``missing`` is a sentence that says why there is none; the text is then only a comment.
    """

    template: str
    head: Sequence[str]
    """The lines of its first comment."""
    data: Sequence[str] = ()
    """The lines of its data, as JSON."""
    missing: str | None = None

    @property
    def text(self) -> str:
        """The source of the program."""
        head = "\n".join(self.head) + "\n"
        if self.missing is not None:
            return head
        data = "\n".join(self.data)
        return f"{head}\n{template_text(self.template).replace(PLACEHOLDER, data)}"

    @property
    def filename(self) -> str:
        """The name of its file."""
        return "repro.mjs" if self.language == "javascript" else "repro.py"

    @property
    def language(self) -> str:
        """The language of the program, as Markdown names it."""
        return "javascript" if self.template.endswith(".mjs") else "python"


@cache
def template_text(name: str) -> str:
    """The source of a template, with the shared parts that it imports."""
    folder = data_path("reports") / "programs"

    def part(match: re.Match[str]) -> str:
        return (folder / f"{match[1]}.py").read_text(encoding="utf-8") + "\n"

    return _INCLUDE.sub(part, (folder / name).read_text(encoding="utf-8"))


def program_of(case: CaseRecord, result: ResultRecord, target: TargetRecord) -> ReproductionProgram:
    """The program of a result; its ``missing`` says why if there is none."""
    script = script_of(target.ep)
    head = [*_head(case, result, target)]
    template = script.template if script else "onnxruntime.py"
    mark = "//" if template.endswith(".mjs") else "#"
    missing = _why_not(case, result, target)
    if missing is None and script is not None:
        try:
            lines = [*_case_lines(case), *_result_lines(case, result, target)]
            data = ["{", *lines[:-1], lines[-1].removesuffix(","), "}"]
            return ReproductionProgram(template, comment(head, mark), data)
        # this suite writes no such file
        except (ValueError, LookupError, OverflowError, TypeError, zlib.error):
            missing = "The results file describes an input wrongly."
    return ReproductionProgram(template, comment([*head, "", missing or ""], mark), missing=missing)


def no_program(ep: str) -> str | None:
    """Why no result of this target has a program; None if that depends on the result."""
    if script_of(ep) is not None:
        return None
    return f"This version of the suite cannot write a program for {one_line(ep)}."


def _why_not(case: CaseRecord, result: ResultRecord, target: TargetRecord) -> str | None:
    """Why this result has no program; None if nothing but its inputs can prevent one."""
    script = script_of(target.ep)
    if script is None:
        return no_program(target.ep)
    if result.verdict == "skip":
        return "The case was not run, so there is nothing to reproduce."
    if result.other_kernel:
        return "It ran without the kernel that the target names: there is nothing to reproduce."
    if why := _why_not_call(case):
        return why
    call = case.call
    if not script.shared_buffer and (call.shared_buffer or any(one.holds for one in call.inputs)):
        return (
            "An output uses memory of the program, which this runtime's interface cannot express."
        )
    return None


@cache_last
def _why_not_call(case: CaseRecord) -> str | None:
    """Why no program can make the call, on any target."""
    call = case.call
    connected = [tensor for tensor in call.inputs if tensor.state == "connected"]
    unlisted = [each for each in connected if each.recipe is None]
    if any((tensor.values or "").startswith(FROM_FILE) for tensor in unlisted):
        return "Its input values are those of a file: the bundle has them as tensors."
    if call.graph is not None and not call.graph.content:
        return "The graph is too large for a results file; its case file names it."
    made = [tensor for tensor in call.outputs if tensor.state == "connected"]
    names = [*(tensor.name for tensor in connected), *(tensor.name for tensor in made)]
    if not made or not all(map(PLAIN_NAME.fullmatch, names)):
        return "The results file describes tensors that this version does not know."
    return None


# ── The data ──────────────────────────────────────────────────────────────────────────────────────


@cache_last
def _case_lines(case: CaseRecord) -> list[str]:
    """The lines of the data about the call, which are the same for every target."""
    call = case.call
    fed = {tensor.name: tensor for tensor in call.inputs if _is_fed(tensor)}
    fixed = [tensor for tensor in call.inputs if tensor.constant]
    model = _node_model(call) if call.graph is None else _graph_model(call.graph)
    content = base64.b64encode(model.SerializeToString(deterministic=True)).decode()
    outputs = {each.name: each.dtype for each in call.outputs if each.state == "connected"}
    pasts = {past: present for past, present in CARRY.items() if past in fed and present in outputs}
    carry: list[dict[str, str]] = [{}]
    carry += [{} if has_own_past(step) else pasts for step in call.later]
    data = {
        "model": content,
        "constants": {each.name: _drawn(each) for each in (*fixed, *_weights(call))},
        "inputs": {name: _drawn(tensor) for name, tensor in fed.items()},
        "later": [{own.name: _drawn(fed[own.name], own) for own in step} for step in call.later],
        "outputs": outputs,
        "carry": carry,
        "keep": [None, *(call.keep or [None] * len(call.later))],
        "refused": list(call.refused),
        "share": {past: present for present, past in _aliases(call).items()},
    }
    return [*_lines(data)]


def has_own_past(later: Sequence[LaterInput]) -> bool:
    """Whether a later call has a past of its own, and not the present of the call before."""
    return any(own.name in CARRY for own in later)


def _result_lines(case: CaseRecord, result: ResultRecord, target: TargetRecord) -> list[str]:
    """The lines of the data about the runtime and the checks."""
    right, wrong, rejected = verdicts(case, result)
    data = {
        "runs": 2 if has_fault(result, "runs_differ") else 1,
        "seconds": _SECONDS if result.time_limit is None else result.time_limit,
        "if_right": right,
        "if_wrong": wrong,
        "if_rejected": rejected,
        "shapes": wrong_shapes(case, result),
        "elements": wrong_elements(case, result),
        "notes": [_ELSEWHERE] if is_of_the_variant(result) else [],
    }
    runtime = _runtime_alone if case.call.graph is None else _runtime
    return [*runtime(target), *_lines(data)]


@cache_few
def _runtime(target: TargetRecord) -> list[str]:
    """The lines with the options of the runtime."""
    return [*_lines({"runtime": _options(target, alone=False)})]


@cache_few
def _runtime_alone(target: TargetRecord) -> list[str]:
    """The same for a call of which no node may run on the CPU."""
    return [*_lines({"runtime": _options(target, alone=True)})]


def _options(target: TargetRecord, alone: bool) -> dict[str, Any]:
    script, entry = script_of(target.ep), entry_of(target.ep)
    assert script is not None  # or there is no program
    provider = (entry.execution_provider if entry else None) or ""
    device = device_word(provider) or "cpu"
    described = target.describe.provider_options if target.describe else {}
    return {
        "provider": provider,
        "device": device,
        "alone": alone and (device != "cpu" or bool(script.plugin)),
        "options": script.options,
        "provider_options": {**described, **script.provider_options},
        "plugin": script.plugin,
        "static_shapes": script.static_shapes,
        "threads": script.threads,
        "adapter": target.describe.adapter if target.describe else None,
        "environment": dict(script.environment),
    }


def _weights(call: CallRecord) -> Sequence[CallInput]:
    """The constants of a graph whose values the program draws."""
    return call.graph.weights if call.graph else ()


def _is_fed(tensor: CallInput) -> bool:
    """Whether it is an input of the model."""
    return tensor.state == "connected" and not tensor.constant and tensor.same_as is None


def _drawn(tensor: CallInput, own: LaterInput | None = None) -> dict[str, Any]:
    """The data of an input; ``own`` has its differences from the first call."""
    recipe = own.recipe if own else tensor.recipe
    shape = tensor.shape if own is None or own.shape is None else own.shape
    if recipe is None or shape is None or any(type(dim) is not int for dim in shape):
        raise ValueError("an input without numbers")
    return {"dtype": tensor.dtype, "shape": shape, "recipe": recipe.model_dump(mode="json")}


def _node_model(call: CallRecord) -> onnx.ModelProto:
    """The model of one node, without the values of its constants."""
    node = helper.make_node(
        OP_TYPE, [*_names(call.inputs)], [*_names(call.outputs)], name="gqa", domain=DOMAIN
    )
    node.attribute.extend(helper.make_attribute(*each) for each in call.attributes.items())
    inputs = [_declared(each, each.dims or each.shape) for each in call.inputs if _is_fed(each)]
    outputs = [_declared(each) for each in call.outputs if each.state == "connected"]
    return model_of([node], inputs, outputs)


def _declared(
    tensor: CallInput | CallOutput, names: Sequence[str | int | None] | None = None
) -> onnx.ValueInfoProto:
    """An input or output of the graph; ``names`` are the names of its dims, None for fixed ones."""
    if tensor.shape is None:
        return declare(tensor.name, str(tensor.dtype), [None] * _RANKS[tensor.name])
    pairs = zip(names or tensor.shape, tensor.shape, strict=True)
    return declare(tensor.name, str(tensor.dtype), [name or size for name, size in pairs])


def _names(tensors: Sequence[CallInput | CallOutput]) -> Iterator[str]:
    """The names in the node: empty for an omitted tensor, none for trailing ones."""
    for tensor in tensors:
        if tensor.state != "trailing" and not (isinstance(tensor, CallInput) and tensor.holds):
            name = (isinstance(tensor, CallInput) and tensor.same_as) or tensor.name
            yield name if tensor.state == "connected" else ""


def _aliases(call: CallRecord) -> Mapping[str, str]:
    """The input whose memory an output uses, by the name of the output."""
    if not call.shared_buffer:
        return {tensor.holds: tensor.name for tensor in call.inputs if tensor.holds}
    return ALIASES if call.graph is None else shared_pasts(parsed(_content(call.graph)))


def _content(graph: GraphRecord) -> bytes:
    """The content of the file of a graph."""
    return zlib.decompressobj().decompress(base64.b64decode(graph.content), _GRAPH_BYTES)


def _graph_model(graph: GraphRecord) -> onnx.ModelProto:
    """The model of a graph without the constants whose values the program draws."""
    model = filled_model(_content(graph), {})
    drawn = {tensor.name for tensor in graph.weights}
    kept = [tensor for tensor in model.graph.initializer if tensor.name not in drawn]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    return model


def _lines(data: Mapping[str, Any]) -> Iterator[str]:
    """The fields of an object in JSON, each with a comma; a long field has a line for each item."""
    for name, value in data.items():
        if isinstance(value, dict):
            items = [f"{_json(key)}: {_json(item)}" for key, item in value.items()]
            text = f"{{{_joined(items)}}}"
        elif isinstance(value, list):
            text = f"[{_joined([*map(_json, value)])}]"
        else:
            text = _json(value)
        yield f'"{name}": {text},'


def _joined(items: Sequence[str]) -> str:
    is_long = sum(map(len, items)) > _COLUMNS
    return "\n  " + ",\n  ".join(items) + "\n" if is_long else ", ".join(items)


def _json(value: Any) -> str:
    """ASCII JSON without characters that can end a literal or a script."""
    return _word(value) if type(value) is str and len(value) <= _COLUMNS else _encoded(value)


def _encoded(value: Any) -> str:
    return _SPECIAL.sub(lambda match: f"\\u{ord(match[0][-1]):04x}", _ENCODER.encode(value))


_word: Final = lru_cache(1 << 12)(_encoded)
_COLUMNS: Final = 90
_ENCODER: Final = json.JSONEncoder(allow_nan=False)
_SPECIAL: Final = re.compile(r"\\[\\\"]|[`$<>&'\x7f]")


# ── The first comment ─────────────────────────────────────────────────────────────────────────────


def _head(case: CaseRecord, result: ResultRecord, target: TargetRecord) -> Iterator[str]:
    """The lines of the comment at the top."""
    contract = contract_of(case, result)
    yield f"{one_line(case.id)} on {one_line(result.target)}"
    yield f"contract: {contract.terms}, {one_line(contract.source)}"
    if contract.why:
        yield f"          {one_line(contract.why)}"
    if contract.disputed:
        yield f"disputed: {one_line(contract.disputed)}"
    attributes = ", ".join(f"{name} {value}" for name, value in case.call.attributes.items())
    yield f"call:     {one_line(attributes) or 'no attributes'}"
    yield f"expected: {_EXPECTED[contract.demands]}"
    yield f"seen:     {verdict_word(result.verdict)}: {one_line(result.reason, 400)}"
    if result.hazard:
        yield f"hazard:   {one_line(result.hazard, 400)}"
    yield from _caveats(case, result)
    yield from _how_to_run(target)


@cache_few
def _how_to_run(target: TargetRecord) -> list[str]:
    """The lines about the adapter, and the commands."""
    lines = []
    if target.describe and target.describe.adapter:
        lines += [f"adapter:  {one_line(target.describe.adapter, 100)}"]
    if script := script_of(target.ep):
        lines += [
            "to run:   in an empty folder; the exit status is 0 if the verdict is pass, else 1"
        ]
        lines += [f"          {one_line(command)}" for command in _run(target, script)]
    return lines


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


_PIP: Final = "env/bin/pip install numpy"
_RUN: Final = "env/bin/python repro.py"
#: For each template the commands that install what a program needs and run it, after the first,
#: which makes an environment of Python.
_COMMANDS: Final = {
    "exec.py": (_PIP, f"{_RUN} RUNNER"),
    "onnxruntime.py": (f"{_PIP} NEEDS", _RUN),
    "onnxruntime_web.mjs": (_PIP, "npm install NEEDS", "PYTHON=env/bin/python node repro.mjs"),
    "openvino.py": (f"{_PIP} NEEDS", _RUN),
    "tract.py": (_PIP, "cargo install NEEDS --locked --root .", f"TRACT=bin/tract {_RUN}"),
    "tract_wheel.py": (f"{_PIP} NEEDS", _RUN),
}


def _run(target: TargetRecord, script: StandaloneProgram) -> Iterator[str]:
    """The commands that run the program, with those versions that are plain numbers."""
    described = target.describe
    versions = described.versions if described else {}
    found = {
        "VERSION": versions.get("onnxruntime", described.version if described else ""),
        "PLUGIN": described.version if described else "",
        "DAWN": versions.get("dawn", "").removeprefix("webgpu "),
    }
    for command in ("python3 -m venv env", *_COMMANDS[script.template]):
        command = command.replace("NEEDS", script.needs)
        for name, version in found.items():
            if re.fullmatch(r"\d+(\.[a-z0-9]+){1,4}", version):
                command = command.replace(name, version)
        yield re.sub("(==|@| --version )(VERSION|PLUGIN|DAWN)", "", command)
