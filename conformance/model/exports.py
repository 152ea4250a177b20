"""cases/exports.yaml: the calls of real exporters, from the graphs in ``cases/exported``.

``python -m conformance.model.exports`` writes it. A call of several graphs is listed once, with the
name of the first graph. Graphs whose recipe says ``corpus: false`` are left out: their calls are in
the profiles (`conformance.model.profiles`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from conformance.base.paths import data_path, file_to_write
from conformance.base.yaml_source import read_yaml, yaml_text
from conformance.case.case import MAX_TITLE
from conformance.case.case_file import FORMAT
from conformance.model.configuration import Configuration
from conformance.model.entries import entry_of
from conformance.model.groups import Group, groups_of
from conformance.model.nodes import nodes_of
from conformance.model.reading import ModelError, read_model
from conformance.model.stages import Lengths, Stage, cache_elements, stages_of

FILE: Final = "cases/exports.yaml"
#: A call with a larger cache would take most of the theme's time.
_MOST_ELEMENTS: Final = 1 << 20

_HEAD: Final = f"""\
# yaml-language-server: $schema=schema.json
format: {FORMAT}
question: Are the calls that exporters write computed correctly?
# Written by `python -m conformance.model.exports` from the graphs in cases/exported.
"""


def recipes() -> dict[str, Any]:
    """The content of ``cases/exported/recipes.yaml``."""
    data = read_yaml(data_path("cases") / "exported" / "recipes.yaml").data
    assert isinstance(data, dict)
    return data


def text() -> str:
    """The case file."""
    data = {
        "tags": ["exports"],
        "cases": [*_entries(recipes())],
    }
    return _HEAD + yaml_text(data)


def groups_in(graph: str) -> list[Group]:
    """The groups of one of the graphs in ``cases/exported``; none if it is without the operator."""
    try:
        model = read_model(data_path("cases") / "exported" / "graphs" / f"{graph}.onnx")
        return groups_of(nodes_of(model).nodes, Configuration())[0]
    except ModelError:
        return []


def _entries(recipes: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    seen: set[str] = set()
    contracts: dict[str, dict[str, Any]] = {}
    titles: dict[str, int] = {}
    for name, recipe in recipes["graphs"].items():
        if not recipe.get("corpus", True):
            continue
        tool, _, version = recipes["tools"][recipe["tool"]][0].partition("==")
        by = "hand" if recipe["tool"] == "by_hand" else f"{tool} {version}"
        for group in groups_in(name):
            key = json.dumps([group.form.fields, group.form.cache], sort_keys=True)
            stages = _stages(group)
            if key in seen or not stages:
                continue
            seen.add(key)
            of = recipes["models"][recipe["model"]]["of"] if "model" in recipe else recipe["shows"]
            yield {
                **entry_of(group, stages, contracts),
                "name": f"{name}_{group.name}",
                "title": _title(of, by, group, titles),
                "why": f"{recipe['shows']} The graph is {name}, of {of}, by {by}.",
            }


def _stages(group: Group) -> list[Stage]:
    """A prompt and one token on a past; with a small window, both exceed it."""
    past = min(group.form.window or 16, 16)
    wanted = ("prompt_17", f"decode_on_{past}")
    found = [stage for stage in stages_of(group.form, Lengths()) if stage.label in wanted]
    return [stage for stage in found if cache_elements(group.form, stage) <= _MOST_ELEMENTS]


def _title(of: str, by: str, group: Group, titles: dict[str, int]) -> str:
    """A unique title that is short enough and begins with a capital letter."""
    name = re.sub(r"\S+/\S+#\d+", "a bug report", of.partition(",")[0].partition(" with ")[0])
    by = by.replace("onnxruntime-genai", "GenAI").replace("mobius-onnx", "mobius")
    words = group.what.split(", ")
    heads, dtype = words[-2:]
    what = re.sub(r"borrowing the cache .*", "borrowed cache", ", ".join(words[:-2]))
    text = f"{name}{'' if dtype == 'float32' else f', {dtype}'}, by {by}: {what}"
    text = text if text[:1].isupper() else f"Layers of {text}"
    for longer in (f"{text}, {heads}", text, f"{text[: MAX_TITLE - 1].rstrip(' ,:')}…"):
        if len(longer) <= MAX_TITLE and longer not in titles:
            break
    else:
        longer = f"{text[: MAX_TITLE - 5].rstrip(' ,:…')}… {len(titles)}"
    titles[longer] = 1
    return longer


if __name__ == "__main__":
    file_to_write(FILE).write_text(text(), encoding="utf-8")
