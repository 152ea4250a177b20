"""With pytest-xdist: cases are expanded once for all workers, and few tests get few workers.

A worker takes a second or two until its first result: it imports pytest and this package, collects,
and starts a runner for each target. For few tests that is longer than they take in one process.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final

import pytest

from conformance.base.paths import is_case_file
from conformance.base.yaml_source import InputError
from conformance.case.corpus import name_on, names_of
from conformance.case.load import case_files
from conformance.case.selection import SelectionError, compile_expression
from conformance.pytest_cases import LISTINGS, Listed, matcher, target_runs

#: A worker for each so many tests; fewer tests than twice this many run in the process itself.
TESTS_OF_A_WORKER: Final = 250


def limit_workers(config: pytest.Config) -> Workers | None:
    """Reduce ``-n`` to the workers that save time; None if not only cases are to be run.

    Called in the controlling process before pytest-xdist reads the options.
    """
    runs = target_runs(config)
    listings: dict[Path, list[Listed]] = {}
    try:
        for file in _files(config):
            if file is None:
                return None
            listings[file] = runs.cases.listed(file, runs.targets)
    except InputError:
        return None  # the workers report it
    tests = _selected(config, listings, [target.label for target in runs.targets])
    asked = len(config.option.tx)
    workers = min(asked, tests // TESTS_OF_A_WORKER)
    if workers < 2:
        workers = 0
        config.option.dist = "no"
    config.option.numprocesses = workers
    config.option.tx = config.option.tx[:workers]
    said = f"gqa: {tests} tests in {workers or 1} of {asked} processes, as more would take longer"
    return Workers(listings, said if workers < asked else None)


class Workers:
    """Gives each worker the listings, and says how many workers there are."""

    def __init__(self, listings: dict[Path, list[Listed]], said: str | None) -> None:
        self._listings = {
            str(file): [tuple(one)[1:] for one in cases] for file, cases in listings.items()
        }
        self._said = said

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Hand the listings to a worker that is about to start."""
        node.workerinput[LISTINGS] = self._listings

    def pytest_report_header(self) -> str | None:
        """Say so if there are fewer workers than asked for."""
        return self._said


def _files(config: pytest.Config) -> Iterator[Path | None]:
    """The case files of the arguments; None for anything else that pytest may collect."""
    for argument in config.args:
        path = _path_of(argument)
        if path.is_dir() and not _has_tests(path, config):
            try:
                yield from case_files([path])
            except InputError:
                yield None
        else:
            yield path if path.is_file() and is_case_file(path) else None


def _path_of(argument: str) -> Path:
    """The file or folder of an argument, as pytest has it."""
    return Path(os.path.abspath(argument.partition("::")[0]))


def _has_tests(folder: Path, config: pytest.Config) -> bool:
    """Whether pytest would find Python tests below ``folder``."""
    ignored, wanted = config.getini("norecursedirs"), config.getini("python_files")
    for _, folders, files in os.walk(folder):
        folders[:] = [f for f in folders if not any(fnmatch(f, pattern) for pattern in ignored)]
        if any(fnmatch(file, pattern) for file in files for pattern in wanted):
            return True
    return False


def _selected(config: pytest.Config, listings: dict[Path, list[Listed]], targets: list[str]) -> int:
    """How many tests the arguments, ``-k``, ``-m`` and ``--lf`` select at most."""
    wanted: dict[Path, set[str]] = {}
    for argument in config.args:
        wanted.setdefault(_path_of(argument), set()).add(argument.partition("::")[2])
    matches = matcher(config)
    try:
        marked = compile_expression(config.option.markexpr)
    except SelectionError:  # pytest knows more than words there
        marked = compile_expression("")
    count = 0
    for file, cases in listings.items():
        names = wanted.get(file, {""})
        for case in filter(lambda case: marked(case.tags), cases):
            for target in targets:
                named = "" in names or case.name in names or name_on(case, target) in names
                count += named and matches(names_of(case, target))
    failed = config.cache.get("cache/lastfailed", {}) if config.getoption("lf", False) else {}
    return min(count, len(failed)) if failed else count
