"""Pages that people read: each names what there is."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.base.paths import ROOT
from conformance.cli.commands import command, gqa

PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), ROOT / "runners" / "README.md"]

#: The most words of a page; None where it may be long.
MAX_WORDS = {
    **dict.fromkeys((ROOT / "docs").glob("*.md"), 1_500),
    **dict.fromkeys((ROOT / "docs" / "oracle.md", ROOT / "docs" / "tolerance.md")),
    ROOT / "README.md": 1_130,  # without the table that is generated
    ROOT / "CONTRIBUTING.md": 1_800,
    ROOT / "runners" / "README.md": 3_000,
}

pytestmark = pytest.mark.skipif(not (ROOT / "CONTRIBUTING.md").is_file(), reason="not a checkout")


def anchors(page: Path) -> set[str]:
    """What a link can name of a page: its headings, as GitHub writes them."""
    headings = re.findall(r"(?m)^#+ (.*)$", page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_scripts_of_a_page_exist(page: Path) -> None:
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


def test_the_pages_together_are_short() -> None:
    pages = (ROOT / "docs").glob("*.md")
    assert sum(len(page.read_text(encoding="utf-8").split()) for page in pages) <= 32_850


#: Commands with their arguments; what is quoted may have any character.
COMMANDS = re.compile(r"""(?m)(?:^|\s)(gqa [a-z]+(?:"[^"\n]*"|'[^'\n]*'|[^\n`|&;>#"'])*)""")


@pytest.mark.parametrize("page", MAX_WORDS, ids=lambda page: page.name)
def test_a_page_is_short_and_its_commands_are_commands(page: Path) -> None:
    """In examples with their options, which are not run."""
    text = page.read_text(encoding="utf-8")
    own = re.sub(r"(?s)<!-- Written by .*<!-- The end of what it writes. -->", "", text)
    assert len(own.split()) <= (MAX_WORDS[page] or 10_000)
    text = page.read_text(encoding="utf-8").replace("\\\n", "")
    commands = gqa.list_commands(gqa.make_context("gqa", [], resilient_parsing=True))
    assert set(re.findall(r"(?m)(?:^|[`&|] ?)gqa ([a-z]+)\b", text)) <= {*commands}
    for module in re.findall(r"python -m (conformance[\w.]+)", text):
        assert (ROOT / module.replace(".", "/")).with_suffix(".py").is_file(), module
    prose = re.sub(r"(?s)```.*?```", "", text)
    for name, options in re.findall(r"`gqa\s+([a-z]+)([^`]*)`", prose):
        known = {word for option in command(name).params for word in option.opts}
        known |= {word for option in command(name).params for word in option.secondary_opts}
        assert set(re.findall(r"(?<!\S)--[a-z-]+", options)) <= {*known, "--help"}, name
    for block in re.findall(r"(?s)```\w*\n(.*?)```", text):
        for line in COMMANDS.findall(block):
            name, *arguments = shlex.split(re.sub(r"\$\{\{[^}]*\}\}|\$\w+", "4", line))[1:]
            above = gqa.make_context("gqa", [name])
            command(name).make_context(name, arguments, parent=above)  # fails for unknown options


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


TESTS = ROOT / "tests"


def test_no_test_module_imports_another() -> None:
    """What several of them use stands in tests/support."""
    imports = re.compile(r"(?m)^\s*(?:from|import) (test_\w+)")
    found = {file: imports.findall(file.read_text("utf-8")) for file in TESTS.rglob("*.py")}
    assert {str(file): names for file, names in found.items() if names} == {}


def test_the_index_of_what_tests_share_lists_every_module_and_folder() -> None:
    index = (TESTS / "support" / "README.md").read_text(encoding="utf-8")
    there = [path for path in (TESTS / "support").iterdir() if path.name != "__pycache__"]
    names = {path.name for path in there if path.is_dir() or path.suffix == ".py"}
    assert set(re.findall(r"(?m)^\| `([^`]*)`", index)) == names


MODULES = [
    file.stem
    for file in sorted((ROOT / "conformance" / "maintain").glob("*.py"))
    if "__main__" in file.read_text()
]


@pytest.mark.push
@pytest.mark.parametrize("name", MODULES)
def test_a_command_for_maintainers_has_a_help(name: str) -> None:
    command = [sys.executable, "-m", f"conformance.maintain.{name}", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: ")


def test_a_command_for_maintainers_ends_silently_without_a_reader() -> None:
    pytest.importorskip("onnxruntime")
    command = [sys.executable, "-m", "conformance.maintain.quotations"]
    process = subprocess.Popen(command, stdout=-1, stderr=-1, text=True, cwd=ROOT)
    process.stdout.close()
    assert (process.stderr.read(), process.wait(60)) == ("", 141)


@pytest.mark.push
def test_results_that_cannot_be_read_are_told_without_a_traceback() -> None:
    command = [sys.executable, "-m", "conformance.maintain.recorded", "nothing.jsonl"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    said = "Cannot read results from nothing.jsonl: No such file or directory.\n"
    assert (done.returncode, done.stderr) == (3, said)
