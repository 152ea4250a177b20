"""Texts that are kept as files: the transcripts, and what else is beside the tests."""

from __future__ import annotations

from difflib import unified_diff
from pathlib import Path

#: Whether files get the texts instead: the option --rewrite-transcripts.
rewrite = False


def check_golden(name: str, text: str) -> None:
    """Fails if the file of ``goldens`` has another text."""
    check_text(Path(__file__).parents[1] / "goldens" / name, text)


def check_text(file: Path, text: str) -> None:
    """Fails if the file has another text."""
    if rewrite:
        file.write_text(text, encoding="utf-8")
    wanted = file.read_text(encoding="utf-8")
    assert text == wanted, "\n".join(unified_diff(wanted.splitlines(), text.splitlines(), n=1))
