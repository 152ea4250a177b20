"""What a target does with each group of layers in each use, from the results of its cases."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import Final

from conformance.base.findings import FindingFacts
from conformance.base.words import listed, plural
from conformance.harness.runner import ProcessLimits
from conformance.model.calls.groups import Group, layers_with
from conformance.model.calls.stages import NodeCall
from conformance.model.calls.ways import WAYS
from conformance.model.run.blame import ResultCause
from conformance.model.run.on_target import ModelRun
from conformance.report.model_table import (
    LOADING,
    LOADING_PART,
    USES,
    WORDS,
    AnswerKind,
    kind_in_words,
)
from conformance.results.records import ResultRecord
from conformance.results.verdicts import acceptance_of
from conformance.results.wrong_outputs import only_presents

#: A result that took this time was compiling: cases of models have far less time.
_COMPILING: Final = ProcessLimits().compile_seconds
#: The way of each use, and the use of a chat.
WAY_OF: Final = {way.use: way for way in WAYS.values()}
CHAT: Final = WAYS["chat"].use
_UNKNOWN: Final = ResultCause("")

#: A result of a stage; no result: the target had none for it.
Result = tuple[NodeCall, ResultRecord | None]


@dataclass(frozen=True)
class AnswerPart:
    """The calls of a group in one use that had the same outcome.

    ``where`` says which calls of the use they are, "" for all. ``pinned``: the user knows all of
    these defects. A part about the model itself has no results: ``message`` is the runtime's, if it
    gave one, ``told`` the size of the error, and ``cause`` why it is wrong.
    """

    use: str
    kind: AnswerKind
    where: str
    results: tuple[tuple[NodeCall, ResultRecord], ...]
    pinned: bool = False
    message: str = ""
    told: str = ""
    cause: ResultCause = _UNKNOWN

    @property
    def of_graph(self) -> bool:
        """Whether the graph is wrong, and not the target."""
        return self.kind == "wrong" and self.cause.fault == "graph"

    @property
    def sentence(self) -> str:
        """``silently wrong from 513 tokens on``."""
        if self.of_graph:
            return f"{WORDS[self.kind]}, as the graph is, {self.where}"
        layers = f" in {layers_with(self.cause.nodes)}" if self.cause.nodes else ""
        if self.kind == "right" or (self.kind == "untried" and not self.results):
            return f"{WORDS[self.kind]}{f' ({self.where})' if self.where else ''}"
        return kind_in_words(self.kind, f"{self.where}{layers}".strip())


@dataclass(frozen=True)
class ModelAnswer:
    """What one target does with one group: its parts, sorted by use and then the worst first.

    ``unseen`` is the reason why the target was not judged on the model itself, "" if it was.
    """

    group: Group
    target: str
    parts: tuple[AnswerPart, ...]
    unseen: str = ""

    def of(self, use: str) -> ModelAnswer:
        """The answer for one use."""
        return replace(self, parts=tuple(part for part in self.parts if part.use == use))

    @property
    def uses(self) -> tuple[str, ...]:
        """The uses that have results."""
        return tuple(use for use in WAY_OF if any(part.use == use for part in self.parts))

    @property
    def alike(self) -> bool:
        """Whether the outcome is the same in each use."""
        return len({frozenset((p.kind, p.where) for p in self.of(u).parts) for u in self.uses}) <= 1

    @property
    def kind(self) -> AnswerKind:
        """The worst outcome.

        Calls that were not tried count only if no call was tried. If the model itself was not run,
        right calls of its nodes do not show that the model is right.
        """
        if self.bad:
            return min((part.kind for part in self.bad), key=[*WORDS].index)
        good = any(part.kind == "right" for part in self.parts)
        return "right" if good and not self.unseen else "untried"

    @property
    def right(self) -> tuple[ResultRecord, ...]:
        """The results that are right."""
        good = (part for part in self.parts if part.kind == "right")
        return tuple(record for part in good for _, record in part.results)

    @property
    def bad(self) -> tuple[AnswerPart, ...]:
        """The parts that keep the model from running right."""
        return tuple(part for part in self.parts if part.kind not in ("right", "untried"))

    @property
    def pinned(self) -> bool:
        """Whether something is wrong and the user knows all of it."""
        return bool(self.bad) and all(part.pinned for part in self.bad)

    @property
    def untried(self) -> tuple[AnswerPart, ...]:
        """The calls that were not tried, if any."""
        return tuple(part for part in self.parts if part.kind == "untried")

    @property
    def sentence(self) -> str:
        """The answer in one line; right calls are mentioned only if nothing is wrong."""
        told = [part.sentence for part in self.bad] or [self._good()]
        if (self.right or self.bad) and not self.group.is_whole:
            told += [part.sentence for part in self.untried]
        return "; ".join(dict.fromkeys(told))

    def _good(self) -> str:
        """``right (14 calls)``, or that nothing was tried."""
        if self.group.is_whole:
            first = next((p for p in self.parts if p.kind == "right"), None) or next(
                iter(self.parts), None
            )
            if first is not None and not self.unseen:
                return first.sentence
            return f"{WORDS['untried']} ({self.unseen})" if self.unseen else WORDS["untried"]
        if not self.right:
            return WORDS["untried"]
        told = [plural(len(self.right), "call")]
        if any(map(only_presents, self.right)):
            told.append("presents that nothing reads are wrong")
        if self.group.left_out:
            told.append(self.group.left_out)
        calls = f"right ({'; '.join(told)})"
        return f"only its calls alone are {calls}" if self.unseen else calls


def answer_of_model(
    group: Group,
    target: str,
    run: ModelRun,
    pinned: Callable[[Group, str, AnswerKind], bool] = lambda group, use, kind: False,
) -> ModelAnswer:
    """What a target does with the model itself; ``pinned`` says whether the user knows a defect."""
    if run.load:
        known = pinned(group, CHAT, "refused")
        where = LOADING_PART if run.of_part else LOADING
        part = AnswerPart(CHAT, "refused", where, (), known, message=run.load)
        return ModelAnswer(group, target, (part,))
    parts = (
        AnswerPart(
            one.way.use,
            one.kind,
            one.where,
            (),
            pinned(group, one.way.use, one.kind),
            one.message,
            one.told,
            one.cause,
        )
        for one in run.ways
    )
    return ModelAnswer(group, target, tuple(parts), run.unseen)


def answer(
    group: Group,
    target: str,
    results: Iterable[Result],
    pinned: Callable[[ResultRecord], bool] = lambda record: False,
    of_software: Callable[[ResultRecord], FindingFacts | None] = lambda record: None,
) -> ModelAnswer:
    """The answer for the ``results`` of a group's stages.

    ``pinned`` says whether a result is a defect that the user knows, and ``of_software`` has the
    finding of one that is known on software adapters only.
    """
    found: dict[str, dict[AnswerKind, list[tuple[NodeCall, ResultRecord]]]] = {
        use: {} for use in USES
    }
    least = 0
    for stage, record in results:
        if record is not None:
            kind = kind_of(group, record)
            if kind == "wrong" and (facts := of_software(record)):
                kind, least = "software", max(least, facts.from_tokens)
            found[stage.use].setdefault(kind, []).append((stage, record))
    parts = []
    for use, by_kind in found.items():
        for kind in filter(by_kind.__contains__, WORDS):
            stages = [stage for stage, _ in by_kind[kind]]
            where = "" if kind == "right" else where_of(stages, _others(kind, by_kind))
            if kind == "software" and 0 < least <= min(stage.new for stage in stages):
                where = f"from {least} tokens"
            known = all(pinned(record) for _, record in by_kind[kind])
            parts.append(AnswerPart(use, kind, where, tuple(by_kind[kind]), known))
    return ModelAnswer(group, target, tuple(parts))


def _others(
    kind: AnswerKind, by_kind: Mapping[AnswerKind, Sequence[tuple[NodeCall, ResultRecord]]]
) -> list[NodeCall]:
    """The stages that stages of one kind are compared with.

    These are the stages that are right, or if none is, all that were tried.
    """
    right = by_kind.get("right", ())
    if right:
        return [stage for stage, _ in right]
    tried = [found for other, found in by_kind.items() if other not in (kind, "untried")]
    return [stage for found in tried for stage, _ in found]


def kind_of(group: Group, record: ResultRecord) -> AnswerKind:
    """What a result means for somebody who wants to run the model."""
    if record.outcome == "rejected":
        return "refused"
    if record.verdict in ("crash", "timeout", "fallback"):
        return "untried" if record.other_kernel or was_compiling(record) else record.verdict
    if record.verdict == "skip":
        return "untried"
    acceptance = acceptance_of(record)
    wrong = acceptance.red if acceptance else record.verdict != "pass"
    unread = only_presents(record) and not group.form.reads_presents
    return "wrong" if wrong and not unread else "right"


def was_compiling(record: ResultRecord) -> bool:
    """Whether time ran out while shaders were compiled, which says nothing about the call."""
    return (record.time_limit or 0) >= _COMPILING


def why_untried(record: ResultRecord) -> str:
    """Why a result says nothing about the call, as half a sentence."""
    if was_compiling(record):
        return f"its shader was still being compiled after {record.time_limit:g} s"
    return record.reason.rstrip(".")


_PHASES: Final[Mapping[str, str]] = {
    "prompt": "for prompts",
    "decode": "for one token on a past",
    "chunk": "for several tokens on a past",
    "loop": "in a loop of calls",
}


def where_of(these: Sequence[NodeCall], others: Sequence[NodeCall]) -> str:
    """What distinguishes ``these`` stages from the ``others``: ``from 513 tokens on``.

    "" if there are no others.
    """
    if not others:
        return ""
    every, labels = [*these, *others], {stage.label for stage in these}
    least, longest = min(s.tokens for s in these), max(s.tokens for s in others)
    beyond = min((s.tokens for s in these if s.tokens > longest), default=least)
    longer = _from(least, others)
    phases = {words: [s for s in every if s.phase == phase] for phase, words in _PHASES.items()}
    conditions = {
        longer: [s for s in every if s.tokens >= least],
        **phases,
        "on a past": [s for s in every if s.phase != "prompt"],
        "in ragged batches": [s for s in every if s.ragged],
        "with the cache in a buffer": [s for s in every if s.buffer],
        **{
            f"{words} {longer}": [s for s in of if s.tokens >= least]
            for words, of in phases.items()
        },
        _from(beyond, others): [s for s in every if s.tokens >= beyond],
    }
    covered = {words: {stage.label for stage in of} for words, of in conditions.items()}
    found = [(words, own) for words, own in covered.items() if own and own <= labels]
    alone = [(f"for {stage.words}", {stage.label}) for stage in these]
    pairs = [*combinations(found, 2), *product(found, alone)]
    ways = [*found, *((f"{a} and {b}", x | y) for (a, x), (b, y) in pairs if x - y and y - x)]
    told = next((words for words, own in ways if own == labels), None)
    if told is None:
        more = len(these) - len(these[:2])
        named = [
            *(stage.words for stage in these[:2]),
            *([plural(more, "other call")] if more else []),
        ]
        told = f"for {listed(named)}"
    return told


def _from(least: int, others: Sequence[NodeCall]) -> str:
    """``from 513 tokens on``, with the numbers of tokens below that were not tried."""
    below = max((stage.tokens for stage in others if stage.tokens < least), default=least - 1)
    text = f"from {least} tokens on"
    return text if below == least - 1 else f"{text} ({below + 1} to {least - 1} not tried)"
