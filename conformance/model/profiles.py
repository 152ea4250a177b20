"""The profiles: the calls of the layers of each family of recorded models, as case files.

A file ``cases/profiles/NAME.yaml`` lists the calls that a runtime must pass to run such a model, as
exporters write it. Profiles are not part of the corpus: ``--profile NAME`` runs them. ``python -m
conformance.model.profiles`` writes them from the graphs in ``cases/exported``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from conformance.base.paths import file_to_write
from conformance.base.yaml_source import yaml_text
from conformance.case.case import MAX_TITLE
from conformance.case.case_file import FORMAT
from conformance.model.entries import entry_of
from conformance.model.exports import groups_in, recipes
from conformance.model.groups import Group
from conformance.model.stages import Lengths, Stage, cache_elements, stages_of

#: A call with a larger cache takes the oracle long.
_MOST_ELEMENTS: Final = 1 << 22

_HEAD: Final = """\
# yaml-language-server: $schema=../schema.json
format: {format}
question: Does a runtime compute each call of {family}?
# Written by `python -m conformance.model.profiles` from the graphs in cases/exported.
"""


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


def profile_name(family: str) -> str:
    """``Llama 3.2 1B`` as the name of a file and a theme: ``llama_3_2_1b``."""
    return re.sub(r"[^a-z0-9]+", "_", family.lower()).strip("_")


def profiles() -> Iterator[tuple[str, str]]:
    """Each profile's name, and its case file."""
    families: dict[str, list[str]] = {}
    for name, recipe in real_models().items():
        families.setdefault(family_of(recipe), []).append(name)
    for family, graphs in families.items():
        entries = [*_entries(graphs)]
        if entries:
            data = {"tags": ["profiles"], "cases": entries}
            head = _HEAD.format(format=FORMAT, family=family)
            yield profile_name(family), head + yaml_text(data)


def _entries(graphs: list[str]) -> Iterator[dict[str, Any]]:
    """An entry for each call of the graphs; a call of several graphs is listed once."""
    seen: set[str] = set()
    contracts: dict[str, dict[str, Any]] = {}
    for name in graphs:
        for group in groups_in(name):
            stages = _stages(group)
            if stages and group.form.key not in seen:
                seen.add(group.form.key)
                yield {
                    **entry_of(group, stages, contracts),
                    "name": f"{name}_{group.name}",
                    "title": _title(group, name),
                    "why": f"{group.title} of {name} make this call.",
                }


def _stages(group: Group) -> list[Stage]:
    """The calls of a decoder, without those for which the oracle takes long."""
    every = stages_of(group.form, Lengths())
    return [stage for stage in every if cache_elements(group.form, stage) <= _MOST_ELEMENTS]


def _title(group: Group, graph: str) -> str:
    text = f"{group.title} of {graph}: {group.what}"
    return text if len(text) <= MAX_TITLE else f"{text[: MAX_TITLE - 1].rstrip(' ,:')}…"


def main() -> None:
    """Write the files."""
    folder = file_to_write("cases/profiles")
    folder.mkdir(exist_ok=True)
    written: set[Path] = set()
    for name, text in profiles():
        file = folder / f"{name}.yaml"
        file.write_text(text, encoding="utf-8")
        written.add(file)
    for file in {*folder.glob("*.yaml")} - written:
        file.unlink()


if __name__ == "__main__":
    main()
