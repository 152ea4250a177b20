"""The pytest plugin: one test for each case and target.

It collects only YAML files that declare themselves case files (``format: gqa-cases/1``). Every
pytest run in an environment with this package imports this module, so it imports nothing heavy
until there is a case to run.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Final, cast

import pytest

from conformance.base.paths import data_path, is_case_file
from conformance.targets.catalogue import run_options, target_names

_ENDINGS: Final = (".yaml", ".yml")
#: Outcomes of cases that were really run.
_RUN: Final = ("ran", "rejected", "crashed", "timed_out")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--ep`` and the options of all targets."""
    group = parser.getgroup("gqa", "GroupQueryAttention conformance")
    group.addoption(
        "--ep",
        action="append",
        default=[],
        metavar="TARGET",
        help=f"Run the cases on TARGET; repeat; default: cpu ({', '.join(target_names())})",
    )
    for option in run_options():
        group.addoption(
            option.flag, action="append", default=[], metavar=option.metavar, help=option.help
        )


def pytest_configure(config: pytest.Config) -> None:
    """Find the targets, declare the tags, and let `pytest --ep cpu` collect only cases."""
    config.pluginmanager.register(RunCounter(bool(config.getoption("ep"))), "gqa-run-counter")
    if config.getoption("ep"):
        from conformance.pytest_cases import target_runs

        target_runs(config)
        if config.args_source is not pytest.Config.ArgsSource.ARGS:
            _collect_only_cases(config)
    if config.getoption("markers", default=False):
        from conformance.pytest_cases import declare_shipped_tags

        declare_shipped_tags(config)


def _collect_only_cases(config: pytest.Config) -> None:
    """With ``--ep`` and no path: collect the corpus, unless this folder has case files."""
    corpus = data_path("cases")
    here = config.invocation_params.dir
    own = itertools.chain.from_iterable(here.glob(f"{depth}*.yaml") for depth in ("", "*/", "*/*/"))
    if corpus.is_relative_to(config.rootpath) or not any(map(is_case_file, own)):
        config.args = [str(corpus)]


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect case files only."""
    if file_path.suffix in _ENDINGS and is_case_file(file_path):
        from conformance.pytest_cases import CaseFile

        return cast(pytest.Collector, CaseFile.from_parent(parent, path=file_path))
    return None


class RunCounter:
    """Counts for each target how many cases were really run.

    A session that skipped every case of a target says so, and fails if ``--ep`` named the target.
    """

    def __init__(self, requested: bool) -> None:
        self._requested = requested
        self._run: dict[str, int] = {}
        self._why: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a report, made here or by a worker of xdist."""
        said = dict(report.user_properties)
        if report.when == "call" and "gqa_ep" in said:
            ep = str(said["gqa_ep"])
            self._run[ep] = self._run.get(ep, 0) + (said["gqa_outcome"] in _RUN)
            self._why[ep] = str(said["gqa_reason"])

    def _not_run(self) -> list[str]:
        return [ep for ep, count in self._run.items() if not count]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail a session that named a target and ran no case on it."""
        if self._requested and self._not_run() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the targets on which no case was run, and why."""
        for ep in self._not_run():
            text = f"{ep}: every case was skipped: {self._why[ep]}"
            terminalreporter.write_line(text, red=self._requested, bold=True)
