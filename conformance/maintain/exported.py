"""Case files of the calls that exporters write, from the graphs in ``cases/exported``.

``python -m conformance.maintain.exported`` writes them: ``cases/exports.yaml``, which is part of
the corpus, and for each family of recorded models a profile, ``cases/profiles/NAME.yaml``, with the
calls that a runtime must pass to run such a model. Profiles are not part of the corpus: ``--profile
NAME`` runs them. A call of several graphs is listed once, with the name of the first graph. Graphs
whose recipe says ``corpus: false`` make calls for the profiles only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from conformance.base.paths import data_path, file_to_write
from conformance.base.yaml_source import read_yaml, yaml_text
from conformance.case.case import MAX_TITLE
from conformance.case.case_file import FORMAT
from conformance.graph.nodes import nodes_of
from conformance.graph.reading import ModelError, read_model
from conformance.maintain import run_command
from conformance.model.calls.entries import entry_of
from conformance.model.calls.forms import Form
from conformance.model.calls.groups import Group, groups_of
from conformance.model.calls.stages import Lengths, NodeCall, cache_elements, stages_of
from conformance.model.config.configuration import Configuration

EXPORTS: Final = "cases/exports.yaml"
PROFILES: Final = "cases/profiles"
#: The most elements of the cache of a call: with a larger one it would take most of the theme's
#: time, and in a profile the oracle would take long.
_MOST_OF_EXPORTS: Final = 1 << 20
_MOST_OF_PROFILES: Final = 1 << 22

_HEAD: Final = """\
# yaml-language-server: $schema={schema}
format: {format}
question: {question}
# Written by `python -m conformance.maintain.exported` from the graphs in cases/exported.
"""


def recipes() -> dict[str, Any]:
    """The content of ``cases/exported/recipes.yaml``."""
    data = read_yaml(data_path("cases") / "exported" / "recipes.yaml").data
    assert isinstance(data, dict)
    return data


def real_models() -> dict[str, dict[str, Any]]:
    """The recipes of the graphs of real models, not of small stand-ins, by the graph's name."""
    return {
        name: recipe
        for name, recipe in recipes()["graphs"].items()
        if "model" in recipe and not recipe["model"].endswith("_tiny")
    }


def family_of(recipe: dict[str, Any]) -> str:
    """The usual name of the model of a recipe: ``Llama 3.2 1B``."""
    of: str = recipes()["models"][recipe["model"]]["of"]
    return of.partition(",")[0]


def groups_in(graph: str) -> list[Group]:
    """The groups of one of the graphs in ``cases/exported``; none if it is without the operator."""
    try:
        model = read_model(data_path("cases") / "exported" / "graphs" / f"{graph}.onnx")
        return groups_of(nodes_of(model).nodes, Configuration())[0]
    except ModelError:
        return []


def profile_name(family: str) -> str:
    """``Llama 3.2 1B`` as the name of a file and a theme: ``llama_3_2_1b``."""
    return re.sub(r"[^a-z0-9]+", "_", family.lower()).strip("_")


def exports() -> str:
    """The content of ``cases/exports.yaml``."""
    known = recipes()
    titles: set[str] = set()

    def words(graph: str, group: Group) -> dict[str, str]:
        recipe = known["graphs"][graph]
        tool, _, version = known["tools"][recipe["tool"]][0].partition("==")
        by = "hand" if recipe["tool"] == "by_hand" else f"{tool} {version}"
        of = known["models"][recipe["model"]]["of"] if "model" in recipe else recipe["shows"]
        why = f"{recipe['shows']} The graph is {graph}, of {of}, by {by}."
        return {"title": _title(of, by, group, titles), "why": why}

    graphs = (name for name, recipe in known["graphs"].items() if recipe.get("corpus", True))
    question = "Are the calls that exporters write computed correctly?"
    head = _HEAD.format(schema="schema.json", format=FORMAT, question=question)
    entries = [*_entries(graphs, _call_of, _two_stages, words)]
    return head + yaml_text({"tags": ["exports"], "cases": entries})


def profiles() -> Iterator[tuple[str, str]]:
    """Each profile's name, and its case file."""

    def words(graph: str, group: Group) -> dict[str, str]:
        title = _cut(f"{group.title} of {graph}: {group.what}")
        return {"title": title, "why": f"{group.title} of {graph} make this call."}

    families: dict[str, list[str]] = {}
    for name, recipe in real_models().items():
        families.setdefault(family_of(recipe), []).append(name)
    for family, graphs in families.items():
        if entries := [*_entries(graphs, lambda form: form.key, _stages, words)]:
            question = f"Does a runtime compute each call of {family}?"
            head = _HEAD.format(schema="../schema.json", format=FORMAT, question=question)
            yield profile_name(family), head + yaml_text({"tags": ["profiles"], "cases": entries})


def _entries(
    graphs: Iterable[str],
    key: Callable[[Form], str],
    stages_of_group: Callable[[Group], list[NodeCall]],
    words: Callable[[str, Group], Mapping[str, str]],
) -> Iterator[dict[str, Any]]:
    """An entry for the first group with each ``key``, with title and reason from ``words``."""
    seen: set[str] = set()
    contracts: dict[str, dict[str, Any]] = {}
    for name in graphs:
        for group in groups_in(name):
            stages = stages_of_group(group)
            if stages and key(group.form) not in seen:
                seen.add(key(group.form))
                entry = {**entry_of(group, stages, contracts), "name": f"{name}_{group.name}"}
                yield {**entry, **words(name, group)}


def _call_of(form: Form) -> str:
    """A key that is equal for layers that make the same call, whatever else their graphs say."""
    return json.dumps([form.fields, form.cache], sort_keys=True)


def _two_stages(group: Group) -> list[NodeCall]:
    """A prompt and one token on a past; with a small window, both exceed it."""
    past = min(group.form.window or 16, 16)
    wanted = ("prompt_17", f"decode_on_{past}")
    return [stage for stage in _stages(group, _MOST_OF_EXPORTS) if stage.label in wanted]


def _stages(group: Group, most: int = _MOST_OF_PROFILES) -> list[NodeCall]:
    """The calls of a decoder, without those with a larger cache."""
    every = stages_of(group.form, Lengths())
    return [stage for stage in every if cache_elements(group.form, stage) <= most]


def _title(of: str, by: str, group: Group, titles: set[str]) -> str:
    """A unique title that is short enough and begins with a capital letter."""
    name = re.sub(r"\S+/\S+#\d+", "a bug report", of.partition(",")[0].partition(" with ")[0])
    by = by.replace("onnxruntime-genai", "GenAI").replace("mobius-onnx", "mobius")
    words = group.what.split(", ")
    heads, dtype = words[-2:]
    what = re.sub(r"borrowing the cache .*", "borrowed cache", ", ".join(words[:-2]))
    text = f"{name}{'' if dtype == 'float32' else f', {dtype}'}, by {by}: {what}"
    text = text if text[:1].isupper() else f"Layers of {text}"
    for longer in (f"{text}, {heads}", text, _cut(text)):
        if len(longer) <= MAX_TITLE and longer not in titles:
            break
    else:
        longer = f"{text[: MAX_TITLE - 5].rstrip(' ,:…')}… {len(titles)}"
    titles.add(longer)
    return longer


def _cut(title: str) -> str:
    """A title, of which the end is left out if it is too long."""
    return title if len(title) <= MAX_TITLE else f"{title[: MAX_TITLE - 1].rstrip(' ,:')}…"


def main() -> None:
    """Write the files."""
    file_to_write(EXPORTS).write_text(exports(), encoding="utf-8")
    folder = file_to_write(PROFILES)
    folder.mkdir(exist_ok=True)
    files = {folder / f"{name}.yaml": text for name, text in profiles()}
    for file in {*folder.glob("*.yaml")} - files.keys():
        file.unlink()
    for file, text in files.items():
        file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    run_command(main, "Writes the case files of what exporters write.")
