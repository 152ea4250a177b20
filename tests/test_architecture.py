"""The allowed imports: they follow the flow from a case to its verdict, in one direction."""

from __future__ import annotations

import ast
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
    "case",
    "oracle",
    "harness",
    "bundle",
    "results",
    "targets",
    "judge",
    "run",
    "report",
    "maintain",
    "model",
    "cli",
    "pytest_cases",
    "pytest_plugin",
    "__main__",
]

FACES = ("cli", "pytest_cases", "pytest_plugin")

#: Records what `gqa check` answers, for the report; a program that nothing imports.
RECORDER = "maintain.models"


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
    here = ORDER.index("model" if name == RECORDER else part_of(name))
    assert [other for other in own(MODULES[name]) if ORDER.index(part_of(other)) > here] == []


@pytest.mark.parametrize(
    ("library", "allowed"),
    [
        ("pytest", ("pytest_cases", "pytest_plugin")),
        ("jinja2", ("maintain.coverage", "report.html")),
        ("markdown_it", ("report.html",)),
        ("markupsafe", ("report.html", "report.site")),
        ("click", ("cli",)),
        ("rich", ("cli",)),
        ("yaml", ("base.yaml_source",)),
        ("onnxruntime", ()),
        ("_pytest", ()),
    ],
)
def test_a_library_is_imported_in_one_place(library: str, allowed: tuple[str, ...]) -> None:
    users = {
        name
        for name, file in MODULES.items()
        if any(module.split(".")[0] == library for module in imports(file))
    }
    assert {name for name in users if not {name, part_of(name)} & {*allowed}} == set()


def test_only_the_user_interfaces_import_presentation_libraries() -> None:
    # The answer for a model quotes findings and messages as reports do.
    for name, file in MODULES.items():
        if part_of(name) not in (*FACES, "report", "model") and name != RECORDER:
            assert [other for other in own(file) if part_of(other) == "report"] == [], name


def test_the_oracle_imports_only_the_base() -> None:
    for name, file in MODULES.items():
        if part_of(name) == "oracle":
            assert {part_of(other) for other in own(file)} <= {"base", "oracle"}, name


@pytest.mark.parametrize("file", sorted((ROOT / "runners").rglob("*.py")), ids=lambda f: f.name)
def test_a_runner_imports_nothing_of_the_package(file: Path) -> None:
    assert list(own(file)) == []
