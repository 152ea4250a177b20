"""The page of a report in a browser: its rows and cells, and what is wrong with how it looks."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import unquote


def cell(tab: Any, id: str, column: int = 0) -> Any:
    """The button of a row on a target."""
    return tab.locator(f'#matrix > tbody > tr[id="{id}"] > td > button').nth(column)


def rows(tab: Any, *kinds: str) -> list[str]:
    """Ids of the visible rows of these kinds: theme, group, single, member."""
    settle(tab)
    tab.locator("#matrix[aria-busy=false]").wait_for()
    wanted = ", ".join(f"#matrix > tbody > tr.{kind}" for kind in kinds)
    found: list[str] = tab.locator(wanted).evaluate_all("rows => rows.map(row => row.id)")
    return found


def settle(tab: Any) -> None:
    """Waits until the page has seen a click on a link to a part of itself: ``hashchange`` comes in
    a task of its own, which a busy machine runs after the next command of the test."""
    tab.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done)))")


def cases(tab: Any) -> list[str]:
    return rows(tab, "single", "member")


def asked(tab: Any) -> str:
    """The fragment of the address."""
    settle(tab)
    return unquote(tab.evaluate("location.hash"))


def words(locator: Any) -> str:
    return " ".join(locator.inner_text().split())


def violations(tab: Any, packages: Path) -> list[str]:
    """What axe finds wrong on the page as it is now."""
    axe = (packages / "node_modules" / "axe-core" / "axe.min.js").read_text(encoding="utf-8")
    tab.evaluate(axe)
    tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
    found = tab.evaluate("tags => axe.run(document, { runOnly: tags })", tags)["violations"]
    return [f"{one['id']}: {node['html'][:150]}" for one in found for node in one["nodes"]]


CUT = """() => [...document.querySelectorAll("main .scroll, .matrix, #matrix td > .v")]
  .filter((box) => box.checkVisibility() && box.scrollWidth > box.clientWidth + 1)
  .map((box) => `${box.className}: ${box.scrollWidth} of ${box.clientWidth} px`)"""
