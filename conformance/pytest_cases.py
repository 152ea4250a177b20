"""The pytest items: a case file, and its cases on each target.

Separate from `conformance.pytest_plugin`, since importing this takes half a second, which pytest
runs without case files must not pay.
"""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from conformance.base.paths import is_of_case_file
from conformance.base.printable import printable
from conformance.base.yaml_source import InputError
from conformance.case.case import Case
from conformance.case.corpus import (
    NothingMeant,
    find,
    name_on,
    names_of,
    shipped_tags,
    split_target,
)
from conformance.case.load import load_file
from conformance.case.properties import VOCABULARY, Test, word_test
from conformance.case.selection import Expression, SelectionError, compile_expression
from conformance.harness.runner import RunnerFailed
from conformance.judge.expectations import Expectation, load_expectations, load_pinned
from conformance.report.instability import instability_examples, instability_text
from conformance.report.terminal import tell, tell_trouble
from conformance.results.records import InfrastructureRecord, InstabilityRecord, ResultRecord
from conformance.results.uncalled import uncalled_sentences
from conformance.results.verdicts import flaky_text, was_tried
from conformance.run.assessment import PreparedCase, Record
from conformance.run.engine import TargetRun
from conformance.run.records import case_record
from conformance.run.target import TargetPlan, target_plans
from conformance.targets.catalogue import Programs, TargetError, run_options
from conformance.targets.registry import Target, eps_of, targets_for

#: Where pytest keeps the values of its option ``--expectations``.
EXPECTATIONS: Final = "gqa_expectations"


class Listed(NamedTuple):
    """What collecting a case needs; running it needs the whole case, which takes longer to make.

    ``marks`` are its tags and the words of ``-m`` that say what its call is; ``chosen`` has the
    labels of the targets on which ``-k`` selects it.
    """

    file: Path
    name: str
    axes: dict[str, str]
    marks: tuple[str, ...]
    line: int
    chosen: tuple[str, ...]


class Cases:
    """The cases of a session by their files, each file loaded once and not before it has to be."""

    def __init__(
        self, selects: Expression, marks: dict[str, Test], pinned: Sequence[Path] = ()
    ) -> None:
        self._pinned = pinned
        self._selects = selects
        self._marks = marks
        self._listed: dict[Path, list[Listed]] = {}
        self._loaded: dict[Path, dict[str, Case]] = {}

    def listed(self, file: Path, targets: Sequence[Target]) -> list[Listed]:
        """The cases of ``file``. Raises :class:`InputError`, also for stale expectations."""
        if file not in self._listed:
            cases = list(self._load(file).values())
            target_plans(cases, targets, pinned=self._pinned)
            labels = [target.label for target in targets]
            self._listed[file] = [self._as_listed(file, case, labels) for case in cases]
        return self._listed[file]

    def _as_listed(self, file: Path, case: Case, labels: Sequence[str]) -> Listed:
        words = (word for word, test in self._marks.items() if test(case))
        marks = tuple(dict.fromkeys((*case.tags, *words)))
        chosen = (label for label in labels if self._selects(names_of(case, label), case))
        return Listed(file, case.name, case.axes, marks, case.line, tuple(chosen))

    def case(self, listed: Listed) -> Case:
        """The case itself."""
        return self._load(listed.file)[name_on(listed, None)]

    def _load(self, file: Path) -> dict[str, Case]:
        if file not in self._loaded:
            self._loaded[file] = {case.label: case for case in load_file(file)}
        return self._loaded[file]


class TargetRuns:
    """The targets of a pytest session; the runner of each starts with its first case."""

    def __init__(
        self, targets: list[Target], cases: Cases, pinned: Sequence[Expectation] = ()
    ) -> None:
        self.targets = targets
        self.cases = cases
        self._pinned = tuple(pinned)
        self._runs: dict[str, TargetRun] = {}
        #: What was prepared last, for the next target of the same case.
        self._made: PreparedCase | None = None
        self._told: set[str] = set()

    def run(self, case: Case, target: Target) -> tuple[Record, list[InstabilityRecord]]:
        """Run ``case`` on ``target`` and judge the result; with what did not repeat."""
        run = self._of(target)
        if self._made is None or self._made.case is not case:
            self._made = PreparedCase(case)
        try:
            return run.run_one(self._made)
        except RunnerFailed as error:
            return run.trouble(error), []

    def news_of(self, target: Target) -> list[str]:
        """Sentences about what ``target`` has and no case calls, each once in this process."""
        told = uncalled_sentences([self._of(target).ready.record()])
        news = [sentence for sentence in told if sentence not in self._told]
        self._told.update(news)
        return news

    def fix_of(self, target: Target) -> str | None:
        """The command that makes ``target`` available, if one does."""
        return self._of(target).ready.fix

    def _of(self, target: Target) -> TargetRun:
        if target.label not in self._runs:
            _end_orderly_on_sigterm()
            before = self.targets[: self.targets.index(target)]
            earlier = [self._of(one) for one in before if one.may_share_name(target)]
            lines = tuple(load_expectations(target.expectations))
            plan = TargetPlan(target, (), lines, self._pinned)
            self._runs[target.label] = TargetRun(plan, earlier)
        return self._runs[target.label]

    def close(self) -> None:
        """End all runners."""
        for run in self._runs.values():
            run.close()
        self._runs.clear()


def _end_orderly_on_sigterm() -> None:
    """SIGTERM ends pytest as Ctrl-C does, so that runners are ended and files removed."""
    unhandled = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if unhandled and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)


_TARGET_RUNS: Final = pytest.StashKey[TargetRuns]()


def target_runs(config: pytest.Config) -> TargetRuns:
    """The targets of ``--ep``; their runners end with the session. Raises UsageError.

    Without ``--ep``, those that ids in the arguments name, else cpu.
    """
    runs = config.stash.get(_TARGET_RUNS, None)
    if runs is None:
        named = [split_target(one)[1] for one in config.args if is_of_case_file(one)]
        programs = Programs(
            **{option.name: config.getoption(option.name) for option in run_options()}
        )
        eps = config.getoption("ep") or eps_of([ep for ep in named if ep is not None], programs)
        try:
            targets = targets_for(eps or ["cpu"], programs)
        except TargetError as error:
            raise pytest.UsageError(printable(str(error))) from None
        try:
            selects = compile_expression(config.option.keyword)
        except SelectionError:  # `Keywords` reports it
            selects = compile_expression("")
        marks = marks_of(config.option.markexpr)
        _declare(config, marks, _OF_CALLS)
        files = [Path(file) for file in config.getoption(EXPECTATIONS)]
        try:
            pinned = load_pinned(files)
        except InputError as error:
            raise pytest.UsageError(printable(str(error))) from None
        cases = Cases(selects, marks, files)
        runs = config.stash[_TARGET_RUNS] = TargetRuns(targets, cases, pinned)
        config.add_cleanup(runs.close)
    return runs


def write_out_ids(config: pytest.Config) -> None:
    """Replace ids of cases in the arguments by the names of their tests.

    An id may leave out axes, and the target. Raises UsageError for an id that names no case.
    """
    files: dict[str, list[str]] = {}
    for argument in config.args:
        file, separator, _ = argument.partition("::")
        if separator and is_of_case_file(argument):
            files.setdefault(file, []).append(argument)
    if not files:
        return
    targets = [target.label for target in target_runs(config).targets]
    names: dict[str, list[str]] = {}
    for file, arguments in files.items():
        try:
            corpus = find(arguments)
            corpus.check_targets(targets)
        except NothingMeant as error:
            raise pytest.UsageError(printable(str(error))) from None
        except InputError:
            continue  # collecting the file reports the error
        for argument, (cases, target) in zip(arguments, corpus.meant, strict=True):
            chosen = targets if target is None else [target]
            names[argument] = [f"{file}::{name_on(case, one)}" for case in cases for one in chosen]
    config.args = list(dict.fromkeys(x for one in config.args for x in names.get(one, [one])))


def marks_of(expression: str) -> dict[str, Test]:
    """The words of ``-m`` that say what a call is, each with its test."""
    found = ((word, word_test(word)) for word in re.findall(r"[a-z]\w*", expression, re.ASCII))
    return {word: test for word, test in found if test is not None}


def declare_shipped_marks(config: pytest.Config) -> None:
    """Register the tags of the corpus and the words for calls, for ``--markers`` and ``-m``."""
    _declare(config, shipped_tags(), _TAGGED)
    _declare(config, VOCABULARY, _OF_CALLS)


#: What ``pytest --markers`` says of a marker.
_TAGGED: Final = "cases with this tag"
_OF_CALLS: Final = "cases whose call is or has this"


def _declare(config: pytest.Config, marks: Iterable[str], what: str) -> None:
    known = {line.partition(":")[0] for line in config.getini("markers")}
    for mark in dict.fromkeys(marks):
        if mark not in known:
            config.addinivalue_line("markers", f"{mark}: {what}")


class CaseFile(pytest.File):
    """A case file; its items are its cases on each target."""

    def collect(self) -> Iterator[CaseItem]:
        """One item for each case and target."""
        runs = target_runs(self.config)
        try:
            cases = runs.cases.listed(self.path, runs.targets)
        except InputError as error:
            raise self.CollectError(str(error)) from None
        _declare(self.config, [mark for case in cases for mark in case.marks], _TAGGED)
        for case in cases:
            for target in runs.targets:
                name = name_on(case, target.label)
                # As a string, in which pytest finds the name and the bracket itself.
                nodeid = f"{self.nodeid}::{name}"
                yield CaseItem.from_parent(
                    self, name=name, nodeid=nodeid, listed=case, target=target
                )


class Keywords:
    """Selects cases by ``-k`` as ``gqa`` does, and leaves all other tests to pytest."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> Iterator[None]:
        """Deselect before other plugins do."""
        expression = config.option.keyword
        check_keywords(config)
        ours = {item for item in items if isinstance(item, CaseItem)}
        dropped = {item for item in ours if item.target.label not in item.listed.chosen}
        if dropped:
            config.hook.pytest_deselected(items=[item for item in items if item in dropped])
        others = [item for item in items if item not in ours]
        if others and expression:
            config.pluginmanager.getplugin("mark").pytest_collection_modifyitems(others, config)
        left = {*others, *(ours - dropped)}
        items[:] = [item for item in items if item in left]
        config.option.keyword = ""  # it has been applied
        try:
            return (yield)
        finally:
            config.option.keyword = expression


def check_keywords(config: pytest.Config) -> None:
    """Raise UsageError if the expression of ``-k`` is invalid."""
    try:
        compile_expression(config.option.keyword)
    except SelectionError as error:
        raise pytest.UsageError(printable(str(error))) from None


class CaseFailed(Exception):
    """An unexpected result; its text is the message for the user."""

    def __init__(self, text: str) -> None:
        super().__init__(printable(text))


def tell_instability(records: Sequence[str]) -> Iterator[str]:
    """Lines about results that did not repeat, by target; ``records`` are as JSON."""
    found = [InstabilityRecord.model_validate_json(record) for record in records]
    for target in dict.fromkeys(record.target for record in found):
        those = [record for record in found if record.target == target]
        yield f"{target}: {instability_text(those)}"
        yield from (f"  {text}" for text in instability_examples(those))


class CaseItem(pytest.Item):
    """One case on one target."""

    def __init__(self, *, listed: Listed, target: Target, **rest: Any) -> None:
        super().__init__(**rest)
        self.listed = listed
        self.target = target
        for mark in listed.marks:
            self.add_marker(mark)

    def runtest(self) -> None:
        """Pass, skip with the reason, xfail a known defect, or raise CaseFailed."""
        runs = target_runs(self.config)
        case = runs.cases.case(self.listed)
        record, unstable = runs.run(case, self.target)
        for found in unstable:  # for `RunCounter` of the controlling process
            self.user_properties.append(("gqa_instability", found.model_dump_json()))
        if isinstance(record, InfrastructureRecord):
            raise CaseFailed(tell_trouble(record))
        self._keep(record)
        if record.insensitive:
            self.warn(pytest.PytestWarning(printable(record.insensitive)))
        if not was_tried(record):
            pytest.skip(printable(record.reason))
        if record.verdict == "pass" and not record.unexpected:
            return
        if not record.unexpected:
            known = record.expectation
            how = (
                f"{record.verdict} ({flaky_text(record.flaky)})" if record.flaky else record.verdict
            )
            pytest.xfail(printable(f"{how}: {known.why if known else record.reason}"))
        raise CaseFailed("\n".join(tell(case_record(case), record)))

    def _keep(self, record: ResultRecord) -> None:
        """Record properties for JUnit and, with xdist, for the controlling process."""
        self.user_properties += [
            ("gqa_target", record.target),
            ("gqa_ep", self.target.label),
            ("gqa_verdict", record.verdict),
            ("gqa_outcome", record.outcome),
            ("gqa_tried", was_tried(record)),
            ("gqa_reason", record.reason),
        ]
        news = target_runs(self.config).news_of(self.target)
        self.user_properties += [("gqa_uncalled", sentence) for sentence in news]
        if not was_tried(record) and (fix := target_runs(self.config).fix_of(self.target)):
            self.user_properties.append(("gqa_fix", fix))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The message for the user instead of a traceback."""
        # Also for expected failures: pytest would format a traceback for each, in 0.2 s.
        if isinstance(excinfo.value, CaseFailed | pytest.xfail.Exception):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int, str]:
        """The place of the entry in its file."""
        return self.path, self.listed.line - 1, self.name
