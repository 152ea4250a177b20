"""``python -m conformance.maintain.pin``: a pin moves everywhere at once, or nowhere."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from shipped import shipped_cases
from synthetic_runs import result, target, write

from conformance.base.paths import ROOT
from conformance.maintain import pin
from conformance.maintain.pin import PLACES, main, pin_of
from conformance.run.records import case_record
from conformance.targets.catalogue import TARGETS
from conformance.targets.tools import TRACT_VERSION

pytestmark = pytest.mark.skipif(not (ROOT / "pyproject.toml").is_file(), reason="not a checkout")

CASE = next(case for case in shipped_cases() if case.id == "smoke/decode[dtype=float32]")


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the files in which pins stand, which the command edits instead of the real ones."""
    copy = tmp_path / "checkout"
    for name in {place.file for place in PLACES}:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    monkeypatch.setattr(pin, "file_to_write", lambda name: copy / name)
    monkeypatch.setattr(pin, "pip_command", lambda: ("true",))
    return copy


@pytest.fixture
def results(tmp_path: Path) -> Callable[..., list[str]]:
    """The option for results of a target, which passes a case in the old release alone."""

    def made(ep: str, *releases: str) -> list[str]:
        files = []
        for release, verdict in zip(releases, ("pass", "wrong"), strict=True):
            name = f"{ep}@{release}"
            one = result(CASE.id, name, verdict)
            file = tmp_path / f"{name}.jsonl"
            write(file, [case_record(CASE)], [one], targets=[target(name)])
            files.append(str(file))
        return ["--results", *files]

    return made


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


def test_a_pin_moves_in_every_place_and_once(
    checkout: Path, results: Callable[..., list[str]], capfd: pytest.CaptureFixture[str]
) -> None:
    before = content(checkout)
    given = results("tract-wheel", TRACT_VERSION, "9.9.9")
    assert main(["tract", "9.9.9", *given]) == 0
    assert changed(before, checkout) == {
        ("conformance/targets/tools.py", 'TRACT_VERSION: Final = "9.9.9"'),
        ("pyproject.toml", 'tract = ["tract==9.9.9"]'),
        ("runners/tract/wheel_availability.py", 'KNOWN_GOOD = "tract==9.9.9"'),
    }
    out, err = capfd.readouterr()
    assert out.startswith(f"tract, tract-plain and tract-wheel: {TRACT_VERSION} → 9.9.9\n")
    assert "# Worse than the baseline" in out  # of gqa diff
    assert "1 new line for 1 unexpected of 2 results; nothing was written." in out
    assert "README.md:" in out.partition(f"── Texts that name {TRACT_VERSION}\n")[2]
    assert err == ""
    assert main(["tract-plain", "9.9.9"]) == 0
    again = "tract, tract-plain and tract-wheel: pinned to 9.9.9 already.\n"
    assert capfd.readouterr() == (again, "")


def test_a_release_that_pip_cannot_install_is_no_pin(
    checkout: Path,
    results: Callable[..., list[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = content(checkout)
    monkeypatch.setattr(pin.importlib.metadata, "version", lambda name: TRACT_VERSION)
    monkeypatch.setattr(pin, "pip_command", lambda: ("false",))
    assert main(["tract", "9.9.9", *results("tract", TRACT_VERSION, "9.9.9")]) == 3
    said = "Nothing was edited: pip could not install tract==9.9.9; it says why above.\n"
    assert capsys.readouterr().err == said
    assert content(checkout) == before
