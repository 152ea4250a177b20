"""What the instruments share: a folder to work in, commands, and the form of what they write."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

JOBS = 2
SHM = Path("/dev/shm")
GQA = (sys.executable, "-m", "conformance")


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder for what a run leaves, a cache of gigabytes included: in memory if there is room."""
    roomy = SHM.is_dir() and shutil.disk_usage(SHM).free > 10 << 30
    with tempfile.TemporaryDirectory(prefix="instrument-", dir=SHM if roomy else None) as folder:
        yield Path(folder)


def environment(cache: Path, **more: str) -> dict[str, str]:
    """The environment of commands: as a user's, with nothing that colours or that tests set."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "GQA_", "CI"))}
    for name in ("NO_COLOR", "FORCE_COLOR", "GITHUB_ACTIONS"):
        kept.pop(name, None)
    fixed = {"GQA_CACHE": str(cache), "COLUMNS": "100", "OPENBLAS_NUM_THREADS": "1"}
    return {**kept, **fixed, "PYTHONHASHSEED": "0", **more}


def gqa(*arguments: str, cwd: Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """``gqa`` of the package that is looked at, run to its end."""
    command = (*GQA, *arguments)
    return subprocess.run(command, cwd=cwd, env=env, text=True, capture_output=True, check=False)


def program(place: Path, *command: str) -> str:
    """A target that runs ``command``, whose name in results is that of ``place``."""
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(f"#!/bin/sh\nexec {' '.join(command)}\n")
    place.chmod(0o755)
    return f"exec:./{place.relative_to(place.parents[1])}"


def write(out: Path, name: str, lines: Iterable[Mapping[str, Any]]) -> None:
    """The lines of an instrument, each with an ``id``, sorted by it."""
    ordered = sorted(lines, key=lambda line: line["id"])
    texts = (json.dumps(line, sort_keys=True) for line in ordered)
    with gzip.GzipFile(out / f"{name}.jsonl.gz", "wb", 6, mtime=0) as file:
        file.write("".join(f"{text}\n" for text in texts).encode())


def without_folders(text: str, *folders: Path) -> str:
    """A text without the names of folders that differ from run to run, and of programs there."""
    for number, folder in enumerate(folders):
        text = text.replace(str(folder), f"FOLDER{number}")
    return re.sub(r"\b([0-9a-f]{2}/)?[0-9a-f]{32,}", "HEX", text.replace(sys.executable, "PYTHON"))


def plain(text: str, *folders: Path) -> str:
    """A printed text, likewise, and without processes, durations and sizes."""
    text = re.sub(r"(?i)\b(pid|process) \d+", r"\1 N", without_folders(text, *folders))
    return re.sub(r"\b[\d.]+ ?(ms|s|minutes?|MB|GB)\b", r"N \1", text)


#: Fields of records that differ from run to run, or are in the line's id.
_LEFT_OUT = ("ms", "stderr", "end", "seconds", "start", "machine", "kind", "case", "target")


def records(file: Path, *folders: Path) -> Iterator[dict[str, Any]]:
    """The lines of a results file but for its cases, each with an ``id``."""
    seen: Counter[str] = Counter()
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else []:
        record = json.loads(line)
        if record["kind"] == "case":
            continue
        id = " ".join(filter(None, (record["kind"], record.get("target"), record.get("case"))))
        seen[id] += 1
        kept = {key: value for key, value in record.items() if key not in _LEFT_OUT}
        id += f" #{seen[id]}" if seen[id] > 1 else ""
        yield {**json.loads(without_folders(json.dumps(kept), *folders)), "id": id}
