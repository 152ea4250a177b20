"""Loops that take tokens back: their lengths, what is kept of a cache, and what is expected."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from shipped import shipped_cases

from conformance.bundle.inputs import draw_inputs
from conformance.bundle.prepare import prepare
from conformance.case.case import Case
from conformance.case.steps import steps_of
from conformance.diagnosis.simpler import needs, simplifications
from conformance.harness.protocol import DescribedAnswer
from conformance.operator.call import Call
from conformance.operator.tensors import Step, attributes_of
from conformance.oracle import reference
from conformance.results.descriptions import case_record
from conformance.run.target import DescribedTarget
from conformance.targets.registry import target_for

CASES = {case.id: case for case in shipped_cases() if case.theme == "rewind"}

#: Fields of a loop, and of each call the rows of its past, and how many are kept of the present.
LOOPS: dict[str, tuple[dict[str, Any], list[tuple[int, int | None]]]] = {
    "nothing is taken back": (
        {"loop": (5, 2, 1), "total_sequence_lengths": ((5,), (7,), (8,))},
        [(0, None), (5, None), (7, None)],
    ),
    "two tokens, then all": (
        {"loop": (5, 2, 3), "total_sequence_lengths": ((5,), (5,), (3,))},
        [(0, None), (3, 3), (0, 0)],
    ),
    "the rows of the longest sequence stay": (
        {"batch_size": 2, "loop": (5, 1, 1), "total_sequence_lengths": ((5, 5), (6, 3), (6, 4))},
        [(0, None), (5, None), (5, 5)],
    ),
    "a static cache stays whole": (
        {"loop": (5, 1), "total_sequence_lengths": ((5,), (3,)), "max_sequence_length": 8},
        [(8, None), (8, None)],
    ),
    "a borrowed cache": (
        {
            "loop": (1, 1),
            "past_sequence_length": 6,
            "total_sequence_lengths": ((6,), (4,)),
            "key_value": "zero_length",
        },
        [(6, None), (4, 4)],
    ),
    "padding of a chunk goes, too": (
        {
            "loop": (4, 4),
            "query_seqlens": ((4,), (1,)),
            "past_sequence_length": 2,
            "total_sequence_lengths": ((6,), (6,)),
        },
        [(2, None), (5, 5)],
    ),
}


@pytest.mark.parametrize(("fields", "wanted"), LOOPS.values(), ids=LOOPS)
def test_a_growing_cache_keeps_the_tokens_that_are_left(
    fields: dict[str, Any], wanted: list[tuple[int, int | None]]
) -> None:
    call = Call(**fields)
    steps = steps_of(call)
    found = [(step.input("past_key").shape or ())[2] for step in steps]
    assert [*zip(found, (step.keep for step in steps), strict=True)] == wanted
    prepared = prepare(call)
    assert [step.keep for step in prepared.steps] == [keep for _, keep in wanted]
    assert prepared.unjudged is None
    totals = [step.total_lengths for step in steps]
    assert totals == [*fields["total_sequence_lengths"]]


def test_lengths_of_each_call_can_be_those_of_a_usual_loop() -> None:
    fields = {"batch_size": 2, "loop": (5, 1, 2), "rotary": "half_split"}
    usual = Call(**fields, total_sequence_lengths=(5, 3))
    listed = Call(**fields, total_sequence_lengths=((5, 3), (6, 4), (8, 6)))
    assert steps_of(usual) == steps_of(listed)


def test_a_record_says_what_is_kept() -> None:
    records = [case_record(case) for case in CASES.values()]
    kept = {record.id: record.call.keep for record in records if record.call.keep}
    assert kept["rewind/rejected_drafts[buffer=growing]"] == (None, 8, 9)
    assert not any("static" in id or "shared" in id or "window_cache" in id for id in kept)


def test_a_target_that_cannot_cut_or_bind_a_present_skips_only_cases_that_need_it() -> None:
    said = {}
    cases = {name: CASES[f"rewind/ragged_both[buffer={name}]"] for name in ("growing", "shared")}
    cases["bound"] = next(case for case in shipped_cases() if case.name == "present_bound")
    for feature in ("shared_buffer", "keep"):
        answer = DescribedAnswer(
            **{"id": 1, "outcome": "described", "runtime": "mine", "version": "1"},
            **{"execution_provider": None, "device": "CPU", "features": (feature,)},
            dtypes=("float32", "float16", "int32", "int64"),
        )
        target = DescribedTarget(target_for("exec:./mine"), answer, None, None)
        for buffer, case in cases.items():
            said[feature, buffer] = target.cannot_take(case)
    assert said == {
        ("shared_buffer", "growing"): "mine@1 cannot cut a growing cache",
        ("shared_buffer", "shared"): None,
        ("shared_buffer", "bound"): None,
        ("keep", "growing"): None,
        ("keep", "shared"): "mine@1 cannot make past and present share a buffer",
        ("keep", "bound"): "mine@1 cannot bind an output to memory of the program",
    }


def test_what_is_simpler_than_a_loop_that_takes_tokens_back() -> None:
    """One of the two sequences, or fewer calls, with the lengths that belong to them."""
    case = CASES["rewind/ragged_both[buffer=growing]"]
    simpler = simplifications(case)
    alone = {"batch_size": 1, "total_sequence_lengths": ((3,), (4,), (5,), (3,), (4,))}
    assert alone in simpler["batch"]
    shorter = {
        "loop": (5, 1),
        "query_seqlens": None,
        "total_sequence_lengths": ((5, 3), (6, 4)),
    }
    assert shorter in simpler["loop"]
    assert simpler["totals"] == []
    assert needs(case, ["lengths"]) == {"lengths": "tokens that are taken back"}


# What is expected

Tokens = dict[str, np.ndarray]


def histories(case: Case, *, taken_back: bool) -> Iterator[tuple[Step, int, int, Tokens]]:
    """The query, key and value of the tokens of each sequence after each call, without a past.

    With the call, the sequence and its number of new tokens. ``taken_back``: without the tokens
    that are taken back; else all tokens stay.
    """
    sequences: list[Tokens] = [{} for _ in range(case.call.batch_size)]
    for step in case.steps:
        drawn = draw_inputs(case.call, step)
        for b, tokens in enumerate(sequences):
            count = (step.query_lengths or (step.sequence_length,) * len(sequences))[b]
            count = min(count, step.total_lengths[b])
            for name in ("query", "key", "value"):
                new = drawn[name][b, :count]
                before = tokens.get(name, new[:0])
                kept = step.total_lengths[b] - count if taken_back else len(before)
                tokens[name] = np.concatenate([before[:kept], new])
            yield step, b, count, dict(tokens)


def end_of_a_prompt(case: Case, tokens: Tokens, count: int) -> np.ndarray:
    """The last ``count`` rows of the output of a prompt without padding and without a cache."""
    number = len(tokens["query"])
    inputs = {name: array[None] for name, array in tokens.items()}
    inputs["seqlens_k"] = np.array([number - 1], np.int32)
    inputs["total_sequence_length"] = np.array(number, np.int32)
    for name in ("cos_cache", "sin_cache") if case.call.rotary != "none" else ():
        table = draw_inputs(case.call, case.steps[0])[name]
        inputs[name] = np.resize(table, (max(len(table), number), table.shape[1]))
    attributes = attributes_of(case.call)
    for name in ("sliding_window_cache", "qk_output"):
        attributes.pop(name, None)
    output: np.ndarray = reference(inputs, attributes, ("output",))["output"].value[0]
    return output[number - count :]


HISTORIES = [
    case
    for case in CASES.values()
    if not case.call.past_sequence_length
    and case.call.key_value == "new"
    and not case.call.position_ids
    and case.call.attention_bias == "none"
]


@pytest.mark.parametrize("case", HISTORIES, ids=lambda case: str(case.label))
def test_a_call_is_the_end_of_a_prompt_of_the_tokens_that_count(case: Case) -> None:
    """And not of one with all tokens."""
    expected = prepare(case.call).expected
    tolerance = 1e-5 if case.call.dtype == "float32" else 4e-3
    apart = {}
    for taken_back in (True, False):
        apart[taken_back] = max(
            float(np.abs(got - end_of_a_prompt(case, tokens, count)).max(initial=0.0))
            for step, b, count, tokens in histories(case, taken_back=taken_back)
            for got in [expected[step.index]["output"].value[b, :count]]
        )
    assert apart[True] < tolerance < 0.1 * apart[False]
