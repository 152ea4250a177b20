"""What is recorded of many releases, read quickly: only the fields that tests need."""

from __future__ import annotations

import functools
import json
import lzma
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.base.paths import ROOT

FOLDER = ROOT / "reports" / "recorded" / "history"
FILES = sorted(FOLDER.glob("*.jsonl.xz"))


@dataclass(frozen=True)
class Recorded:
    """A recorded file: results by version, then by case."""

    header: dict[str, Any]
    footer: dict[str, Any]
    cases: frozenset[str]
    results: dict[str, dict[str, dict[str, Any]]]


@functools.cache
def recorded(path: Path) -> Recorded:
    """The content of a recorded file."""
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        header = json.loads(next(lines))
        versions = {target["name"]: target["describe"]["version"] for target in header["targets"]}
        results: dict[str, dict[str, dict[str, Any]]] = {v: {} for v in versions.values()}
        cases = set()
        footer: dict[str, Any] = {}
        for line in lines:
            if line.startswith('{"kind":"case"'):
                cases.add(line.split('"', 8)[7])
                continue
            record = json.loads(line)
            if record["kind"] == "result":
                results[versions[record["target"]]][record["case"]] = record
            elif record["kind"] == "footer":
                footer = record
    return Recorded(header, footer, frozenset(cases), results)
