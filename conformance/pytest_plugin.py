"""The pytest plugin: one test for each case and target.

It collects only YAML files with the line ``format: gqa-cases/2`` of a case file. Every pytest run
in an environment with this package imports this module, so it imports nothing slow until there is a
case to run.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any, Final, cast

import pytest

from conformance.base.paths import (
    CASE_FILE_ENDINGS,
    PROFILES,
    data_path,
    is_case_file,
    is_of_case_file,
)
from conformance.base.processes import use_absolute_paths
from conformance.base.text import printable
from conformance.base.tuning import collect_seldom, one_thread
from conformance.base.words import not_run
from conformance.targets.catalogue import run_options, target_names

#: A target in the id of a test.
_IN_ID: Final = re.compile(r"::.*[\[,]ep=")


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
    group.addoption(
        "--expectations",
        dest="gqa_expectations",
        action="append",
        default=[],
        metavar="FILE",
        help="Known results of your own runner, build or machine, before the shipped ones; repeat",
    )
    group.addoption(
        "--profile",
        dest="gqa_profiles",
        action="append",
        default=[],
        metavar="MODEL",
        help="The calls of a model, such as gemma4, instead of the corpus; repeat",
    )
    runtimes = parser.getgroup("gqa-runtimes", "Where runtimes of GroupQueryAttention are")
    for option in run_options():
        runtimes.addoption(
            option.flag, action="append", default=[], metavar=option.metavar, help=option.help
        )


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> pytest.ExitCode | int | None:
    """Restart pytest if it has taken the value of an option for a path to collect.

    pytest determines its rootdir, and so its settings, before it loads plugins. At that time it
    does not know the suite's options and looks for tests at ``PATH`` of ``--ort-python PATH``.
    """
    given = list(config.invocation_params.args)
    attached = _attached(given)
    if attached == given:
        return None
    return pytest.main(attached, plugins=config.invocation_params.plugins)


def _attached(arguments: list[str]) -> list[str]:
    """The arguments, with ``=`` between an option of the suite and an existing path after it."""
    flags = {"--ep", "--expectations", *(option.flag for option in run_options())}
    attached: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        if argument == "--":
            return [*attached, argument, *rest]
        value = next(rest, None) if argument in flags else None
        if value is not None and os.path.exists(value):
            attached.append(f"{argument}={value}")
        else:
            attached += [argument] if value is None else [argument, value]
    return attached


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Leave out the conftest.py of this project's own tests where only the corpus is collected.

    The project's tests need NumPy.
    """
    known = early_config.known_args_namespace
    corpus = data_path("cases")
    is_here = corpus.is_relative_to(early_config.rootpath)
    if is_here:
        with one_thread():
            import numpy  # noqa: F401
    if getattr(known, "ep", None) and not known.file_or_dir and is_here:
        known.file_or_dir = [str(corpus)]


def pytest_configure(config: pytest.Config) -> None:
    """Find the targets, declare the tags, and let `pytest --ep cpu` collect only cases."""
    use_absolute_paths()
    here = config.rootpath / "conformance" / Path(__file__).name
    if here.exists() and not here.samefile(__file__):
        raise pytest.UsageError(
            f"These cases are of {config.rootpath}, and the suite that runs is in "
            f"{Path(__file__).parents[1]}: unset PYTHONPATH, or pip install -e {config.rootpath}"
        )
    if profiles := config.getoption("gqa_profiles"):
        _collect_profiles(config, profiles)
    named = [argument for argument in config.args if is_of_case_file(argument)]
    requested = bool(config.getoption("ep")) or any(map(_IN_ID.search, named))
    config.pluginmanager.register(RunCounter(config, requested), "gqa-run-counter")
    given = ("ep", "gqa_expectations", *(option.name for option in run_options()))
    if any(map(config.getoption, given)):
        _of_cases().target_runs(config)  # a wrong option is one error, and not one for each file
    if config.getoption("ep"):
        _of_cases().keywords(config)
        if config.args_source is not pytest.Config.ArgsSource.ARGS and not profiles:
            _collect_only_cases(config)
    if named:
        _of_cases().write_out_ids(config)
    of_cases = bool(named or config.getoption("ep"))
    if of_cases:
        collect_seldom()
    # pytest 9.2 refuses a word of -m that no marker has, as the cases of one file may not.
    if config.getoption("markers", False) or (of_cases and config.getoption("markexpr", "")):
        _of_cases().declare_shipped_marks(config)


def _of_cases() -> Any:
    """The module that defines the items; it is imported only if there are cases."""
    with one_thread():
        from conformance import pytest_cases
    return pytest_cases


def _collect_only_cases(config: pytest.Config) -> None:
    """With ``--ep`` and no path: collect the corpus, unless this folder has case files."""
    corpus = data_path("cases")
    here = config.invocation_params.dir
    own = itertools.chain.from_iterable(here.glob(f"{depth}*.yaml") for depth in ("", "*/", "*/*/"))
    if corpus.is_relative_to(config.rootpath) or not any(map(is_case_file, own)):
        config.args = [str(corpus)]


def _collect_profiles(config: pytest.Config, names: list[str]) -> None:
    """Collect the case files of profiles: alone, if no path is given."""
    from conformance.case.corpus import NothingMeant, profile_files

    try:
        files = [str(file) for name in names for file in profile_files(name)]
    except NothingMeant as error:
        raise pytest.UsageError(str(error)) from None
    given = config.args if config.args_source is pytest.Config.ArgsSource.ARGS else []
    config.args = [*given, *dict.fromkeys(files)]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the profiles where the corpus is collected."""
    if collection_path.name != PROFILES or collection_path.parent != data_path("cases"):
        return None
    return None if any(PROFILES in argument for argument in config.args) else True


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect case files only."""
    if file_path.suffix in CASE_FILE_ENDINGS and is_case_file(file_path):
        items = _of_cases()
        if not parent.config.pluginmanager.is_registered(items):
            parent.config.pluginmanager.register(items)
        return cast(pytest.Collector, items.CaseFile.from_parent(parent, path=file_path))
    return None


class RunCounter:
    """Counts for each target how many cases were really run.

    A session that skipped every case of a target reports that, and fails if ``--ep`` or an id named
    the target. A session in which a result did not repeat reports that and fails.
    """

    def __init__(self, config: pytest.Config, requested: bool) -> None:
        self._config = config
        self._requested = requested
        self._unstable: list[str] = []
        self._not_run_on = Counter[str]()  # the cases after a runner was given up
        self._grown: list[tuple[str, float]] = []
        self._uncalled: dict[str, None] = {}  # in the order of the tests
        self._ran: set[str] = set()
        self._last: dict[str, dict[str, object]] = {}
        #: The kind of each result, by case and target, and the files of the cases.
        self._kinds: dict[tuple[str, str], str] = {}
        self._files: set[Path] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a report, made in this process or by a worker of xdist."""
        said = dict(report.user_properties)
        if report.when == "call" and "gqa_ep" in said:
            ep = str(said["gqa_ep"])
            self._last[ep] = said
            if said["gqa_tried"]:
                self._ran.add(ep)
                self._grown.append((str(said["gqa_target"]), float(str(said["gqa_grown_mb"]))))
            if said["gqa_kind"] is not None:
                self._kinds[str(said["gqa_case"]), str(said["gqa_target"])] = str(said["gqa_kind"])
                self._files.add(self._config.rootpath / report.location[0])
        if report.when != "call" or hasattr(self._config, "workerinput"):
            return
        for name, value in report.user_properties:
            if name == "gqa_instability":
                self._unstable.append(str(value))
            elif name == "gqa_not_run":
                self._not_run_on[str(value)] += 1
            elif name == "gqa_uncalled":
                self._uncalled[str(value)] = None

    def _not_run(self) -> list[str]:
        return [ep for ep in self._last if ep not in self._ran]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail a session that named a target and ran no case on it."""
        unstable = any(json.loads(record)["unexpected"] for record in self._unstable)
        failed = unstable or (self._requested and self._not_run())
        if failed and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the targets on which no case was run, and the limits of what the cases show."""
        for ep in self._not_run():
            text = f"{ep}: every case was skipped: {self._last[ep]['gqa_reason']}"
            terminalreporter.write_line(printable(text), red=self._requested, bold=True)
            if fix := self._last[ep].get("gqa_fix"):
                terminalreporter.write_line(printable(f"  fix: {fix}"))
        for target, cases in self._not_run_on.items():
            text = f"{target}: stopped: {not_run(cases)}"
            terminalreporter.write_line(printable(text), red=True)
        if self._unstable:
            for text in _of_cases().tell_instability(self._unstable):
                terminalreporter.write_line(printable(text), red=True)
        if self._grown:
            for target, text in _of_cases().tell_growth(self._grown).items():
                terminalreporter.write_line(printable(f"{target}: {text}"), yellow=True)
        if any(self._kinds.values()):
            for text in _of_cases().tell_shared(self._kinds, self._files):
                terminalreporter.write_line(printable(text))
        for sentence in self._uncalled:
            terminalreporter.write_line(printable(sentence), yellow=True)
