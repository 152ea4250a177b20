"""The tiers of tests: what README's command runs, what every push runs as well, and every night.

The markers ``push`` and ``night`` put a test into a tier. Two further ways are here: a module's
``ONE_EXAMPLE``, and the cases of the corpus.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any
from zlib import crc32

import pytest

from conformance.pytest_cases import CaseItem

#: Selects what README's command runs, in `pyproject.toml`.
DEFAULT = "not push and not night"


def mark_tiers(config: pytest.Config, items: Iterable[pytest.Item]) -> None:
    """Mark what is for every push.

    README's command runs one example of each test of a module with ``ONE_EXAMPLE``, and one of the
    cases that differ by dtype alone. A command that names targets, paths, ids or words also runs
    what it names of the tier ``push``.
    """
    if not _everything(config):
        if config.option.markexpr == DEFAULT:
            config.option.markexpr = "not night"
        return
    examples: Counter[str] = Counter()
    for item in items:
        has_tier = item.get_closest_marker("push") or item.get_closest_marker("night")
        if getattr(getattr(item, "module", None), "ONE_EXAMPLE", False) and not has_tier:
            test = item.nodeid.partition("[")[0]
            if examples[test]:
                item.add_marker("push")
            examples[test] += 1
    calls: defaultdict[str, list[CaseItem]] = defaultdict(list)
    for item in items:
        if isinstance(item, CaseItem):
            calls[re.sub(r"\bdtype=\w+", "", item.case.id)].append(item)
    for call, cases in calls.items():
        for item in {*cases} - {cases[crc32(call.encode()) % len(cases)]}:
            item.add_marker("push")


def _everything(config: pytest.Config) -> bool:
    """Whether the command names no target, path, id or word."""
    if hasattr(config, "workerinput"):
        return bool(config.workerinput["everything"])
    chosen = config.getoption("ep") or config.option.keyword
    return not chosen and config.args_source is pytest.Config.ArgsSource.TESTPATHS


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker of xdist, which has the paths as arguments."""
    node.workerinput["everything"] = _everything(node.config)
