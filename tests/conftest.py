"""Shared by all tests: a separate cache, the tiers, and the options of pytest."""

from __future__ import annotations

import gc
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import goldens
import pytest
from as_user import desk, gqa, oldest_pytest
from browsing import browser, context, show
from cpu_seconds import CpuSeconds
from npm_packages import packages
from recorded_models import two_models
from reported import hostile, real, real_page
from shipped import load_once
from tiers import mark_tiers, pytest_configure_node

from conformance import pytest_cases
from conformance.base.paths import CACHE_VARIABLE

#: Fixtures that several files use, and a hook.
__all__ = [
    "browser", "context", "desk", "gqa", "hostile", "oldest_pytest", "packages",
    "pytest_configure_node", "real", "real_page", "show",
]  # fmt: skip

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # for tests that import onnxruntime

pytest_cases.load_file = load_once  # the cases that are collected are those that tests use


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of `goldens` and of `cpu_seconds`."""
    parser.addoption(
        "--rewrite-transcripts",
        action="store_true",
        help="write the texts of tests/transcripts and tests/goldens as they are now",
    )
    parser.addoption(
        "--cpu-seconds",
        action="store_true",
        help="print what each file of tests takes, in CPU seconds of all processes",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Restore the default handling of Ctrl-C and hang-up, which a background job ignores.

    Processes that tests start inherit that, and some tests need these signals.
    """
    goldens.rewrite = config.getoption("rewrite_transcripts", False)
    if config.getoption("cpu_seconds", False):
        config.pluginmanager.register(CpuSeconds())
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, None)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual or signal.SIG_DFL)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Let a worker that is done take tests from the other: those of a file follow each other, and
    the transcripts, near the end, are the slowest."""
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put each test into its tier before pytest selects by ``-m``."""
    mark_tiers(config, items)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keep the garbage collector from visiting the collected tests and cases again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for the whole session, of tools and of which cases failed last."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def two_recorded_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of recorded answers on two models."""
    file = tmp_path_factory.mktemp("recorded") / "models.json"
    file.write_text(json.dumps(two_models()), encoding="utf-8")
    return file


@pytest.fixture(scope="module", autouse=True)
def _few_models(request: pytest.FixtureRequest, two_recorded_models: Path) -> Iterator[None]:
    """Pages have a table of two models: a browser takes longer for all than for the rest."""
    with pytest.MonkeyPatch.context() as patch:
        if not request.module.__name__.startswith("test_models"):
            patch.setenv("GQA_MODELS", str(two_recorded_models))
        yield


@pytest.fixture(autouse=True)
def _no_user_cache(shared_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's own cache is never touched; child processes inherit this."""
    monkeypatch.setenv(CACHE_VARIABLE, str(shared_cache))
