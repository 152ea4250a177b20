"""Captured values as cases: one for each node and call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from pydantic import ValidationError

from conformance.base.array_types import NUMPY, Array
from conformance.base.paths import shown
from conformance.base.words import plural
from conformance.case.given import write_given
from conformance.case.steps import steps_of
from conformance.graph.nodes import AttentionNode
from conformance.graph.reading import as_model_errors
from conformance.harness.folders import temporary_folder
from conformance.model.capture import (
    MOST_BYTES,
    Captured,
    CaptureError,
    PromptTokens,
    capturable,
    capture,
    check_tokens,
    rows_for,
)
from conformance.model.configuration import Configuration
from conformance.model.entries import case_files_of
from conformance.model.feeds import interface_of
from conformance.model.forms import Form
from conformance.model.groups import Group, only_layers
from conformance.model.notes import notes_on
from conformance.model.stages import NodeCall
from conformance.model.subject import Subject
from conformance.operator.call import checked_call
from conformance.operator.tensors import ShapeError, Step

#: The most calls of all nodes together: a case file cannot hold more.
MOST_CASES: Final = 2_000
#: The label of a single call with the user's inputs.
INPUTS: Final = "inputs"


@dataclass(frozen=True)
class CaptureRequest:
    """What to capture: a prompt and the tokens after it, or one call with the inputs in a file.

    ``layers`` are the layers to keep, or all if it is empty. ``python`` is the interpreter whose
    onnxruntime runs the model; None: this one.
    """

    tokens: PromptTokens | None
    inputs: Path | None
    layers: tuple[int, ...] = ()
    python: str | None = None


@dataclass(frozen=True)
class CapturedSubject(Subject):
    """A model whose groups are single nodes, with a stage for each call.

    A stage has the values that the node got. ``told`` says what was run.
    """

    told: str


def captured_subject(
    subject: Subject, configuration: Configuration, wanted: CaptureRequest, folder: Path
) -> CapturedSubject:
    """Run the model, and write the inputs of its nodes into ``folder``.

    The folder belongs beside the case file. Raises :class:`conformance.graph.reading.ModelError`.
    """
    model, tokens = subject.model, wanted.tokens
    single = [group for group in subject.groups if group.graph is None]
    with as_model_errors(model.path):
        interface = interface_of(model, single, configuration)
        nodes, faults = capturable(model, only_layers(single, wanted.layers))
        if not nodes:
            raise CaptureError(
                f"{shown(model.path)}: every node is in a subgraph; none can be captured."
            )
        groups = each_node(single, nodes)
        if tokens is not None:
            check_tokens(interface, tokens)
            check_size(groups, tokens)
    with temporary_folder() as values:
        found = capture(model, nodes, interface, tokens, values, wanted.python, wanted.inputs)
        stages = stages_of_captured(groups, found, tokens, folder)
    return CapturedSubject(
        model=model,
        groups=groups,
        stages=stages,
        faults={**subject.faults, **faults},
        notes=[*notes_on(model, single, configuration)],
        files=case_files_of(model, groups, stages),
        told=_told(found, wanted),
    )


def _told(found: Captured, wanted: CaptureRequest) -> str:
    """What was run, in words."""
    what = f"the inputs in {wanted.inputs}"
    if (tokens := wanted.tokens) is not None:
        steps = f" and {plural(tokens.steps, 'decode step')}" if tokens.steps else ""
        what = f"a prompt of {plural(len(tokens.prompt), 'token')}{steps}"
    seconds = sum(found.seconds.values())
    return f"with {what}, run on the CPU by onnxruntime {found.version} in {seconds:.2g} s"


def each_node(groups: Sequence[Group], nodes: Sequence[AttentionNode]) -> list[Group]:
    """A group for each of the ``nodes``, named by its layer, in the order of the layers."""
    found = [
        replace(group, nodes=(node,), name=f"layer_{node.layer}")
        for node in nodes
        for group in groups
        if any(node is member for member in group.nodes)
    ]
    total, seen = Counter(group.name for group in found), Counter[str]()
    unique = []
    for group in found:
        seen[group.name] += 1
        number = f"_{seen[group.name]}" if total[group.name] > 1 else ""
        unique.append(replace(group, name=group.name + number))
    return unique


def check_size(groups: Sequence[Group], tokens: PromptTokens) -> None:
    """Raises :class:`CaptureError`, before the model is run, if there would be too many values."""
    cases = len(groups) * (tokens.steps + 1)
    if cases > MOST_CASES:
        raise CaptureError(
            f"{plural(len(groups), 'node')} in {plural(tokens.steps + 1, 'call')} are {cases}"
            f" cases, and at most {MOST_CASES} fit; choose layers with --only-layer, or give fewer"
            " --steps."
        )
    total = 0
    for group in groups:
        for call in range(tokens.steps + 1):
            new, after = 1 if call else len(tokens.prompt), len(tokens.prompt) + call
            rows = group.form.rows(new, after, rows_for(tokens.total))
            total += _bytes(_step(group.form, group.form.lengths(new, [after], rows)))
    if total > MOST_BYTES:
        raise CaptureError(
            f"The nodes get {total / 2**30:.1f} GiB of values, and at most {MOST_BYTES >> 30} GiB"
            " are kept; choose layers with --only-layer, or give a shorter prompt or fewer --steps."
        )


def stages_of_captured(
    groups: Sequence[Group], captured: Captured, tokens: PromptTokens | None, folder: Path
) -> dict[str, list[NodeCall]]:
    """The stages of each group, by its name. Their values are written into ``folder``.

    Case files beside the folder name the values by paths relative to themselves. Raises
    :class:`CaptureError`.
    """
    stages: dict[str, list[NodeCall]] = {group.name: [] for group in groups}
    size = 0
    for call in range(captured.calls):
        for group in groups:
            fields, arrays = _as_case(group.form, captured.inputs(group.nodes[0], call))
            size += sum(array.nbytes for array in arrays.values())
            if size > MOST_BYTES:
                raise CaptureError(
                    f"The nodes get more than {MOST_BYTES >> 30} GiB of values; choose layers with"
                    " --only-layer, or give smaller inputs."
                )
            label, words, phase = _words(call, fields, tokens)
            file = folder / f"{group.name}.{label}.npz"
            try:
                folder.mkdir(exist_ok=True)
                write_given(file, arrays)
            except OSError as error:
                raise CaptureError(f"Cannot write {file}: {error.strerror}.") from None
            after = max(int(arrays["total_sequence_length"].max(initial=1)), 1)
            fields["values_from"] = f"{folder.name}/{file.name}"
            several = fields.get("batch_size", 1) > 1
            stages[group.name].append(NodeCall(label, words, phase, after, fields, batch=several))
    return stages


def _words(
    call: int, fields: Mapping[str, Any], tokens: PromptTokens | None
) -> tuple[str, str, str]:
    """The label of a call, its description, and its phase."""
    new = fields["sequence_length"]
    if tokens is None:
        phase = "prompt" if new > 1 else "decode"
        return INPUTS, f"the call with the given inputs, {plural(new, 'new token')}", phase
    if call == 0:
        return "prompt", f"the prompt of {plural(new, 'token')}", "prompt"
    past = len(tokens.prompt) + call - 1
    return f"decode_{call}", f"decode step {call}, on a past of {past}", "decode"


def _as_case(form: Form, arrays: dict[str, Array]) -> tuple[dict[str, Any], dict[str, Array]]:
    """The fields of a call with these inputs, in addition to those of its form, and its arrays.

    Rows of rotary tables that no token of the call needs are left out.
    """
    past = arrays.get("past_key")
    batch, new = arrays["query"].shape[:2]
    totals = [int(each) + 1 for each in arrays["seqlens_k"].ravel()]
    fields = form.lengths(new, totals, None if past is None else past.shape[2])
    if len(totals) != batch:
        fields.pop("total_sequence_lengths", None)
        fields["batch_size"] = batch
    if form.chunks:
        counts = [int(each) for each in arrays["query_seqlens"].ravel()]
        starts = [total - count for total, count in zip(totals, counts, strict=False)]
        fields |= {
            "query_seqlens": counts,
            "total_sequence_lengths": totals,
            "total_sequence_length": int(arrays["total_sequence_length"].ravel()[0]),
        }
        if form.cache in ("static", "window"):
            fields["past_sequence_length"] = max(starts, default=0)
    key = arrays.get("key")
    if key is not None and not form.borrows and key.shape[1] != new:
        fields["kv_sequence_length"] = key.shape[1]
    step = _step(form, fields)
    table = step.input("cos_cache").shape
    if table is not None and form.fields.get("rotary") and arrays["cos_cache"].ndim == 2:
        positions = arrays.get("position_ids", np.zeros(1, np.int64))
        needed = max(table[0], int(positions.max(initial=0)) + 1)
        rows = min(needed, len(arrays["cos_cache"]))
        if rows != table[0]:
            fields["rotary_cache_length"] = rows
            step = _step(form, fields)
        arrays |= {name: arrays[name][:rows] for name in ("cos_cache", "sin_cache")}
    overrides = dict(_overrides(form, step, arrays))
    if overrides:
        fields["inputs"] = overrides
    return fields, arrays


def _overrides(
    form: Form, step: Step, arrays: Mapping[str, Array]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The shapes and dtypes of those arrays for which the fields imply different ones."""
    for tensor in step.inputs:
        if not tensor.connected:
            continue
        array, said = arrays[tensor.name], form.fields.get("inputs", {}).get(tensor.name)
        changes: dict[str, Any] = dict(said) if isinstance(said, dict) else {}
        if array.shape != tensor.shape:
            changes["shape"] = list(array.shape)
        if array.dtype != NUMPY[tensor.dtype]:
            changes["dtype"] = array.dtype.name
        if changes and changes != said:
            yield tensor.name, changes


def _step(form: Form, fields: Mapping[str, Any]) -> Step:
    """The tensors of the call. Raises :class:`CaptureError` for one that is too large."""
    try:
        return steps_of(checked_call({**form.fields, **fields}))[0]
    except ShapeError as error:
        raise CaptureError(f"The prompt is too long to be judged: {error}.") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise CaptureError(
            f"A node gets lengths without a meaning: {place}: {first['msg']}."
        ) from None


def _bytes(step: Step) -> int:
    return sum(
        int(np.prod(tensor.shape)) * NUMPY[tensor.dtype].itemsize
        for tensor in step.inputs
        if tensor.shape is not None
    )
