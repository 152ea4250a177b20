"""Joins results files into one, in flat memory: shards of a run, and runs of several targets.

The lines go through a database on the disk, which SQLite keeps and removes: they come in the order
of the files, and go out by case, with the results on all targets after each case. That is also the
order in which they pack best.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from conformance.results.compact import LEFT_OUT, compact
from conformance.results.errors import ResultsError
from conformance.results.reader import (
    MOST_STREAMED_BYTES,
    MOST_STREAMED_LINES,
    MOST_TARGETS,
    abbreviated,
    stream,
)
from conformance.results.records import (
    RECORD_LINE,
    CaseRecord,
    Footer,
    Header,
    InfrastructureRecord,
    InstabilityRecord,
    Record,
    ResultRecord,
    Selection,
    TargetRecord,
)
from conformance.results.same import headers_differ, targets_differ
from conformance.results.store import database, database_errors
from conformance.results.table import is_same_case
from conformance.results.verdicts import VERDICTS, Verdict

#: Lines are in order by the place of their case and, of one case, by their rank: it comes first,
#: then its results by target, then what else happened in it.
_TABLES: Final = """
CREATE TABLE cases (place INTEGER PRIMARY KEY, id TEXT UNIQUE, part INTEGER, line BLOB);
CREATE TABLE lines (place INTEGER, rank INTEGER, part INTEGER, line BLOB);
CREATE UNIQUE INDEX once ON lines (place, rank);
"""
_IN_ORDER: Final = (
    "SELECT place, -1 AS rank, line FROM cases UNION ALL SELECT place, rank, line FROM lines"
    " ORDER BY place, rank"
)
#: The rank of the first line that is no result, and the place of lines without a case.
_AFTER_RESULTS: Final = MOST_TARGETS + 1
_AFTER_CASES: Final = 1 << 62


@dataclass
class _Part:
    """One of the files. ``counts`` are of the results."""

    path: Path
    header: Header
    footer: Footer | None = None
    counts: dict[str, Counter[Verdict]] = field(default_factory=dict)
    unexpected: int = 0

    @property
    def called(self) -> str:
        shard = self.header.shard
        return f"{self.path} (shard {shard.number}/{shard.of})" if shard else str(self.path)


@dataclass(frozen=True)
class Merged:
    """What was joined. ``problems`` are sentences: what is missing of it."""

    cases: int
    results: int
    targets: Sequence[str]
    problems: Sequence[str]


class Merging:
    """Takes over results files, and writes what they have together; a context manager."""

    def __init__(self, *, compact: bool = False) -> None:
        self._compact = compact
        self._parts: list[_Part] = []
        self._targets: dict[str, TargetRecord] = {}
        self._numbers: dict[str, int] = {}
        self._left_out: dict[str, None] = {}
        self._others = Counter[str]()
        self._table = database(_TABLES)

    def __enter__(self) -> Merging:
        return self

    def __exit__(self, *error: object) -> None:
        self._table.close()

    def add(self, path: Path) -> None:
        """Take over a file. Raises `ResultsError` if it cannot be read, or is of another run."""
        # A file that is cut off has no footer, of which `problems` has a sentence.
        records = stream(path, [], MOST_STREAMED_LINES, MOST_STREAMED_BYTES)
        _, header = next(records)
        assert isinstance(header, Header)
        part = _Part(path, header)
        self._check(part)
        self._parts.append(part)
        case = ""
        place = -1
        for line, record in records:
            if part.footer is not None:
                raise ResultsError(f"{path}: there is more after its footer.")
            match record:
                case CaseRecord():
                    self._add_case(part, _whole(line), record)
                case ResultRecord():
                    if record.case != case:
                        case, place = record.case, self._place(record.case)
                    if place == _AFTER_CASES:
                        raise ResultsError(
                            f"{path}: there is a result for {case}, and no such case."
                        )
                    self._add_result(part, line, record, place)
                case InfrastructureRecord() | InstabilityRecord():
                    self._others[record.kind] += 1
                    rank = _AFTER_RESULTS + self._others.total()
                    self._add(self._place(record.case), rank, _whole(line))
                case Footer():
                    part.footer = record
        self._check_footer(part)

    def write(self, out: IO[bytes], problems: Sequence[str]) -> Merged:
        """Write the joined file; ``problems`` are those of :meth:`problems`."""
        (cases,) = self._table.execute("SELECT count(*) FROM cases").fetchone()
        footer = self._footer(complete=not problems)
        out.write(_line(self._header(cases, bool(problems))))
        out.writelines(line for _, _, line in self._table.execute(_IN_ORDER))
        out.write(_line(footer))
        results = sum(sum(counts.values()) for counts in footer.counts.values())
        return Merged(cases, results, [*self._targets], problems)

    def problems(self) -> Iterator[str]:
        """What is missing: shards, and what incomplete files do not have."""
        for part in self._parts:
            if part.footer is None or not part.footer.complete:
                why = "it was stopped before its end" if part.footer else "it was cut off"
                yield f"{part.called} is incomplete: {why}."
        for name in self._targets:
            for parts in self._divided(name):
                of = parts[0].header.shard
                assert of is not None
                there = {p.header.shard.number for p in parts if p.header.shard is not None}
                missing = [f"{n}/{of.of}" for n in range(1, of.of + 1) if n not in there]
                if missing:
                    what = "shard" if len(missing) == 1 else "shards"
                    yield f"{name}: {what} {abbreviated(missing, 8)} missing."

    def _divided(self, name: str) -> list[list[_Part]]:
        """The shards that a target has, by the run that they are of."""
        runs: defaultdict[object, list[_Part]] = defaultdict(list)
        for part in self._parts:
            if part.header.shard and name in part.counts:
                runs[_run_of(part.header)].append(part)
        return list(runs.values())

    def check(self) -> None:
        """Raise `ResultsError` for shards that were divided in different ways."""
        runs: defaultdict[object, list[_Part]] = defaultdict(list)
        for part in self._parts:
            if part.header.shard:
                runs[_run_of(part.header), _names(part.header)].append(part)
        for parts in runs.values():
            shard = parts[0].header.shard
            assert shard is not None
            planned = sum(part.header.selection.results for part in parts)
            if len(parts) == shard.of and planned != shard.results:
                raise ResultsError(
                    f"The shards of {', '.join(t.name for t in parts[0].header.targets)} have "
                    f"{planned} of {shard.results} results: they are not parts of one run."
                )

    def _check(self, part: _Part) -> None:
        """Raise `ResultsError` if a file cannot be joined with those before."""
        if self._parts and (differs := headers_differ(self._parts[0].header, part.header)):
            raise ResultsError(
                f"{part.path} is of another run than {self._parts[0].path}: {differs}."
            )
        for other in self._parts:
            if part.header.shard and _is_same_shard(part.header, other.header):
                raise ResultsError(f"One shard is there twice: {other.called} and {part.called}.")
        for target in part.header.targets:
            if target.name in part.counts:
                raise ResultsError(f"{part.path}: two of its targets are called {target.name}.")
            part.counts[target.name] = Counter()
            known = self._targets.setdefault(target.name, target)
            if differs := targets_differ(known, target):
                raise ResultsError(
                    f"{part.path}: {target.name} is another target than in the files before: "
                    f"{differs}. Give one of them a --name."
                )
            self._targets[target.name] = _on_both(known, target)
            self._numbers.setdefault(target.name, len(self._numbers))
        if len(self._targets) > MOST_TARGETS:
            raise ResultsError(f"{part.path}: there are more than {MOST_TARGETS:,} targets.")
        self._left_out |= dict.fromkeys(part.header.left_out)

    def _check_footer(self, part: _Part) -> None:
        """Raise `ResultsError` if a file does not have what it says."""
        if part.footer is None or not part.footer.complete:
            return
        said = {name: Counter(counts) for name, counts in part.footer.counts.items() if counts}
        there = {name: counts for name, counts in part.counts.items() if counts}
        if said != there:
            raise ResultsError(f"{part.path} is damaged: its results are not those of its footer.")

    def _place(self, case: str | None) -> int:
        found = self._table.execute("SELECT place FROM cases WHERE id = ?", (case,)).fetchone()
        return found[0] if found else _AFTER_CASES

    def _add(self, place: int, rank: int, line: bytes) -> bool:
        """Add a line unless there is one at its place and of its rank; whether it was added."""
        row = place, rank, len(self._parts) - 1, line
        sql = "INSERT OR IGNORE INTO lines VALUES (?, ?, ?, ?)"
        return bool(self._table.execute(sql, row).rowcount)

    def _add_case(self, part: _Part, line: bytes, record: CaseRecord) -> None:
        row = record.id, len(self._parts) - 1, line
        sql = "INSERT OR IGNORE INTO cases (id, part, line) VALUES (?, ?, ?)"
        if self._table.execute(sql, row).rowcount:
            return
        number, other = self._table.execute(
            "SELECT part, line FROM cases WHERE id = ?", (record.id,)
        ).fetchone()
        if other == line:
            return
        before = RECORD_LINE.validate_json(other)
        if not isinstance(before, CaseRecord) or not is_same_case(before, record):
            raise ResultsError(
                f"{part.path}: {record.id} is another case than in {self._parts[number].path}."
            )

    def _add_result(self, part: _Part, line: bytes, record: ResultRecord, place: int) -> None:
        if record.target not in part.counts:
            raise ResultsError(
                f"{part.path}: there is a result for {record.target}, which is no target of it."
            )
        rank = self._numbers[record.target]
        if not self._add(place, rank, compact(line, record) if self._compact else _whole(line)):
            (other,) = self._table.execute(
                "SELECT part FROM lines WHERE place = ? AND rank = ?", (place, rank)
            ).fetchone()
            what = f"a result of {record.case} on {record.target}"
            before = self._parts[other]
            raise ResultsError(
                f"{part.path} has {what} twice."
                if before is part
                else f"Both {before.path} and {part.path} have {what}."
            )
        part.counts[record.target][record.verdict] += 1
        part.unexpected += record.unexpected

    def _header(self, cases: int, incomplete: bool) -> Header:
        headers = [part.header for part in self._parts]
        whole = {
            (_run_of(header), _names(header)): header.shard
            for header in headers
            if header.shard is not None
        }
        results = sum(shard.results for shard in whole.values())
        results += sum(header.selection.results for header in headers if header.shard is None)
        planned = [shard.cases for shard in whole.values()]
        planned += [header.selection.cases for header in headers if header.shard is None]
        texts = dict.fromkeys(header.selection.text for header in headers)
        left_out = {**self._left_out, **(dict.fromkeys(LEFT_OUT) if self._compact else {})}
        return Header(
            suite=headers[0].suite,
            corpus=headers[0].corpus,
            selection=Selection(
                text="; ".join(texts),
                cases=max([cases, *planned]) if incomplete else cases,
                results=results,
                only_failed=any(header.selection.only_failed for header in headers),
            ),
            targets=tuple(self._targets.values()),
            machine=_joined([header.machine for header in headers]),
            start=min(header.start for header in headers),
            left_out=tuple(left_out),
        )

    def _footer(self, *, complete: bool) -> Footer:
        counts: dict[str, Counter[Verdict]] = {name: Counter() for name in self._targets}
        for part in self._parts:
            for name, those in part.counts.items():
                counts[name] += those
        footers = [part.footer for part in self._parts if part.footer is not None]
        ends = [footer.end for footer in footers] or [part.header.start for part in self._parts]
        return Footer(
            complete=complete,
            counts={
                name: {verdict: found[verdict] for verdict in VERDICTS if found[verdict]}
                for name, found in counts.items()
            },
            infrastructure=self._others["infrastructure"],
            unexpected=sum(part.unexpected for part in self._parts),
            instability=self._others["instability"],
            end=max(ends),
            seconds=round(sum(footer.seconds for footer in footers), 3),
        )


def merge(
    paths: Sequence[Path], out: IO[bytes], *, compact: bool = False, incomplete: bool = False
) -> Merged:
    """Write what the results files have together to ``out``.

    Raises `ResultsError` for files that cannot be joined: of several suites or corpora, with two
    descriptions of a target or a case, with a case twice on one target. Also for missing shards and
    incomplete files, unless they may be ``incomplete``; the joined file is then incomplete, too.
    Raises :class:`OSError` if ``out`` or the database cannot be written.
    """
    with database_errors(), Merging(compact=compact) as merging:
        for path in paths:
            merging.add(path)
        merging.check()
        problems = list(merging.problems())
        if problems and not incomplete:
            raise ResultsError(
                " ".join(problems) + " gqa run --resume completes a file that was cut off;"
                " --incomplete joins what is there."
            )
        return merging.write(out, problems)


def _run_of(header: Header) -> object:
    """What the shards of one run have in common."""
    shard = header.shard
    return shard and (shard.of, shard.cases, shard.results, header.selection.text)


def _names(header: Header) -> tuple[str, ...]:
    return tuple(target.name for target in header.targets)


def _is_same_shard(one: Header, other: Header) -> bool:
    same_run = (_run_of(one), _names(one)) == (_run_of(other), _names(other))
    return same_run and one.shard == other.shard


def _on_both(one: TargetRecord, other: TargetRecord) -> TargetRecord:
    """The target, which is the same on two machines, with the facts of both about them."""
    if one == other or one.describe is None or other.describe is None:
        return one
    devices = [each.device or "" for each in (one.describe, other.describe)]
    described = one.describe.model_copy(
        update={
            "device": _both(devices) or None,
            "versions": _joined([one.describe.versions, other.describe.versions]),
        }
    )
    return one.model_copy(update={"describe": described})


def _joined(facts: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Facts about machines, by name; what differs, side by side."""
    names = dict.fromkeys(name for each in facts for name in each)
    return {name: _both([each.get(name, "") for each in facts]) for name in names}


def _both(texts: Iterable[str]) -> str:
    return " | ".join(dict.fromkeys(part for text in texts for part in text.split(" | ") if part))


def _line(record: Record) -> bytes:
    return record.model_dump_json().encode() + b"\n"


def _whole(line: bytes) -> bytes:
    """The line with its end, which the last one of a file may lack."""
    return line if line.endswith(b"\n") else line + b"\n"
