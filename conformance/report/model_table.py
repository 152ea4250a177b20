"""The answer for a user's model, as the terminal and the HTML report show it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from conformance.results.verdicts import Verdict

#: What a program does with a model: a prompt and then single tokens, one sequence at a time;
#: prompts in parts, or a next prompt on what is cached; several sequences at a time.
Use = Literal["one chat", "chunked prompts", "batches"]
USES: Final[tuple[Use, ...]] = ("one chat", "chunked prompts", "batches")

#: What a call came to, worst first.
Kind = Literal["wrong", "crash", "timeout", "fallback", "refused", "untried", "right"]

WORDS: Final[Mapping[Kind, str]] = {
    "wrong": "silently wrong",
    "crash": "ends the process",
    "timeout": "does not answer",
    "fallback": "runs on another provider",
    "refused": "refused",
    "untried": "not tried",
    "right": "right",
}

#: The verdict that has the drawing and the colours of each kind.
DRAWN: Final[Mapping[Kind, Verdict]] = {
    "wrong": "wrong",
    "crash": "crash",
    "timeout": "timeout",
    "fallback": "fallback",
    "refused": "unsupported",
    "untried": "skip",
    "right": "pass",
}


@dataclass(frozen=True)
class ModelCell:
    """What one target does with one group of layers.

    ``verdict`` gives the drawing and the colours. ``case`` is the first case that is not right, or
    the first of all, and ``target`` the one that it ran on.
    """

    verdict: Verdict
    sentence: str
    case: str
    target: str


@dataclass(frozen=True)
class ModelLine:
    """A cell for each column, of the calls that a program makes in one ``use``; "" for all."""

    use: str
    cells: tuple[ModelCell, ...]


@dataclass(frozen=True)
class ModelRow:
    """A group of layers that make the same call: its layers, what they compute, and what becomes of
    it in each use."""

    layers: str
    what: str
    lines: tuple[ModelLine, ...]


@dataclass(frozen=True)
class ModelCause:
    """Something that is not right, with one of its cases, which ran on ``target``.

    ``where`` names all targets and releases that it concerns. ``said`` is the runtime's message or
    what is wrong. Of the known defect, ``why`` says what it is, ``link`` where it is described and
    ``workaround`` what helps; "" if it is not known. ``similar`` is a case of the corpus, if it is
    that case's known defect.
    """

    target: str
    where: str
    verdict: Verdict
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
    """A model by layer group and target.

    ``targets`` names the columns: a target, or releases of it that answer alike. ``sentences`` say
    for each target whether it runs the whole model right, with the worst verdict;
    ``notes`` are warnings, and ``faults`` the nodes that were not checked.
    """

    heading: str
    notes: tuple[str, ...]
    sentences: tuple[tuple[Verdict, str], ...]
    targets: tuple[str, ...]
    rows: tuple[ModelRow, ...]
    causes: tuple[ModelCause, ...]
    faults: tuple[str, ...]
