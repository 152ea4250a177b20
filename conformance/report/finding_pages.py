"""The findings: the project's pages about defects of runtimes, to which expectations link."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from conformance.base.findings import PREFIX
from conformance.base.paths import data_path

_LINK = re.compile(r"\[([^\]]*)\]\(([\w-]+\.\w+)\)")


@dataclass(frozen=True)
class Finding:
    """A page of ``docs/findings``: the stem of its file, its heading, and the text below it."""

    name: str
    heading: str
    text: str

    @property
    def words(self) -> str:
        """Words for finding the page, each once; they have three or more characters."""
        return " ".join(sorted(set(re.findall(r"[a-z0-9_.]{3,}", self.text.lower()))))


@cache
def findings() -> Mapping[str, Finding]:
    """All findings in the order of their names, by the link that expectations use."""
    found = {}
    for file in sorted((data_path("docs") / "findings").glob("*.md")):
        heading, _, text = file.read_text(encoding="utf-8").partition("\n")
        if file.name != "README.md":
            finding = Finding(file.stem, heading.removeprefix("# "), text)
            found[f"{PREFIX}{file.name}"] = finding
    return found


def alone(link: str) -> str | None:
    """The finding without its title and its script, and with links to other findings as plain text;
    None if it does not exist."""
    if link not in findings():
        return None
    body = findings()[link].text.split("\n**Reproduce", 1)[0]
    return _LINK.sub(lambda match: match[1], body).strip()


def with_neighbours(links: Iterable[str]) -> Iterator[tuple[str, Finding]]:
    """The findings at ``links``, and those to which they link, each once."""
    waiting = sorted(findings().keys() & {*links})
    for link in waiting:
        finding = findings()[link]
        yield link, finding
        for near in (PREFIX + match[2] for match in _LINK.finditer(finding.text)):
            if near in findings() and near not in waiting:
                waiting.append(near)
