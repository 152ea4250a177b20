"""Makes the pictures of the documentation, which are parts of pages: `python reports/picture.py`.

``docs/report.png`` is of the recorded results, ``docs/check.png`` of Gemma 4 E2B, which `gqa check`
runs on the CPU, tract and WebGPU. Needs these targets, Playwright, and a Chromium ($CHROMIUM, or
one on the PATH).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from playwright.sync_api import sync_playwright

from conformance.base.paths import ROOT
from conformance.report.html import render
from conformance.results.reader import Run, read
from conformance.results.store import Store

TARGETS = ("cpu", "tract-wheel", "webgpu", "wasm")
#: The query that the picture shows: layers that borrow a cache, those of models first.
QUERY = "#?q=borrow&theme=models&theme=shared_kv"
SIZE = {"width": 1280, "height": 1640}


#: What the second picture shows.
MODEL = ROOT / "cases" / "exported" / "graphs" / "gemma4_e2b_mobius_cpu.onnx"
CHECKED = ("--ep", "cpu", "--ep", "tract", "--ep", "webgpu", "--adapter", "lavapipe")


def _in_float32(run: Run) -> Run:
    """The run with its cases in float32, which is what all targets have.

    What did not repeat is of other cases than those that the picture shows.
    """
    cases = {id: case for id, case in run.cases.items() if "float32" in id}
    results = [result for result in run.results if result.case in cases]
    selection = run.header.selection.model_copy(
        update={"text": "float32", "cases": len(cases), "results": len(results)}
    )
    header = run.header.model_copy(update={"selection": selection})
    store = Store()
    for result in results:
        store.add_result(result, file=str(run.path))
    return replace(run, header=header, cases=cases, store=store, footer=None, instability=[])


def main() -> None:
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chrome")
    recorded = ROOT / "reports" / "recorded" / "history"
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        report, check = Path(folder) / "report.html", Path(folder) / "check.html"
        runs = [_in_float32(read(recorded / f"{target}.jsonl.xz")) for target in TARGETS]
        report.write_text(render(runs), encoding="utf-8")
        gqa = [sys.executable, "-P", "-m", "conformance", "check", MODEL.relative_to(ROOT)]
        subprocess.run([*gqa, *CHECKED, "--html", check], cwd=ROOT, check=False)
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport=SIZE)
        page.goto(report.as_uri() + QUERY)
        page.wait_for_selector("html.ready")
        page.evaluate("scrollTo(0, 0)")
        page.screenshot(path=ROOT / "docs" / "report.png")
        page.set_viewport_size({"width": SIZE["width"], "height": 4000})
        page.goto(check.as_uri())
        page.wait_for_selector("html.ready")
        page.locator("section.model").screenshot(path=ROOT / "docs" / "check.png")
        browser.close()


if __name__ == "__main__":
    main()
