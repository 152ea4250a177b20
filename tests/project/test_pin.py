"""``python -m conformance.maintain.pin``: a pin moves everywhere at once, or nowhere."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from conformance.base.paths import ROOT
from conformance.maintain import pin
from conformance.maintain.pin import PLACES, main, pin_of
from conformance.targets.catalogue import TARGETS
from conformance.targets.tools import TRACT_VERSION

pytestmark = pytest.mark.skipif(not (ROOT / "pyproject.toml").is_file(), reason="not a checkout")


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the files in which pins stand, which the command edits instead of the real ones."""
    copy = tmp_path / "checkout"
    for name in {place.file for place in PLACES}:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    monkeypatch.setattr(pin, "file_to_write", lambda name: copy / name)
    return copy


def content(folder: Path) -> dict[str, str]:
    return {name: (folder / name).read_text() for name in {place.file for place in PLACES}}


def changed(before: dict[str, str], folder: Path) -> set[tuple[str, str]]:
    """The lines that were not there before, each with its file."""
    return {
        (name, line.strip())
        for name, text in content(folder).items()
        for line in {*text.splitlines()} - {*before[name].splitlines()}
    }


@pytest.mark.parametrize("name", [entry.name for entry in TARGETS])
def test_a_pin_is_the_same_in_every_place(name: str) -> None:
    found = {place.file: release for place, release in pin_of(name).releases().items()}
    again = f"run python -m conformance.maintain.pin {name} RELEASE"
    assert len({*found.values()}) == 1, f"{found}: {again}"


def test_a_pin_moves_everywhere_once(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = content(checkout)
    assert main(["tract", "9.9.9"]) == 0
    assert changed(before, checkout) == {
        ("conformance/targets/tools.py", 'TRACT_VERSION: Final = "9.9.9"'),
        ("pyproject.toml", 'tract = ["tract==9.9.9"]'),
        ("runners/tract/wheel_availability.py", 'KNOWN_GOOD = "tract==9.9.9"'),
    }
    out, err = capsys.readouterr()
    assert out.startswith(f"tract, tract-plain and tract-wheel: {TRACT_VERSION} → 9.9.9\n")
    names = ("tract", "tract-plain", "tract-wheel")
    for release, file in ((TRACT_VERSION, "old"), ("9.9.9", "new")):
        eps = " ".join(f"--ep {name}@{release}" for name in names)
        assert f"  gqa run {eps} --results {file}.jsonl\n" in out
    assert "-m pip install tract==9.9.9\n" in out
    assert "  gqa expect --ep tract --from old.jsonl --from new.jsonl --dry-run\n" in out
    assert err == ""
    assert main(["tract-plain", "9.9.9"]) == 0
    again = "tract, tract-plain and tract-wheel: pinned to 9.9.9 already.\n"
    assert capsys.readouterr() == (again, "")


def test_a_pin_whose_lock_cannot_be_written_edits_nothing(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = content(checkout)
    monkeypatch.setattr(pin, "find_npm", lambda: None)
    assert main(["webgpu", "9.9.9"]) == 3
    told = "runners/onnxruntime_web/package-lock.json needs npm, which is not installed."
    assert capsys.readouterr().err == f"Nothing was edited: {told}\n"
    assert content(checkout) == before
