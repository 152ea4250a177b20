"""The catalogue of targets is the only list of them: everything else follows from its entries."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from conformance.base.paths import ROOT, data_path
from conformance.targets.catalogue import (
    TARGETS,
    TargetEntry,
    entry_of,
    target_names,
    target_options,
)


def test_every_expectations_file_belongs_to_an_entry() -> None:
    files = {file.stem for file in data_path("expectations").glob("*.yaml")}
    assert files <= {*(entry.name for entry in TARGETS), "standard"}


def test_entries_and_options_have_names_of_their_own() -> None:
    assert len({entry.name for entry in TARGETS}) == len(TARGETS)
    assert len({option.flag for option in target_options()}) == len(target_options())


@pytest.mark.parametrize("entry", TARGETS, ids=lambda entry: entry.name)
def test_what_an_entry_names_exists(entry: TargetEntry) -> None:
    assert (data_path("runners") / entry.runner).is_file()
    assert entry.kernel_variant_of is None or entry_of(entry.kernel_variant_of)


def targets_in(page: Path) -> dict[str, str]:
    """The rows of the table of targets on a page, by their first column."""
    if not page.is_file():
        pytest.skip("not a checkout")
    table = page.read_text(encoding="utf-8").partition("\n| target | ")[2].partition("\n\n")[0]
    return dict(re.findall(r"^\| `([^`]+)` \| (.*) \|$", table, re.MULTILINE))


def test_the_page_on_targets_lists_all_and_their_options() -> None:
    rows = targets_in(ROOT / "docs" / "targets.md")
    names = list(target_names())
    assert list(rows) == names, f"Edit docs/targets.md: the rows are {', '.join(names)}"
    for option in target_options():
        named = any(f"`{option.flag}" in row for row in rows.values())
        assert named, f"Edit docs/targets.md: the row of its target names {option.flag}"
