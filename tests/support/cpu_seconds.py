"""``pytest --cpu-seconds``: what each file of tests takes, in CPU seconds of all processes."""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest


def cpu_seconds() -> float:
    """What this process has taken, and those that it started and that have ended."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


class CpuSeconds:
    """Counts in each process of pytest, and prints the table in the one that reports.

    The time of a fixture that several files share is that of the first one.
    """

    def __init__(self) -> None:
        self.before = cpu_seconds()
        self.files: Counter[str] = Counter()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        self.before = cpu_seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Iterator[None]:
        report: Any = yield
        now = cpu_seconds()
        report.cpu_seconds, self.before = now - self.before, now
        return report

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.files[report.nodeid.partition("::")[0]] += report.cpu_seconds

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.section("CPU seconds")
        everything = cpu_seconds()
        rest = "collecting, and what is outside tests"
        for name, seconds in (*self.files.most_common(), (rest, everything - self.files.total())):
            terminalreporter.write_line(f"{seconds:8.1f}  {name}")
        terminalreporter.write_line(f"{everything:8.1f}  in all")
