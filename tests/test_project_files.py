"""Files that people, editors, bots and GitHub read: each parses, and names what there is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from conformance import __version__
from conformance.base.paths import ROOT
from conformance.targets.catalogue import target_names

GITHUB = ROOT / ".github"
FORMS = sorted((GITHUB / "ISSUE_TEMPLATE").glob("*.yml"))
PAGES = [
    ROOT / name
    for name in ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "README.md", "docs/versions.md")
]

pytestmark = pytest.mark.skipif(not GITHUB.is_dir(), reason="not a checkout")


def load(file: Path) -> Any:
    return yaml.safe_load(file.read_text(encoding="utf-8"))


# ── Issues ───────────────────────────────────────────────────────────────────────────────────────


def test_a_dispute_can_be_about_any_target() -> None:
    (form,) = [load(file) for file in FORMS if file.stem == "disputed-verdict"]
    (field,) = [part for part in form["body"] if part.get("id") == "target"]
    known = list(target_names())
    listed = sorted(field["attributes"]["options"]) == sorted(known)
    assert listed, f"Edit .github/ISSUE_TEMPLATE/disputed-verdict.yml: {', '.join(known)}"


# ── Bots, hooks, containers ──────────────────────────────────────────────────────────────────────


# ── Texts ────────────────────────────────────────────────────────────────────────────────────────


def anchors(page: Path) -> set[str]:
    """What a link can name of a page: its headings, as GitHub writes them."""
    headings = re.findall(r"(?m)^#+ (.*)$", page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
    assert links
    for link in links:
        if "://" not in link:
            path, _, anchor = link.partition("#")
            there = page.parent / path if path else page
            assert there.exists(), link
            assert not anchor or anchor in anchors(there), link


def test_the_changelog_begins_with_this_release() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    first, *_ = re.findall(r"(?m)^## (.*)$", text)
    released = rf"{re.escape(__version__)} - \d{{4}}-\d\d-\d\d"
    assert first == "Unreleased" or re.fullmatch(released, first)


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


def test_no_page_says_a_command_that_is_not_there() -> None:
    for page in PAGES:
        for script in re.findall(r"`(\.ci/[\w-]+)", page.read_text(encoding="utf-8")):
            assert (ROOT / script).is_file(), f"{page.name}: {script}"


def test_the_index_of_findings_lists_every_page_by_its_title() -> None:
    folder = ROOT / "docs" / "findings"
    index = (folder / "README.md").read_text(encoding="utf-8").partition("## All findings\n")[2]
    pages = [page for page in sorted(folder.glob("*.md")) if page.name != "README.md"]
    titles = {page: page.read_text(encoding="utf-8").partition("\n")[0][2:] for page in pages}
    lines = [f"- [{title}]({page.name})" for page, title in titles.items()]
    assert index.split("\n") == ["", *lines, ""], "Edit docs/findings/README.md"
