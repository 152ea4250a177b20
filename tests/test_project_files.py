"""Files that people, editors, bots and GitHub read: each parses, and names what there is."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
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


def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def pinned(extra: str) -> dict[str, str]:
    """The packages of an extra that have a pin, with their releases."""
    lines = pyproject()["project"]["optional-dependencies"][extra]
    pins = (line.partition("==") for line in lines if "==" in line)
    return {name.partition("[")[0]: version for name, _, version in pins}


# ── Issues ───────────────────────────────────────────────────────────────────────────────────────


def test_there_is_a_form_for_each_reason_to_write() -> None:
    assert [file.stem for file in FORMS] == ["bug", "disputed-verdict", "new-case"]
    assert (GITHUB / "pull_request_template.md").is_file()


@pytest.mark.parametrize("file", FORMS, ids=lambda file: file.stem)
def test_a_form_is_one_that_github_takes(file: Path) -> None:
    form = load(file)
    assert set(form) <= {"name", "description", "title", "labels", "body"}
    assert form["name"]
    assert form["description"]
    fields = [part for part in form["body"] if part["type"] != "markdown"]
    assert {part["type"] for part in fields} <= {"input", "textarea", "dropdown"}
    for part in fields:
        assert set(part) <= {"type", "id", "attributes", "validations"}
        assert re.fullmatch(r"[a-z-]+", part["id"])
        assert part["attributes"]["label"]
        assert ("options" in part["attributes"]) == (part["type"] == "dropdown")
    for key in ("id", "label"):
        values = [part.get(key) or part["attributes"][key] for part in fields]
        assert len(set(values)) == len(values)
    (note,) = [part["attributes"]["value"] for part in form["body"] if part["type"] == "markdown"]
    assert re.search(r"SECURITY\.md|CONTRIBUTING\.md", note)


def test_a_dispute_can_be_about_any_target() -> None:
    (form,) = [load(file) for file in FORMS if file.stem == "disputed-verdict"]
    (field,) = [part for part in form["body"] if part.get("id") == "target"]
    known = list(target_names())
    listed = sorted(field["attributes"]["options"]) == sorted(known)
    assert listed, f"Edit .github/ISSUE_TEMPLATE/disputed-verdict.yml: {', '.join(known)}"


# ── Bots, hooks, containers ──────────────────────────────────────────────────────────────────────


def updates() -> dict[str, dict[str, Any]]:
    content = load(GITHUB / "dependabot.yml")
    assert content["version"] == 2
    return {update["package-ecosystem"]: update for update in content["updates"]}


def ignored(ecosystem: str) -> set[str]:
    return {entry["dependency-name"] for entry in updates()[ecosystem]["ignore"]}


def packages_of_npm() -> Iterator[Path]:
    """Folders of this project with a package.json; not what pip or npm has installed."""
    for file in ROOT.glob("[!.]*/**/package.json"):
        if "node_modules" not in file.parts:
            yield file.parent


def test_dependabot_looks_wherever_there_are_dependencies() -> None:
    assert set(updates()) == {"github-actions", "pip", "npm"}
    assert updates()["npm"]["directories"] == sorted(
        f"/{folder.relative_to(ROOT).as_posix()}" for folder in packages_of_npm()
    )
    assert all(update["schedule"]["interval"] for update in updates().values())


def test_dependabot_leaves_alone_what_expectations_are_about() -> None:
    pins = {name for extra in ("cpu", "tract") for name in pinned(extra)}
    assert ignored("pip") == pins
    package = json.loads((ROOT / "runners" / "onnxruntime_web" / "package.json").read_text())
    assert ignored("npm") == {"onnxruntime-web", "webgpu"} <= set(package["dependencies"])


def test_every_hook_has_the_ruff_of_the_project() -> None:
    hooks = [
        hook for repo in load(ROOT / ".pre-commit-config.yaml")["repos"] for hook in repo["hooks"]
    ]
    assert [hook["id"] for hook in hooks] == ["ruff-check", "ruff-format"]
    for hook in hooks:
        assert hook["additional_dependencies"] == [f"ruff=={pinned('lint')['ruff']}"]


def test_the_devcontainer_has_what_the_ci_has() -> None:
    made = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text(encoding="utf-8"))
    python = re.fullmatch(r"python:(\d\.\d+)-bookworm", made["image"])
    assert python is not None
    claimed = pyproject()["project"]["classifiers"]
    assert f"Programming Language :: Python :: {python[1]}" in claimed
    features = {key.rpartition("/")[2]: value for key, value in made["features"].items()}
    assert set(features) == {"node:1", "rust:1"}
    gate = load(GITHUB / "workflows" / "ci.yml")["jobs"]["gate"]["steps"]
    (node,) = [step["with"] for step in gate if "setup-node@" in step.get("uses", "")]
    assert features["node:1"]["version"] == node["node-version"]


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
