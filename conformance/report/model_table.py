"""The answer of ``gqa check`` for a model, which the terminal and the HTML report show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from conformance.results.verdicts import Drawn

#: The uses of a model that are recorded of each release: one sequence at a time, a prompt and then
#: single tokens; prompts in parts, or a further prompt after cached tokens; several sequences at a
#: time, padded at the right. :mod:`conformance.model.calls.ways` has the others.
USES: Final = ("one chat", "chunked prompts", "batches")

#: The outcome of a call, worst first.
AnswerKind = Literal[
    "wrong", "crash", "timeout", "fallback", "refused", "software", "untried", "right"
]

_KINDS: Final[Mapping[AnswerKind, tuple[str, Drawn]]] = {
    "wrong": ("silently wrong", "wrong"),
    "crash": ("ends the process", "crash"),
    "timeout": ("does not answer", "timeout"),
    "fallback": ("runs on another provider", "fallback"),
    "refused": ("refused", "unsupported"),
    "software": ("wrong on a software GPU", "software"),
    "untried": ("not tried", "skip"),
    "right": ("right", "pass"),
}
WORDS: Final = {kind: words for kind, (words, _) in _KINDS.items()}
#: The verdict whose symbol and colours each kind has, or a word for wrong on a software GPU.
DRAWN: Final = {kind: drawn for kind, (_, drawn) in _KINDS.items()}

#: What follows the description of calls that are wrong on a software GPU.
NO_GPU: Final = "real GPUs not tried"


#: Where the model itself is refused when it is loaded.
LOADING: Final = "when it is loaded"
#: The same for the part of a large model without products with weights.
LOADING_PART: Final = "when it is loaded without its weights"


def kind_in_words(kind: AnswerKind, where: str) -> str:
    """``silently wrong from 513 tokens on``: a kind with ``where``, the calls in words."""
    if kind == "software":
        return f"{f'software GPU: wrong {where}'.rstrip()}; {NO_GPU}"
    return f"{WORDS[kind]} {where}".rstrip()


@dataclass(frozen=True)
class ModelCell:
    """The answer of one target for one group of layers.

    ``verdict`` gives the symbol and the colours. ``case`` is the first case that is not right, or
    else the first case; ``target`` is the target that ran it.
    """

    verdict: Drawn
    sentence: str
    case: str
    target: str


@dataclass(frozen=True)
class ModelLine:
    """The cells of all columns for one ``use`` of the model; "" for all uses."""

    use: str
    cells: tuple[ModelCell, ...]


@dataclass(frozen=True)
class ModelRow:
    """A group of layers that make the same call, ``what``, with a line for each use."""

    layers: str
    what: str
    lines: tuple[ModelLine, ...]


@dataclass(frozen=True)
class ModelCause:
    """A cause of results that are not right, with an example: ``case``, which ran on ``target``.

    ``where`` names all affected targets and releases. ``said`` is the runtime's message, or a
    description of the fault. If the defect is known, ``why`` describes it, ``link`` is the address
    of its page, and ``workaround`` says how to avoid it; else they are empty. ``similar`` is the
    case of the corpus that is known to have the defect.
    """

    target: str
    where: str
    verdict: Drawn
    what: str
    said: str
    example: str
    case: str
    why: str = ""
    link: str = ""
    workaround: str = ""
    similar: str = ""


@dataclass(frozen=True)
class ModelTable:
    """The answers for a model by layer group and target.

    ``targets`` has the names of the columns: of a target, or of several releases with the same
    answers. ``sentences`` say for each target whether it runs the whole model right, and have the
    worst verdict. ``notes`` are warnings, and ``faults`` name nodes that were not checked. ``ways``
    says in which ways the model was called, and ``way_round`` what targets that do not run it right
    do with it in standard operators.
    """

    heading: str
    notes: tuple[str, ...]
    sentences: tuple[tuple[Drawn, str], ...]
    targets: tuple[str, ...]
    rows: tuple[ModelRow, ...]
    causes: tuple[ModelCause, ...]
    faults: tuple[str, ...]
    ways: str = ""
    way_round: str = ""
