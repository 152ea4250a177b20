"""What a target does with each group of layers in each use, from the results of its cases."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import Final

from conformance.base.findings import FindingFacts
from conformance.base.text import clean
from conformance.base.words import listed, plural
from conformance.harness.runner import ProcessLimits
from conformance.model.calls.groups import BORROWER, Group, layers_of
from conformance.model.calls.stages import NodeCall
from conformance.report.model_table import USES, WORDS, AnswerKind, Use, kind_in_words
from conformance.results.records import ResultRecord
from conformance.results.verdicts import acceptance_of
from conformance.results.wrong_outputs import is_beyond, only_presents

#: A result that took this time was compiling: cases of models have far less time.
_COMPILING: Final = ProcessLimits().compile_seconds
_MOST_MESSAGE: Final = 300
#: Prefixes that runtimes write before the reason of an error.
_PREFIX: Final = re.compile(
    r"^(?:\[ONNXRuntimeError\] : \d+ : \w+ : |Can't create a session\. ERROR_CODE: \d+, "
    r"|failed to call OrtRun\(\)\. ERROR_CODE: \d+, |ERROR_MESSAGE: "
    r"|Non-zero status code returned while running .*?Status Message: )+"
)
#: A location in a runtime's source, with its function.
_SOURCE: Final = re.compile(r"\S*\.(?:cc|h|cpp|rs|cu):\d+ .*?\) (?=\S)")
#: A cause in the chain that tract writes, each the cause of the one before.
_CAUSE: Final = re.compile(r"^\s+(?:\d+: )?(?=\S)")

#: A result of a stage; no result: the target had none for it.
Result = tuple[NodeCall, ResultRecord | None]


@dataclass(frozen=True)
class AnswerPart:
    """The calls of a group in one use that had the same outcome.

    ``where`` says which calls of the use they are, "" for all. ``pinned``: the user knows all of
    these defects. A part about the model itself has no results: its ``where`` describes what is
    wrong, ``message`` is the runtime's message, if it gave one, and ``call`` is the call in words.
    ``only`` has the nodes that the part concerns, if they are not the whole group.
    """

    use: Use
    kind: AnswerKind
    where: str
    results: tuple[tuple[NodeCall, ResultRecord], ...]
    pinned: bool = False
    message: str = ""
    call: str = ""
    only: Group | None = None

    @property
    def sentence(self) -> str:
        """``silently wrong from 513 tokens on``."""
        if self.kind != "wrong" or self.results:
            return kind_in_words(self.kind, self.where)
        layers = f" in {layers_of([self.only])}" if self.only else ""
        return f"{WORDS[self.kind]}{layers}: {self.where}"


@dataclass(frozen=True)
class ModelAnswer:
    """What one target does with one group: its parts, sorted by use and then the worst first.

    ``unseen`` is the reason why the target was not judged on the model itself, "" if it was.
    """

    group: Group
    target: str
    parts: tuple[AnswerPart, ...]
    unseen: str = ""

    def of(self, use: Use) -> ModelAnswer:
        """The answer for one use."""
        return replace(self, parts=tuple(part for part in self.parts if part.use == use))

    @property
    def uses(self) -> tuple[Use, ...]:
        """The uses that have results."""
        return tuple(use for use in USES if any(part.use == use for part in self.parts))

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
        return "untried" if self.unseen or not self.right else "right"

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
    def fails(self) -> bool:
        """Whether anything keeps the model from running right."""
        return bool(self.bad)

    @property
    def pinned(self) -> bool:
        """Whether something is wrong and the user knows all of it."""
        return self.fails and all(part.pinned for part in self.bad)

    @property
    def untried(self) -> tuple[AnswerPart, ...]:
        """The calls that were not tried, if any."""
        return tuple(part for part in self.parts if part.kind == "untried")

    @property
    def sentence(self) -> str:
        """The answer in one line; right calls are mentioned only if nothing is wrong."""
        told = [part.sentence for part in self.bad] or [self._good()]
        if self.right or self.bad:
            told += [part.sentence for part in self.untried]
        return "; ".join(dict.fromkeys(told))

    def _good(self) -> str:
        """``right (14 calls)``, or that nothing was tried."""
        if not self.right:
            return WORDS["untried"]
        told = [plural(len(self.right), "call")]
        if any(map(only_presents, self.right)):
            told.append("presents that nothing reads are wrong")
        if self.group.left_out:
            told.append(self.group.left_out)
        calls = f"right ({'; '.join(told)})"
        return (
            f"only its calls are {calls}; the model itself was not judged" if self.unseen else calls
        )


def at_fault(group: Group, records: Iterable[ResultRecord]) -> Group:
    """The nodes that bad results concern: of a graph of two layers perhaps only the second."""
    if not group.name.startswith("sharing"):
        return group
    wrong = [
        name
        for record in records
        for name in (
            *(fault.output for fault in record.faults),
            *(error.output for error in record.errors if is_beyond(error)),
        )
    ]
    only_second = bool(wrong) and all(name.startswith(BORROWER) for name in wrong)
    return replace(group, nodes=group.nodes[-1:]) if only_second else group


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
    found: dict[Use, dict[AnswerKind, list[tuple[NodeCall, ResultRecord]]]] = {
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


def short(message: str) -> str:
    """The message of a runtime on one line, without the runtime's own prefixes.

    Only the beginning and the end of a long message are kept.
    """
    lines = [line for line in clean(message, 4_000).splitlines() if line.strip()]
    chain = "Caused by" in message and _CAUSE.match(lines[-1])
    last = lines[-1] if chain else " ".join(map(str.strip, lines))
    text = _SOURCE.sub("", _PREFIX.sub("", _CAUSE.sub("", last))).strip()
    half = _MOST_MESSAGE // 2
    return text if len(text) <= _MOST_MESSAGE else f"{text[: half - 1]} … {text[2 - half :]}"


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
    longer = f"from {least} tokens on"
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
        f"from {beyond} tokens on": [s for s in every if s.tokens >= beyond],
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
