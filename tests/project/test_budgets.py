"""The code does not grow unseen: lines without docstrings, comments and blanks, by package."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from code_lines import code_lines

from conformance.base.paths import PACKAGE, ROOT

#: The most lines of code. Whoever raises a number says why in the commit, and whoever makes a
#: package smaller lowers its number.
BUDGETS = {
    "conformance/*.py": 430,
    "conformance/base": 850,
    "conformance/bundle": 1351,
    "conformance/case": 2805,
    "conformance/cli": 4690,
    "conformance/diagnosis": 1313,
    "conformance/fuzz": 990,
    "conformance/expectations": 800,
    "conformance/graph": 724,
    "conformance/harness": 1008,
    "conformance/judge": 456,
    "conformance/maintain": 1880,
    "conformance/model": 5211,
    "conformance/operator": 2824,
    "conformance/oracle": 2370,
    "conformance/report": 2851,
    "conformance/rewriting": 1272,
    "conformance/results": 3281,
    "conformance/run": 960,
    "conformance/targets": 1349,
    "runners": 2821,
    "mutants": 3395,
    "tests": 26735,
    ".ci": 692,
    "benchmarks": 1164,
}

pytestmark = pytest.mark.skipif(not (ROOT / "pyproject.toml").is_file(), reason="not a checkout")


def package_of(file: Path) -> str:
    """The package of a file, `conformance/run` or `tests`; `conformance/*.py` outside any."""
    folder, *rest = file.relative_to(ROOT).parts
    if folder != "conformance":
        return folder
    return f"{folder}/{rest[0]}" if len(rest) > 1 else f"{folder}/*.py"


def used() -> Counter[str]:
    """The lines of code of each package."""
    lines: Counter[str] = Counter()
    for folder in (PACKAGE.name, "runners", "mutants", "tests", ".ci", "benchmarks"):
        for file in (ROOT / folder).rglob("*.py"):
            if "node_modules" not in file.parts:
                lines[package_of(file)] += code_lines(file)
    return lines


@pytest.mark.push
def test_every_package_keeps_its_budget() -> None:
    lines = used()
    assert set(lines) == set(BUDGETS)
    over = {name: lines[name] for name in BUDGETS if lines[name] > BUDGETS[name]}
    assert not over, f"more lines of code than their budget: {over}"


def test_lines_of_code_are_those_with_code(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    text = '"""A\ndocstring."""\n\nX = """a\ntext"""  # is code\n#: a comment\nY = (\n    1,\n)\n'
    file.write_text(text + 'class Z:\n    y: int\n    """A field."""\n')
    assert code_lines(file) == 7
