"""Which program is meant where several could be."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.targets import Programs, target_for
from conformance.tools import TRACT_VERSION, Program, built_tract, find_tract


def program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


@pytest.fixture(autouse=True)
def _nothing_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GQA_TOOLS", str(tmp_path / "tools"))
    monkeypatch.delenv("GQA_TRACT", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "on_path"))
    monkeypatch.chdir(tmp_path)


def test_there_is_none() -> None:
    assert find_tract() is None


def test_each_place_comes_before_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path = program(tmp_path / "on_path" / "tract")
    assert find_tract() == Program(on_path, "PATH")
    built = program(built_tract())
    assert built == tmp_path / "tools" / f"tract-{TRACT_VERSION}" / "bin" / "tract"
    assert find_tract() == Program(built, "gqa setup tract")
    monkeypatch.setenv("GQA_TRACT", "named/tract")
    named = tmp_path / "named" / "tract"
    assert find_tract() == Program(named, "the environment variable GQA_TRACT", True)
    assert find_tract("other/tract") == Program(tmp_path / "other" / "tract", "--tract", True)


def test_a_name_alone_is_looked_up_as_a_shell_does(tmp_path: Path) -> None:
    other = program(tmp_path / "on_path" / "tract-0.22")
    assert find_tract("tract-0.22") == Program(other, "--tract", True)
    assert find_tract("tract-0.21") == Program(tmp_path / "tract-0.21", "--tract", True)


def test_a_folder_of_tools_that_cannot_be_is_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GQA_TOOLS", "/" + "long" * 100)
    assert find_tract() is None


def test_interpreters_are_looked_up_as_well(tmp_path: Path) -> None:
    python = program(tmp_path / "on_path" / "python-of-tract")
    target = target_for("tract-wheel", Programs(tract_python="python-of-tract"))
    assert target.command.argv[0] == str(python)


def test_another_release_than_the_pinned_one_is_not_taken_by_itself() -> None:
    program(built_tract("0.22.0"))
    assert find_tract() is None


def test_the_tools_lie_among_the_users_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GQA_TOOLS")
    assert built_tract("1.2.3").parts[-4:] == ("gqa-conformance", "tract-1.2.3", "bin", "tract")
