"""Bundles that are made side by side before a run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from case_files import entries, write

from conformance.base.paths import CACHE_VARIABLE
from conformance.bundle import cache
from conformance.case.load import load_file
from conformance.run.prepare import prepare

CASES = entries(
    """
    - name: many
      matrix:
        seed: [1, 2, 3, 4, 5, 6]
    """
)

linux = pytest.mark.skipif(sys.platform != "linux", reason="bundles are made one by one elsewhere")


def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process has one thread, whatever other tests have left."""
    monkeypatch.setattr("os.listdir", lambda path: ["1"])


@linux
def test_all_bundles_are_there_and_are_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    alone(monkeypatch)
    cases = load_file(write(tmp_path, CASES, "many.yaml"))
    prepare(cases)
    made = {path.parent.name for path in (tmp_path / "cache").rglob("manifest.json")}
    assert made == {cache.digest_of(case.call) for case in cases}
    monkeypatch.setattr(cache, "write_bundle", lambda *_: pytest.fail("it is made again"))
    monkeypatch.setattr(cache, "_effects", lambda *_, **__: pytest.fail("it is measured again"))
    for case in cases:
        cache.bundle_for(case.call)
        cache.required_effects(case.call)


@linux
def test_what_fails_is_left_to_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    alone(monkeypatch)
    monkeypatch.setattr("conformance.run.prepare.jobs_for", lambda case: 1 / 0)
    prepare(load_file(write(tmp_path, CASES, "many.yaml")))
