"""The answers of ``gqa check`` in words: whether the graph is right, and each target, by use.

``goldens/answers.txt`` has what is said of made-up results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import pytest
from attention_models import GEMMA, Layer, decoder, saved
from goldens import check_golden

from conformance.base.findings import SOFTWARE_ADAPTERS, FindingFacts, on_software_only
from conformance.model.answer.answer_table import table_of
from conformance.model.answer.answers import ModelAnswer, answer, answer_of_model
from conformance.model.answer.headline import blamed
from conformance.model.answer.similar_defect import Similar
from conformance.model.calls.groups import Group, whole_of
from conformance.model.calls.stages import Lengths, NodeCall
from conformance.model.calls.subject import Subject, subject_of
from conformance.model.calls.ways import WAYS
from conformance.model.run.blame import FaultOwner, ResultCause
from conformance.model.run.on_target import ModelRun, WayResult
from conformance.report.model_table import AnswerKind, ModelTable
from conformance.results.records import ResultRecord
from conformance.run.target import DescribedTarget

#: What a target does with a call: the fields of its result.
Behaviour = Callable[[Group, NodeCall], dict[str, object]]


def always(verdict: str, **fields: object) -> Behaviour:
    """All calls have this result."""
    return lambda group, stage: {"verdict": verdict, **fields}


right = always("pass")
wrong = always("wrong", unexpected=True, wrong_outputs=["output"])
refused = always("unsupported", outcome="rejected", stage="run", message="one token at a time")
skipped = always("skip", outcome="unavailable", reason="there is no GPU")


def where(
    holds: Callable[[Group, NodeCall], object], this: Behaviour, other: Behaviour = right
) -> Behaviour:
    """``this`` for the calls for which that holds."""
    return lambda group, stage: (this if holds(group, stage) else other)(group, stage)


in_batches_only = where(lambda _, stage: stage.use == "batches", wrong)
#: Wrong in batches, and one token at a time.
like_tract = where(lambda _, stage: stage.use == "chunked prompts", refused, in_batches_only)
some_untried = where(lambda _, stage: stage.phase == "decode", skipped)


def compiles(seconds: float) -> Behaviour:
    """Answers a prompt of 65 tokens too late."""
    late = always("timeout", outcome="timed_out", time_limit=seconds)
    return where(lambda _, stage: stage.label == "prompt_65", late)


#: Wrong in prompts of 65 tokens, by a defect that is known on software adapters from 32 on.
of_subgroups = where(
    lambda _, stage: stage.label == "prompt_65",
    always("wrong", unexpected=True, wrong_outputs=["output"], reason="subgroups"),
)
two_defects = where(lambda _, stage: stage.phase == "decode", wrong, of_subgroups)
_SUBGROUPS = "docs/findings/webgpu-small-subgroups.md"


def of_software(record: ResultRecord) -> FindingFacts | None:
    """The finding of a result of `of_subgroups`, on a software adapter."""
    return on_software_only(_SUBGROUPS if record.reason == "subgroups" else "", record.target)


#: Models, and what targets do with them.
TOLD: dict[str, tuple[str, dict[str, Behaviour]]] = {
    "each use has its own answer, one chat first": ("plain", {"tract@0.23.9": like_tract}),
    "the same in each use is one line": ("plain", {"cpu@1.32.0": right, "cuda@1.32.0": refused}),
    "releases that agree are one column": (
        "plain",
        {"cpu@1.32.0": right, "cpu@1.20.1": refused, "cpu@1.23.2": in_batches_only}
        | {"cpu@1.24.4": right, "wasm@1.30.0": right, "cpu@1.22.1": in_batches_only},
    ),
    "right since a release": ("plain", {"cpu@1.23.2": wrong, "cpu@1.24.4": right}),
    "wrong since a release": ("plain", {"cpu@1.23.2": right, "cpu@1.24.4": wrong}),
    "right in all releases": ("plain", {"cpu@1.23.2": right, "cpu@1.24.4": right}),
    "builds of one release": ("plain", {"cpu@1.32.0": right, "cpu@1.32.0#2": right}),
    "adapters": ("plain", {"webgpu@1.30.0+gpu": right, "webgpu@1.31.0+nvidia": right}),
    "a cause stands once": (
        "plain",
        {"cpu@1.20.1": refused, "cpu@1.23.2": refused, "tract@0.23.9": like_tract},
    ),
    "one of four layers is wrong": (
        "gemma",
        {"it@1": where(lambda group, _: group.layers == (2,), wrong)},
    ),
    "a software adapter is no GPU": (
        "plain",
        {"webgpu@1.30.0+lavapipe": right, "webgpu@1.30.0+swiftshader": wrong}
        | {"webgpu@1+nvidia": right},
    ),
    # … and one of another defect, which does not depend on the adapter, is red.
    "wrong on a software GPU only is not red": (
        "plain",
        {"webgpu@1.30.0+lavapipe": of_subgroups, "webgpu@1.30.0+nvidia": of_subgroups}
        | {"webgpu@1.29.0+swiftshader": two_defects},
    ),
    "a shader that is still compiled is not tried": (
        "plain",
        {"webgpu@1.30.0+gpu": compiles(430.0), "it@1": compiles(30.0)},
    ),
    "what is not tried is not right": ("plain", {"it@1": skipped, "its@1": some_untried}),
    "the worst comes first": (
        "plain",
        {"it@1": where(lambda _, stage: stage.phase == "decode", wrong, refused)},
    ),
    "calls that are left out qualify": ("wide", {"it@1": right}),
}


def way(name: str, kind: AnswerKind, where: str = "", **more: Any) -> WayResult:
    """What a target does in a way of calling; right unless it is told."""
    return WayResult(WAYS[name], kind, where, **more)


RIGHT = ModelRun(ways=(way("chat", "right"),))
ERROR = {"told": "the largest error is 2 of 3"}
ASKS = ("one chat", "left-padded batches")


def wrong_in(name: str, fault: FaultOwner = "", sentence: str = "", *others: WayResult) -> ModelRun:
    """A run that is wrong in one way of calling, and right in one chat unless that is it."""
    cause = ResultCause(fault, sentence)
    found = way(name, "wrong", "for prompts of 4 and 6 tokens", cause=cause, **ERROR)
    chat = () if name == "chat" else RIGHT.ways
    return ModelRun(ways=(*chat, *others, found))


#: What targets do with the model itself, and with the calls of its nodes.
SEEN: dict[str, dict[str, tuple[ModelRun, Behaviour]]] = {
    "a target that does not load the model says why once": {
        "it@1": (ModelRun(load="Unsupported IR version: 14"), right)
    },
    "calls alone do not make a model right": {
        "it@1": (ModelRun(unseen="nothing tells what its input is"), right)
    },
    "a wrong graph is wrong on each target": {
        name: (wrong_in("chat", "graph", "seqlens_k is 5, not 6"), right) for name in ("a@1", "b@1")
    },
    "a graph that one target runs right is right": {
        "a@1": (RIGHT, right),
        "b@1": (wrong_in("chat", "graph", "seqlens_k is 5, not 6"), right),
    },
    "a wrong target is told by its nodes in the same use": {
        "it@1": (wrong_in("right"), in_batches_only)
    },
    "nothing tells whose fault it is": {"it@1": (wrong_in("chat"), right)},
    "a way that nothing asks for is wrong if you do that": {
        "it@1": (wrong_in("back", "graph", "its cache is a window"), right),
        "its@1": (wrong_in("beams", "target"), right),
    },
    "a way that the files ask for is required": {
        "it@1": (
            wrong_in("left", "graph", "padding is before tokens", way("right", "right")),
            right,
        )
    },
    "ways that were not tried are named": {
        "it@1": (ModelRun(ways=(*RIGHT.ways, way("chunks", "untried", "it takes no cache"))), right)
    },
}


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Subject]:
    """Two layers that make the same call, the four groups of Gemma 4, and much to compute."""
    much = Layer(heads=32, kv_heads=32, size=256, attributes={"local_window_size": 4096})
    layers = {"plain": (Layer(), Layer()), "gemma": GEMMA, "wide": (much,)}
    folder = tmp_path_factory.mktemp("models")
    return {
        name: subject_of(saved(decoder(*each), folder, f"{name}.onnx"), Lengths())
        for name, each in layers.items()
    }


@dataclass(frozen=True)
class Started:
    """A target that results call so, as far as the table needs it."""

    name: str

    @property
    def base(self) -> str:
        return self.name.rpartition("@")[0]

    @property
    def version(self) -> str:
        return self.name.rpartition("@")[2].partition("+")[0]

    @property
    def adapter(self) -> str | None:
        return self.name.partition("+")[2] or None

    @property
    def on_software(self) -> bool:
        return self.adapter in SOFTWARE_ADAPTERS


def answers_of(subject: Subject, target: str, behaves: Behaviour) -> list[ModelAnswer]:
    """The answers of a target that ``behaves`` so."""
    usual = {"unexpected": False, "outcome": "ran", "reason": "because.", "reproduce": ""}

    def record(group: Group, stage: NodeCall) -> ResultRecord:
        usual["case"] = f"m/{group.name}[stage={stage.label}]"
        return ResultRecord.model_validate(
            {"kind": "result", "target": target, **usual, **behaves(group, stage)}
        )

    return [
        answer(
            group,
            target,
            [(each, record(group, each)) for each in subject.stages[group.name]],
            of_software=of_software,
        )
        for group in subject.groups
    ]


@pytest.fixture
def table() -> Callable[..., ModelTable]:
    """Makes a table; WebGPU has a known defect."""
    similar = Similar("a/b", "It is.", "docs/findings/x.md")

    def made(
        subject: Subject,
        targets: dict[str, Behaviour],
        seen: Mapping[str, ModelRun] | None = None,
        required: Sequence[str] = ("one chat",),
    ) -> ModelTable:
        whole = whole_of(subject.groups)
        answers = {}
        for name, behaves in targets.items():
            run = (seen or {}).get(name, RIGHT)
            unseen = run.unseen or ("the model does not load" if run.load else "")
            groups = [replace(one, unseen=unseen) for one in answers_of(subject, name, behaves)]
            answers[name] = [answer_of_model(whole, name, run), *groups]
        return table_of(
            subject,
            blamed(answers),
            [cast(DescribedTarget, Started(name)) for name in targets],
            lambda record: similar if record.target.startswith("webgpu") else None,
            required,
        )

    return made


def told(name: str, made: ModelTable) -> Iterator[str]:
    """A table as plain text."""
    yield from (f"=== {name}", *(f"{drawn}: {text}" for drawn, text in made.sentences), made.ways)
    yield f"  {' | '.join(made.targets)}"
    for row in made.rows:
        for line in row.lines:
            yield f"  {line.use}: " + " | ".join(
                f"{cell.verdict}, {cell.sentence} {cell.case or ''}".rstrip() for cell in line.cells
            )
    yield from (f"  {cause.where}: {cause.what}: {cause.said}" for cause in made.causes)
    yield ""


def test_what_is_said(subjects: dict[str, Subject], table: Callable[..., ModelTable]) -> None:
    made = [line for name, (which, targets) in TOLD.items()
            for line in told(name, table(subjects[which], targets))]  # fmt: skip
    for name, seen in SEEN.items():
        runs = {target: run for target, (run, _) in seen.items()}
        nodes = {target: behaves for target, (_, behaves) in seen.items()}
        asks = ASKS if "ask for is required" in name else ASKS[:1]
        made += told(name, table(subjects["plain"], nodes, runs, asks))
    check_golden("answers.txt", "\n".join(made))
