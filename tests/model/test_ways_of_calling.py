"""The calls of a program, the ways that a model allows, and how results are judged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from as_user import has_onnxruntime
from check_graphs import KINDS, graph_of
from onnx import helper
from tables import tables

from conformance.harness.session import Session
from conformance.model.calls.program import DecoderProgram
from conformance.model.calls.sequences import CallSequence, Conversation, TokenSource
from conformance.model.calls.stages import Lengths
from conformance.model.calls.subject import subject_of
from conformance.model.calls.ways import WAYS
from conformance.model.config.configuration import Configuration, configuration_beside
from conformance.model.run import model_calls
from conformance.model.run.comparison import Compared, compared
from conformance.model.run.model_calls import Stopped, run_sequence
from conformance.model.run.on_target import program_of
from conformance.targets.catalogue import OptionValues
from conformance.targets.registry import targets_for

TABLES = tables(__file__)
Program = Callable[..., DecoderProgram]


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """A small decoder as a program calls it, with other sizes of dims or another attribute."""

    def made(kind: str, dims: dict[str, int] | None = None, **attributes: int) -> DecoderProgram:
        model = graph_of(next(each for each in KINDS if each.name == kind))
        for value in (*model.graph.input, *model.graph.output):
            for dim in value.type.tensor_type.shape.dim:
                if dim.dim_param in (dims or {}):
                    dim.dim_value = (dims or {})[dim.dim_param]
        for node in model.graph.node:
            if node.domain:
                node.attribute.extend(helper.make_attribute(*each) for each in attributes.items())
        file = tmp_path / "model.onnx"
        onnx.save(model, file)
        subject = subject_of(file, Lengths(tokens=(3,)))
        found = program_of(subject.model, subject.groups, Configuration()).program
        assert found is not None
        return found

    return made


# Tokens


def shown(conversation: Conversation) -> list[str]:
    """Each call: whether its columns have tokens, and the positions of its new ones."""
    rows = []
    for call in conversation.done().calls:
        columns = " ".join("".join(".x"[int(has)] for has in row) for row in call.columns)
        positions = " ".join(",".join(map(str, row)) for row in call.positions)
        rows.append(f"{columns} at {positions}: {call.words}")
    return rows


@pytest.mark.parametrize("name", TABLES["conversations"])
def test_a_conversation(name: str) -> None:
    wanted = TABLES["conversations"][name]
    left = bool(wanted.get("left"))
    conversation = Conversation(TokenSource(), wanted.get("batch", 1), left=left)
    for call in wanted["calls"]:
        conversation.call(*call["new"], **{k: v for k, v in call.items() if k != "new"})
    assert shown(conversation) == wanted["shown"]


def test_the_tokens_of_a_conversation() -> None:
    source = TokenSource(padding=7, prompt=(40, 41))
    conversation = Conversation(source, 2)
    conversation.call(3, 2, of_type=(1,))
    conversation.call(1, 1, order=(1, 1))
    first, second = conversation.calls
    assert first.ids[0][:2].tolist() == [40, 41]
    assert (first.ids[1][2], first.types.tolist()) == (7, [[0, 1, 0], [0, 1, 0]])
    assert 7 not in [each for history in second.histories for each, _ in history]
    assert second.histories[0][:2] == second.histories[1][:2] == first.histories[1]
    # After tokens were taken back, others follow.
    plain, back = Conversation(source), Conversation(source)
    for each, taken in ((plain, 0), (back, 2)):
        each.call(6)
        each.call(2, back=taken)
    assert back.calls[1].kept == 4
    assert back.calls[1].histories[0][:4] == plain.calls[0].histories[0][:4]
    assert back.calls[1].histories[0][4:] != plain.calls[0].histories[0][4:]
    run = back.done()
    assert run.longest[run.calls[0].histories[0]] == run.calls[0].histories[0]


@has_onnxruntime
def test_calls_with_large_caches_run_in_several_runs(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    static, conversation = program("static"), Conversation(TokenSource())
    for number in (5, 1, 1, 1, 2):
        conversation.call(number)
    run = conversation.done()
    (cpu,) = targets_for(("cpu",), OptionValues())
    with Session(cpu.command) as session:
        whole = run_sequence(session, static, run)
        assert not isinstance(whole, Stopped)
        size = sum(array.nbytes for array in whole[0].values())
        monkeypatch.setattr(model_calls, "_MOST_BYTES", 3 * size)
        parts = run_sequence(session, static, run)
    assert not isinstance(parts, Stopped)
    for one, other in zip(whole, parts, strict=True):
        assert all(np.array_equal(one[name], other[name]) for name in one)


# Ways


@pytest.mark.parametrize(("kind", "dims", "lacks"), TABLES["lacks"])
def test_ways_that_a_model_does_not_allow(
    program: Program, kind: str, dims: dict[str, int], lacks: dict[str, str]
) -> None:
    one = program(kind, dims)
    assert {name: why for name in lacks if (why := WAYS[name].lacks(one))} == {
        name: why for name, why in lacks.items() if why
    }


@pytest.mark.parametrize(("file", "text", "asked"), TABLES["asked"])
def test_ways_that_files_ask_for(tmp_path: Path, file: str, text: str, asked: list[str]) -> None:
    (tmp_path / file).write_text(text)
    beside = configuration_beside(tmp_path / "model.onnx")
    assert [name for name, way in WAYS.items() if way.asked(beside)] == ["chat", *asked]


# Results


class MadeUpPrompts:
    """The results of prompts: of each token its number, times a factor of the prompt's length.

    The first ``alone`` tokens do not have the factor.
    """

    def __init__(self, factor: Callable[[int], float] = lambda length: 1.0, alone: int = 1) -> None:
        self.factor, self.alone = factor, alone

    def of(self, history: Sequence[tuple[int, int]]) -> dict[str, np.ndarray]:
        factors = [1.0] * self.alone + [self.factor(len(history))] * len(history)
        numbers = [each * factor for (each, _), factor in zip(history, factors, strict=False)]
        return {"out.0": np.repeat([numbers], 64, 0).T[None]}

    def prepare(self, histories: object) -> None: ...

    def rounding(self, history: object, name: str) -> float:
        return 0.0


def judged(
    one: DecoderProgram, prompts: Any, gives: Callable[[CallSequence, int], np.ndarray]
) -> Compared:
    """What is said of a prompt and two tokens."""
    conversation = Conversation(one.source)
    for new in (6, 1, 1):
        conversation.call(new)
    run = conversation.done()
    return compared(one, run, [{"out.0": gives(run, at)} for at in range(3)], prompts)


def test_results_are_compared(program: Program) -> None:
    one, plain = program("projected"), MadeUpPrompts()

    def right(run: CallSequence, at: int, prompts: MadeUpPrompts = plain) -> np.ndarray:
        call = run.calls[at]
        return prompts.of(call.histories[0])["out.0"][:, call.past :]

    assert judged(one, plain, right) == Compared(3)
    wrong = judged(one, plain, lambda run, at: right(run, at) + (at == 1))
    assert wrong.difference is not None
    assert (wrong.calls, wrong.difference.number, wrong.difference.error) == (1, 1, 1.0)
    nothing = judged(one, plain, lambda run, at: right(run, at) * (np.nan if at else 1))
    assert nothing.difference is not None
    assert nothing.difference.error == np.inf
    # Tables may change with the length of a prompt, but no token may attend to later ones.
    longer = MadeUpPrompts(lambda length: 1.0 + length)
    assert judged(one, longer, lambda run, at: right(run, at, longer)).difference is None
    before = judged(one, longer, lambda run, at: right(run, at, longer) * (0.5 if at else 1))
    assert (before.difference, "number of all tokens" in before.why) == (None, True)
    sees_later = MadeUpPrompts(lambda length: 1.0 + length, alone=0)
    found = judged(one, sees_later, lambda run, at: right(run, at, sees_later))
    assert found.difference is not None
    assert found.difference.number == 0
