"""The pytest items: a case file, and its cases on each target.

Separate from `conformance.pytest_plugin`, since importing this module takes half a second, which a
pytest run without case files should not spend.
"""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import pytest

from conformance.base.paths import is_of_case_file
from conformance.base.text import clean, printable
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
from conformance.expectations.read import load_expectations, load_pinned
from conformance.harness.runner import RunnerFailed
from conformance.report.terminal import tell, tell_trouble
from conformance.results.causes import kind_of
from conformance.results.descriptions import case_record
from conformance.results.growth import growth_texts
from conformance.results.instability import instability_lines
from conformance.results.records import InfrastructureRecord, InstabilityRecord, ResultRecord
from conformance.results.uncalled import uncalled_sentences
from conformance.results.verdicts import flaky_text, was_tried
from conformance.run.assessment import Assessed
from conformance.run.engine import PlanRun
from conformance.run.target import DescribedTarget, Plan, target_plans
from conformance.targets.catalogue import OptionValues, TargetError, run_options
from conformance.targets.registry import Target, eps_of, targets_for

#: Where pytest keeps the values of its option ``--expectations``.
EXPECTATIONS: Final = "gqa_expectations"


class TargetRuns:
    """The targets of a pytest session, its options for cases, and the files that were loaded.

    Raises :class:`InputError` and :class:`TargetError`.
    """

    def __init__(self, config: pytest.Config) -> None:
        named = [split_target(one)[1] for one in config.args if is_of_case_file(one)]
        programs = OptionValues(
            **{option.name: config.getoption(option.name) for option in run_options()}
        )
        eps = config.getoption("ep") or eps_of([ep for ep in named if ep is not None], programs)
        self.targets = targets_for(eps or ["cpu"], programs)
        #: The words of ``-m`` that say what a call is, each with its test.
        self.marks = marks_of(config.option.markexpr)
        _declare(config, self.marks, _OF_CALLS)
        self._pinned = [Path(file) for file in config.getoption(EXPECTATIONS)]
        self._lines = tuple(load_pinned(self._pinned))
        self._cases: dict[Path, list[Case]] = {}
        #: The sentences about what no case calls that this process has said.
        self.told: set[str] = set()
        self._open = ExitStack()
        config.add_cleanup(self._open.close)

    def cases(self, file: Path) -> list[Case]:
        """The cases of ``file``. Raises :class:`InputError`, also for stale expectations."""
        if file not in self._cases:
            cases = load_file(file)
            target_plans(cases, self.targets, pinned=self._pinned)
            self._cases[file] = cases
        return self._cases[file]

    @cached_property
    def of(self) -> dict[str, PlanRun]:
        """The run of each target by its label; a runner starts with the first case."""
        _end_orderly_on_sigterm()
        runs: dict[str, PlanRun] = {}
        for target in self.targets:
            lines = tuple(load_expectations(target.expectations))
            plan = Plan(target, (), lines, self._lines)
            run = PlanRun(plan, [*runs.values()])
            runs[target.label] = self._open.enter_context(run)
        return runs


def _end_orderly_on_sigterm() -> None:
    """Let SIGTERM end pytest as Ctrl-C does, so that runners are ended and files removed."""
    unhandled = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if unhandled and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)


_TARGET_RUNS: Final = pytest.StashKey[TargetRuns]()


def target_runs(config: pytest.Config) -> TargetRuns:
    """The targets of ``--ep``; their runners end with the session. Raises UsageError.

    Without ``--ep``, the targets that ids in the arguments name, or else cpu.
    """
    runs = config.stash.get(_TARGET_RUNS, None)
    if runs is None:
        try:
            runs = config.stash[_TARGET_RUNS] = TargetRuns(config)
        except (InputError, TargetError) as error:
            raise pytest.UsageError(printable(str(error))) from None
    return runs


def write_out_ids(config: pytest.Config) -> None:
    """Replace ids of cases in the arguments by the names of their tests.

    An id may leave out axes and the target. Raises UsageError for an id that names no case.
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
    """The words of ``-m`` that describe calls, each with its test."""
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
            cases = runs.cases(self.path)
        except InputError as error:
            raise self.CollectError(str(error)) from None
        _declare(self.config, [tag for case in cases for tag in case.tags], _TAGGED)
        for case in cases:
            for target in runs.targets:
                name = name_on(case, target.label)
                # A string: pytest finds the name and the bracket in it.
                nodeid = f"{self.nodeid}::{name}"
                yield CaseItem.from_parent(self, name=name, nodeid=nodeid, case=case, target=target)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Iterator[None]:
    """Select cases by ``-k`` as ``gqa`` does, before other plugins.

    All other tests are left to pytest.
    """
    expression, selects = config.option.keyword, keywords(config)
    left = [item for item in items if not isinstance(item, CaseItem)]
    if left and expression:
        config.pluginmanager.getplugin("mark").pytest_collection_modifyitems(left, config)
    kept = {*left}
    ours = [item for item in items if isinstance(item, CaseItem)]
    kept.update(one for one in ours if selects(names_of(one.case, one.target.label), one.case))
    if dropped := [item for item in ours if item not in kept]:
        config.hook.pytest_deselected(items=dropped)
    items[:] = [item for item in items if item in kept]
    config.option.keyword = ""  # it has been applied
    try:
        return (yield)
    finally:
        config.option.keyword = expression


def keywords(config: pytest.Config) -> Expression:
    """The expression of ``-k``. Raises UsageError if it is invalid."""
    try:
        return compile_expression(config.option.keyword)
    except SelectionError as error:
        raise pytest.UsageError(printable(str(error))) from None


class CaseFailed(Exception):
    """An unexpected result; its text is the message for the user."""

    def __init__(self, text: str) -> None:
        super().__init__(clean(text))


def tell_instability(records: Sequence[str]) -> Iterator[str]:
    """Lines about results that did not repeat, by target; ``records`` are results as JSON."""
    found = [InstabilityRecord.model_validate_json(record) for record in records]
    return (text.strip("\n") for text in instability_lines(found))


#: A sentence on each target whose memory grows.
tell_growth: Final = growth_texts


def tell_shared(kinds: Mapping[tuple[str, str], str], files: Iterable[Path]) -> Iterator[str]:
    """Lines on what failures share. ``kinds`` has the kind of each result, by case and target."""
    from conformance.diagnosis.explanation import cases_in, explanations  # only if there are any

    cases = cases_in(files)
    known = ((id, target, kind) for (id, target), kind in kinds.items() if id in cases)
    for one in explanations((cases[id], target, kind) for id, target, kind in known):
        yield from one.lines


class CaseItem(pytest.Item):
    """One case on one target."""

    def __init__(self, *, case: Case, target: Target, **rest: Any) -> None:
        super().__init__(**rest)
        self.case = case
        self.target = target
        words = target_runs(self.config).marks.items()
        for mark in dict.fromkeys((*case.tags, *(word for word, test in words if test(case)))):
            self.add_marker(mark)

    def runtest(self) -> None:
        """Pass, skip with the reason, xfail a known defect, or raise CaseFailed."""
        run = target_runs(self.config).of[self.target.label]
        try:
            found = run.run_one(self.case)
        except RunnerFailed as error:
            self.user_properties.append(("gqa_not_run", run.ready.name))
            found = Assessed(run.trouble(error))
        for event in found.instability:  # for `RunCounter` of the controlling process
            self.user_properties.append(("gqa_instability", event.model_dump_json()))
        record = found.record
        if isinstance(record, InfrastructureRecord):
            raise CaseFailed(tell_trouble(record))
        self._keep(record, run.ready)
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
        raise CaseFailed("\n".join(tell(case_record(self.case), record)))

    def _keep(self, record: ResultRecord, ready: DescribedTarget) -> None:
        """Record properties for JUnit and, with xdist, for the controlling process."""
        self.user_properties += [
            ("gqa_target", record.target),
            ("gqa_ep", self.target.label),
            ("gqa_verdict", record.verdict),
            ("gqa_outcome", record.outcome),
            ("gqa_tried", was_tried(record)),
            ("gqa_reason", record.reason),
            ("gqa_case", self.case.id),
            ("gqa_kind", kind_of(record)),
            ("gqa_grown_mb", record.grown_mb),
        ]
        told = target_runs(self.config).told
        news = [each for each in uncalled_sentences([ready.record()]) if each not in told]
        told.update(news)
        self.user_properties += [("gqa_uncalled", sentence) for sentence in news]
        if not was_tried(record) and ready.fix:
            self.user_properties.append(("gqa_fix", ready.fix))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The message for the user instead of a traceback."""
        # Also for expected failures: pytest would format a traceback for each, in 0.2 s.
        if isinstance(excinfo.value, CaseFailed | pytest.xfail.Exception):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int, str]:
        """The location of the entry in its file."""
        return self.path, self.case.line - 1, self.name
