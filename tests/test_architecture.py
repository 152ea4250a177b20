"""Which part may know which: imports go one way, along the flow from a case to its verdict."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.paths import PACKAGE, ROOT

#: Each line may import from the lines above it, and nothing from those below. design.md's order,
#: with the files that its lines were cut into; `results` stands before `judge` because it names
#: the verdicts, and needs nothing of the engine to be written and read.
ORDER = [
    "__init__",
    "paths",
    "signature",
    "dtypes",
    "call",
    "relations",
    "tensors",
    "case",
    "features",
    "words",
    "yaml_source",
    "load",
    "coverage",
    "selection",
    "corpus",
    "values",
    "oracle.errors",
    "oracle.numbers",
    "oracle.quantisation",
    "oracle.call",
    "oracle.rotary",
    "oracle.cache",
    "oracle.attention",
    "oracle.reference",
    "oracle",
    "tolerance",
    "matters",
    "model",
    "script",
    "forms",
    "protocol",
    "bundle",
    "pairs",
    "runner_process",
    "harness",
    "matters.__main__",
    "tools",
    "build_process",
    "cargo",
    "npm",
    "setup",
    "apt_sources",
    "lavapipe",
    "targets",
    "setup_web",
    "results",
    "calibration",
    "error_map",
    "judge",
    "expectations",
    "known_bugs",
    "recipes",
    "run",
    "power",
    "report.text",
    "report.findings",
    "report.serve",
    "report.changes",
    "report.repro_text",
    "report.repro_making",
    "report.repro_facts",
    "report.repro_python",
    "report.repro_tract",
    "report.repro_web",
    "report.standalone",
    "report.view",
    "report.html",
    "report",
    "report.terminal",
    "report.call",
    "report.power",
    "report.markdown",
    "report.cells",
    "report.junit",
    "report.badges",
    "report.support",
    "cli_common",
    "cli_report",
    "cli_export",
    "cli",
    "pytest_cases",
    "pytest_plugin",
    "__main__",
]

FACES = ("cli", "cli_common", "cli_export", "cli_report", "pytest_cases", "pytest_plugin")


def name_of(file: Path) -> str:
    """The module's name within the package."""
    parts = file.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1]) if len(parts) > 1 and parts[-1] == "__init__" else ".".join(parts)


def imports(file: Path) -> Iterator[str]:
    """Every module that ``file`` imports, wherever in it."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{file}:{node.lineno} imports relatively"
            yield node.module or ""


def own(file: Path) -> Iterator[str]:
    """The modules of the package that ``file`` imports, by their names within it."""
    for module in imports(file):
        if module == "conformance" or module.startswith("conformance."):
            yield module.removeprefix("conformance").lstrip(".") or "__init__"


MODULES = {name_of(file): file for file in sorted(PACKAGE.rglob("*.py"))}


def test_every_module_has_its_place() -> None:
    assert sorted(MODULES) == sorted(ORDER)


@pytest.mark.parametrize("name", ORDER)
def test_a_module_imports_only_from_those_above_it(name: str) -> None:
    above = ORDER[: ORDER.index(name)]
    assert [other for other in own(MODULES[name]) if other not in above] == []


@pytest.mark.parametrize(
    ("library", "allowed"),
    [
        ("pytest", ("pytest_cases", "pytest_plugin")),
        ("jinja2", ("report.html",)),
        ("markdown_it", ("report.html",)),
        ("markupsafe", ("report.html",)),
        ("click", ("cli", "cli_common", "cli_export", "cli_report")),
        ("rich", ("cli", "report.call", "report.power")),
        ("yaml", ("yaml_source",)),
        ("onnxruntime", ()),
        ("_pytest", ()),
    ],
)
def test_a_library_is_known_in_one_place(library: str, allowed: tuple[str, ...]) -> None:
    users = {
        name
        for name, file in MODULES.items()
        if any(module.split(".")[0] == library for module in imports(file))
    }
    assert users <= set(allowed)


def test_what_the_terminal_shows_is_known_to_the_faces_alone() -> None:
    shown = {"report", "report.text", "report.terminal", "report.call", "report.html"}
    for name, file in MODULES.items():
        if name not in FACES and not name.startswith("report"):
            assert not shown & set(own(file)), name


def test_the_oracle_knows_the_signature_and_dtypes_alone() -> None:
    for name, file in MODULES.items():
        if name.startswith("oracle"):
            outside = {other for other in own(file) if not other.startswith("oracle")}
            assert outside <= {"signature", "dtypes"}, name


@pytest.mark.parametrize("file", sorted((ROOT / "runners").rglob("*.py")), ids=lambda f: f.name)
def test_a_runner_imports_nothing_of_the_package(file: Path) -> None:
    assert list(own(file)) == []


@pytest.mark.parametrize(
    "name",
    [
        "pyproject.toml",
        "README.md",
        "conftest.py",
        "conformance/__init__.py",
        "cases/shared_kv.yaml",
        "runners/README.md",
        "reports/report.html.j2",
        "expectations/cpu.yaml",
        "docs/tolerance.md",
        "benchmarks/README.md",
        ".ci/run",
    ],
)
def test_things_are_where_others_look_for_them(name: str) -> None:
    if not (ROOT / "pyproject.toml").is_file():
        pytest.skip("not a checkout")
    assert (ROOT / name).is_file()


def test_conftest_is_three_lines() -> None:
    conftest = ROOT / "conftest.py"
    if not conftest.is_file():
        pytest.skip("not a checkout")
    assert len(conftest.read_text(encoding="utf-8").splitlines()) == 3
