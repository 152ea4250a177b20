"""The text of a bug report about a result, for the bug tracker of a runtime."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

from conformance.base.remembered import cache_few, cache_last
from conformance.base.text import clean
from conformance.base.words import listed
from conformance.bundle.script import CARRY
from conformance.case.contract import Contract
from conformance.operator.signature import DOMAIN, OP_TYPE
from conformance.report.finding_pages import alone
from conformance.report.repro.checks import is_of_the_variant
from conformance.report.repro.escaping import code, fence_around, inline, link
from conformance.report.repro.reproduction import ReproductionProgram, has_own_past, template_text
from conformance.results.records import CaseRecord, ResultRecord, TargetRecord, contract_of
from conformance.results.shareable import shared_command
from conformance.results.verdicts import TABLE, Verdict, verdict_word
from conformance.results.wrong_outputs import only_presents, wrong_in


def issue(
    case: CaseRecord, result: ResultRecord, target: TargetRecord, program: ReproductionProgram
) -> str:
    """Markdown for a bug tracker: a title, the call, the result, the finding, and the program.

    ``program`` is the value of `program_of`.
    """
    before, fence = issue_parts(case, result, target, program)
    return f"{before}{program.text}{fence}\n" if fence else before


def issue_parts(
    case: CaseRecord,
    result: ResultRecord,
    target: TargetRecord,
    program: ReproductionProgram,
    elsewhere: Sequence[tuple[str, Verdict]] = (),
) -> tuple[str, str]:
    """The text before the program, and the line that ends its code block (empty if there is none).

    ``elsewhere`` has the verdicts of other targets.
    """
    described = target.describe
    runtime = f"{described.runtime} {described.version}" if described else target.name
    what = "has a hazard" if result.hazard else TABLE[result.verdict].deed
    what = "runs with another kernel" if result.other_kernel else what
    known = result.known
    title = inline(known.why.rstrip(".") if known else case.title or case.name.replace("_", " "))
    provider = described.execution_provider if described else None
    place = f" ({inline(provider)})" if provider else ""
    lines = [f"# {OP_TYPE} {what}: {title} – {inline(runtime, 100)}{place}", *_call(case)]
    lines += ["", "## Actual result", "", inline(result.reason, 2000)]
    if result.wrong_outputs:
        right = " The output is right." if only_presents(result) else ""
        lines += ["", f"Wrong in {wrong_in(result, inline)}.{right}"]
    if result.hazard:
        hazard = inline(result.hazard, 400)
        lines += ["", f"The operator's documentation does not define this: {hazard}"]
    if result.message and result.outcome in ("rejected", "crashed"):
        message = clean(result.message, 4000)
        fence = fence_around(message)
        lines += ["", f"{fence}text", message, fence]
    lines += _worst(result)
    if elsewhere:
        others = ", ".join(f"{inline(name)} {verdict_word(verdict)}" for name, verdict in elsewhere)
        lines += ["", f"The same call on other targets: {others}."]
    lines += ["", "## Expected result", "", _should(contract_of(case, result))]
    if result.expectation and (finding := alone(result.expectation.link)):
        lines += ["", "## Analysis", "", finding]
    lines += ["", "## Environment", ""]
    lines += _environment(target)
    command = code(shared_command(result.reproduce), 1000)
    lines += ["", f"Command of the suite (gqa-conformance): {command}", "", "## Reproduction", ""]
    if program.missing is not None:
        return "\n".join([*lines, inline(program.missing)]) + "\n", ""
    # the data has no backticks
    head, rest = fence_around("\n".join(program.head)), _fence_of(program.template)
    fence = max(head, rest, key=len)
    lines += [f"Save it as `{program.filename}`; it does not need the suite.", ""]
    return "\n".join([*lines, f"{fence}{program.language}"]) + "\n", fence


@cache_last
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
            what = (tensor.name, str(tensor.dtype), str(list(tensor.shape or ())))
            cells = [*map(inline, what), inline(tensor.values or "", 200)]
            lines.append(f"| {' | '.join(cells)} |")
    attributes = ", ".join(f"{name} {value}" for name, value in case.call.attributes.items())
    outputs = ", ".join(o.name for o in case.call.outputs if o.state == "connected")
    of = "" if graph is None else f" of the first {OP_TYPE}"
    lines += ["", f"Attributes{of}: {inline(attributes) or 'none'}. Outputs: {inline(outputs)}."]
    if graph is not None and graph.weights:
        lines += [f"{len(graph.weights)} constants have drawn values; the program makes them."]
    if case.call.steps > 1:
        has_past = any(i.name in CARRY and i.state == "connected" for i in case.call.inputs)
        own = any(map(has_own_past, case.call.later))
        past = "some have a past of their own" if own else "each past is the previous present"
        lines += [f"There are {case.call.steps} calls on one session{f'; {past}' * has_past}."]
    if case.call.refused:
        steps = listed([f"step {step}" for step in case.call.refused])
        lines += [f"Not checked, since the call is illegal and may be refused: {steps}."]
    if case.call.shared_buffer:
        lines += ["Past and present are the same memory."]
    return lines


def _should(contract: Contract) -> str:
    must = {
        "computes": "The runtime computes the values that the operator's documentation defines. "
        "Expected values are those of a float64 reference; the error budgets are derived from the "
        "types and magnitudes.",
        "rejects": "The runtime refuses the call, with an error that says what is wrong.",
        "either": "The runtime computes the right values, or refuses the call.",
    }[contract.demands]
    why = f" {inline(contract.why)}" if contract.why else ""
    basis = "Source" if contract.demands == "either" else contract.basis.capitalize()
    text = f"{must}{why} {basis}: {link(contract.source, inline)}"
    return f"{text} (disputed by {link(contract.disputed, inline)})" if contract.disputed else text


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
        cells = ("" if x is None else f"{x:.{n}g}" for x, n in zip(figures, digits, strict=True))
        yield f"| {place} | {' | '.join(cells)} |"


@cache
def _fence_of(template: str) -> str:
    return fence_around(template_text(template))


@cache_few
def _environment(target: TargetRecord) -> list[str]:
    """The lines about the runtime and the machine."""
    return [f"- {inline(name)}: {inline(value)}" for name, value in _where(target)]


def _where(target: TargetRecord) -> Iterator[tuple[str, str]]:
    described = target.describe
    if described is None:
        yield "target", target.name
        return
    yield described.runtime, described.version
    if described.execution_provider:
        yield "execution provider", described.execution_provider
    if described.device:
        yield "device", described.device
    for name, value in described.versions.items():
        if name not in (described.runtime, "binary") and len(value) <= 120:
            yield name, value
