"""The output of ``gqa show``: a case in the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from conformance.base.array_types import NUMPY
from conformance.bundle.effects import effects, lines
from conformance.bundle.inputs import draw_inputs
from conformance.bundle.prepare import prepare
from conformance.bundle.script import ALIASES, CARRY
from conformance.case.case import Case
from conformance.case.contract import Contract
from conformance.case.relations import RELATIONS
from conformance.operator.readings import READINGS
from conformance.operator.tensors import Step, Tensor
from conformance.results.descriptions import case_record
from conformance.run.recording import reproduce


def draw(console: Console, case: Case, ep: str) -> None:
    """Print the case: question, tensors, attributes, contract, links, and how to run it on ``ep``.

    The shapes of the outputs are those that the oracle computes.
    """
    record = case_record(case)
    oracle = prepare(case.call, readings=case.contract.readings).expected
    console.print(Text(case.id, style="bold"), soft_wrap=True)
    for line in (case.title, case.question, case.why):
        if line:
            console.print(Text(line), soft_wrap=True)
    for number, (step, expected) in enumerate(zip(case.steps, oracle, strict=True)):
        console.print()
        if len(case.steps) > 1:
            what = ", which must be refused" if step.refused else ""
            console.print(Text(f"step {number}{what}", style="bold"))
        shapes = {name: want.value.shape for name, want in expected.items()}
        console.print(_tensors(case, step, shapes))
    for kind, tensors in (("inputs", case.steps[0].inputs), ("outputs", case.steps[0].outputs)):
        trailing = [tensor.name for tensor in tensors if tensor.state == "trailing"]
        if trailing:
            words = f"omitted at the end of the {kind}: {', '.join(trailing)}"
            console.print(Text(words, style="dim"), soft_wrap=True)
    console.print()
    if (graph := record.call.graph) is not None:
        nodes = "  ".join(f"{name} {count}" for name, count in graph.nodes.items())
        console.print(Text(f"graph       {graph.file}: {nodes}"), soft_wrap=True)
        console.print(Text(f"weights     {len(graph.weights)} constants, drawn"), soft_wrap=True)
    if record.call.attributes:
        words = "  ".join(f"{name}={value}" for name, value in record.call.attributes.items())
        of = " of the first GroupQueryAttention" if graph is not None else ""
        console.print(Text(f"attributes{of}  {words}"), soft_wrap=True)
    console.print()
    found = {} if case.contract.demands == "rejects" else effects(case.call, every=True)
    for label, line in (*lines(found), *_about(case, ep)):
        console.print(Text.assemble((f"{label:<10}", "dim"), "  ", line), soft_wrap=True)


def _terms(label: str, contract: Contract) -> Iterator[tuple[str, str]]:
    """The lines of a contract: its terms, the reason, the source and words of a rejection."""
    yield label, contract.terms
    if contract.why:
        yield "", contract.why
    yield "", contract.source
    if contract.mentions:
        yield "", f"a refusal names one of: {', '.join(contract.mentions)}"


def _about(case: Case, ep: str) -> Iterator[tuple[str, str]]:
    contract = case.contract
    yield from _terms("contract", contract)
    for reading in contract.readings:
        yield "", f"also correct: {READINGS[reading]}"
    if contract.disputed:
        yield "disputed", contract.disputed
    for provider in contract.providers:
        yield from _terms(f"on {provider}", contract.on(provider))
    if case.relation:
        yield "relation", RELATIONS[case.relation].sentence
    for link in case.links:
        yield "see", link
    if case.tags:
        yield "tags", ", ".join(case.tags)
    yield "file", f"{case.file}:{case.line}"
    yield "run", reproduce(case, ("--ep", ep))


def _tensors(case: Case, step: Step, oracle: dict[str, tuple[int, ...]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for column in ("", "name", "dtype", "shape", "values"):
        table.add_column(column, no_wrap=column != "values")
    values = draw_inputs(case.call, step)
    for kind, tensors in (("input", (*step.inputs, *step.buffers)), ("output", step.outputs)):
        for tensor in tensors:
            if tensor.state == "trailing":
                continue
            if not tensor.connected:
                struck = Text(tensor.name, style="dim strike")
                table.add_row(kind, struck, "", "", Text("omitted", style="dim"))
                continue
            shape = _shape(oracle.get(tensor.name) if kind == "output" else tensor.shape)
            text = _range(tensor, values, step)
            if case.call.shared_buffer and tensor.name in ALIASES:
                text = f"shares the memory of {ALIASES[tensor.name]}"
            if tensor.holds:
                text = f"the memory of {tensor.holds}"
            if tensor.same_as:
                text = f"the tensor of {tensor.same_as}"
            place = "constant" if tensor.constant else kind
            table.add_row(place, tensor.name, tensor.dtype, shape, text)
    return table


def _shape(dims: Sequence[int] | None) -> str:
    return "" if dims is None else str(list(dims))


def _range(tensor: Tensor, values: dict[str, np.ndarray], step: Step) -> str:
    drawn = values.get(tensor.name)
    if drawn is None:
        carried = step.carried and tensor.name in CARRY
        rows = "" if step.keep is None else f"the first {step.keep} rows of "
        return f"{rows}{CARRY[tensor.name]} of the step before" if carried else ""
    if drawn.size == 0:
        return "no elements"
    numbers = drawn.astype(np.float64)
    if drawn.size <= 4:
        return ", ".join(f"{x:g}" for x in numbers.ravel())
    finite = numbers[np.isfinite(numbers)]
    if not finite.size:
        return "none finite"
    special = "" if finite.size == numbers.size else ", some not finite"
    digits = "" if np.issubdtype(NUMPY[tensor.dtype], np.integer) else ".4"
    return f"{finite.min():{digits}g} … {finite.max():{digits}g}{special}"
