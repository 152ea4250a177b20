"""Size of the report, and its speed in a browser, for different numbers of cells.

    python benchmarks/report.py RESULTS… [--targets 9] [--cells 10000] [--cells 100000]

The results of real runs are repeated under other names until there are as many targets and cells
as requested. Needs Playwright and a Chromium ($CHROMIUM, or one on the PATH).
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from playwright.sync_api import Page, sync_playwright
from ratio import Ratio, print_table

from conformance.report.html import render
from conformance.results.reader import Run, read
from conformance.results.records import CaseRecord
from conformance.results.store import Store
from conformance.results.table import tabulate

#: Text typed and keys pressed, one after another, each starting from no filter.
FILTERS = {
    "a letter": "search('e')",
    "a word": "search('window')",
    "two words": "search('borrowed float16')",
    "a message": "search('not implemented')",
    "no case": "search('zzzz')",
    "wrong": "press('[data-value=wrong]')",
    "what differs": "press('[data-filter=differs]')",
    "unexpected": "press('[data-filter=unexpected]')",
}
#: Measures one filter, from the event until the table is laid out.
TIMER = """([act]) => {
  const search = (text) => {
    const field = document.querySelector("#search");
    field.value = text;
    field.dispatchEvent(new Event("input"));
  };
  const press = (selector) => document.querySelector(selector)?.click();
  const reset = document.querySelector("#reset");
  const times = [];
  for (let i = 0; i < 5; i++) {
    if (!reset.hidden) reset.click();
    document.body.getBoundingClientRect();
    const start = performance.now();
    new Function("search", "press", act)(search, press);
    document.body.getBoundingClientRect();
    times.push(performance.now() - start);
  }
  if (!reset.hidden) reset.click();
  return times;
}"""


#: The floor in the browser.
LOOP = "a loop of ten million additions"
LOOP_TIMER = """() => {
  const start = performance.now();
  for (let i = 0, sum = 0; i < 1e7; i++) sum += i % 7;
  return performance.now() - start;
}"""


def multiplied(run: Run, times: int) -> Run:
    """``run`` with every case repeated this many times, each copy in its own theme."""
    cases: dict[str, CaseRecord] = {}
    store = Store()
    for n in range(times):
        name = f"copy{n}_" if n else ""
        for case in run.cases.values():
            fields = {"id": name + case.id, "theme": name + case.theme}
            cases[name + case.id] = case.model_copy(update=fields)
        for result in run.results:
            changed = result.model_copy(update={"case": name + result.case})
            store.add_result(changed, file=str(run.path))
    return replace(run, cases=cases, store=store)


def with_targets(runs: list[Run], number: int) -> list[Run]:
    """``runs`` repeated under other names until there are this many."""
    rounds = [[replace(run, path=Path(str(n), run.path.name)) for run in runs]
              for n in range(-(-number // len(runs)))]  # fmt: skip
    return [run for those in rounds for run in those][:number]


def at_least(runs: list[Run], cells: int) -> list[Run]:
    """``runs`` repeated until they have this many results together."""
    there = sum(len(run.results) for run in runs)
    return [multiplied(run, -(-cells // there)) for run in runs]


def in_browser(page: Page, file: Path) -> Iterator[tuple[str, float]]:
    """Milliseconds of a loop, until the page can be used, and of each filter."""
    page.goto(file.as_uri())
    page.wait_for_selector("html.ready", timeout=120_000)
    paint = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? NaN"
    yield "first paint", page.evaluate(paint)
    yield "interactive", page.evaluate("performance.getEntriesByName('ready')[0].startTime")
    yield LOOP, page.evaluate(LOOP_TIMER)
    for name, act in FILTERS.items():
        times: Any = page.evaluate(TIMER, [act])
        yield name, median(times)


def measure(results: Sequence[Path], cells: Sequence[int], targets: int) -> Iterator[Ratio]:
    """Each number of cells; the ratios are to reading the results, and to a loop in the browser."""
    start = time.perf_counter()
    runs = [read(path) for path in results]
    reading = (time.perf_counter() - start) / sum(len(run.results) for run in runs)
    runs = with_targets(runs, targets or len(runs))
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chrome")
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for number in cells:
            many = at_least(runs, number)
            there = len(tabulate(many).results)
            start = time.perf_counter()
            text = render(tabulate(many))
            seconds = time.perf_counter() - start
            file = Path(folder) / "report.html"
            file.write_text(text, encoding="utf-8")
            what = f"a report of {number:,} cells, made"
            words = f"{seconds:.1f} s, {file.stat().st_size / 1e6:.2f} MB ({there:,})"
            yield Ratio(what, seconds / there / reading, None, words)
            page = browser.new_page(viewport={"width": 1400, "height": 1000})
            times = dict(in_browser(page, file))
            page.close()
            floor = times.pop(LOOP)
            for name, ms in times.items():
                yield Ratio(f"{number:,} cells: {name}", ms / floor, None, f"{ms:.1f} ms")
        browser.close()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("results", nargs="+", type=Path)
    parser.add_argument("--targets", type=int, default=0)
    parser.add_argument("--cells", action="append", type=int)
    parser.add_argument("--markdown", action="store_true")
    given = parser.parse_args()
    found = measure(given.results, given.cells or [10_000, 100_000], given.targets)
    print_table(found, markdown=given.markdown)


if __name__ == "__main__":
    main()
