"""pytest's face of the engine: one test per case and target.

Only YAML files that say of themselves that they are case files (``format: gqa-cases/1``) are
collected; everybody else's YAML is left alone. This module is imported by every pytest run where
the package is installed, so it imports nothing heavy before there is a case to run.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Final, cast

import pytest

from conformance.base.paths import data_path, is_case_file
from conformance.targets.catalogue import target_names, target_options

_ENDINGS: Final = (".yaml", ".yml")
_TRIED: Final = ("ran", "rejected", "crashed", "timed_out")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds ``--ep`` and the options that name a runtime's programs."""
    group = parser.getgroup("gqa", "GroupQueryAttention conformance")
    group.addoption(
        "--ep",
        action="append",
        default=[],
        metavar="TARGET",
        help=f"Run the cases on TARGET; repeat; default: cpu ({', '.join(target_names())})",
    )
    for option in target_options():
        group.addoption(option.flag, metavar=option.metavar, help=option.help)


def pytest_configure(config: pytest.Config) -> None:
    """Finds the targets, declares the tags, and takes `pytest --ep cpu` to mean the cases alone."""
    config.pluginmanager.register(Trials(bool(config.getoption("ep"))), "gqa-trials")
    if config.getoption("ep"):
        from conformance.pytest_cases import bench_of

        bench_of(config)
        if config.args_source is not pytest.Config.ArgsSource.ARGS:
            _cases_alone(config)
    if config.getoption("markers", default=False):
        from conformance.pytest_cases import declare_shipped_tags

        declare_shipped_tags(config)


def _cases_alone(config: pytest.Config) -> None:
    """With ``--ep`` and no path: the corpus, unless the folder here has case files of its own."""
    corpus = data_path("cases")
    here = config.invocation_params.dir
    own = itertools.chain.from_iterable(here.glob(f"{depth}*.yaml") for depth in ("", "*/", "*/*/"))
    if corpus.is_relative_to(config.rootpath) or not any(map(is_case_file, own)):
        config.args = [str(corpus)]


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collects case files, and nothing else."""
    if file_path.suffix in _ENDINGS and is_case_file(file_path):
        from conformance.pytest_cases import CaseFile

        return cast(pytest.Collector, CaseFile.from_parent(parent, path=file_path))
    return None


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
