"""What a call is: its features, words, shapes and numbers, and the expressions that select it.

Each is a row of described_calls.yaml.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from built_models import declared

from conformance.bundle.inputs import draw_inputs
from conformance.bundle.model import build_model
from conformance.case.selection import compile_expression
from conformance.case.steps import steps_of
from conformance.operator.call import Call, checked_call
from conformance.operator.features import FEATURES, features_of, words
from conformance.operator.tensors import Step

ROWS = yaml.safe_load(Path(__file__).with_name("described_calls.yaml").read_text("utf-8"))
PLAIN = {feature.name: feature.plain for feature in FEATURES}


class Described(NamedTuple):
    call: Call
    steps: tuple[Step, ...]


def described(fields: Mapping[str, Any]) -> Described:
    call = checked_call(fields)
    return Described(call, steps_of(call))


def features(call: Call, steps: Sequence[Step]) -> dict[str, str | None]:
    """Those that are not the features of a call by default."""
    found = features_of(call, tuple(steps)).items()
    return {name: value for name, value in found if value != PLAIN[name]}


def shapes(_: Call, steps: Sequence[Step]) -> dict[str, Any]:
    """Of the connected inputs, but for the lengths."""
    tensors = {t.name: t.shape for t in steps[0].inputs if t.connected and t.shape is not None}
    lengths = ("seqlens_k", "total_sequence_length")
    return {name: list(shape) for name, shape in tensors.items() if name not in lengths}


#: What a row can say of a call in whole, and in part.
WHOLE: dict[str, Callable[[Call, tuple[Step, ...]], Any]] = {
    "features": features,
    "words": lambda call, steps: words(features_of(call, steps)),
    "shapes": shapes,
    "outputs": lambda call, steps: list(build_model(call, steps[0]).graph.node[0].output),
}
PART: dict[str, Callable[[Call, tuple[Step, ...]], dict[str, Any]]] = {
    "dims": lambda call, _: declared(**call.as_written()),
    "numbers": lambda call, steps: {
        name: array.tolist() for name, array in draw_inputs(call, steps[0]).items()
    },
}


#: A call that no word of the rows is true of.
OTHER = described({"dtype": "bfloat16", "sequence_length": 2})


@pytest.mark.parametrize(
    "about",
    [about for about in ROWS if "effects" not in about],  # test_sensitivity.py has the others
    ids=lambda about: str(about["call"]),
)
def test_a_call_is_as_described(about: dict[str, Any]) -> None:
    """An expression of one word stands for the call itself, or for a part of its id."""
    both = described(about["call"])
    call, steps = both
    for name in WHOLE.keys() & about:
        assert WHOLE[name](call, steps) == about[name]
    for name in PART.keys() & about:
        found = PART[name](call, steps)
        assert {each: found[each] for each in about[name]} == about[name]
    if "steps" in about:
        for step, parts in zip(steps, about["steps"], strict=True):
            for name, wanted in parts.items():
                got = getattr(step, name) if hasattr(step, name) else step.input(name).shape
                assert got == (tuple(wanted) if isinstance(wanted, list) else wanted), name
    for text in about.get("selected by", ()):
        select = compile_expression(text)
        assert select((), both), text
        assert not compile_expression(f"not {text}")((), both), text
        if text.isidentifier():
            assert not select((), OTHER), text
            assert select(("a", f"entry[x={text}]"), OTHER), text
    for text in about.get("not selected by", ()):
        assert not compile_expression(text)((), both), text
