"""The check of a model: which answers follow from the results of its cases, and their pins."""

from __future__ import annotations

import shlex
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path

from conformance.base.findings import FindingFacts, on_software_only
from conformance.base.words import plural
from conformance.case.case import Case
from conformance.case.corpus import find
from conformance.cli.check_json import document
from conformance.cli.check_pins import ModelPins, failures_of_model, is_of_model
from conformance.cli.check_way_round import WayRound, WaysRound
from conformance.cli.common import Status, write_file
from conformance.cli.terminal import RunSummary
from conformance.expectations.expect import pinned_text
from conformance.expectations.known import TODO
from conformance.expectations.match import Expectation
from conformance.expectations.read import load_expectations
from conformance.model.answer.answer_table import table_of
from conformance.model.answer.answers import (
    CHAT,
    WAY_OF,
    ModelAnswer,
    answer,
    answer_of_model,
    kind_of,
)
from conformance.model.answer.headline import blamed, label_of, series_of
from conformance.model.answer.similar_defect import Similar, similar_defect
from conformance.model.calls.groups import Group, whole_of
from conformance.model.calls.stages import NodeCall
from conformance.model.calls.subject import Subject
from conformance.model.run.dense_prompts import DensePrompts
from conformance.model.run.on_target import NOT_COMPARED, ModelProgram, ModelRun, run_model
from conformance.model.run.short_messages import short
from conformance.report.model_table import WORDS, AnswerKind, ModelTable
from conformance.results.causes import symptom
from conformance.results.records import ResultRecord
from conformance.results.verdicts import verdict_word
from conformance.run.target import DescribedTarget


class CheckRun:
    """A model with its cases, what the ``number`` of targets do with it, and the answers."""

    def __init__(
        self,
        subject: Subject,
        cases: Sequence[Case],
        pinned: Sequence[Expectation],
        program: ModelProgram,
        prompts: DensePrompts | None,
        number: int,
    ) -> None:
        self.subject = subject
        self.program = program
        self.prompts = prompts
        self._number = number
        configuration = program.configuration
        #: The uses that a target must run right.
        self.required = [use for use, way in WAY_OF.items() if way.asked(configuration)]
        self.cases = {case.id: case for case in cases}
        self.targets: dict[str, DescribedTarget] = {}
        self._lines: dict[str, tuple[Expectation, ...]] = {}
        self.seen: dict[str, ModelRun] = {}
        self.pinned = [line for line in pinned if not is_of_model(line)]
        self.model_pins = ModelPins(pinned, cases[0].theme if cases else "")
        self.pins = {(line.place, line.line) for line in pinned}
        self.answers: dict[str, list[ModelAnswer]] = {}
        self.better: list[ResultRecord] = []
        self.near: dict[tuple[str, str], Similar | None] = {}
        self._ways_round = WaysRound(program, prompts, self.required, len(subject.faults))
        self.way_round = WayRound()

    def run_model(self, ready: DescribedTarget) -> None:
        """Run the model on a target."""
        self.targets[ready.name] = ready
        self._lines[ready.name] = ready.lines_among(load_expectations(ready.target.expectations))
        lacks = next(filter(None, map(ready.adapter_lacks, self.cases.values())), None)
        self.seen[ready.name] = (
            ModelRun(unseen=lacks) if lacks else run_model(self.program, ready, self.prompts)
        )
        if self._ways_round.fails(self.seen[ready.name]):
            self._ways_round.run_model(ready)  # while the results of prompts are known
        if self.prompts is not None and len(self.seen) == self._number:
            self.prompts.close()  # the processes that run cases would have its memory, too

    @cached_property
    def _corpus(self) -> Sequence[Case]:
        return find(()).loaded

    def _similar(self, record: ResultRecord) -> Similar | None:
        """A known defect of the corpus that is similar to that of a result."""
        lines, key = self._lines[record.target], (record.case, record.target)
        if key not in self.near:
            case = self.cases[record.case]
            near = None if case.is_graph else similar_defect(case, record, lines, self._corpus)
            self.near[key] = near
        return self.near[key]

    def _of_software(self, record: ResultRecord) -> FindingFacts | None:
        """The finding of a defect that is known on software adapters only, if it is of one."""
        if not self.targets[record.target].on_software:
            return None
        own = record.known if record.known and record.known.link != TODO else None
        found = own or self._similar(record)
        return on_software_only(found.link, record.target) if found else None

    def conclude(self, summary: RunSummary) -> ModelTable:
        """Find the answers of a run, and their table."""
        self.answers = self._answers(summary)
        bad = {(record.case, record.target) for record in self._bad()}
        self.better = [
            record
            for _, record in summary.results
            if record.unexpected and self._is_pin(record)
            if (record.case, record.target) not in bad
        ]
        targets = self.targets.values()
        if not summary.interrupted:
            self.way_round = self._ways_round.conclude(self.answers, targets, self.cases)
        table = table_of(self.subject, self.answers, targets, self._similar, self.required)
        table = replace(table, way_round=self.way_round.sentence)
        return self._with_what_was_tried(table)

    @cached_property
    def _tried(self) -> list[tuple[NodeCall, ResultRecord]]:
        """The results of all targets, each with its call."""
        parts = (part for each in self.answers.values() for one in each for part in one.parts)
        return [pair for part in parts for pair in part.results]

    @property
    def complete(self) -> bool:
        """Whether every call has a result on every target."""
        return bool(self.targets) and len(self._tried) == len(self.cases) * len(self.targets)

    @property
    def most_tokens(self) -> int:
        """The number of tokens of the longest call that was tried; 0 if none was."""
        tried = [stage.tokens for stage, record in self._tried if record.verdict != "skip"]
        tried += [way.tokens for run in self.seen.values() for way in run.ways]
        return max(tried, default=0)

    def _with_what_was_tried(self, table: ModelTable) -> ModelTable:
        """The table that says up to how many tokens calls were tried, and which have no result."""
        told = [*table.sentences]
        series = series_of(self.targets.values())
        for at, targets in enumerate(series, start=len(told) - len(series)):
            verdict, text = told[at]
            names = {target.name for target in targets}
            tried = sum(record.target in names for _, record in self._tried)
            number = f"{tried} of {len(names) * len(self.cases)} calls"
            if not 0 < tried < len(names) * len(self.cases):
                continue
            if verdict == "pass":
                right = f"{label_of(targets)}: only {number} were tried; these are right."
                told[at] = ("skip", right)
            else:
                told[at] = (verdict, f"Only {number} were tried. {text}")
        tokens = f"tried up to {self.most_tokens:,} tokens" if self.most_tokens else "nothing tried"
        return replace(table, heading=f"{table.heading}; {tokens}", sentences=tuple(told))

    def status(self, summary: RunSummary) -> int:
        """The exit status of ``gqa check``."""
        # A runtime that takes none of the calls refuses the model: that is an answer.
        unavailable = {ready.name for ready in self.targets.values() if ready.described is None}
        untried = {name: why for name, why in summary.untried.items() if name in unavailable}
        status = replace(summary, untried=untried).status()
        if status not in (Status.AS_EXPECTED, Status.UNEXPECTED):
            return status
        every = [
            one.of(use)
            for answers in self.answers.values()
            for one in answers
            for use in self.required
        ]
        red = any(one.bad and not one.pinned for one in every)
        red = red or any(self._unpinned_of_model()) or any(map(_not_tried, every))
        unstable = any(record.unexpected for record in summary.instability)
        others = red or unstable or self.subject.faults
        return Status.UNEXPECTED if others else Status.AS_EXPECTED

    def write_pins(self, place: Path, results: Path) -> Iterator[str]:
        """Pin all failures, in a file or in one for each target; a line for each."""
        alone = place.suffix in (".yaml", ".yml")
        if not alone:
            place.mkdir(exist_ok=True)
        for base in dict.fromkeys(target.base for target in self.targets.values()):
            file = place if alone else place / f"{base}.yaml"
            targets = {name: one for name, one in self.targets.items() if one.base == base}
            bad = {
                (record.case, target.version, target.adapter): record
                for record in self._bad()
                if (target := targets.get(record.target))
            }
            reasons = {record.case: _reason(record) for record in bad.values()}
            text = pinned_text(base, results, file, bad.keys(), reasons)
            text, lines = self.model_pins.text(file, text, self.answers, [*targets.values()])
            write_file(file, "expectations", text)
            pinned = plural(len(bad) + lines, "result")
            yield f"Pinned:  {pinned} of {base}, for --expect {place}"

    def unpinned(self, place: Path) -> Iterator[str]:
        """A line for each cause that is not pinned in ``place``, and the command that pins it."""
        found = defaultdict[tuple[str, str], list[tuple[str, str]]](list)
        for record in self._bad():
            if self._is_known(record):
                continue
            pin = record.expectation if self._is_pin(record) else None
            instead = (
                f", pinned as {verdict_word(pin.verdict)} in {pin.file}:{pin.line}" if pin else ""
            )
            group = next(g for g in self.subject.groups if g.name == self.cases[record.case].name)
            what = f"Not pinned: {WORDS[kind_of(group, record)]} on {record.target}{instead}"
            why = record.message or symptom(record)
            found[what, symptom(record)].append((record.case, short(why)))
        for what, where, why in self._unpinned_of_model():
            found[f"Not pinned: {what}", why].append((where, why))
        for line, name in self.model_pins.better(self.targets, self.answers):
            at = f"{line.place}:{line.line}"
            found[_better(line.known.verdict, at, name), ""].append((line.known.cases[0], ""))
        for record in self.better:
            if known := record.expectation:
                what = _better(known.verdict, f"{known.file}:{known.line}", record.target)
                found[what, ""].append((record.case, ""))
        yield from (_of_cause(what, *members) for (what, _), members in found.items())
        if found:
            command = shlex.join(["gqa", *sys.argv[1:], "--write-expect", str(place)])
            yield f"To pin what is there today: {command}"

    def _unpinned_of_model(self) -> Iterator[tuple[str, str, str]]:
        """The failures of the model itself that are not pinned: kind and target, place and why."""
        for name, target in self.targets.items():
            for group, use, kind, why in failures_of_model(self.answers[name]):
                if use in WAY_OF and use not in self.required:
                    continue
                if self.model_pins.line(target, group, use, kind) is None:
                    yield f"{WORDS[kind]} on {name}", _of_model(use), why

    def _bad(self) -> list[ResultRecord]:
        """The results that are not right, and those of a use that could not be tried."""
        parts = (
            part
            for one in chain.from_iterable(self.answers.values())
            for part in (*one.bad, *one.untried)
        )
        every = [record for part in parts for _, record in part.results]
        return [record for record in every if record.verdict != "skip"]

    def _is_known(self, record: ResultRecord) -> bool:
        """Whether the user has pinned the result with this verdict."""
        if record.known is not None or record.verdict != "pass":
            return record.known is not None and self._is_pin(record)
        target = self.targets[record.target]
        case = self.cases[record.case]
        return any(
            line.known.verdict == "pass" and line.target == target.base and line.covers(case)
            for line in target.lines_among(self.pinned)
        )

    def json(self, table: ModelTable, status: int) -> str:
        """The answers for programs."""
        tried = {"complete": self.complete, "most_tokens": self.most_tokens}
        return document(
            self.subject,
            table,
            self.answers,
            self.targets.values(),
            status,
            {**tried, "in_standard_operators": asdict(self.way_round)},
        )

    def _answers(self, summary: RunSummary) -> dict[str, list[ModelAnswer]]:
        """The answers of each target, by its name, in the order of the groups."""
        records: dict[tuple[str, str, str], ResultRecord] = {}
        for case, record in summary.results:
            records[record.target, case.name, case.axes["stage"]] = record
        answers = {
            target: [
                answer(
                    group,
                    target,
                    (
                        (stage, records.get((target, group.name, stage.label)))
                        for stage in self.subject.stages[group.name]
                    ),
                    self._is_known,
                    self._of_software,
                )
                for group in self.subject.groups
            ]
            for target in self.targets
        }
        whole = whole_of(self.subject.groups)
        made = {}
        for name, those in answers.items():
            run = self.seen.get(name, ModelRun(unseen="it was not run"))
            of_model = answer_of_model(whole, name, run, partial(self._is_pinned, name))
            unseen = run.unseen or ("the model does not load" if run.load else "")
            made[name] = [of_model, *(replace(one, unseen=unseen) for one in those)]
        return blamed(made)

    def _is_pinned(self, target: str, group: Group, use: str, kind: AnswerKind) -> bool:
        return self.model_pins.line(self.targets[target], group, use, kind) is not None

    def _is_pin(self, record: ResultRecord) -> bool:
        known = record.expectation
        return known is not None and (known.file, known.line) in self.pins


def _of_model(use: str) -> str:
    """``the model in one chat``."""
    return f"the model {WAY_OF[use].words}" if use in WAY_OF else "the model"


def _better(verdict: str, place: str, target: str) -> str:
    return f"Better than pinned as {verdict_word(verdict)} in {place}: right on {target}"


def _of_cause(what: str, first: tuple[str, str], *others: tuple[str, str]) -> str:
    """A line on the changes with one cause; each has its place and the reason."""
    where, why = first
    more = f" and {len(others)} more" if others else ""
    return f"{what}: {where}{more}{f': {why}' if why else ''}".rstrip(".") + "."


def _not_tried(one: ModelAnswer) -> bool:
    """Whether no call of a use could be tried, and this is not pinned.

    A way in which the model cannot be called is no way of calling it.
    """
    if one.group.is_whole:
        return any(
            not part.pinned and (part.use == CHAT or part.where.startswith(NOT_COMPARED))
            for part in one.untried
        )
    parts = [part for use in one.uses for part in [one.of(use)] if not (part.right or part.bad)]
    return any(not part.pinned for each in parts for part in each.untried)


def _reason(record: ResultRecord) -> tuple[str, str]:
    """The reason and the link for a line that pins a result."""
    if record.known is not None:
        return record.known.why, record.known.link
    return f"Pinned as it was: {short(record.message or record.reason)}", TODO
