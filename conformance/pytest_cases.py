"""The pytest items: a case file, and its cases on each target.

Separate from `conformance.pytest_plugin`, since importing this takes half a second, which pytest
runs without case files must not pay.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from conformance.base.paths import data_path
from conformance.base.yaml_source import InputError
from conformance.bundle.cache import BundleError
from conformance.case.case import Case
from conformance.case.load import load_file
from conformance.harness.process import RunnerFailed
from conformance.judge.expectations import load_expectations
from conformance.report.terminal import tell, tell_trouble
from conformance.results.records import InfrastructureRecord, ResultRecord
from conformance.run.assessment import Record
from conformance.run.engine import TargetRun
from conformance.run.records import case_record
from conformance.run.target import TargetPlan, target_plans
from conformance.targets.catalogue import Programs, TargetError, run_options
from conformance.targets.registry import Target, targets_for


class TargetRuns:
    """The targets of a pytest session; the runner of each starts with its first case."""

    def __init__(self, targets: list[Target]) -> None:
        self.targets = targets
        self._runs: dict[str, TargetRun] = {}

    def run(self, case: Case, target: Target) -> Record:
        """Run ``case`` on ``target`` and judge the result."""
        run = self._run_of(target)
        try:
            return run.run_one(case)
        except (RunnerFailed, BundleError) as error:
            return run.trouble(error)

    def _run_of(self, target: Target) -> TargetRun:
        run = self._runs.get(target.label)
        if run is None:
            before = self.targets[: self.targets.index(target)]
            earlier = [self._run_of(one) for one in before if one.may_share_name(target)]
            lines = tuple(load_expectations(target.expectations))
            run = self._runs[target.label] = TargetRun(TargetPlan(target, (), lines), 1, earlier)
        return run

    def close(self) -> None:
        """End all runners."""
        for run in self._runs.values():
            run.__exit__(None, None, None)
        self._runs.clear()


_TARGET_RUNS: Final = pytest.StashKey[TargetRuns]()


def target_runs(config: pytest.Config) -> TargetRuns:
    """The targets of ``--ep``; their runners end with the session. Raises UsageError."""
    runs = config.stash.get(_TARGET_RUNS, None)
    if runs is None:
        eps = config.getoption("ep") or ["cpu"]
        try:
            given = {option.name: config.getoption(option.name) for option in run_options()}
            runs = TargetRuns(targets_for(eps, Programs(**given)))
        except TargetError as error:
            raise pytest.UsageError(str(error)) from None
        config.stash[_TARGET_RUNS] = runs
        config.add_cleanup(runs.close)
    return runs


def declare_shipped_tags(config: pytest.Config) -> None:
    """Register the tags of the corpus, for ``pytest --markers``."""
    for file in sorted(data_path("cases").glob("*.yaml")):
        with contextlib.suppress(InputError):  # collecting the file reports the error
            _declare(config, [tag for case in load_file(file) for tag in case.tags])


def _declare(config: pytest.Config, tags: list[str]) -> None:
    known = {line.partition(":")[0] for line in config.getini("markers")}
    for tag in dict.fromkeys(tags):
        if tag not in known:
            config.addinivalue_line("markers", f"{tag}: cases with this tag")


class CaseFile(pytest.File):
    """A case file; its items are its cases on each target."""

    def collect(self) -> Iterator[CaseItem]:
        """One item for each case and target."""
        runs = target_runs(self.config)
        try:
            cases = load_file(self.path)
            target_plans(cases, runs.targets, whole_corpus=False)
        except InputError as error:
            raise self.CollectError(str(error)) from None
        _declare(self.config, [tag for case in cases for tag in case.tags])
        for case in cases:
            for target in runs.targets:
                name = f"{case.label}@{target.ep}"
                yield CaseItem.from_parent(self, name=name, case=case, target=target)


class CaseFailed(Exception):
    """An unexpected result; its text is the message for the user."""


class CaseItem(pytest.Item):
    """One case on one target."""

    def __init__(self, *, case: Case, target: Target, **rest: Any) -> None:
        super().__init__(**rest)
        self.case = case
        self.target = target
        for tag in case.tags:
            self.add_marker(tag)

    def runtest(self) -> None:
        """Pass, skip with the reason, xfail a known defect, or raise CaseFailed."""
        record = target_runs(self.config).run(self.case, self.target)
        if isinstance(record, InfrastructureRecord):
            raise CaseFailed(tell_trouble(record))
        self._keep(record)
        if record.verdict == "skip":
            pytest.skip(record.reason)
        if record.verdict == "pass" and not record.unexpected:
            return
        if not record.unexpected:
            known = record.expectation
            pytest.xfail(f"{record.verdict}: {known.why if known else record.reason}")
        raise CaseFailed("\n".join(tell(case_record(self.case), record)))

    def _keep(self, record: ResultRecord) -> None:
        """Record properties for JUnit and, with xdist, for the controlling process."""
        self.user_properties += [
            ("gqa_target", record.target),
            ("gqa_ep", self.target.ep),
            ("gqa_verdict", record.verdict),
            ("gqa_outcome", record.outcome),
            ("gqa_reason", record.reason),
        ]

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The message for the user instead of a traceback."""
        # Also for expected failures: pytest would format a traceback for each, in 0.2 s.
        if isinstance(excinfo.value, CaseFailed | pytest.xfail.Exception):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int, str]:
        """The place of the entry in its file."""
        return self.path, self.case.line - 1, self.name
