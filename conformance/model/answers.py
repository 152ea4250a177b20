"""What a target does with each group of layers, in plain words, from the results of its cases."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, product
from typing import Final, Literal

from conformance.base.words import listed, plural
from conformance.model.groups import BORROWER, Group, layers_of
from conformance.model.stages import Stage
from conformance.report.findings import page_of
from conformance.report.symptoms import symptom
from conformance.report.text import clean
from conformance.results.records import ResultRecord
from conformance.results.verdicts import acceptance_of
from conformance.results.wrong_outputs import is_beyond, only_presents

#: What a call came to, worst first.
Kind = Literal["wrong", "crash", "timeout", "fallback", "refused", "untried", "right"]

SIGNS: Final[Mapping[Kind, tuple[str, str]]] = {
    "wrong": ("✗", "bold red"),
    "crash": ("☠", "bold magenta"),
    "timeout": ("⧗", "bold magenta"),
    "fallback": ("↷", "yellow"),
    "refused": ("○", "yellow"),
    "untried": ("–", "dim"),
    "right": ("✓", "green"),
}
"""The sign of each kind and its style in the terminal, as rich writes it."""

WORDS: Final[Mapping[Kind, str]] = {
    "wrong": "silently wrong",
    "crash": "ends the process",
    "timeout": "does not answer",
    "fallback": "runs on another provider",
    "refused": "refused",
    "untried": "not tried",
    "right": "right",
}

_MOST_MESSAGE: Final = 300
_WORKAROUND: Final = re.compile(r"^\*\*Workaround\*\*\s+(.*?)(?:\n\n|\Z)", re.DOTALL | re.MULTILINE)
#: What runtimes write in front of what is wrong.
_PREFIX: Final = re.compile(
    r"^(?:\[ONNXRuntimeError\] : \d+ : \w+ : |Can't create a session\. ERROR_CODE: \d+, "
    r"|failed to call OrtRun\(\)\. ERROR_CODE: \d+, |ERROR_MESSAGE: "
    r"|Non-zero status code returned while running .*?Status Message: )+"
)
#: A place in a runtime's source, with the function there.
_SOURCE: Final = re.compile(r"\S*\.(?:cc|h|cpp|rs|cu):\d+ .*?\) (?=\S)")
#: A cause in the chain that tract writes, each the cause of the one before.
_CAUSE: Final = re.compile(r"^\s+(?:\d+: )?(?=\S)")

#: A result of a stage; no result: the target had none for it.
Result = tuple[Stage, ResultRecord | None]


@dataclass(frozen=True)
class Part:
    """The calls of a group that came to the same: ``where`` says which, "" for all."""

    kind: Kind
    where: str
    results: tuple[tuple[Stage, ResultRecord], ...]

    @property
    def sentence(self) -> str:
        """``silently wrong from 513 tokens on``."""
        return f"{WORDS[self.kind]} {self.where}".rstrip()

    @property
    def causes(self) -> dict[str, list[tuple[Stage, ResultRecord]]]:
        """The results by their cause: the known defect, or what they have in common."""
        found: dict[str, list[tuple[Stage, ResultRecord]]] = {}
        for stage, record in self.results:
            known = record.known.link if record.known else ""
            found.setdefault(known or symptom(record), []).append((stage, record))
        return found


@dataclass(frozen=True)
class Answer:
    """What one target does with one group: its parts, the worst first.

    ``pinned``: everything that is not right is known to the user.
    """

    group: Group
    target: str
    parts: tuple[Part, ...]
    pinned: bool

    @property
    def kind(self) -> Kind:
        """The worst that happened; what was not tried counts only if nothing was."""
        kinds = [part.kind for part in self.parts]
        return next((kind for kind in kinds if kind != "untried"), "untried")

    @property
    def bad(self) -> tuple[Part, ...]:
        """The parts that keep the model from running right."""
        return tuple(part for part in self.parts if part.kind not in ("right", "untried"))

    @property
    def untried(self) -> Part | None:
        """The calls that were not tried, if there are such."""
        return next((part for part in self.parts if part.kind == "untried"), None)

    @property
    def sentence(self) -> str:
        """All in one line; what is right is said only if nothing is wrong."""
        told = [part.sentence for part in self.bad] or [self._good()]
        if self.untried is not None and self.kind != "untried":
            told.append(self.untried.sentence)
        return "; ".join(told)

    def _good(self) -> str:
        """``right (14 calls)``, or that nothing was tried."""
        results = [
            record for part in self.parts if part.kind == "right" for _, record in part.results
        ]
        if not results:
            return WORDS[self.kind]
        unread = (
            "; presents that nothing reads are wrong" if any(map(only_presents, results)) else ""
        )
        return f"right ({plural(len(results), 'call')}{unread})"


def at_fault(group: Group, records: Iterable[ResultRecord]) -> Group:
    """The nodes that bad results concern: of a graph of two layers perhaps the second alone."""
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
) -> Answer:
    """The answer for the ``results`` of a group's stages; ``pinned`` says which are known."""
    by_kind: dict[Kind, list[tuple[Stage, ResultRecord]]] = {}
    for stage, record in results:
        if record is not None:
            by_kind.setdefault(kind_of(group, record), []).append((stage, record))
    parts = []
    for kind in SIGNS:
        if kind in by_kind:
            these = [stage for stage, _ in by_kind[kind]]
            where = "" if kind == "right" else where_of(these, _others(kind, by_kind))
            parts.append(Part(kind, where, tuple(by_kind[kind])))
    bad = [record for kind, found in by_kind.items() if kind != "right" for _, record in found]
    return Answer(group, target, tuple(parts), bool(bad) and all(map(pinned, bad)))


def _others(
    kind: Kind, by_kind: Mapping[Kind, Sequence[tuple[Stage, ResultRecord]]]
) -> list[Stage]:
    """The stages that one kind is told apart from: those that are right, else all that were
    tried."""
    right = by_kind.get("right", ())
    if right:
        return [stage for stage, _ in right]
    tried = [found for other, found in by_kind.items() if other not in (kind, "untried")]
    return [stage for found in tried for stage, _ in found]


def kind_of(group: Group, record: ResultRecord) -> Kind:
    """What a result comes to for somebody who wants to run the model."""
    if record.outcome == "rejected":
        return "refused"
    if record.verdict in ("crash", "timeout", "fallback"):
        return "untried" if record.other_kernel else record.verdict
    if record.verdict == "skip":
        return "untried"
    acceptance = acceptance_of(record)
    wrong = acceptance.red if acceptance else record.verdict in ("wrong", "accepted")
    unread = only_presents(record) and not group.form.reads_presents
    return "wrong" if wrong and not unread else "right"


def short(message: str) -> str:
    """What a runtime says is wrong, on one line, without its own prefixes."""
    lines = [line for line in clean(message, 4_000).splitlines() if line.strip()]
    last = lines[-1] if lines and _CAUSE.match(lines[-1]) else (lines or [""])[0]
    text = _SOURCE.sub("", _PREFIX.sub("", _CAUSE.sub("", last))).strip()
    return text if len(text) <= _MOST_MESSAGE else f"{text[: _MOST_MESSAGE - 1]}…"


_PHASES: Final[Mapping[str, str]] = {
    "prompt": "for prompts",
    "decode": "for one token on a past",
    "loop": "in a loop of calls",
}


def where_of(these: Sequence[Stage], others: Sequence[Stage]) -> str:
    """What sets ``these`` stages apart from the ``others``: ``from 513 tokens on``.

    "" if there are no others.
    """
    if not others:
        return ""
    longest = max(stage.tokens for stage in others)
    least = min((s.tokens for s in these if s.tokens > longest), default=0)
    found = [
        (words, {stage.label for stage in these if holds(stage)})
        for words, holds in _conditions(min(stage.tokens for stage in these), least)
        if any(map(holds, these)) and not any(map(holds, others))
    ]
    every = {stage.label for stage in these}
    for words, covered in found:
        if covered == every:
            return words
    alone = [(f"for {stage.words}", {stage.label}) for stage in these]
    pairs = [*combinations(found, 2), *product(found, alone)]
    for (words, covered), (more, other) in pairs:
        if covered | other == every and covered - other and other - covered:
            return f"{words} and {more}"
    named = [stage.words for stage in these[:2]]
    more_calls = len(these) - len(named)
    return "for " + listed([*named, *([plural(more_calls, "other call")] if more_calls else [])])


_Holds = Callable[[Stage], bool]


def _conditions(least: int, beyond: int) -> Iterator[tuple[str, _Holds]]:
    """Conditions on a stage in words, the simplest first.

    ``least`` is the smallest number of tokens of the stages, and ``beyond`` the smallest that no
    other stage reaches, 0 if there is none.
    """
    longer = f"from {least} tokens on"
    in_phase: dict[str, _Holds] = {
        words: partial(_is_in, phase) for phase, words in _PHASES.items()
    }
    in_phase["for several tokens on a past"] = lambda s: s.phase in ("chunk", "loop")
    in_phase["for several new tokens"] = lambda s: s.several
    yield longer, lambda s: s.tokens >= least
    yield from in_phase.items()
    yield "on a past", lambda s: s.phase != "prompt"
    yield "in ragged batches", lambda s: s.ragged
    yield "in batches", lambda s: s.batch
    yield "with the cache in a buffer", lambda s: s.buffer
    for words, holds in in_phase.items():
        yield f"{words} {longer}", partial(_both, holds, lambda s: s.tokens >= least)
        yield f"{words} in ragged batches", partial(_both, holds, lambda s: s.ragged)
        yield f"{words} in batches", partial(_both, holds, lambda s: s.batch)
    if beyond > least:
        yield f"from {beyond} tokens on", lambda s: s.tokens >= beyond


def _is_in(phase: str, stage: Stage) -> bool:
    return stage.phase == phase


def _both(one: _Holds, other: _Holds, stage: Stage) -> bool:
    return one(stage) and other(stage)


def workaround(link: str) -> str:
    """The way round that the finding at ``link`` gives, "" if it gives none."""
    found = _WORKAROUND.search(page_of(link) or "")
    sentences = re.split(r"(?<=\.)\s+", " ".join(found[1].split())) if found else []
    return " ".join(each for each in sentences if " below" not in each)


def verdict_on_model(answers: Sequence[Answer], faults: int) -> str:
    """Whether a target runs the attention of the whole model right: one sentence about it."""
    target = answers[0].target
    bad = [one for one in answers if one.bad]
    untried = [one.untried for one in answers if one.untried is not None]
    if all(one.kind == "untried" for one in answers):
        reason = untried[0].results[0][1].reason if untried else "there are no results"
        return f"{target} was not tried: {reason}."
    said = []
    for kind in SIGNS:
        those = [
            at_fault(one.group, [record for _, record in part.results])
            for one in bad
            for part in one.bad
            if part.kind == kind
        ]
        if those:
            said.append(f"{WORDS[kind]} in {layers_of(those)}")
    if faults:
        said.append(f"{plural(faults, 'node')} not checked")
    if untried:
        calls = sum(len(part.results) for part in untried)
        said.append(f"{plural(calls, 'call')} not tried ({untried[0].results[0][1].reason})")
    if nothing := [one.group for one in answers if one.kind == "untried"]:
        said.append(f"{layers_of(nothing)} not tried")
    if bad or faults or nothing:
        return f"{target}: {'; '.join(said)}."
    but = f", as far as it was tried: {said[0]}" if said else ""
    return f"{target} runs the attention of every layer right{but}."
