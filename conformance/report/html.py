"""The HTML report: one self-contained file, which loads nothing and runs only its own scripts."""

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
from markupsafe import Markup
from pydantic_core import to_json

from conformance.base.paths import data_path
from conformance.base.text import clean
from conformance.case.contract import BASES
from conformance.report.findings import PREFIX, with_neighbours
from conformance.report.history import short
from conformance.report.model_table import USES, ModelTable
from conformance.report.models import CALLED, Models, load_models, slug
from conformance.report.view import entries, page
from conformance.results.causes import quoted, symptom
from conformance.results.compare import Changes
from conformance.results.instability import instability_examples, instability_text
from conformance.results.reader import Run
from conformance.results.records import TargetRecord
from conformance.results.score import SHOWN
from conformance.results.table import tabulate
from conformance.results.timeline import CHANGE_KINDS
from conformance.results.uncalled import uncalled_sentences
from conformance.results.verdicts import (
    PRESENTS,
    TABLE,
    VERDICTS,
    colour_of,
    drawing_of,
)
from conformance.results.wrong_outputs import WRONG_OUTPUTS, where_wrong

#: The page's scripts; each uses those before it.
SCRIPTS = ("elements", "address", "select", "matrix", "panel", "main")

_COMMENT = re.compile(r"^ *(?://.*|/\*(?:[^*]|\*(?!/))*\*/)\n", re.M)


def render(
    runs: Sequence[Run],
    changes: Changes | None = None,
    *,
    watched: bool = False,
    model: ModelTable | None = None,
    stale_after: int | None = None,
    address: str | None = None,
) -> str:
    """One HTML page of one or more runs, to be written as UTF-8.

    The answer for a ``model`` comes first, then ``changes`` from a baseline. A ``watched`` page
    reloads itself, since its file is rewritten. A page says so itself when its newest results are
    older than ``stale_after`` days. ``address`` is where the site is that it is a page of: empty if
    nobody knows, None if it is a page of none.
    Raises `ResultsError` if there are no runs.
    """
    table = tabulate(runs)
    shown, cells, reports = page(table, changes)
    models = None if model else _models([column.target for column in table.columns])
    scripts = ["models.js", *(f"page/{name}.js" for name in SCRIPTS)]
    if watched:
        scripts.append("reload.js")
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
        parts=SHOWN,
        bases=BASES,
        groups=Counter(row.group for row in TABLE.values()),
        filters=_filters(cells),
        findings=_findings(shown.findings),
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
        clean, colour_of, digest, drawing_of, entries, fragment, instability_examples,
        instability_text, quoted, short, slug, symptom, uncalled_sentences, when, where_wrong,
    ):  # fmt: skip
        made.filters[each.__name__] = each
    made.globals |= {"query": _query, "uses": USES, "called": CALLED}
    return made


def rendered(template: str, scripts: Iterable[str] = (), **values: Any) -> str:
    """A page of this template with the style and these scripts, which are files in ``reports``.

    The page's policy allows only these, by their digests.
    """
    style = _source("report.css") + _source("models.css") + verdict_rules()
    return (
        _environment()
        .get_template(template)
        .render(style=Markup(style), scripts=[Markup(_source(each)) for each in scripts], **values)
    )


def _models(targets: Sequence[TargetRecord]) -> Models | None:
    """The recorded answers on models, if one of the ``targets`` is of a runtime they are of."""
    models = load_models()
    recorded = {name.partition("+")[0] for name in models.runtimes}
    return models.beside(targets) if recorded & {target.base for target in targets} else None


def digest(text: str) -> str:
    """The digest by which a policy allows a script or style."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _source(name: str) -> str:
    """A script or style without the comments that have whole lines."""
    return _COMMENT.sub("", (data_path("reports") / name).read_text(encoding="utf-8"))


def verdict_rules() -> str:
    """The style rules that give elements the colours of the verdicts, and of `PRESENTS`."""
    rules = {
        verdict: " ".join(f"--{n}: var(--{verdict}-{n});" for n in ("ink", "tint", "loud"))
        for verdict in (*VERDICTS, PRESENTS)
    }
    return "".join(f".{verdict} {{ {rule} }}\n" for verdict, rule in rules.items())


def _packed(value: dict[str, Any]) -> str:
    """JSON as base64 of gzip, which needs no escaping; the same input gives the same text."""
    text = to_json(value, inf_nan_mode="null")
    return base64.b64encode(gzip.compress(text, 6, mtime=0)).decode()


def _filters(cells: dict[str, Any]) -> dict[str, dict[str, str]]:
    """The values that the table can be filtered by, and how they are shown, by filter."""
    pool = cells["pool"]
    themes = {theme["name"] for theme in cells["themes"]}
    tags = {tag for case in cells["cases"] if "tags" in case for tag in pool[case["tags"]]}
    dtypes = {case["dtype"] for case in cells["cases"] if case.get("dtype")}
    bases = {pool[case["contract"]]["basis"] for case in cells["cases"] if "contract" in case}
    plain = {"theme": themes, "tag": tags, "dtype": dtypes, "basis": bases}
    filters = {name: {value: value for value in sorted(values)} for name, values in plain.items()}
    combined = {tuple(look["wrong"]) for look in cells["looks"]}
    wrong: dict[str, str] = {
        each: each for each in WRONG_OUTPUTS if any(each in those for those in combined)
    }
    if (PRESENTS,) in combined:
        wrong[f"only:{PRESENTS}"] = "only presents"
    score = {part: row.label for part, row in SHOWN.items()}
    return {**filters, "score": score, "wrong": wrong, "history": _history_filter(cells)}


#: Values of the filter for what a case did over the releases of a target.
HISTORIES = {"regressed": "right before, not now", "mended": "broken for a time"}


def _history_filter(cells: dict[str, Any]) -> dict[str, str]:
    """The values of the filter by history: what became of a case, and where it changed."""
    places = {place for case in cells["cases"] for place in case.get("history", ())}
    used = {value for place in places for value in cells["pool"][place]["filters"]}
    changes = (
        f"{kind}:{series['label']} {version}"
        for series in cells["series"]
        for kind in CHANGE_KINDS
        for version in series["versions"]
    )
    offered = HISTORIES | {value: value.replace(":", " in ", 1) for value in changes}
    return {value: words for value, words in offered.items() if value in used}


def _findings(links: Iterable[str]) -> list[tuple[str, Markup]]:
    """The findings that expectations link to, as HTML."""
    pages = list(with_neighbours(links))
    known = {link for link, _ in pages}
    return [
        (link, findings_html(text, known, lambda file: f"#page:{PREFIX}{file}"))
        for link, text in pages
    ]


def findings_html(text: str, known: Collection[str], address: Callable[[str], str]) -> Markup:
    """A finding's Markdown as HTML; ``address`` gives that of the file of another ``known`` one."""
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = markdown.parse(text)
    for token in tokens:
        if token.children:
            token.children = list(_linked(token.children, known, address))
    return Markup(markdown.renderer.render(tokens, markdown.options, {}))


def _linked(
    tokens: Sequence[Token], known: Collection[str], address: Callable[[str], str]
) -> Iterator[Token]:
    """``tokens`` with links to the web and to ``known`` findings; other links become text."""
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
    """A case id as the part of a link after ``#``."""
    return "#" + quote(id, safe="/=,:@.~")


def _query(**parameters: str | Sequence[str]) -> str:
    """The fragment that filters the table: ``#?verdict=wrong&target=…``."""
    return "#?" + urlencode(parameters, doseq=True)


def when(time: str) -> str:
    """An ISO time to the minute, in its own zone."""
    moment = datetime.fromisoformat(time)
    return f"{moment:%Y-%m-%d %H:%M} {moment.tzname()}"
