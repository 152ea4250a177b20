"""One results file of many runs, each of some of the cases on one target, written while they run.

The file is packed with xz, and replaced as a whole, so at every moment it is a results file that
``gqa report`` reads; it has a footer once everything has ended.
"""

from __future__ import annotations

import json
import lzma
import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

_IN_FLIGHT: Final = 1
_ENDED: Final = 6


@dataclass
class Piece:
    """The results file of one run. ``ended``: nothing more is written to it."""

    file: Path
    ended: bool = False
    #: Of one that has ended: its lines without header and footer, packed.
    packed: bytes | None = None


@dataclass
class Found:
    """What the pieces hold so far."""

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


class Gathered:
    """Gathers pieces into ``path``, which is to have ``results`` results of ``cases`` cases."""

    def __init__(self, path: Path, text: str, cases: int, results: int) -> None:
        self.path = path
        self.pieces: list[Piece] = []
        self._selection: dict[str, Any] = {"text": text, "cases": cases, "results": results}
        self._ended = Found()
        self._since = time.monotonic()

    def write(self, footer: bool = False) -> Found:
        """Write the file anew; what it holds. ``footer``: all pieces have ended.

        Nothing is written as long as there is no result. Raises :class:`OSError`.
        """
        pieces = list(self.pieces)
        for piece in (piece for piece in pieces if piece.ended and piece.packed is None):
            piece.packed = _packed(self._lines(piece, self._ended), _ENDED)
        now = Found(
            self._ended.header,
            dict(self._ended.targets),
            set(self._ended.described),
            dict(self._ended.verdicts),
            Counter(self._ended.infrastructure),
            set(self._ended.failed),
            self._ended.instability,
        )
        running = _packed(
            (line for piece in pieces if piece.packed is None for line in self._lines(piece, now)),
            _IN_FLIGHT,
        )
        if now.header is None:
            return now
        streams = [_packed([_line(self._header(now))], _ENDED)]
        streams += [piece.packed for piece in pieces if piece.packed]
        streams += [running, _packed([_line(self._footer(now))] if footer else [], _ENDED)]
        beside = self.path.with_name(f"{self.path.name}.new")
        with beside.open("wb") as file:
            for stream in streams:
                file.write(stream)
        os.replace(beside, self.path)
        return now

    def _lines(self, piece: Piece, found: Found) -> Iterator[bytes]:
        """The lines of a piece that the whole takes over, noted in ``found``."""
        for line, record in records(piece.file):
            match record["kind"]:
                case "header":
                    found.header = found.header or record
                    for target in record["targets"]:
                        found.targets.setdefault(target["name"], target)
                    continue
                case "footer":
                    continue
                case "case":
                    if record["id"] in found.described:
                        continue
                    found.described.add(record["id"])
                case "result":
                    key = record["case"], record["target"]
                    if key not in found.verdicts or record.get("blamed_for"):
                        found.verdicts[key] = record["verdict"], record["unexpected"]
                case "infrastructure":
                    found.infrastructure[record["target"]] += 1
                    if record["case"]:
                        found.failed.add((record["case"], record["target"]))
                case "instability":
                    found.instability += 1
            yield line

    def _header(self, found: Found) -> dict[str, Any]:
        header = {**(found.header or {}), "targets": list(found.targets.values())}
        return {**header, "selection": {**header["selection"], **self._selection}}

    def _footer(self, found: Found) -> dict[str, Any]:
        return {
            "kind": "footer",
            "complete": len(found.verdicts.keys() | found.failed) >= self._selection["results"],
            "counts": {name: dict(count) for name, count in found.counts().items()},
            "infrastructure": found.infrastructure.total(),
            "unexpected": found.unexpected().total(),
            "instability": found.instability,
            "end": datetime.now(UTC).isoformat(),
            "seconds": round(time.monotonic() - self._since, 3),
        }


def records(file: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """The whole lines of a results file, with what they say; none if there is no file yet."""
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return
    for line in content.splitlines(keepends=True):
        if line.endswith(b"\n"):
            yield line, json.loads(line)


def _line(record: dict[str, Any]) -> bytes:
    return json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _packed(lines: Iterator[bytes] | list[bytes], preset: int) -> bytes:
    """The lines as a stream of xz; nothing for no lines."""
    content = b"".join(lines)
    return lzma.compress(content, preset=preset) if content else b""
