"""Notes on a graph's rotary tables and rotation, from their values in one dense prompt.

Dense attention uses the graph's own tables and rotation, so that results cannot show their faults.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from conformance.base.array_types import Array
from conformance.graph.nodes import AttentionNode, constants_of
from conformance.graph.walks import nodes_in
from conformance.harness.runner import RunnerFailed
from conformance.model.calls.feeds import CannotFeed
from conformance.model.calls.groups import Group, layers_of
from conformance.model.calls.program import DecoderProgram
from conformance.model.run.dense_prompts import DensePrompts, NotComputed
from conformance.rewriting.dense import CannotRewrite

_TABLES: Final = ("cos_cache", "sin_cache")
#: A column of sines with a larger one is of no frequency that rounding makes equal to the next.
_FAST: Final = 0.5
#: The largest difference of two cosines of the same angle.
_EVEN: Final = 0.02
#: The largest difference of results for the same token, as a share of the largest result.
_SAME: Final = 0.05
#: Equal tokens in the prompt: only their positions differ.
_EQUAL: Final = 48


def inspected(program: DecoderProgram, prompts: DensePrompts) -> list[str]:
    """Sentences on rotary tables and rotation that are surely wrong, each with its layers."""
    token = program.source.first, 0
    number = program.new or min(_EQUAL, program.most)
    values = {
        each.inputs[name]
        for group in program.groups
        for node in group.nodes[:1]
        for each, names in ((node, ("query", "key")), *((n, _TABLES) for n in group.nodes))
        for name in names
        if name in each.inputs
    }
    try:
        got = prompts.values((token,) * number, values)
    except (NotComputed, CannotRewrite, CannotFeed, RunnerFailed):
        return []  # the run itself says why
    known: dict[str, Array] = dict(got)
    rotations = [*_tables_in_graph(program)]
    wanted = {*values, *(name for pair in rotations for name in pair)}
    known |= constants_of(program.skeleton.model.graph, wanted)
    notes = []
    for pair in dict.fromkeys(rotations):
        if all(name in known and known[name].ndim == 2 for name in pair):
            tables = [known[name].astype(float) for name in pair]
            notes += [f"{pair[0]} and {pair[1]}: {text}." for text in _of_tables(*tables)]
    found: dict[str, list[Group]] = {}
    for group in program.groups:
        node = group.nodes[0]
        seen = {name: known[value] for name, value in node.inputs.items() if value in known}
        rotates = bool(group.form.fields.get("rotary"))
        tables = [seen.get(name, np.zeros(0)).astype(float) for name in _TABLES]
        for sentence in (
            *(_of_tables(*tables) if rotates and all(each.ndim == 2 for each in tables) else ()),
            *_of_rotation(program, group, node, seen),
        ):
            found.setdefault(sentence, []).append(group)
    notes += [f"{layers_of(groups).capitalize()}: {text}." for text, groups in found.items()]
    return notes


def _tables_in_graph(program: DecoderProgram) -> Iterator[tuple[str, str]]:
    """The tables of cosines and sines with which the graph itself rotates."""
    for node in nodes_in(program.skeleton.model.graph):
        if node.op_type == "RotaryEmbedding" and len(node.input) > 3:
            cos, sin = node.input[2:4] if node.domain else node.input[1:3]
            yield cos, sin


def _of_tables(cos: Array, sin: Array) -> Iterator[str]:
    """Whether the tables have a frequency in each column, and positions that are one apart."""
    if not cos.size or cos.shape != sin.shape:
        return
    size = max(float(np.abs(cos).max()), 1e-9)  # tables may be scaled
    cos, sin = cos / size, sin / size
    if _alike(cos[0], 0.0, 1e-3) and _alike(sin[0], sin[0, 0], 1e-3) and sin[0, 0]:
        yield "cos_cache has sines, and sin_cache cosines"
    elif _alike(cos[0], 0.0, 1e-3):
        yield "cos_cache begins with 0, which is the sine of position 0"
    squares = cos**2 + sin**2
    broken = np.flatnonzero(~np.isclose(squares, squares[0], rtol=1e-2).all(-1))
    steps = cos[1:] * cos[:-1] + sin[1:] * sin[:-1]
    uneven = np.flatnonzero(~np.isclose(steps, steps[:1], atol=_EVEN).all(-1))
    double = (cos[:, 1:] == cos[:, :-1]) & (sin[:, 1:] == sin[:, :-1])
    same = np.flatnonzero(double.all(0) & (np.abs(sin[:, 1:]).max(0) > _FAST))
    if broken.size:
        yield f"row {broken[0]} of the rotary tables has no cosines with their sines"
    elif uneven.size:
        at = uneven[0]
        yield f"rows {at} and {at + 1} of the rotary tables are not one position apart"
    if same.size:
        yield f"columns {same[0]} and {same[0] + 1} of the rotary tables are the same"


def _alike(one: Array, two: Array | float, atol: float) -> bool:
    return bool(np.allclose(one, np.asarray(two), atol=atol, equal_nan=True))


def _of_rotation(
    program: DecoderProgram, group: Group, node: AttentionNode, seen: Mapping[str, Array]
) -> Iterator[str]:
    """Whether queries and keys are rotated twice, never, or at wrong positions.

    It shows in how those of equal tokens differ: a rotation keeps the length of a vector, and the
    angle to the next one.
    """
    rotated: dict[str, bool] = {}
    by_node = bool(group.form.fields.get("rotary"))
    for name in ("key", "query"):
        rows = seen.get(name, np.zeros(0))[:1].astype(float)
        if rows.ndim != 3 or rows.shape[1] < 3 or not rows.shape[2]:
            continue
        heads = rows.reshape(rows.shape[1], -1, int(group.form.fields["head_size"]))
        lengths = np.linalg.norm(heads, axis=-1)
        cosines = (heads[1:] * heads[:-1]).sum(-1) / np.maximum(np.square(lengths[1:]), 1e-9)
        even = np.allclose(lengths, lengths[:1], rtol=1e-2)
        still = _alike(rows, rows[:, :1], _SAME * np.abs(rows).max())
        rotated[name] = even and not still
        uneven = np.flatnonzero(~np.isclose(cosines, cosines[:1], atol=_EVEN).all(-1))
        if rotated[name] and by_node:
            yield f"{name} is rotated before the node, which rotates it again (do_rotary 1)"
            return
        if rotated[name] and uneven.size:
            yield (
                f"{name} is rotated before the node, and from token {uneven[0]} to the next by"
                " another angle than from the first to the second"
            )
            return
        if not even:  # something else depends on the position, too
            return
    if len({*rotated.values()}) > 1:
        turned, other = sorted(rotated, key=lambda name: not rotated[name])
        yield f"{turned} is rotated before the node, and {other} is not"
    by_nodes = any(each.form.fields.get("rotary") for each in program.groups)
    never = bool(rotated) and not any(rotated.values()) and not by_nodes
    if never and program.interface.configuration.rotates:
        yield "config.json has a rotary base, and neither the node nor the graph rotates"
