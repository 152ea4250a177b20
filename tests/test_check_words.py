"""The answers of ``gqa check`` in the words of use: by use, by releases, at any width."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from attention_models import GEMMA, Layer, decoder, saved
from rich.console import Console

from conformance.cli.check_terminal import CheckTerminal
from conformance.judge.expectations import load_pinned
from conformance.model.answers import Answer, answer
from conformance.model.groups import Group
from conformance.model.known import KnownTarget, Similar
from conformance.model.seen import Seen, with_seen
from conformance.model.stages import Lengths, Stage
from conformance.model.subject import Subject, subject_of
from conformance.model.table import table_of
from conformance.report.model_table import ModelTable
from conformance.results.records import ResultRecord

#: What a target does with a call: the fields of its result.
Behaviour = Callable[[Group, Stage], dict[str, object]]

RIGHT: dict[str, object] = {"verdict": "pass"}
WRONG: dict[str, object] = {"verdict": "wrong", "unexpected": True, "wrong_outputs": ["output"]}
REFUSED: dict[str, object] = {
    "verdict": "unsupported",
    "outcome": "rejected",
    "message": "one token at a time",
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    """A model with two layers that make the same call."""
    file = saved(decoder(Layer(), Layer()), tmp_path_factory.mktemp("plain"))
    return subject_of(file, Lengths())


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    """A model with the four groups of Gemma 4."""
    return subject_of(saved(decoder(*GEMMA), tmp_path_factory.mktemp("gemma")), Lengths())


def known(name: str, file: Path | None = None) -> KnownTarget:
    """The target that results call so."""
    base, _, version = name.rpartition("@")
    version, _, adapter = version.partition("+")
    return KnownTarget(name, version, adapter or None, load_pinned([file] if file else []), base)


def answers_of(subject: Subject, target: str, behaves: Behaviour) -> list[Answer]:
    """The answers of a target that ``behaves`` so."""
    usual = {"unexpected": False, "outcome": "ran", "reason": "because.", "reproduce": ""}

    def record(group: Group, stage: Stage) -> ResultRecord:
        usual["case"] = f"m/{group.name}[stage={stage.label}]"
        return ResultRecord.model_validate({"target": target, **usual, **behaves(group, stage)})

    return [
        answer(group, target, [(each, record(group, each)) for each in subject.stages[group.name]])
        for group in subject.groups
    ]


def table(
    subject: Subject,
    targets: dict[str, Behaviour],
    similar: Callable[[ResultRecord], Similar | None] = lambda record: None,
    file: Path | None = None,
) -> ModelTable:
    answers = {name: answers_of(subject, name, behaves) for name, behaves in targets.items()}
    return table_of(subject, answers, [known(name, file) for name in targets], similar)


def sentences(made: ModelTable) -> list[str]:
    return [sentence for _, sentence in made.sentences]


def always(fields: dict[str, object]) -> Behaviour:
    """All calls have this result."""
    return lambda group, stage: fields


def in_use(use: str, fields: dict[str, object], other: Behaviour) -> Behaviour:
    """The calls of one use have this result."""
    return lambda group, stage: fields if stage.use == use else other(group, stage)


right, wrong, refused = always(RIGHT), always(WRONG), always(REFUSED)
in_batches_only = in_use("batches", WRONG, right)
#: Wrong in batches, and one token at a time.
like_tract = in_use("chunked prompts", REFUSED, in_batches_only)


# Uses
# Uses


def test_each_use_has_its_own_answer_and_one_chat_comes_first(plain: Subject) -> None:
    made = table(plain, {"tract@0.23.9": like_tract})
    assert sentences(made) == [
        "tract@0.23.9: in one chat right in every layer; with chunked prompts refused in layers"
        " 0–1; in batches silently wrong in layers 0–1."
    ]
    (row,) = made.rows
    assert [(line.use, line.cells[0].sentence) for line in row.lines] == [
        ("one chat", "right (9 calls)"),
        ("chunked prompts", "refused"),
        ("batches", "silently wrong"),
    ]
    assert row.lines[2].cells[0].case == "m/global[stage=ragged_prompt_9_5]"


def test_a_row_that_does_the_same_in_each_use_is_one_line(plain: Subject) -> None:
    made = table(plain, {"cpu@1.32.0": right, "cuda@1.32.0": refused})
    (row,) = made.rows
    assert [(line.use, line.cells[0].sentence) for line in row.lines] == [("", "right (14 calls)")]
    assert row.lines[0].cells[1].sentence == "refused"
    assert sentences(made) == [
        "cpu@1.32.0 runs the attention of every layer right.",
        "cuda@1.32.0: refused in layers 0–1.",
    ]


# Releases


def test_releases_that_agree_are_one_column_and_told_once(plain: Subject) -> None:
    targets = {"cpu@1.32.0": right, "cpu@1.20.1": refused, "cpu@1.23.2": in_batches_only}
    targets |= {"cpu@1.24.4": right, "wasm@1.30.0": right, "cpu@1.22.1": in_batches_only}
    made = table(plain, targets)
    assert made.targets == ("cpu@1.20.1", "cpu 1.22.1–1.23.2", "cpu 1.24.4–1.32.0", "wasm@1.30.0")
    assert sentences(made) == [
        "cpu: in one chat and with chunked prompts right in every layer since 1.22.1 (1.20.1:"
        " refused in layers 0–1); in batches right in every layer since 1.24.4 (1.22.1–1.23.2:"
        " silently wrong in layers 0–1; 1.20.1: refused in layers 0–1).",
        "wasm@1.30.0 runs the attention of every layer right.",
    ]


def test_right_since_a_release(plain: Subject) -> None:
    def said(*behaviours: Behaviour) -> list[str]:
        releases = ("cpu@1.23.2", "cpu@1.24.4", "cpu@1.32.0")
        return sentences(table(plain, dict(zip(releases, behaviours, strict=False))))

    assert said(wrong, right, right) == [
        "cpu runs the attention of every layer right since 1.24.4"
        " (1.23.2: silently wrong in layers 0–1)."
    ]
    assert said(right, wrong) == [
        "cpu: since 1.24.4 silently wrong in layers 0–1 (1.23.2: right in every layer)."
    ]
    assert said(right, right) == ["cpu 1.23.2–1.24.4 runs the attention of every layer right."]


def test_adapters_and_builds_of_one_release_stay_apart(plain: Subject) -> None:
    made = table(plain, {"cpu@1.32.0": right, "cpu@1.32.0#2": right})
    assert made.targets == ("cpu@1.32.0", "cpu@1.32.0#2")
    made = table(plain, {"webgpu@1.30.0+lavapipe": right, "webgpu@1.31.0+nvidia": right})
    assert len(made.targets) == 2


def test_a_cause_stands_once(plain: Subject) -> None:
    made = table(plain, {"cpu@1.20.1": refused, "cpu@1.23.2": refused, "tract@0.23.9": like_tract})
    assert [(cause.where, cause.what) for cause in made.causes] == [
        ("cpu 1.20.1–1.23.2 and tract@0.23.9", "refused in layers 0–1 (14 calls)"),
        ("tract@0.23.9", "silently wrong in layers 0–1 (2 calls)"),
    ]


# Parts of a model as one graph


def test_single_layers_lead_and_a_graph_of_two_refines(gemma: Subject) -> None:
    made = table(
        gemma,
        {
            "a@1": lambda group, stage: RIGHT if group.graph is None else WRONG,
            "b@1": lambda group, stage: WRONG if 2 in group.layers else RIGHT,
            "c@1": lambda group, stage: WRONG if group.layers == (2,) else RIGHT,
        },
    )
    assert sentences(made) == [
        "a@1: right in each layer alone, silently wrong in layers 0–3 as one graph.",
        "b@1: silently wrong in layer 2.",
        "c@1: silently wrong in layer 2.",
    ]


# Software adapters, and shaders that are still compiled


def test_a_software_adapter_is_no_gpu(plain: Subject, tmp_path: Path) -> None:
    file = tmp_path / "webgpu.yaml"
    file.write_text(
        "target: webgpu\nexpectations:\n  - cases: '*'\n    versions: '>=1'\n    adapters:"
        " [lavapipe]\n    verdict: wrong\n    link: docs/findings/x.md\n    why: It is.\n"
    )

    names = ("webgpu@1.30.0+lavapipe", "webgpu@1.30.0+swiftshader", "webgpu@1+nvidia")
    targets = dict(zip(names, (right, wrong, right), strict=True))
    similar = Similar("a/b", "It is.", "docs/findings/x.md")
    made = table(plain, targets, lambda record: similar, file)
    assert sentences(made) == [
        "webgpu@1.30.0+lavapipe (software adapter; a GPU may differ) runs the attention of every"
        " layer right.",
        "webgpu@1.30.0+swiftshader (software adapter; a GPU may differ, docs/findings/x.md):"
        " silently wrong in layers 0–1.",
        "webgpu@1+nvidia runs the attention of every layer right.",
    ]
    assert [cell.sentence for cell in made.rows[0].lines[0].cells] == [
        "right (14 calls); software adapter, a GPU may differ",
        "silently wrong; software adapter, a GPU may differ",
        "right (14 calls)",
    ]


def test_a_shader_that_is_still_compiled_is_not_tried(plain: Subject) -> None:
    def compiles(group: Group, stage: Stage) -> dict[str, object]:
        if stage.label != "prompt_65":
            return RIGHT
        return {"verdict": "timeout", "outcome": "timed_out", "time_limit": 430.0}

    made = table(plain, {"webgpu@1.30.0+gpu": compiles})
    assert sentences(made) == [
        "webgpu@1.30.0+gpu: in one chat right in every layer, as far as it was tried: 1 call not"
        " tried (its shader was still being compiled after 430 s); with chunked prompts and in"
        " batches right in every layer."
    ]
    assert made.rows[0].lines[0].cells[0].sentence == (
        "right (8 calls); not tried for prompts from 65 tokens on"
    )
    assert not made.causes
    hangs = table(plain, {"it@1": lambda *_: {**compiles(*_), "time_limit": 30.0}})
    assert "does not answer" in sentences(hangs)[0]


# What the model itself does


def test_a_target_that_does_not_load_the_model_says_why_once(plain: Subject) -> None:
    answers = with_seen(answers_of(plain, "it@1", right), Seen(load="Unsupported IR version: 14"))
    made = table_of(plain, {"it@1": answers}, [known("it@1")])
    assert sentences(made) == ["it@1: refused to load the model."]
    (cell,) = made.rows[0].lines[0].cells
    assert (cell.verdict, cell.sentence) == ("unsupported", "refused to load the model")
    (cause,) = made.causes
    assert (cause.what, cause.said) == (
        "refused to load the model in layers 0–1",
        "Unsupported IR version: 14",
    )
    assert answers[0].fails
    assert not answers[0].pinned


def test_calls_alone_do_not_make_a_model_right(plain: Subject) -> None:
    seen = Seen(unseen="nothing tells what its input is")
    answers = with_seen(answers_of(plain, "it@1", right), seen)
    made = table_of(plain, {"it@1": answers}, [known("it@1")])
    assert sentences(made) == [
        "it@1: the model itself was not judged (nothing tells what its input is); calls of its"
        " nodes alone are right in every layer."
    ]
    (cell,) = made.rows[0].lines[0].cells
    assert cell.verdict == "skip"
    assert cell.sentence == "only its calls are right (14 calls); the model itself was not judged"


def test_right_is_qualified_by_the_calls_that_were_left_out(tmp_path: Path) -> None:
    layer = Layer(heads=32, kv_heads=32, size=256, attributes={"local_window_size": 4096})
    subject = subject_of(saved(decoder(layer), tmp_path), Lengths())
    made = table(subject, {"it@1": right})
    assert sentences(made) == [
        "it@1 runs the attention of every layer right, as far as it was tried."
    ]
    (row,) = made.rows
    assert row.lines[0].cells[0].sentence == (
        "right (15 calls; 1 long call not tried without --lengths 4096; beyond its window of 4096"
        " only with 1 of 32 heads and a window of 128 in place of 4096)"
    )


# Widths


def printed(made: ModelTable, subject: Subject, width: int, *, terminal: bool) -> str:
    """What a console of this width shows; a pipe has no width of its own."""
    shows = CheckTerminal(subject, [], [])
    if terminal:
        shows.out = Console(width=width, force_terminal=True, color_system=None)
    with shows.out.capture() as kept:
        shows._print(made)
    return kept.get()


@pytest.mark.parametrize("number", [1, 3, 5])
@pytest.mark.parametrize(
    ("width", "terminal"),
    [*((width, True) for width in (60, 80, 110, *range(146, 152), 200)), (0, False)],
)
def test_no_column_vanishes(gemma: Subject, width: int, terminal: bool, number: int) -> None:
    behave: Sequence[Behaviour] = (right, like_tract, in_batches_only, refused, wrong)
    names = ("cpu@1.32.0", "tract-wheel@0.23.9", "wasm@1.30.0", "cuda@1.32.0", "it@1.0")
    targets = dict(zip(names[:number], behave, strict=False))
    made = table(gemma, targets)
    text = printed(made, gemma, width, terminal=terminal)
    folded = "".join(text.split())
    for name in targets:
        assert name in folded
    cells = [cell for row in made.rows for line in row.lines for cell in line.cells]
    assert sum(text.count(sign) for sign in "✓○✗") == len(cells)
    shown = Counter(text.split())
    wanted = Counter(word for cell in cells for word in cell.sentence.split())
    assert all(shown[word] >= number for word, number in wanted.items())
    if number == 5 and width in (60, 80, 110):
        assert "\ntract-wheel@0.23.9\n  layer 0: sliding window of 8" in text
