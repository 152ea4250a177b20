"""The findings: the project's pages about defects of runtimes, to which expectations link."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache

from conformance.base.findings import PREFIX
from conformance.base.paths import ROOT, data_path

_LINK = re.compile(r"\[([^\]]*)\]\(([\w-]+\.\w+)\)")


@cache
def page_of(link: str) -> str | None:
    """The Markdown of the finding at ``link``; None if it does not exist."""
    path = ROOT / link
    # `path.exists()` would fail for a link that is too long for a file name.
    there = path in (data_path("docs") / "findings").glob("*.md")
    return path.read_text(encoding="utf-8") if there else None


def alone(link: str) -> str | None:
    """The finding without its title and its script, and with links to other findings as plain text;
    None if it does not exist."""
    text = page_of(link)
    if text is None:
        return None
    body = text.split("\n", 1)[1] if text.startswith("# ") else text
    body = body.split("\n**Reproduce", 1)[0]
    return _LINK.sub(lambda match: match[1], body).strip()


def with_neighbours(links: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The findings at ``links``, and those to which they link: (link, Markdown), each once."""
    waiting = sorted({link for link in links if page_of(link) is not None})
    seen = set(waiting)
    for link in waiting:
        text = page_of(link) or ""
        yield link, text
        for near in (PREFIX + match[2] for match in _LINK.finditer(text)):
            if near not in seen and page_of(near) is not None:
                seen.add(near)
                waiting.append(near)
