"""`python -m conformance.maintain.generate`: the files that are made from the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.base.paths import ROOT
from conformance.maintain import generate

FAST = [name for name in generate.FILES if name not in generate.NAMED]


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the generated files, which the command writes instead of the real ones."""
    for name in generate.FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    monkeypatch.setattr(generate, "file_to_write", lambda name: tmp_path / name)
    return tmp_path


def test_the_committed_files_are_current(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert generate.main(["--check"]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.slow
def test_stale_files_are_listed_and_then_written(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (checkout / "cases" / "schema.json").write_text("{}")
    (checkout / "docs" / "relations.md").unlink()
    assert generate.main(["--check"]) == 1
    assert capsys.readouterr().out == "stale: cases/schema.json\nstale: docs/relations.md\n"
    assert generate.main(["docs/relations.md"]) == 0
    assert capsys.readouterr().out == "written: docs/relations.md\n"
    assert generate.main([]) == 0
    assert capsys.readouterr().out == "written: cases/schema.json\n"
    for name in FAST:
        assert (checkout / name).read_bytes() == (ROOT / name).read_bytes()


def test_another_file_is_not_generated(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        generate.main(["README.md"])
    assert end.value.code == 2
    assert "'README.md' is not a generated file; those are cases/schema.json" in (
        capsys.readouterr().err
    )
