"""The findings: the project's pages on defects of runtimes, which expectations link to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Final

from conformance.base.paths import ROOT, data_path

#: What an expectation's link begins with, if it leads to such a page.
PREFIX: Final = "docs/findings/"

_LINK = re.compile(r"\[([^\]]*)\]\(([\w-]+\.\w+)\)")


@cache
def page_of(link: str) -> str | None:
    """The Markdown of the page that ``link`` leads to; None if that is none, or not there."""
    path = ROOT / link
    # Asking whether it is there is no way: a link may be longer than any name can be.
    there = path in (data_path("docs") / "findings").glob("*.md")
    return path.read_text(encoding="utf-8") if there else None


def alone(link: str) -> str | None:
    """The page for a reader who has no others: without its title, its links to them as text, and
    without its own script, which calls what stands beside it."""
    text = page_of(link)
    if text is None:
        return None
    body = text.split("\n", 1)[1] if text.startswith("# ") else text
    body = body.split("\n**Reproduce", 1)[0]
    return _LINK.sub(lambda match: match[1], body).strip()


def with_neighbours(links: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The pages, and those that they link to, each with its link and once."""
    waiting = sorted({link for link in links if page_of(link) is not None})
    seen = set(waiting)
    for link in waiting:
        text = page_of(link) or ""
        yield link, text
        for near in (PREFIX + match[2] for match in _LINK.finditer(text)):
            if near not in seen and page_of(near) is not None:
                seen.add(near)
                waiting.append(near)
