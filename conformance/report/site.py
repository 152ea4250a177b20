"""The site: static pages about models, runtimes and findings, each with its own address and title.

They are made from the recorded answers, a report, and the findings.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from xml.etree.ElementTree import Element, SubElement, tostring

from markupsafe import Markup

from conformance.base.paths import data_path
from conformance.base.target_names import split_adapter
from conformance.base.text import clean
from conformance.base.words import listed
from conformance.report.finding_pages import findings
from conformance.report.html import findings_html, meanings_html, rendered
from conformance.report.model_pages import Models, RecordedCause, RecordedModel, models_text, slug
from conformance.report.model_table import USES

SCHEMAS: Final = ("results.schema.json", "check.schema.json")


@dataclass(frozen=True)
class FeedEntry:
    """An entry of the feed: a change that a nightly run found."""

    date: str
    title: str
    text: str


def read_changes(file: Path) -> list[FeedEntry]:
    """The changes in a file with a line of JSON for each; none if there is no file."""
    if not file.is_file():
        return []
    lines = file.read_text(encoding="utf-8").splitlines()
    return [
        FeedEntry(**{key: str(value) for key, value in json.loads(line).items()}) for line in lines
    ]


@dataclass(frozen=True)
class Site:
    """The pages of a site.

    ``address`` is the URL of the site, without a slash at its end; empty if unknown.
    """

    models: Models
    address: str = ""
    changes: Sequence[FeedEntry] = ()

    def files(self) -> Iterator[tuple[str, str]]:
        """The path in the site and the text of each file."""
        pages = findings()
        runtimes = listed([split_adapter(name)[0] for name in self.models.runtimes])
        yield self._page(
            "index.html",
            "index",
            "Which runtime runs which model right, and since when",
            f"Language models as exporters write them, with GroupQueryAttention, on {runtimes}:"
            " what each release computes right, refuses, or gets silently wrong.",
            scripts=("messages.js", "models.js", "site/index.js"),
            meanings=meanings_html(),
            models=self.models,
            findings=pages.values(),
        )
        for family, rows in self.models.families.items():
            place, title = f"models/{slug(family)}.html", f"{family}: where it runs"
            about = summary(self.models, rows)
            causes = causes_of(rows)
            yield self._page(
                place, "model", title, about, rows=rows, models=self.models, causes=causes
            )
        for one in pages.values():
            html = findings_html(one.text, pages, lambda file: f"{file.removesuffix('.md')}.html")
            html = html.replace("<pre>", Markup('<pre tabindex="0">'))  # it can scroll
            place, about = f"findings/{one.name}.html", f"A defect of a runtime: {one.heading}"
            yield self._page(place, "finding", one.heading, about, html=html)
        yield self._page(
            "findings/index.html",
            "findings",
            "What is wrong in runtimes",
            "A page for each defect of GroupQueryAttention that was found: what is wrong, a program"
            " that shows it, and a workaround.",
            findings=pages.values(),
        )
        yield "feed.xml", self._feed()
        yield "models.json", models_text()
        for schema in SCHEMAS:
            yield f"schema/{schema}", (data_path("reports") / schema).read_text(encoding="utf-8")

    def _page(
        self,
        place: str,
        template: str,
        title: str,
        description: str,
        scripts: Sequence[str] = (),
        **values: Any,
    ) -> tuple[str, str]:
        """The path and the text of a page."""
        return place, rendered(
            f"site/{template}.html.j2",
            scripts,
            title=title,
            description=description,
            place=place,
            up="../" * place.count("/"),
            address=self.address,
            **values,
        )

    def _feed(self) -> str:
        """The changes as an Atom feed, the newest first."""
        feed = Element("feed", {"xmlns": "http://www.w3.org/2005/Atom"})
        SubElement(feed, "title").text = "GroupQueryAttention: what changed by night"
        SubElement(feed, "id").text = feed_id = self.address or "urn:gqa:conformance"
        if self.address:
            SubElement(feed, "link", {"href": f"{self.address}/index.html"})
            SubElement(feed, "link", {"href": f"{self.address}/feed.xml", "rel": "self"})
        newest = max((one.date for one in self.changes), default=self.models.recorded)
        SubElement(feed, "updated").text = _moment(newest)
        SubElement(SubElement(feed, "author"), "name").text = "gqa-conformance"
        for one in sorted(self.changes, key=lambda one: one.date, reverse=True):
            entry = SubElement(feed, "entry")
            SubElement(entry, "title").text = clean(one.title)
            SubElement(entry, "id").text = f"{feed_id}#{one.date}-{slug(one.title)}"
            SubElement(entry, "updated").text = _moment(one.date)
            if self.address:
                SubElement(entry, "link", {"href": f"{self.address}/report.html"})
            SubElement(entry, "content", {"type": "text"}).text = clean(one.text)
        return f'<?xml version="1.0" encoding="UTF-8"?>\n{tostring(feed, encoding="unicode")}\n'


def summary(models: Models, rows: Sequence[RecordedModel]) -> str:
    """The answers of all runtimes for the models of a family in one chat, a sentence for each."""
    sentences = []
    for name in models.runtimes:
        words: dict[str, list[str]] = {}
        for row in rows:
            if name in row.runtimes:
                cell = row.runtimes[name].cell(USES[0])
                words.setdefault(cell.words, []).append(row.type)
        parts = [f"{those} ({', '.join(dict.fromkeys(types))})" for those, types in words.items()]
        if parts:
            sentences.append(f"{split_adapter(name)[0]}: {'; '.join(parts)}")
    return f"{rows[0].family} on {'. '.join(sentences)}."


def causes_of(
    rows: Sequence[RecordedModel],
) -> dict[tuple[str, RecordedCause], list[RecordedModel]]:
    """The causes of all exports of a model by runtime, each once, with the exports that have it."""
    causes: dict[tuple[str, RecordedCause], list[RecordedModel]] = {}
    for row in rows:
        for name, on in row.runtimes.items():
            for cause in on.causes:
                alike = (key for key in causes if key[0] == name and key[1].same_as(cause))
                causes.setdefault(next(alike, (name, cause)), []).append(row)
    return causes


def _moment(date: str) -> str:
    """The beginning of a day in the format of Atom."""
    return f"{datetime.fromisoformat(date).replace(tzinfo=UTC):%Y-%m-%dT%H:%M:%SZ}"
