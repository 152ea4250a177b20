"""Reads a results file, complete or cut short, within bounds for the whole and for its parts."""

from __future__ import annotations

import io
import lzma
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Final, cast

from pydantic import ValidationError

from conformance.base.files import open_plain, own_descriptor
from conformance.results.errors import ResultsError, cause_of
from conformance.results.packed import Unpacked
from conformance.results.records import (
    FORMAT,
    MOST_BYTES_A_LINE,
    RECORD_LINE,
    CaseRecord,
    Footer,
    Header,
    InfrastructureRecord,
    InstabilityRecord,
    Record,
    ResultRecord,
)
from conformance.results.verdicts import VERDICTS, Verdict

#: What a results file may have, unpacked. All cases on one target are 41 MB in 13,700 lines.
#: Reading takes up to nine times as much memory.
MOST_BYTES: Final = 1 << 28
MOST_LINES: Final = 500_000
MOST_TARGETS: Final = 1_000
#: What a file may have that is never in memory as a whole.
MOST_STREAMED_BYTES: Final = 1 << 38
MOST_STREAMED_LINES: Final = 100_000_000


@dataclass(frozen=True)
class Run:
    """The content of a results file, without results that later ones replace.

    ``problems``: why it is incomplete or unreliable.
    """

    path: Path
    header: Header
    cases: Mapping[str, CaseRecord]
    results: tuple[ResultRecord, ...]
    infrastructure: tuple[InfrastructureRecord, ...]
    footer: Footer | None
    problems: tuple[str, ...]
    instability: tuple[InstabilityRecord, ...] = ()

    def counts(self) -> dict[str, Counter[Verdict]]:
        """Number of results by target and verdict; each target of the header has an entry."""
        counts = {target.name: Counter[Verdict]() for target in self.header.targets}
        for result in self.results:
            counts.setdefault(result.target, Counter())[result.verdict] += 1
        return counts


def read(path: Path | str) -> Run:
    """Read a results file, complete or cut short; one whose name ends in ``.xz`` is unpacked.

    A file that ends too early is read as far as possible, and its ``problems`` say so. Any other
    error raises `ResultsError` with ``file:line``, and so does a file that is no regular one, or
    larger than a run can be. A pipe of this process (``/dev/stdin``) is read to its end.
    """
    path = Path(path)
    cases: dict[str, CaseRecord] = {}
    results: list[ResultRecord] = []
    rest = take(path, MOST_LINES, MOST_BYTES, cases.setdefault, results.append)
    run = Run(
        path,
        rest.header,
        cases,
        tuple(results),
        tuple(rest.infrastructure),
        rest.footer,
        (),
        tuple(rest.instability),
    )
    pairs = Counter((r.case, r.target) for r in results)
    problems = rest.with_doubts(
        cases=len(cases),
        counts=run.counts(),
        unexpected=sum(r.unexpected for r in results),
        unknown={r.case for r in results} - cases.keys(),
        twice=[pair for pair, n in pairs.items() if n > 1],
    )
    return replace(run, problems=problems)


_AFTER: Final = "There is more after its footer."


@dataclass
class Rest:
    """What a file has beside its cases and results. ``problems`` were met while it was read."""

    path: Path
    header: Header
    footer: Footer | None = None
    infrastructure: list[InfrastructureRecord] = field(default_factory=list)
    instability: list[InstabilityRecord] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def with_doubts(
        self,
        *,
        cases: int,
        counts: Mapping[str, Counter[Verdict]],
        unexpected: int,
        unknown: Iterable[str],
        twice: Sequence[tuple[str, str]],
    ) -> tuple[str, ...]:
        """All problems, given the number of cases and of results by target and verdict.

        ``unknown`` are cases with results and no description, and ``twice`` cases and targets with
        several results. Raises `ResultsError` if the file has too many targets.
        """
        if len(counts) > MOST_TARGETS:
            sentence = f"no results file: it has more than {MOST_TARGETS:,} targets"
            raise ResultsError(f"{self.path}: {sentence}.")
        doubts = _doubts(self, cases, counts, unexpected, unknown, twice)
        return tuple(dict.fromkeys([*self.problems, *doubts]))


def take(
    path: Path,
    most_lines: int,
    most_bytes: int,
    described: Callable[[str, CaseRecord], CaseRecord],
    judged: Callable[[ResultRecord], object],
) -> Rest:
    """Read a file record by record, of which ``judged`` gets each result.

    ``described`` gets each case with its id, and returns the first one with this id. Raises
    `ResultsError` as `read` does.
    """
    problems: list[str] = []
    records = stream(path, problems, most_lines, most_bytes)
    rest = Rest(path, cast(Header, next(records)[1]), problems=problems)
    for _, record in records:
        if rest.footer is not None and _AFTER not in problems:
            problems.append(_AFTER)
        match record:
            case CaseRecord():
                if described(record.id, record) != record:
                    problems.append(f"Case {record.id} is described twice, differently.")
            case ResultRecord():
                judged(record)
            case InfrastructureRecord():
                rest.infrastructure.append(record)
            case InstabilityRecord():
                rest.instability.append(record)
            case Footer():
                rest.footer = record
    return rest


def stream(
    path: Path,
    problems: list[str],
    most_lines: int,
    most_bytes: int,
    skip: Callable[[bytes], bool] = lambda line: False,
) -> Iterator[tuple[bytes, Record]]:
    """Each line of a results file with its record, one at a time; the first is a header.

    ``problems`` gets a sentence if the file ends too early. A line that is to be skipped is not
    even read. Raises `ResultsError` as `read` does, with the given bounds for the unpacked file.
    """
    begun = False
    try:
        with _opened(path) as raw:
            packed = Unpacked(raw) if path.suffix == ".xz" else None
            file = io.BufferedReader(packed) if packed is not None else raw
            lines = _lines(path, file, most_lines, most_bytes)
            for line, record in _records(path, lines, problems, skip):
                if not begun and not isinstance(record, Header):
                    break
                begun = True
                yield line, record
            if packed is not None and packed.cut:
                problems.append("Its compressed data is broken off.")
    except (OSError, EOFError, lzma.LZMAError, ValueError) as error:
        raise ResultsError(f"Cannot read results from {path}: {cause_of(error)}.") from None
    if not begun:
        raise ResultsError(f"{path}: not a results file: it does not begin with a header.")


def _opened(path: Path) -> IO[bytes]:
    own = own_descriptor(path)
    return os.fdopen(open_plain(path) if own is None else os.dup(own), "rb")


def _lines(path: Path, file: IO[bytes], most_lines: int, most_bytes: int) -> Iterator[bytes]:
    """The lines of ``file``, each and all of them within the bounds."""
    number = size = 0
    while line := file.readline(MOST_BYTES_A_LINE + 1):
        number += 1
        size += len(line)
        if len(line) > MOST_BYTES_A_LINE:
            raise ResultsError(f"{path}:{number}: longer than {MOST_BYTES_A_LINE:,} bytes.")
        if number > most_lines:
            raise ResultsError(f"{path}: no results file: it has more than {most_lines:,} lines.")
        if size > most_bytes:
            raise ResultsError(f"{path}: no results file: it has more than {most_bytes:,} bytes.")
        yield line


def _records(
    path: Path, file: Iterable[bytes], problems: list[str], skip: Callable[[bytes], bool]
) -> Iterator[tuple[bytes, Record]]:
    """Each line with its record; a last line that is not JSON is one more problem, not an error."""
    broken: ResultsError | None = None
    for number, line in enumerate(file, 1):
        if broken is not None:
            raise broken
        if line.isspace() or skip(line):
            continue
        try:
            record = RECORD_LINE.validate_json(line)
            if number > 1 and isinstance(record, Header):
                raise ResultsError(f"{path}:{number}: a second header; give each file by itself.")
            yield line, record
        except ValidationError as error:
            failure = ResultsError(f"{path}:{number}: {_what(error, line)}.")
            if number == 1 or not _is_no_json(error):
                raise failure from None
            broken = failure
    if broken is not None:
        problems.append("Its last line is broken off.")


#: Of a line with more errors, only their number is known: each costs a kilobyte.
_MOST_ERRORS: Final = 1000


def _is_no_json(error: ValidationError) -> bool:
    return error.error_count() == 1 and error.errors()[0]["type"] == "json_invalid"


def _what(error: ValidationError, line: bytes) -> str:
    """What is wrong with a line, as half a sentence."""
    if error.error_count() > _MOST_ERRORS:
        return "not a record of a results file"
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"][1:])
    if len(where) > 200 or not where.isprintable():
        where = f"{where!r:.200}"  # an unknown field can be anything
    if where == "format":
        return f"written in another format ({str(first['input'])[:40]!r}); this one is {FORMAT}"
    if first["type"] == "json_invalid":
        return f"not a line of JSON ({first['msg'].removeprefix('Invalid JSON: ')})"
    if first["type"] in ("union_tag_invalid", "union_tag_not_found") or not first["loc"]:
        return "not a record of a results file"
    what = first["msg"].removeprefix("Value error, ")
    return f"{where}: {what}" if where else what


def _doubts(
    rest: Rest,
    cases: int,
    counts: Mapping[str, Counter[Verdict]],
    unexpected: int,
    unknown: Iterable[str],
    twice: Sequence[tuple[str, str]],
) -> Iterator[str]:
    """Why a run is unreliable."""
    footer, selection = rest.footer, rest.header.selection
    if footer is None:
        yield "It has no footer: the run was cut short."
    elif not footer.complete:
        yield "The run was stopped before its end."

    results = sum(count.total() for count in counts.values())
    missing = selection.results - results
    if missing > 0:
        yield f"{missing} of {selection.results} results are missing."
    elif missing < 0:
        yield f"There are {results} results where {selection.results} were expected."
    if cases != selection.cases:
        yield f"{cases} cases are described where {selection.cases} were selected."

    if footer is not None:
        for name in dict.fromkeys([*counts, *footer.counts]):
            there, said = counts.get(name, Counter()), footer.counts.get(name, {})
            for verdict in VERDICTS:
                if there[verdict] != said.get(verdict, 0):
                    yield (
                        f"The footer counts {said.get(verdict, 0)} {verdict} on {name}; "
                        f"there are {there[verdict]}."
                    )
        for what, number, claim in (
            ("unexpected results", unexpected, footer.unexpected),
            ("infrastructure failures", len(rest.infrastructure), footer.infrastructure),
            ("results that did not repeat", len(rest.instability), footer.instability),
        ):
            if number != claim:
                yield f"The footer counts {claim} {what}; there are {number}."

    known = {target.name for target in rest.header.targets}
    if len(known) < len(rest.header.targets):
        yield "Two of its targets have one name."
    for name in counts:
        if name not in known:
            yield f"Results for {name}, which is no target of the run."
    if names := sorted(unknown):
        yield f"Results for cases that are not described: {abbreviated(names)}."
    if pairs := [f"{case} on {target}" for case, target in twice]:
        yield f"More than one result for {abbreviated(pairs)}."


def abbreviated(names: Sequence[str], most: int = 3) -> str:
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")
