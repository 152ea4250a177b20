"""One results file of many runs, each of some of the cases on one target, written while they run.

The file is packed with xz, and replaced as a whole, so at every moment it is a results file that
``gqa report`` reads; it has a footer once everything has ended.
"""

from __future__ import annotations

import copy
import json
import lzma
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


@dataclass
class Found:
    """What the runs have recorded so far."""

    header: dict[str, Any] | None = None
    targets: dict[str, dict[str, Any]] = field(default_factory=dict)
    described: set[str] = field(default_factory=set)
    verdicts: dict[tuple[str, str], tuple[str, bool]] = field(default_factory=dict)
    infrastructure: Counter[str] = field(default_factory=Counter)
    #: Cases and targets with an infrastructure failure of their own.
    failed: set[tuple[str, str]] = field(default_factory=set)
    instability: int = 0

    def counts(self) -> dict[str, Counter[str]]:
        """Number of results by target and verdict."""
        counts = {name: Counter[str]() for name in self.targets}
        for (_, target), (verdict, _) in self.verdicts.items():
            counts.setdefault(target, Counter())[verdict] += 1
        return counts

    def unexpected(self) -> Counter[str]:
        """Number of unexpected results by target."""
        return Counter(target for (_, target), (_, flag) in self.verdicts.items() if flag)

    def tried(self) -> int:
        """Number of cases, on each target, that have a result or an infrastructure failure."""
        return len(self.verdicts.keys() | self.failed)

    def note(self, record: dict[str, Any]) -> bool:
        """Note a record; whether the whole takes over its line."""
        match record["kind"]:
            case "header":
                self.header = self.header or record
                for target in record["targets"]:
                    self.targets.setdefault(target["name"], target)
                return False
            case "footer":
                return False
            case "case":
                if record["id"] in self.described:
                    return False
                self.described.add(record["id"])
            case "result":
                key = record["case"], record["target"]
                if key not in self.verdicts or record.get("blamed_for"):
                    self.verdicts[key] = record["verdict"], record["unexpected"]
            case "infrastructure":
                self.infrastructure[record["target"]] += 1
                if record["case"]:
                    self.failed.add((record["case"], record["target"]))
            case "instability":
                self.instability += 1
        return True


class Gathered:
    """Gathers the results files of runs in ``path``.

    It is to have ``results`` results of ``cases`` cases, which ``text`` selects. ``corpus`` is the
    digest of their case files, as one run of all of them has it.
    """

    def __init__(self, path: Path, text: str, cases: int, results: int, corpus: str) -> None:
        self.path = path
        self.planned = results
        self._selection: dict[str, Any] = {"text": text, "cases": cases, "results": results}
        self._corpus = corpus
        #: Each file, and how much of it has been taken over.
        self._read: dict[Path, int] = {}
        #: Lines taken over, packed.
        self._streams: list[bytes] = []
        self._found = Found()
        self._since = time.monotonic()

    def add(self, file: Path) -> None:
        """Gather one more file, which need not exist yet."""
        self._read[file] = 0

    def write(self, footer: bool = False) -> Found:
        """Take over what is new, and write the file; what it holds. ``footer``: all has ended.

        Nothing is written as long as there is no header. Raises :class:`OSError`.
        """
        new: list[bytes] = []
        for file, start in list(self._read.items()):
            for line, record in records(file, start):
                self._read[file] += len(line)
                if self._found.note(record):
                    new.append(line)
        self._streams.append(_packed(new))
        if self._found.header is not None:
            streams = [_packed([_line(self._header())]), *self._streams]
            streams += [_packed([_line(self._footer())])] if footer else []
            replace(self.path, streams)
        return copy.deepcopy(self._found)

    def _header(self) -> dict[str, Any]:
        first = self._found.header or {}
        return {
            **first,
            "corpus": self._corpus,
            "selection": {**first["selection"], **self._selection},
            "targets": list(self._found.targets.values()),
        }

    def _footer(self) -> dict[str, Any]:
        found = self._found
        return {
            "kind": "footer",
            "complete": found.tried() >= self.planned,
            "counts": {name: dict(count) for name, count in found.counts().items()},
            "infrastructure": found.infrastructure.total(),
            "unexpected": found.unexpected().total(),
            "instability": found.instability,
            "end": datetime.now(UTC).isoformat(),
            "seconds": round(time.monotonic() - self._since, 3),
        }


def replace(path: Path, content: Iterable[bytes]) -> None:
    """Write a file so that at every moment there is the old one or the new. Raises OSError."""
    beside = path.with_name(f"{path.name}.new")
    try:
        with beside.open("wb") as file:
            file.writelines(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError:
        with suppress(OSError):
            beside.unlink()
        raise


def records(file: Path, start: int = 0) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """The whole lines of a results file from a byte on; none if there is no file yet."""
    try:
        with file.open("rb") as content:
            content.seek(start)
            for line in content:
                if line.endswith(b"\n"):
                    yield line, json.loads(line)
    except FileNotFoundError:
        return


def _line(record: dict[str, Any]) -> bytes:
    return json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _packed(lines: Iterable[bytes]) -> bytes:
    """The lines as a stream of xz; nothing for no lines."""
    content = b"".join(lines)
    return lzma.compress(content) if content else b""
