"""The allowed imports: they follow the flow from a case to its verdict, in one direction."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from conformance.base.paths import PACKAGE, ROOT

#: The packages, and the modules outside any package, in the order of the data flow: each may import
#: from itself and from earlier ones, and nothing from later ones.
ORDER = [
    "",  # the package itself: its version
    "base",
    "operator",
    "graph",
    "rewriting",
    "case",
    "oracle",
    "harness",
    "bundle",
    "results",
    "targets",
    "judge",
    "expectations",
    "run",
    "diagnosis",
    "fuzz",
    "report",
    "model",
    "cli",
    "pytest_cases",
    "pytest_plugin",
    "__main__",
    "maintain",  # may use everything, and nothing but its tests and the workflows uses it
]

FACES = ("cli", "pytest_cases", "pytest_plugin")

PAGE = ROOT / "docs" / "architecture.md"


def name_of(file: Path) -> str:
    """The module's name relative to the package."""
    return ".".join(file.relative_to(PACKAGE).with_suffix("").parts).removesuffix("__init__")


def part_of(name: str) -> str:
    """The top-level package or module that a module belongs to."""
    return name.partition(".")[0]


@cache
def imports(file: Path) -> list[str]:
    """Every module that ``file`` imports, anywhere in it."""
    found: list[str] = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{file}:{node.lineno} imports relatively"
            found.append(node.module or "")
    return found


def own(file: Path) -> Iterator[str]:
    """The modules of the package that ``file`` imports, by their relative names."""
    for module in imports(file):
        if module == "conformance" or module.startswith("conformance."):
            yield module.removeprefix("conformance").lstrip(".")


MODULES = {name_of(file): file for file in sorted(PACKAGE.rglob("*.py"))}


def test_every_package_is_in_the_order() -> None:
    assert {part_of(name) for name in MODULES} == {*ORDER}


@pytest.mark.parametrize("name", MODULES)
def test_a_module_imports_only_from_its_own_and_earlier_packages(name: str) -> None:
    here = ORDER.index(part_of(name))
    assert [other for other in own(MODULES[name]) if ORDER.index(part_of(other)) > here] == []


#: Libraries, and the packages and modules that import them.
LIBRARIES = {
    **{"pytest": "pytest_cases pytest_plugin", "jinja2": "report.html", "click": "cli"},
    **{"markdown_it": "report.html", "markupsafe": "report.html report.site", "rich": "cli"},
    **{"yaml": "base.yaml_source", "onnxruntime": "", "_pytest": ""},
}


@pytest.mark.parametrize(("library", "allowed"), LIBRARIES.items())
def test_a_library_is_imported_in_one_place(library: str, allowed: str) -> None:
    users = {
        name
        for name, file in MODULES.items()
        if any(module.split(".")[0] == library for module in imports(file))
    }
    assert {name for name in users if not {name, part_of(name)} & {*allowed.split()}} == set()


def test_only_the_user_interfaces_import_presentation_libraries() -> None:
    # The answer for a model quotes findings and messages as reports do.
    for name, file in MODULES.items():
        if part_of(name) not in (*FACES, "report", "model", "maintain"):
            assert [other for other in own(file) if part_of(other) == "report"] == [], name


def test_the_oracle_knows_only_the_names_of_the_operator() -> None:
    """What it computes is independent of the descriptions of the parts, and of the contracts."""
    names = {"operator.signature", "operator.readings"}
    for name, file in MODULES.items():
        if part_of(name) == "oracle":
            others = {other for other in own(file) if part_of(other) not in ("base", "oracle")}
            assert others <= names, name


@pytest.mark.parametrize("file", sorted((ROOT / "runners").rglob("*.py")), ids=lambda f: f.name)
def test_a_runner_imports_nothing_of_the_package(file: Path) -> None:
    assert list(own(file)) == []


def test_modules_that_are_no_package_have_different_names() -> None:
    """Their folders are put on ``sys.path``, and one process of the tests imports several."""
    folders = (ROOT / name for name in ("runners", "mutants", ".ci", "benchmarks"))
    files = [file for folder in folders for file in folder.rglob("*.py")]
    names = Counter(file.stem for file in files if file.name != "runner.py")
    assert {name for name, count in names.items() if count > 1} == set()


def package_imports() -> dict[str, set[str]]:
    """The other packages that each imports, left out those that follow from other imports."""
    direct: dict[str, set[str]] = {part: set() for part in ORDER if part}
    for name, file in MODULES.items():
        if part_of(name):
            direct[part_of(name)] |= {part_of(other) for other in own(file)}
    all_of: dict[str, set[str]] = {}
    for part, others in direct.items():  # earlier packages first
        others -= {"", part}
        all_of[part] = others.union(*(all_of[other] for other in others))
    return {
        part: others.difference(*(all_of[other] for other in others))
        for part, others in direct.items()
    }


@pytest.mark.skipif(not PAGE.is_file(), reason="not a checkout")
def test_the_picture_of_the_packages_shows_the_imports() -> None:
    picture = PAGE.read_text(encoding="utf-8").partition("```mermaid\n")[2].partition("```")[0]
    arrows = set(re.findall(r"^  (\w+) --> (\w+)$", picture, re.M))
    wanted = {(other, part) for part, others in package_imports().items() for other in others}
    assert arrows == wanted, "edit the picture in docs/architecture.md"


@pytest.mark.skipif(not PAGE.is_file(), reason="not a checkout")
def test_the_functions_of_the_way_to_a_report_exist() -> None:
    steps = re.findall(r"`(\w+)` in `(\w+/\w+\.py)`", PAGE.read_text(encoding="utf-8"))
    assert len(steps) >= 12
    for name, file in steps:
        code = (PACKAGE / file).read_text(encoding="utf-8")
        assert re.search(rf"^(def |class )?{name}\b", code, re.M), f"{name} in {file}"


def test_links_lead_from_the_readme_to_every_page() -> None:
    if not (ROOT / "pyproject.toml").is_file():
        pytest.skip("not a checkout")
    pages = {ROOT / name for name in ("README.md", "runners/README.md", "benchmarks/README.md")}
    pages |= {*(ROOT / "docs").glob("*.md"), ROOT / "docs" / "findings" / "README.md"}
    reached: set[Path] = set()
    found = {ROOT / "README.md"}
    while found:
        page = found.pop()
        reached.add(page)
        links = re.findall(r"\]\(([^):]+\.md)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
        found |= {(page.parent / link).resolve() for link in links} - reached
    assert pages <= reached
