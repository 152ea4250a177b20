"""Shared by all tests: a separate cache of bundles; hypothesis is deterministic."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from as_user import desk, gqa, oldest_pytest
from browsing import browser, context, show
from hypothesis import settings
from npm_packages import packages
from other_workers import borrowing
from reported import hostile, real, real_page
from shipped import shipped_cases

from conformance.base.paths import CACHE_VARIABLE
from conformance.run.assessment import jobs_for

#: Fixtures that several files use.
__all__ = [
    "browser", "context", "desk", "gqa", "hostile", "oldest_pytest", "packages", "real",
    "real_page", "show",
]  # fmt: skip

settings.register_profile("suite", deadline=None, derandomize=True, database=None)
settings.load_profile("suite")


def pytest_configure(config: pytest.Config) -> None:
    """Restore the default handling of Ctrl-C and hang-up, which a background job ignores.

    Processes that tests start inherit that, and some tests need these signals.
    """
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, None)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual or signal.SIG_DFL)


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
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One cache for the whole session, so that each bundle is created once.

    Bundles that another worker has are copied.
    """
    own = tmp_path_factory.mktemp("bundle_cache")
    workers = own.parents[1]

    def others() -> list[Path]:
        return [found for found in workers.glob(f"popen-gw*/{own.name}") if found != own]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("conformance.bundle.cache.write_bundle", borrowing(own, others))
        yield own


@pytest.fixture(scope="session")
def all_bundles(shared_cache: Path) -> None:
    """The bundles of the corpus, for tests that read all of them.

    Each worker begins with a part of its own, so that two of them do not make the same ones.
    """
    number = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    count = os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")
    cases = shipped_cases()
    for case in (*cases[int(number) :: int(count)], *cases):
        for _ in jobs_for(case):
            pass


@pytest.fixture(autouse=True)
def _no_user_cache(shared_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's own cache is never touched; child processes inherit this."""
    monkeypatch.setenv(CACHE_VARIABLE, str(shared_cache))
