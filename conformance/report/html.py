"""The HTML report: one file that needs nothing else and runs nothing that it did not bring."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from conformance.paths import data_path
from conformance.report.view import MEANING, page
from conformance.results import VERDICTS, Run, join


def render(runs: Sequence[Run]) -> str:
    """One HTML page of one or more runs, to be written as UTF-8.

    Raises `ResultsError` if there are no runs.
    """
    shown, details = page(join(runs))
    folder = data_path("reports")
    style = (folder / "report.css").read_text(encoding="utf-8")
    script = (folder / "report.js").read_text(encoding="utf-8")
    environment = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["fragment"] = _fragment
    environment.filters["when"] = _when
    return environment.get_template("report.html.j2").render(
        page=shown,
        verdicts=VERDICTS,
        meaning=MEANING,
        # The policy lets nothing run, load or be sent but these two, by their digests.
        style=Markup(style),
        script=Markup(script),
        style_digest=_digest(style),
        script_digest=_digest(script),
        details=_json(details),
    )


def _json(value: dict[str, Any]) -> Markup:
    """``value`` for a script element: no ``<`` or ``>`` that could end it or begin a comment."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e"))


def _digest(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"sha256-{digest}"


def _fragment(id: str) -> str:
    """A case id as the part of a link after ``#``."""
    return "#" + quote(id, safe="/=,:@.~")


def _when(time: str) -> str:
    """An ISO time to the minute, in its own zone."""
    moment = datetime.fromisoformat(time)
    return f"{moment:%Y-%m-%d %H:%M} {moment.tzname()}"
