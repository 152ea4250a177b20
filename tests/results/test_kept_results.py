"""What a run keeps of stderr in its results file."""

from __future__ import annotations

from conformance.run.recording import FEW_CHARACTERS, end_of_stderr


def test_the_end_of_stderr_is_kept() -> None:
    kept = end_of_stderr("é" * 100_000 + "the end")
    assert len(kept) == FEW_CHARACTERS
    assert kept.startswith("[what was before this is left out]\né")
    assert kept.endswith("éthe end")
    assert end_of_stderr("short") == "short"
