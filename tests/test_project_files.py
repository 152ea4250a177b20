"""Pages that people read: each names what there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from conformance.base.paths import ROOT
from conformance.cli.commands import gqa

PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), ROOT / "runners" / "README.md"]

#: The most words of a page; of all others in `docs`, 1,500.
MAX_WORDS = {
    ROOT / "README.md": 1_300,
    ROOT / "CONTRIBUTING.md": 1_800,
    **dict.fromkeys((ROOT / "docs").glob("*.md"), 1500),
}
LONG = {ROOT / "docs" / "oracle.md", ROOT / "docs" / "tolerance.md"}

pytestmark = pytest.mark.skipif(not (ROOT / "CONTRIBUTING.md").is_file(), reason="not a checkout")


def anchors(page: Path) -> set[str]:
    """What a link can name of a page: its headings, as GitHub writes them."""
    headings = re.findall(r"(?m)^#+ (.*)$", page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_commands_of_a_page_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    prose = re.sub(r"(?s)```.*?```", "", text)
    for link in re.findall(r"\]\(([^)\s]+)\)", prose):
        if "://" not in link:
            path, _, anchor = link.partition("#")
            there = page.parent / path if path else page
            assert there.exists(), link
            assert not anchor or anchor in anchors(there), link
    for script in re.findall(r"`(\.ci/[\w-]+)", text):
        assert (ROOT / script).is_file(), script


@pytest.mark.parametrize("page", sorted(MAX_WORDS.keys() - LONG), ids=lambda page: page.name)
def test_a_page_is_short(page: Path) -> None:
    assert len(page.read_text(encoding="utf-8").split()) <= MAX_WORDS[page]


@pytest.mark.parametrize("page", MAX_WORDS, ids=lambda page: page.name)
def test_the_commands_of_a_page_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    commands = gqa.list_commands(gqa.make_context("gqa", [], resilient_parsing=True))
    assert set(re.findall(r"(?m)(?:^|[`&|] ?)gqa ([a-z]+)\b", text)) <= {*commands}
    for module in re.findall(r"python -m (conformance[\w.]+)", text):
        assert (ROOT / module.replace(".", "/")).with_suffix(".py").is_file(), module


def test_the_version_policy_names_every_format() -> None:
    policy = (ROOT / "docs" / "versions.md").read_text(encoding="utf-8")
    formats = {
        found
        for file in (ROOT / "conformance").rglob("*.py")
        for found in re.findall(
            r'"(gqa-(?!known|citations)[a-z]+/\d+)"', file.read_text(encoding="utf-8")
        )
    }
    assert {"gqa-cases/2", "gqa-results/1"} <= formats
    assert [name for name in sorted(formats) if f"`{name}`" not in policy] == []


def test_the_index_of_findings_lists_every_page_by_its_title() -> None:
    folder = ROOT / "docs" / "findings"
    index = (folder / "README.md").read_text(encoding="utf-8").partition("## All findings\n")[2]
    pages = [page for page in sorted(folder.glob("*.md")) if page.name != "README.md"]
    titles = {page: page.read_text(encoding="utf-8").partition("\n")[0][2:] for page in pages}
    lines = [f"- [{title}]({page.name})" for page, title in titles.items()]
    assert index.split("\n") == ["", *lines, ""], "Edit docs/findings/README.md"
