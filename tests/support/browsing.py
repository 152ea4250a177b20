"""A real Chromium for the tests of the report."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND",  # it looks up hosts of its maker at the start
]
#: Where it leaves files even with a profile of its own.
FOLDERS = ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME")
SIZE = {"width": 1400, "height": 900}
WHERE = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

Open = Callable[..., Any]


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A Chromium, started once."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = next(filter(None, map(shutil.which, WHERE)), None)
    if chromium is None:
        pytest.skip("no Chromium is installed")
    with playwright.sync_playwright() as started:
        home = str(tmp_path_factory.mktemp("browser"))
        environment = {**os.environ, **dict.fromkeys(FOLDERS, home)}
        browser = started.chromium.launch(executable_path=chromium, args=ARGS, env=environment)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def context(browser: Any) -> Any:
    """A shared context for tests without special requirements."""
    return browser.new_context(viewport=SIZE)


@pytest.fixture
def show(browser: Any, context: Any, tmp_path: Path) -> Iterator[Open]:
    """Opens a page from a file; fails if it logged an error or requested anything else."""
    tabs: list[Any] = []
    complaints: list[str] = []

    def note(request: Any) -> None:
        if not request.url.startswith(path.as_uri()):
            complaints.append(f"asked for {request.url}")

    path = tmp_path / "report.html"

    def open_(html: str, fragment: str = "", *, wait: bool = True, **options: Any) -> Any:
        path.write_text(html, encoding="utf-8")
        tab = (browser.new_context(viewport=SIZE, **options) if options else context).new_page()
        tabs.append(tab)
        tab.set_default_timeout(30_000)
        tab.on("console", lambda message: complaints.append(message.text))
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        tab.on("dialog", lambda dialog: complaints.append(dialog.message))
        tab.on("request", note)
        tab.goto(path.as_uri() + fragment)
        if wait and options.get("java_script_enabled", True):
            tab.wait_for_selector("html.ready")
        return tab

    yield open_
    for tab in tabs:
        tab.close()
    assert complaints == []
