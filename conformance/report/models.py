"""Which model runs on which runtime: the recorded answers of ``gqa check``, and words for them.

``reports/recorded/models.json`` has a row for each graph of a real model in
``cases/exported/graphs``, with the answer of each release of each runtime for each use of the
model: one chat, chunked prompts, or batches. `conformance.maintain.models` writes it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from conformance.base.findings import workaround
from conformance.base.paths import data_path
from conformance.base.versions import release_key
from conformance.report.history import short
from conformance.report.model_table import DRAWN, USES, WORDS, Kind
from conformance.results.errors import ResultsError, cause_of
from conformance.results.records import TargetRecord
from conformance.results.timeline import spans
from conformance.results.verdicts import Verdict

FORMAT: Final = "gqa-models/1"
FILE: Final = "recorded/models.json"

#: The common names of the runtimes.
CALLED: Final[Mapping[str, str]] = {
    "cpu": "ONNX Runtime",
    "tract-wheel": "tract in Python",
    "wasm": "ONNX Runtime Web, browser",
    "webgpu": "ONNX Runtime Web, browser",
}


#: Short names of data types, by which rows can be found.
SHORT_TYPES: Final[Mapping[str, str]] = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "float32": "fp32",
    "int4": "q4",
    "int8": "q8",
}

#: The end of the words of a cell if all its defects are known only on some adapters.
OTHERS_MAY_DIFFER: Final = "; other GPUs may differ"


@dataclass(frozen=True)
class UseAnswer:
    """The answer of one release for one use of a model.

    ``where`` describes the affected calls (``from 513 tokens on``) and ``layers`` the affected
    layers; ``message`` is the runtime's, and ``case`` is one of the calls.
    """

    answer: Kind
    where: str = ""
    layers: str = ""
    message: str = ""
    case: str = ""


@dataclass(frozen=True)
class RecordedCause:
    """A cause of results that are not right, as ``gqa check`` describes it.

    ``where`` names the releases. ``why``, ``link`` and ``workaround`` describe the known defect;
    they are empty if none is known. The file has no workaround: it is that of the finding today.
    ``of_adapter``: it is known only on some adapters.
    """

    where: str
    verdict: Verdict
    what: str
    said: str
    example: str
    why: str = ""
    link: str = ""
    workaround: str = ""
    of_adapter: bool = False


@dataclass(frozen=True)
class AnswerCell:
    """The answer of a runtime for one use of a model, in words; ``verdict`` gives the colours."""

    words: str
    verdict: Verdict
    releases: tuple[tuple[str, str], ...]
    """The answers by ranges of releases, the oldest first: versions, and a few words."""


@dataclass(frozen=True)
class OnRuntime:
    """The answers of a runtime for a model.

    ``answers`` has them by release, the oldest first, and by use. ``causes`` begins with those in
    the newest release.
    """

    answers: Mapping[str, Mapping[str, UseAnswer]]
    causes: Sequence[RecordedCause] = ()

    def cell(self, use: str) -> AnswerCell:
        """The cell of one use."""
        states = [(version, _words(those.get(use))) for version, those in self.answers.items()]
        tried = [(version, state) for version, state in states if state is not None]
        if not tried:
            return AnswerCell("not tried", "skip", ())
        ranges = spans(tried)
        last = ranges[-1]
        answer = self.answers[last.last][use].answer
        since = short(last.since)
        words = last.state
        if answer == "right":
            words = f"right since {since}" if len(tried) > 1 else f"right in {short(last.last)}"
        elif len(ranges) > 1 and ranges[-2].state == "right":
            words = f"{last.state} since {since}, right until {short(ranges[-2].last)}"
        causes = [
            cause
            for cause in self.causes
            if cause.verdict == DRAWN[answer] and last.last in cause.where
        ]
        if causes and all(cause.of_adapter for cause in causes):
            words += OTHERS_MAY_DIFFER
        releases = (
            ("–".join(dict.fromkeys((short(one.first), short(one.last)))), one.state)
            for one in ranges
        )
        return AnswerCell(words, DRAWN[answer], tuple(releases))

    def by_use(self) -> Sequence[tuple[Sequence[str], AnswerCell]]:
        """The cells of all uses; uses with equal cells are together."""
        uses_of: dict[AnswerCell, list[str]] = {}
        for use in USES:
            uses_of.setdefault(self.cell(use), []).append(use)
        return [(uses, cell) for cell, uses in uses_of.items()]

    def otherwise(self) -> Sequence[tuple[str, AnswerCell]]:
        """The uses whose verdict differs from that of one chat, with their cells."""
        first = self.cell(USES[0])
        cells = ((use, self.cell(use)) for use in USES[1:])
        return [(use, cell) for use, cell in cells if cell.verdict not in (first.verdict, "skip")]

    @property
    def newest(self) -> str:
        """The newest release that was tried."""
        return [*self.answers][-1]


def _words(one: UseAnswer | None) -> str | None:
    """The answer in words, with the affected calls; None if the use was not tried."""
    if one is None or one.answer == "untried":
        return None
    return f"{WORDS[one.answer]} {one.where}".rstrip()


@dataclass(frozen=True)
class LayerCall:
    """A call that some ``layers`` of a model make; ``what`` describes it.

    ``features`` are used to compare it with the calls of other models: heads, their size, window …
    """

    layers: str
    what: str
    features: Mapping[str, Any]


@dataclass(frozen=True)
class RecordedModel:
    """A model as one exporter writes it in one data type.

    ``graph`` is the name of its file, ``family`` the common name of the model, ``made_for`` the
    execution provider that it was exported for, ``dtype`` the type of its values, and ``weights``
    the type of its weights if that differs.
    """

    graph: str
    family: str
    exporter: str
    made_for: str
    dtype: str
    weights: str
    of: str
    notes: Sequence[str]
    calls: Sequence[LayerCall]
    runtimes: Mapping[str, OnRuntime]

    @property
    def name(self) -> str:
        """``Llama 3.2 1B, int4, for webgpu, by onnxruntime-genai 0.18.0``."""
        return f"{self.family}, {self.type}, for {self.made_for}, by {self.exporter}"

    @property
    def words(self) -> str:
        """Words for finding the row: names, calls, the names of its runtimes, and
        their messages if they refuse it."""
        calls = (call.what for call in self.calls)
        runtimes = (f"{name} {CALLED.get(name.partition('+')[0], '')}" for name in self.runtimes)
        causes = (cause for there in self.runtimes.values() for cause in there.causes)
        messages = dict.fromkeys(c.said for c in causes if c.verdict == DRAWN["refused"])
        types = (SHORT_TYPES.get(each, "") for each in (self.dtype, self.weights))
        return " ".join([self.name, self.graph, *types, *calls, *runtimes, *messages])

    @property
    def right_on(self) -> Mapping[str, str]:
        """The runtimes that are right in one chat, each with the release since which they are."""
        cells = {name: there.cell(USES[0]) for name, there in self.runtimes.items()}
        return {
            name: cell.words.removeprefix("right ")
            for name, cell in cells.items()
            if cell.verdict == DRAWN["right"]
        }

    @property
    def type(self) -> str:
        """``float16``, or ``float32, int4 weights``."""
        return f"{self.dtype}, {self.weights} weights" if self.weights else self.dtype


@dataclass(frozen=True)
class Models:
    """All recorded answers, and the day of the recording.

    ``runtimes`` are the columns, each with the releases that were tried; those in ``software`` ran
    on an adapter that computes shaders on the processor. ``newer`` has the newest release of a
    runtime if no model was tried on it, only single calls.
    """

    recorded: str
    suite: str
    runtimes: Mapping[str, Sequence[str]]
    software: frozenset[str]
    rows: Sequence[RecordedModel] = field(default_factory=tuple)
    newer: Mapping[str, str] = field(default_factory=dict)

    def beside(self, targets: Sequence[TargetRecord]) -> Models:
        """The answers for a report on ``targets``, with their releases as ``newer`` ones."""
        newer = {}
        for name, tried in self.runtimes.items():
            versions = [
                target.describe.version
                for target in targets
                if target.describe and target.base == name.partition("+")[0]
            ]
            newest = max([*tried, *filter(None, versions)], key=release_key)
            if newest not in tried:
                newer[name] = newest
        return replace(self, newer=newer)

    @cached_property
    def families(self) -> Mapping[str, Sequence[RecordedModel]]:
        """The rows by family; within a family, those tried on most runtimes first."""
        ordered = sorted(self.rows, key=lambda row: (row.family.lower(), -len(row.runtimes)))
        return {name: [*rows] for name, rows in groupby(ordered, lambda row: row.family)}


def models_file() -> Path:
    """The file of the recorded answers; ``GQA_MODELS`` can name another one."""
    return Path(os.environ.get("GQA_MODELS") or data_path("reports") / FILE)


def models_text() -> str:
    """The recorded answers as JSON.

    Raises `ResultsError` if the file cannot be read.
    """
    file = models_file()
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ResultsError(f"Cannot read {file}: {cause_of(error)}.") from None


def load_models() -> Models:
    """The recorded answers. Raises `ResultsError` if they cannot be read."""
    try:
        return models_of(json.loads(models_text()))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ResultsError(f"{models_file()} has no recorded answers on models.") from None


def models_of(data: Mapping[str, Any]) -> Models:
    """The recorded answers from JSON values."""
    rows = tuple(_row(row) for row in data["rows"])
    return Models(
        data["recorded"], data["suite"], data["runtimes"], frozenset(data["software"]), rows
    )


def _row(row: Mapping[str, Any]) -> RecordedModel:
    runtimes = {name: _on_runtime(those) for name, those in row["runtimes"].items()}
    calls = tuple(LayerCall(**call) for call in row["calls"])
    return RecordedModel(**{**row, "runtimes": runtimes, "calls": calls})


def _on_runtime(those: Mapping[str, Any]) -> OnRuntime:
    answers = {
        version: {use: UseAnswer(**one) for use, one in group["uses"].items()}
        for group in those["answers"]
        for version in group["releases"]
    }
    causes = (
        RecordedCause(**{"workaround": workaround(cause.get("link", "")), **cause})
        for cause in those["causes"]
    )
    newest = [*answers][-1]
    return OnRuntime(answers, sorted(causes, key=lambda cause: newest not in cause.where))


def matching(models: Models, wanted: str) -> list[RecordedModel]:
    """The rows that match the words ``wanted``; ``models.js`` does the same.

    As many of the first words as possible must be in the name of the family, and the others
    anywhere in the row. Case, spaces and points are ignored: ``gemma4 webgpu`` finds Gemma 4 E2B.
    """
    words = [_plain(word) for word in wanted.split()]
    for number in range(len(words), -1, -1):
        start, rest = "".join(words[:number]), words[number:]
        named = [row for row in models.rows if start in _plain(row.family)]
        if named:
            return [row for row in named if all(word in _plain(row.words) for word in rest)]
    return []


def slug(name: str) -> str:
    """A name as part of an address: ``gemma-4-e2b`` for Gemma 4 E2B."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())
