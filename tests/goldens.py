"""Texts that are kept as files beside the tests, as the transcripts are."""

from __future__ import annotations

import os
from pathlib import Path


def check_golden(name: str, text: str) -> None:
    """Fails if the file has another text; ``WRITE_TRANSCRIPTS=1`` writes this one."""
    file = Path(__file__).parent / "goldens" / name
    if os.environ.get("WRITE_TRANSCRIPTS"):
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")
