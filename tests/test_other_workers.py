"""The bundles that one test worker takes from another."""

from __future__ import annotations

from pathlib import Path

import pytest
from other_workers import borrowing, write_bundle

from conformance.bundle import cache
from conformance.bundle.cache import bundle_for, intact
from conformance.case.call import Call

CALL = Call(sequence_length=2)


@pytest.mark.parametrize("damage", [None, "model.onnx", "manifest.json"])
def test_a_bundle_of_another_worker_is_copied_unless_it_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str | None
) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    theirs = bundle_for(CALL, other)
    if damage:
        (theirs.path / damage).write_bytes(b"{}")
    made: list[Path] = []

    def write(call: Call, folder: Path, *more: object) -> dict[str, bytes]:
        made.append(folder)
        return write_bundle(call, folder, *more)  # type: ignore[arg-type]

    monkeypatch.setattr("other_workers.write_bundle", write)
    monkeypatch.setattr(cache, "write_bundle", borrowing(own, lambda: [tmp_path / "none", other]))
    ours = bundle_for(CALL, own)
    assert intact(ours)
    assert bool(made) == bool(damage)
    assert ours.path.is_relative_to(own)
    assert ours.steps == theirs.steps
    elsewhere = bundle_for(CALL, tmp_path / "elsewhere")  # a test's own cache gets no copies
    assert made[-1].is_relative_to(elsewhere.path.parents[2])
