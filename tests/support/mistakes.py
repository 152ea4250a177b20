"""Mistakes in case files, and what the loader says of each: ``mistakes.txt``.

``python tests/support/mistakes.py`` rewrites the file with what the loader says.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Final

from case_files import complaints, entries

FILE: Final = Path(__file__).with_name("mistakes.txt")
_MISTAKE: Final = re.compile(r"^=== (.*)\n((?:.*\n)*?)>>>(?: (.*))?$", re.MULTILINE)


def mistakes() -> dict[str, tuple[str, str]]:
    """The entries and the sentence of each mistake, by its name."""
    found = _MISTAKE.findall(FILE.read_text(encoding="utf-8"))
    return {name: (body, sentence) for name, body, sentence in found}


def rewrite() -> None:
    """Write what the loader says today."""
    with tempfile.TemporaryDirectory() as folder:

        def said(match: re.Match[str]) -> str:
            if not match[3]:
                return match[0]
            (sentence,) = complaints(Path(folder), entries(match[2]))
            # YAML's own parser is quoted as far as its releases agree.
            return (
                match[0] if "bad YAML" in sentence else f"=== {match[1]}\n{match[2]}>>> {sentence}"
            )

        FILE.write_text(_MISTAKE.sub(said, FILE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    rewrite()
