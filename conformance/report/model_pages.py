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
from typing import TYPE_CHECKING, Any, Final

from conformance.base.findings import on_software_only, workaround
from conformance.base.paths import data_path
from conformance.base.target_names import split_adapter
from conformance.base.versions import release_key
from conformance.report.history import short, since
from conformance.report.model_table import DRAWN, USES, WORDS, AnswerKind, kind_in_words
from conformance.results.results_error import ResultsError, cause_of
from conformance.results.timeline import spans
from conformance.results.verdicts import Drawn, Verdict

if TYPE_CHECKING:
    from conformance.results.records import TargetRecord

FORMAT: Final = "gqa-models/1"
FILE: Final = "recorded/models.json"

#: The common names of the runtimes.
CALLED: Final[Mapping[str, str]] = {
    "cpu": "ONNX Runtime",
    "tract-wheel": "tract in Python",
    "wasm": "ONNX Runtime Web, browser",
    "node": "ONNX Runtime in Node.js",
    "webgpu": "ONNX Runtime Web, browser",
    "openvino": "OpenVINO",
}


#: Prompts in the words of an answer, with the number of tokens.
_PROMPTS: Final = re.compile(r"(?:prompts from|a prompt of) (\d+) tokens(?: on)?")


@dataclass(frozen=True)
class UseAnswer:
    """The answer of one release for one use of a model.

    ``where`` describes the affected calls (``from 513 tokens on``) and ``layers`` the affected
    layers; ``message`` is the runtime's, and ``case`` is one of the calls.
    """

    answer: AnswerKind
    where: str = ""
    layers: str = ""
    message: str = ""
    case: str = ""


@dataclass(frozen=True)
class RecordedCause:
    """A cause of results that are not right, as ``gqa check`` describes it.

    ``where`` names the releases. ``why``, ``link`` and ``workaround`` describe the known defect;
    they are empty if none is known. The file has no workaround: it is that of the finding today.
    """

    where: str
    verdict: Verdict
    what: str
    said: str
    example: str = ""
    why: str = ""
    link: str = ""
    workaround: str = ""

    def same_as(self, other: RecordedCause) -> bool:
        """Whether the other one says the same, apart from its example and its figures."""
        said = (self.why or self.said) == (other.why or other.said)
        return said and (self.where, self.what) == (other.where, other.what)

    def drawn(self, runtime: str) -> Drawn:
        """Its verdict, or that only a software GPU is known to have it."""
        return "software" if on_software_only(self.link, runtime) else self.verdict

    def is_of(self, version: str) -> bool:
        """Whether a release is among those of ``where``: ``webgpu on lavapipe 1.25.1–1.29.0``."""
        place = release_key(version)
        ranges = re.findall(r"(?<![\w.])(\d+\.[\w.]*)(?:–(\d[\w.]*))?", self.where)
        return any(release_key(a) <= place <= release_key(b or a) for a, b in ranges)


@dataclass(frozen=True)
class AnswerCell:
    """The answer of a runtime for one use of a model, in words; ``verdict`` gives the colours."""

    words: str
    verdict: Drawn
    releases: tuple[tuple[str, str], ...]
    """The answers by ranges of releases, the oldest first: versions, and a few words."""


#: The cell of a runtime on which a model was not tried.
NOT_TRIED: Final = AnswerCell(WORDS["untried"], "skip", ())
#: A runtime that people look for, although it was tried on no GPU so far.
CUDA: Final = "cuda"
NO_CUDA: Final = f"{WORDS['untried']}: no GPU so far"


@dataclass(frozen=True)
class OnRuntime:
    """The answers of a runtime, ``name``, for a model.

    ``answers`` has them by release, the oldest first, and by use. ``causes`` begins with those in
    the newest release. If this one does not run the model right, ``rewritten`` has its answer to
    the model in standard operators, by release. ``besides`` are words by release that are added
    where it is right.
    """

    answers: Mapping[str, Mapping[str, UseAnswer]]
    causes: Sequence[RecordedCause] = ()
    name: str = ""
    rewritten: Mapping[str, AnswerKind] = field(default_factory=dict)
    besides: Mapping[str, str] = field(default_factory=dict)

    def cell(self, use: str) -> AnswerCell:
        """The cell of one use."""
        told = ((version, self._told(version, use)) for version in self.answers)
        tried = [(version, each) for version, each in told if each is not None]
        if not tried:
            return NOT_TRIED
        ranges = spans(((version, words) for version, (_, words) in tried), self.name)
        last = ranges[-1]
        kind = tried[-1][1][0]
        words = last.state
        if kind == "right":
            words = f"right {since(last)}" if len(tried) > 1 else f"right in {short(last.last)}"
        elif len(ranges) > 1 and ranges[-2].state == "right":
            words = f"{last.state} {since(last)}, right until {short(ranges[-2].last)}"
        if kind == "right" and (more := self.besides.get(tried[-1][0])):
            words += f", {more}"
        releases = (
            ("–".join(dict.fromkeys((short(one.first), short(one.last)))), one.state)
            for one in ranges
        )
        return AnswerCell(words, DRAWN[kind], tuple(releases))

    def _told(self, version: str, use: str) -> tuple[AnswerKind, str] | None:
        """The answer of a release, and its words; None if the use was not tried.

        It is wrong on a software GPU only if all its causes are known on such adapters only.
        """
        one = self.answers[version].get(use)
        if one is None or one.answer == "untried":
            return None
        if one.answer != "wrong":
            return one.answer, kind_in_words(one.answer, one.where)
        causes = [each for each in self.causes if each.verdict == "wrong" and each.is_of(version)]
        facts = [on_software_only(cause.link, self.name) for cause in causes]
        least = max((each.from_tokens for each in facts if each), default=0)
        if least and all(int(n) >= least for n in _PROMPTS.findall(one.where)):
            # The defect begins below the shortest prompt that was tried and is wrong.
            if all(facts):
                return "software", kind_in_words("software", f"from {least} tokens")
            where = _PROMPTS.sub(f"prompts from {least} tokens on", one.where, count=1)
            return "wrong", kind_in_words("wrong", where)
        kind: AnswerKind = "software" if facts and all(facts) else "wrong"
        return kind, kind_in_words(kind, one.where)

    def at(self, releases: Sequence[str]) -> OnRuntime:
        """The answers of these releases only; ``1.27`` is each release of that series."""
        answers = {
            version: uses
            for version, uses in self.answers.items()
            if not releases or any(f"{version}.".startswith(f"{each}.") for each in releases)
        }
        return replace(self, answers=answers)

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
    def in_standard_operators(self) -> AnswerKind | None:
        """The answer of the newest release to the rewritten model; None if it is not known."""
        return self.rewritten.get(self.newest) if self.answers else None

    @property
    def rewritten_cell(self) -> AnswerCell | None:
        """That answer in words."""
        kind = self.in_standard_operators
        return AnswerCell(WORDS[kind], DRAWN[kind], ()) if kind else None

    @property
    def newest(self) -> str:
        """The newest release that was tried."""
        return [*self.answers][-1]


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
        runtimes = (f"{name} {CALLED.get(split_adapter(name)[0], '')}" for name in self.runtimes)
        causes = (cause for there in self.runtimes.values() for cause in there.causes)
        messages = dict.fromkeys(c.said for c in causes if c.verdict == DRAWN["refused"])
        return " ".join([self.name, self.graph, *calls, *runtimes, *messages])

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
                if target.describe and target.base == split_adapter(name)[0]
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
    rows = tuple(_row(row, data.get("besides", ())) for row in data["rows"])
    return Models(
        data["recorded"], data["suite"], data["runtimes"], frozenset(data["software"]), rows
    )


def _row(row: Mapping[str, Any], besides: Sequence[Mapping[str, str]]) -> RecordedModel:
    """A row; ``besides`` are facts about a release with a data type, which no answer shows."""
    facts = [one for one in besides if one["dtype"] == row["dtype"]]
    runtimes = {
        name: _on_runtime(
            name, those, {f["release"]: f["is"] for f in facts if f["runtime"] == name}
        )
        for name, those in row["runtimes"].items()
    }
    calls = tuple(LayerCall(**call) for call in row["calls"])
    return RecordedModel(**{**row, "runtimes": runtimes, "calls": calls})


def _on_runtime(name: str, those: Mapping[str, Any], besides: Mapping[str, str]) -> OnRuntime:
    answers = {
        version: {use: UseAnswer(**one) for use, one in group["uses"].items()}
        for group in those["answers"]
        for version in group["releases"]
    }
    causes = [
        RecordedCause(**{"workaround": workaround(cause.get("link", "")), **cause})
        for cause in those["causes"]
    ]
    causes = [
        replace(cause, what=cause.what.replace(WORDS["wrong"], WORDS["software"]))
        if on_software_only(cause.link, name)
        else cause
        for cause in causes
    ]
    newest = [*answers][-1]
    causes.sort(key=lambda cause: not cause.is_of(newest))
    return OnRuntime(answers, causes, name, those.get("rewritten", {}), besides)


def slug(name: str) -> str:
    """A name as part of an address: ``gemma-4-e2b`` for Gemma 4 E2B."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
