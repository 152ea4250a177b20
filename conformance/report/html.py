"""The HTML report: one self-contained page, which loads nothing and runs only its own scripts."""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import datetime
from functools import cache
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup, escape
from pydantic_core import to_json

from conformance.base.findings import PREFIX
from conformance.base.paths import data_path
from conformance.base.target_names import split_adapter
from conformance.base.text import clean
from conformance.case.contract import BASES
from conformance.report.finding_pages import with_neighbours
from conformance.report.history import short
from conformance.report.message_page import meanings
from conformance.report.model_pages import CALLED, Models, load_models, slug
from conformance.report.model_query import RULES
from conformance.report.model_table import USES, ModelTable
from conformance.report.view import Page, entries, page
from conformance.results.causes import quoted, symptom
from conformance.results.compare import RunDifferences
from conformance.results.instability import instability_examples, instability_text
from conformance.results.records import TargetRecord
from conformance.results.score import SHOWN, in_words, shown_parts
from conformance.results.table import Table
from conformance.results.timeline import CHANGE_KINDS
from conformance.results.uncalled import uncalled_sentences
from conformance.results.verdicts import (
    PRESENTS,
    SOFTWARE,
    TABLE,
    VERDICTS,
    colour_of,
    drawing_of,
    verdict_word,
)
from conformance.results.wrong_outputs import WRONG_OUTPUTS, where_wrong

#: The scripts of the page, in the order in which they depend on each other.
SCRIPTS = ("elements", "address", "select", "matrix", "panel", "main")

_COMMENT = re.compile(r"^ *(?://.*|/\*(?:[^*]|\*(?!/))*\*/)\n", re.M)


def render(
    table: Table,
    changes: RunDifferences | None = None,
    *,
    model: ModelTable | None = None,
    stale_after: int | None = None,
    address: str | None = None,
) -> str:
    """The HTML page of one or more runs, to be written as UTF-8.

    It begins with the answer for a ``model``, then has the ``changes`` from a baseline. With
    ``stale_after``, the page warns when its newest results are older than that many days.
    ``address`` is the URL of the site to which the page belongs: empty if unknown, None if it
    belongs to no site.
    """
    shown, cells, reports = page(table, changes)
    models = None if model else _models([column.target for column in table.columns])
    scripts = ["messages.js", "models.js", *(f"page/{name}.js" for name in SCRIPTS)]
    if stale_after is not None:
        scripts.append("stale.js")
    return rendered(
        "report.html.j2",
        scripts,
        page=shown,
        table=table,
        changes=changes,
        model=model,
        models=models,
        stale_after=stale_after,
        address=address,
        verdicts=TABLE,
        parts=shown_parts(head.scores for head in shown.heads),
        bases=BASES,
        groups=Counter(row.group for row in TABLE.values()),
        filters=_filters(shown),
        findings=_findings(shown.findings),
        meanings=meanings_html(),
        cells=_packed(cells),
        reports=_packed(reports),
    )


@cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(data_path("reports")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for each in (
        clean, colour_of, digest, drawing_of, entries, fragment, in_words,
        instability_examples, instability_text, prose, quoted, short, slug, symptom,
        uncalled_sentences, verdict_word, when, where_wrong,
    ):  # fmt: skip
        made.filters[each.__name__] = each
    made.globals |= {"query": _query, "uses": USES, "called": CALLED, "model_rules": RULES}
    return made


def rendered(template: str, scripts: Iterable[str] = (), **values: Any) -> str:
    """A page made from a template, with the style and these scripts, files in ``reports``.

    The content security policy of the page allows only these, by their digests.
    """
    style = _source("report.css") + _source("models.css") + verdict_rules()
    return (
        _environment()
        .get_template(template)
        .render(style=Markup(style), scripts=[Markup(_source(each)) for each in scripts], **values)
    )


def _models(targets: Sequence[TargetRecord]) -> Models | None:
    """The recorded answers on models; None if none of the ``targets`` is one of their runtimes."""
    models = load_models()
    recorded = {split_adapter(name)[0] for name in models.runtimes}
    return models.beside(targets) if recorded & {target.base for target in targets} else None


def prose(text: str) -> Markup:
    """A text of ours, cleaned; what is between backticks is code."""
    return Markup(re.sub("`([^`\n]+)`", r"<code>\1</code>", str(escape(clean(text)))))


def digest(text: str) -> str:
    """The digest of a script or style for a content security policy."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _source(name: str) -> str:
    """A script or style without comments that fill whole lines."""
    return _COMMENT.sub("", (data_path("reports") / name).read_text(encoding="utf-8"))


def verdict_rules() -> str:
    """The style rules for the colours of the verdicts, of `PRESENTS` and of `SOFTWARE`."""
    rules = {
        verdict: " ".join(f"--{n}: var(--{verdict}-{n});" for n in ("ink", "tint", "loud"))
        for verdict in (*VERDICTS, PRESENTS, SOFTWARE)
    }
    return "".join(f".{verdict} {{ {rule} }}\n" for verdict, rule in rules.items())


def _packed(value: dict[str, Any]) -> str:
    """The value as JSON, compressed by gzip and in base64, which needs no escaping."""
    text = to_json(value, inf_nan_mode="null")
    return base64.b64encode(gzip.compress(text, 6, mtime=0)).decode()


def _filters(page: Page) -> dict[str, dict[str, str]]:
    """The values of each filter of the table, with the text that is shown for them."""
    plain = ("theme", "tag", "dtype", "basis")
    filters = {name: {value: value for value in sorted(page.filters[name])} for name in plain}
    wrong: dict[str, str] = {
        each: each for each in WRONG_OUTPUTS if any(each in those for those in page.wrong)
    }
    if (PRESENTS,) in page.wrong:
        wrong[f"only:{PRESENTS}"] = "only presents"
    score: dict[str, str] = {part: row.label for part, row in SHOWN.items()}
    return {**filters, "score": score, "wrong": wrong, "history": _history_filter(page)}


#: The values of the filter ``history`` that are not about a single release.
HISTORIES = {"regressed": "right before, not now", "mended": "broken for a time"}


def _history_filter(page: Page) -> dict[str, str]:
    """The values of the filter ``history`` that select any case, with their texts."""
    changes = (
        f"{kind}:{clean(one.series.name)} {clean(release.version)}"
        for one in page.histories
        for kind in CHANGE_KINDS
        for release in one.series.releases
        for _ in release.columns
    )
    offered = HISTORIES | {value: value.replace(":", " in ", 1) for value in changes}
    return {value: words for value, words in offered.items() if value in page.filters["history"]}


def _findings(links: Iterable[str]) -> list[tuple[str, Markup]]:
    """The findings at ``links``, and those to which they link, as HTML."""
    pages = list(with_neighbours(links))
    known = {link for link, _ in pages}
    return [
        (link, findings_html(f"# {one.heading}\n{one.text}", known, f"#page:{PREFIX}{{}}".format))
        for link, one in pages
    ]


def meanings_html() -> Iterator[tuple[str, str, Iterable[Markup]]]:
    """Of each section of ``docs/messages.md``: heading, words of its beginnings, and the first
    paragraph and the rest of its text as HTML."""
    for heading, beginnings, text in meanings():
        words = "|".join(" ".join(sorted(each)) for each in beginnings)
        yield heading, words, [findings_html(part, (), str) for part in text.split("\n\n", 1)]


def findings_html(text: str, known: Collection[str], address: Callable[[str], str]) -> Markup:
    """The Markdown of a finding as HTML; ``address`` turns the file of a ``known`` finding into the
    address of its page."""
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = markdown.parse(text)
    for token in tokens:
        if token.children:
            token.children = list(_linked(token.children, known, address))
    return Markup(markdown.renderer.render(tokens, markdown.options, {}))


def _linked(
    tokens: Sequence[Token], known: Collection[str], address: Callable[[str], str]
) -> Iterator[Token]:
    """``tokens`` with links to the web and to ``known`` findings; other links become plain text."""
    inside = False
    for token in tokens:
        if token.type == "link_open":
            href = str(token.attrs.get("href", ""))
            inside = href.startswith(("https://", "http://"))
            if PREFIX + href in known:
                inside = True
                token.attrs["href"] = address(href)
            if inside:
                yield token
        elif token.type != "link_close" or inside:
            yield token


def fragment(id: str) -> str:
    """The fragment of an address that shows a case: ``#`` and its id."""
    return "#" + quote(id, safe="/=,:@.~")


def _query(**parameters: str | Sequence[str]) -> str:
    """The fragment of an address that filters the table: ``#?verdict=wrong&target=…``."""
    return "#?" + urlencode(parameters, doseq=True)


def when(time: str) -> str:
    """An ISO time, shown to the minute, in its own time zone."""
    moment = datetime.fromisoformat(time)
    return f"{moment:%Y-%m-%d %H:%M} {moment.tzname()}"
