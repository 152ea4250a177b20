"""pytest's face of the engine: one test per case and target.

Only YAML files that say of themselves that they are case files (``format: gqa-cases/1``) are
collected; everybody else's YAML is left alone.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, cast

import pytest

from conformance.bundle import BundleError
from conformance.case import Case
from conformance.expectations import load_expectations
from conformance.harness import RunnerFailed
from conformance.load import is_case_file, load_file
from conformance.paths import data_path
from conformance.report.terminal import tell, tell_trouble
from conformance.results import Infrastructure, ResultRecord
from conformance.run import Plan, Record, TargetRun, case_record, plans
from conformance.targets import KNOWN, Target, TargetError, targets_for
from conformance.yaml_source import InputError

_ENDINGS: Final = (".yaml", ".yml")
_TRIED: Final = ("ran", "rejected", "crashed", "timed_out")


class Bench:
    """The targets of a pytest run and their runners, which start with the first case."""

    def __init__(self, targets: list[Target]) -> None:
        self.targets = targets
        self._runs: dict[str, TargetRun] = {}

    def run(self, case: Case, target: Target) -> Record:
        """What came of ``case``."""
        run = self._runs.get(target.ep)
        if run is None:
            lines = load_expectations(target.expectations) if target.expectations else []
            run = self._runs[target.ep] = TargetRun(Plan(target, (), tuple(lines)))
        try:
            return run.run_one(case)
        except (RunnerFailed, BundleError) as error:
            return run.trouble(error)

    def close(self) -> None:
        """Ends every runner."""
        for run in self._runs.values():
            run.__exit__(None, None, None)
        self._runs.clear()


_BENCH: Final = pytest.StashKey[Bench]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds ``--ep`` and ``--ort-python``."""
    group = parser.getgroup("gqa", "GroupQueryAttention conformance")
    group.addoption(
        "--ep",
        action="append",
        default=[],
        metavar="TARGET",
        help=f"run the cases on this target ({', '.join(KNOWN)}); repeat for several; default: cpu",
    )
    group.addoption(
        "--ort-python",
        metavar="PYTHON",
        help="the interpreter whose onnxruntime is meant by cpu and cuda; this one's by default",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Finds the targets, declares the tags, and takes `pytest --ep cpu` to mean the cases alone."""
    try:
        targets = targets_for(config.getoption("ep") or ["cpu"], config.getoption("ort_python"))
    except TargetError as error:
        raise pytest.UsageError(str(error)) from None
    config.stash[_BENCH] = Bench(targets)
    config.pluginmanager.register(Trials(bool(config.getoption("ep"))), "gqa-trials")
    if config.getoption("markers", default=False):
        for file in sorted(data_path("cases").glob("*.yaml")):
            with contextlib.suppress(InputError):  # collecting the file says what is wrong with it
                _declare(config, [tag for case in load_file(file) for tag in case.tags])
    if config.getoption("ep") and config.args_source is not pytest.Config.ArgsSource.ARGS:
        _cases_alone(config)


def _cases_alone(config: pytest.Config) -> None:
    """With ``--ep`` and no path: the corpus, unless the folder here has case files of its own."""
    corpus = data_path("cases")
    here = config.invocation_params.dir
    own = itertools.chain.from_iterable(here.glob(f"{depth}*.yaml") for depth in ("", "*/", "*/*/"))
    if corpus.is_relative_to(config.rootpath) or not any(map(is_case_file, own)):
        config.args = [str(corpus)]


def _declare(config: pytest.Config, tags: list[str]) -> None:
    known = {line.partition(":")[0] for line in config.getini("markers")}
    for tag in dict.fromkeys(tags):
        if tag not in known:
            config.addinivalue_line("markers", f"{tag}: cases tagged so")


def pytest_unconfigure(config: pytest.Config) -> None:
    """Ends the runners."""
    bench = config.stash.get(_BENCH, None)
    if bench is not None:
        bench.close()


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collects case files, and nothing else."""
    if file_path.suffix in _ENDINGS and is_case_file(file_path):
        return cast(pytest.Collector, CaseFile.from_parent(parent, path=file_path))
    return None


class CaseFile(pytest.File):
    """A case file; its items are its cases on each target."""

    def collect(self) -> Iterator[CaseItem]:
        """One item per case and target."""
        bench = self.config.stash[_BENCH]
        try:
            cases = load_file(self.path)
            plans(cases, bench.targets, whole_corpus=False)
        except InputError as error:
            raise self.CollectError(str(error)) from None
        _declare(self.config, [tag for case in cases for tag in case.tags])
        for case in cases:
            for target in bench.targets:
                name = f"{case.label}@{target.ep}"
                yield CaseItem.from_parent(self, name=name, case=case, target=target)


class CaseFailed(Exception):
    """Something unexpected; its text is what the user reads."""


class CaseItem(pytest.Item):
    """One case on one target."""

    def __init__(self, *, case: Case, target: Target, **rest: Any) -> None:
        super().__init__(**rest)
        self.case = case
        self.target = target
        for tag in case.tags:
            self.add_marker(tag)

    def runtest(self) -> None:
        """Passes, skips with the reason, is an expected failure, or raises CaseFailed."""
        record = self.config.stash[_BENCH].run(self.case, self.target)
        if isinstance(record, Infrastructure):
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
        """What JUnit and, with xdist, the controlling process get to know."""
        self.user_properties += [
            ("gqa_target", record.target),
            ("gqa_ep", self.target.ep),
            ("gqa_verdict", record.verdict),
            ("gqa_outcome", record.outcome),
            ("gqa_reason", record.reason),
        ]

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The lines for the user instead of a traceback."""
        # An expected failure says its piece as well; pytest would format a traceback for it, at
        # 0.2 s each.
        if isinstance(excinfo.value, CaseFailed | pytest.xfail.Exception):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int, str]:
        """Where the entry stands in its file."""
        return self.path, self.case.line - 1, self.name


class Trials:
    """Counts, for each target, how often something was really tried.

    A run that only skipped says so, and where ``--ep`` asked for the target it is not green.
    """

    def __init__(self, asked: bool) -> None:
        self._asked = asked
        self._tried: dict[str, int] = {}
        self._why: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Reads a report, here or from a worker of xdist."""
        said = dict(report.user_properties)
        if report.when == "call" and "gqa_ep" in said:
            ep = str(said["gqa_ep"])
            self._tried[ep] = self._tried.get(ep, 0) + (said["gqa_outcome"] in _TRIED)
            self._why[ep] = str(said["gqa_reason"])

    def _untried(self) -> list[str]:
        return [ep for ep, tried in self._tried.items() if not tried]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fails a session that asked for a target and tried nothing on it."""
        if self._asked and self._untried() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Says which targets were not tried, and why."""
        for ep in self._untried():
            text = f"{ep}: nothing was tried; every case was skipped: {self._why[ep]}"
            terminalreporter.write_line(text, red=self._asked, bold=True)
