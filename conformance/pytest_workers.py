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

from conformance.base.garbage import for_good
from conformance.base.paths import is_case_file
from conformance.base.yaml_source import InputError
from conformance.case.corpus import name_on
from conformance.case.load import case_files
from conformance.case.selection import SelectionError, compile_expression
from conformance.pytest_cases import GIVEN, Listed, check_keywords, target_runs

#: The least work that a worker is worth: twice what it takes until its first result.
SECONDS_OF_A_WORKER: Final = 5.0
#: What a test takes on a target of which nothing is known.
SECONDS_OF_A_TEST: Final = 0.005


@for_good()
def limit_workers(config: pytest.Config, seconds_key: str) -> Workers | None:
    """Reduce ``-n`` to the workers that save time; None if not only cases are to be run.

    Called in the controlling process before pytest-xdist reads the options. ``seconds_key``: where
    pytest's cache has the median time of a test on each target, in seconds.
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
    tests = list(_selected(config, listings, [target.label for target in runs.targets]))
    cache = getattr(config, "cache", None)
    known = cache.get(seconds_key, {}) if cache else {}
    failed = cache.get("cache/lastfailed", {}) if cache and config.getoption("lf", False) else {}
    share = min(1.0, len(failed) / len(tests)) if failed and tests else 1.0
    seconds = share * sum(known.get(target, SECONDS_OF_A_TEST) for _, target in tests)
    asked = len(config.option.tx)
    workers = min(asked, int(seconds / SECONDS_OF_A_WORKER))
    if workers < 2:
        workers = 0
        config.option.dist = "no"
    config.option.numprocesses = workers
    config.option.tx = config.option.tx[:workers]
    given = {}
    if workers:
        wanted = {(case.file, name_on(case, None)) for case, _ in tests}
        for file, listed in listings.items():
            labels = {label for at, label in wanted if at == file}
            given[str(file)] = tuple(runs.cases.for_worker(listed, labels))
    said = f"gqa: {workers or 1} of {asked} processes, as more would take longer"
    return Workers(given, said if workers < asked else None)


class Workers:
    """Gives each worker its cases, and says how many workers there are."""

    def __init__(self, given: dict[str, Any], said: str | None) -> None:
        self._given = given
        self._said = said

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Hand the cases to a worker that is about to start."""
        node.workerinput[GIVEN] = self._given

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


def _selected(
    config: pytest.Config, listings: dict[Path, list[Listed]], targets: list[str]
) -> Iterator[tuple[Listed, str]]:
    """The tests that the arguments, ``-k`` and ``-m`` select: cases and labels of targets."""
    wanted: dict[Path, set[str]] = {}
    for argument in config.args:
        wanted.setdefault(_path_of(argument), set()).add(argument.partition("::")[2])
    check_keywords(config)
    try:
        marked = compile_expression(config.option.markexpr)
    except SelectionError:  # pytest knows more than words there
        marked = compile_expression("")
    for file, cases in listings.items():
        names = wanted.get(file, {""})
        for case in filter(lambda case: marked(case.marks), cases):
            for target in targets:
                named = "" in names or case.name in names or name_on(case, target) in names
                if named and target in case.chosen:
                    yield case, target
