"""What a run keeps of stderr in its results file."""

from __future__ import annotations

import json

import pytest

from conformance.run.recording import FEW_BYTES, end_of_stderr


@pytest.mark.parametrize("noise", ["x", "\x1b[31m", "\n", "é", "😀", "\udc80", "\x00"])
def test_the_end_of_stderr_is_bounded_as_json(noise: str) -> None:
    kept = end_of_stderr(noise * 100_000 + "the end", FEW_BYTES)
    assert kept.startswith("[what was before this is left out]\n")
    assert kept.endswith(f"{noise}the end")
    writable = kept.encode("utf-8", "backslashreplace").decode()
    assert FEW_BYTES - 40 <= len(json.dumps(writable, ensure_ascii=False).encode()) <= FEW_BYTES
    assert end_of_stderr("short", FEW_BYTES) == "short"
