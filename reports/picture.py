"""Writes docs/report.png: a screenshot of the report of the recorded results.

    python reports/picture.py [FILE]

Needs Playwright and a Chromium ($CHROMIUM, or one on the PATH).
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from conformance.base.paths import ROOT
from conformance.report.html import render
from conformance.results.reader import read

TARGETS = ("cpu", "tract", "webgpu", "wasm")
#: The query that the picture shows: layers that borrow a cache, those of models first.
QUERY = "#?q=borrow&theme=models&theme=shared_kv"
SIZE = {"width": 1280, "height": 1640}


def main() -> None:
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "report.png"
    recorded = ROOT / "reports" / "recorded" / "float32"
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chrome")
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.html"
        runs = [read(recorded / f"{target}.jsonl.xz") for target in TARGETS]
        report.write_text(render(runs), encoding="utf-8")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport=SIZE)
        page.goto(report.as_uri() + QUERY)
        page.wait_for_selector("html.ready")
        page.evaluate("scrollTo(0, 0)")
        page.screenshot(path=file)
        browser.close()


if __name__ == "__main__":
    main()
