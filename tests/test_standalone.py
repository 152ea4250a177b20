"""A result as a program of its own: its inputs are the suite's, and it says the suite's verdict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from conformance.case import Case
from conformance.corpus import find
from conformance.report import standalone
from conformance.results import CaseRecord, Recipe
from conformance.run import case_record
from conformance.script import script_of

CORPUS = find([]).named


def kinds(case: Case) -> set[tuple[str, ...]]:
    """What is particular about how the case's inputs are made."""
    call = case_record(case).call
    recipes = [(t.dtype, t.recipe) for t in call.inputs if t.recipe is not None]
    recipes += [(None, later.recipe) for step in call.later for later in step]

    def told(recipe: Recipe) -> str:
        return " ".join(sorted(name for name in recipe.model_dump(exclude_defaults=True)))

    return {(str(dtype), recipe.kind, told(recipe)) for dtype, recipe in recipes}


def sample() -> list[Case]:
    """Cases of every theme, and of every way to make an input that there is."""
    seen: set[Any] = set()
    chosen = []
    for case in CORPUS:
        new = {case.theme, *kinds(case)} - seen
        if new:
            seen |= new
            chosen.append(case)
    return chosen


def made(record: CaseRecord) -> dict[str, Any]:
    """What the blocks of a program make."""
    names: dict[str, Any] = {}
    exec("\n\n".join([standalone.IMPORTS, *standalone.making(record)]), names)
    return names


def differences(cases: Sequence[Case]) -> list[str]:
    """Inputs that the program makes otherwise than the suite, to the byte."""
    found = []
    for case in cases:
        script, names = script_of(case.call), made(case_record(case))
        assert len(names["calls"]) == len(script.steps)
        for index, (step, call) in enumerate(zip(script.steps, names["calls"], strict=True)):
            for name, wanted in step.inputs.items():
                got = call[name]
                same = got.shape == wanted.shape and got.itemsize == wanted.itemsize
                if not same or got.tobytes() != wanted.tobytes():
                    found.append(f"{case.id}: {name} of call {index}")
        graph, other = script.model.graph, names["model"].graph
        for part in ("input", "output"):
            if [str(x) for x in getattr(graph, part)] != [str(x) for x in getattr(other, part)]:
                found.append(f"{case.id}: {part}s as the graph declares them")
        node, twin = graph.node[0], other.node[0]
        if (list(node.input), list(node.output)) != (list(twin.input), list(twin.output)):
            found.append(f"{case.id}: names of the node")
        if sorted(map(str, node.attribute)) != sorted(map(str, twin.attribute)):
            found.append(f"{case.id}: attributes")
        if script.model.ir_version != names["model"].ir_version:
            found.append(f"{case.id}: version")
    return found


def test_a_program_makes_the_inputs_of_the_suite_and_its_model() -> None:
    chosen = sample()
    assert {case.theme for case in chosen} == {case.theme for case in CORPUS}
    assert differences(chosen) == []


@pytest.mark.slow
def test_a_program_makes_the_inputs_of_every_case() -> None:
    assert differences(CORPUS) == []


def test_float8_and_bfloat16_are_rounded_as_the_suite_rounds_them() -> None:
    import ml_dtypes

    names: dict[str, Any] = {}
    exec(standalone.IMPORTS, names)
    for helper in ("bfloat16", "float8"):
        exec(standalone.HELPERS[helper].strip(), names)
    codes = np.arange(256, dtype=np.uint8)
    known = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    finite = np.sort(known[np.isfinite(known)])
    ties = (finite[1:] + finite[:-1]) / 2
    near = np.concatenate([finite, ties, np.nextafter(ties, 1e9), np.nextafter(ties, -1e9)])
    some = np.random.RandomState(0).uniform(-600, 600, 5000)
    numbers = np.concatenate([near, some, [np.nan, np.inf, -np.inf, 464.0, 464.1, -0.0, 1e-9]])
    with np.errstate(all="ignore"):
        wanted = numbers.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
        half = numbers.astype(ml_dtypes.bfloat16).view(np.uint16)
    assert np.array_equal(names["float8"](numbers), wanted)
    assert np.array_equal(names["bfloat16"](numbers), half)
