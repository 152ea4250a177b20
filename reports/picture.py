"""Writes the pictures of the documentation: screenshots of reports.

    python reports/picture.py          docs/report.png, of the recorded results
    python reports/picture.py check    docs/check.png: Gemma 4 E2B on the CPU, tract and WebGPU

Needs Playwright and a Chromium ($CHROMIUM, or one on the PATH); the second one the targets, too.
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
from conformance.results.reader import Judged, Run, read

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
    judged = Judged(results)
    return replace(run, header=header, cases=cases, judged=judged, footer=None, instability=[])


def main() -> None:
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chrome")
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.html"
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport=SIZE)
        if sys.argv[1:] == ["check"]:
            gqa = [sys.executable, "-m", "conformance", "check", MODEL.relative_to(ROOT)]
            subprocess.run([*gqa, *CHECKED, "--html", report], cwd=ROOT, check=False)
            page.goto(report.as_uri())
            page.wait_for_selector("html.ready")
            page.locator("section.model").screenshot(path=ROOT / "docs" / "check.png")
        else:
            recorded = ROOT / "reports" / "recorded" / "history"
            runs = [_in_float32(read(recorded / f"{target}.jsonl.xz")) for target in TARGETS]
            report.write_text(render(runs), encoding="utf-8")
            page.goto(report.as_uri() + QUERY)
            page.wait_for_selector("html.ready")
            page.evaluate("scrollTo(0, 0)")
            page.screenshot(path=ROOT / "docs" / "report.png")
        browser.close()


if __name__ == "__main__":
    main()
