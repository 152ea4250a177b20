"""Pages for the tests of the report: full and hostile runs, and a parser for them."""

from __future__ import annotations

import base64
import gzip
import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from synthetic_runs import case, error, expected, of_results, realistic, result, target, write

from conformance.case.contract import Contract
from conformance.report.html import render
from conformance.results.reader import Run, read
from conformance.results.records import ErrorMap, InfrastructureRecord, UncalledParts
from conformance.results.table import tabulate
from conformance.results.verdicts import Verdict

HOSTILE = (
    "</script></pre></template><img src=x onerror=\"document.title='pwned'\">"
    "<svg onload=document.title='pwned'></svg><!--<script>"
    "\x1b[1;31mred\x1b[0m \x1b]0;title\x07 \x00 \u202egpj.exe\u202c \u200b \u2028 "
    "\"'`${alert(1)} {{ 7 * 7 }} &lt; [x](javascript:alert(1)) مرحبا"
)


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Cases on two targets, with all verdicts and marks."""
    return realistic(tmp_path_factory.mktemp("report") / "real.jsonl")


@pytest.fixture(scope="session")
def real_page(real: Run) -> str:
    """Its page."""
    return render(tabulate([real]))


@pytest.fixture(scope="session")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Hostile text in every place for text."""
    bad = case(
        f"evil/{HOSTILE}",
        HOSTILE,
        title=HOSTILE,
        why=HOSTILE,
        file=HOSTILE,
        tags=(HOSTILE, "other"),
        links=("javascript:document.title='pwned'", "https://example.org/?<script>", HOSTILE),
        axes={HOSTILE: HOSTILE, "n": "1"},
        contract=Contract(source=HOSTILE.replace("\x00", ""), why="x", mentions=(HOSTILE,)),
    )
    one = target(HOSTILE, fix=HOSTILE)
    parts = UncalledParts(declared_by=HOSTILE, inputs=(HOSTILE,), types={HOSTILE: (HOSTILE,)})
    described = one.describe.model_copy(update={"uncalled": parts})
    one = one.model_copy(update={"describe": described})
    judged = result(
        bad.id,
        HOSTILE,
        "unsupported",
        unexpected=True,
        vague=True,
        message=HOSTILE + "x" * 1_000_000 + "THE END",
        reason=HOSTILE,
        code=HOSTILE,
        stderr=HOSTILE,
        placement=HOSTILE,
        reproduce=HOSTILE,
        expectation=expected(link="javascript:alert(1)", why=HOSTILE, file=HOSTILE),
        errors=(
            error(output=HOSTILE, where=ErrorMap(rows=(HOSTILE, "019."), heads=2, positions=4)),
        ),
    )
    second = case(f"evil/{HOSTILE}[n=2]", HOSTILE, name=bad.name, title=HOSTILE)
    path = tmp_path_factory.mktemp("hostile") / "a.jsonl"
    problem = InfrastructureRecord(target=HOSTILE, case=HOSTILE, message=HOSTILE, fix=HOSTILE)
    gone = target("gone", unavailable=HOSTILE, fix=HOSTILE)
    results = [judged, result(second.id, HOSTILE)]
    return read(write(path, [bad, second], results, targets=[one, gone], problems=[problem]))


def run_of(path: Path, *verdicts: Verdict, **fields: Any) -> Run:
    """One group of cases, with these verdicts."""
    results = [
        result(f"shared_kv/zero_length_kv[n={number}]", verdict=verdict, **fields)
        for number, verdict in enumerate(verdicts)
    ]
    return of_results(path, results)


class Parsed(HTMLParser):
    """A page as its elements, its text, and the cells in its data."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.scripts: list[str] = []
        self.style = ""
        self.text = ""
        self._in = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag in ("script", "style"):
            self._in = tag
            if tag == "script":
                self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag == self._in:
            self._in = ""
        self.text += " "

    def handle_data(self, data: str) -> None:
        if self._in == "script":
            self.scripts[-1] += data
        elif self._in == "style":
            self.style += data
        else:
            self.text += data

    def attributes(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def words(self) -> str:
        """The text with whitespace collapsed."""
        return " ".join(self.text.split())

    @property
    def packed(self) -> str:
        """The cells as they are in the page."""
        return self.scripts[-2]

    @property
    def cells(self) -> Any:
        return _unpacked(self.packed)

    @property
    def reports(self) -> Any:
        """The bug reports in its data."""
        return _unpacked(self.scripts[-1])


def _unpacked(data: str) -> Any:
    return decoded(json.loads(gzip.decompress(base64.b64decode(data))))


def decoded(encoded: dict[str, Any]) -> Any:
    """The value that `report.encoding` has encoded."""
    made: list[Any] = []

    def part(one: Any) -> Any:
        return made[int(one, 36)] if isinstance(one, str) else one

    for value in encoded["values"]:
        if isinstance(value, list):
            made.append([*map(part, value)])
        elif isinstance(value, dict):
            made.append({name: part(one) for name, one in value.items()})
        else:
            made.append(value)
    return part(encoded["root"])
