"""Reads a results file, complete or cut short, within bounds for the whole and for its parts."""

from __future__ import annotations

import io
import lzma
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, field
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
from conformance.results.verdicts import VERDICTS, Verdict, severity

#: What a results file may have, unpacked. All cases on one target are 37 MB in 15,500 lines.
#: Reading takes eight to ten times as much memory.
MOST_BYTES: Final = 1 << 28
MOST_LINES: Final = 500_000
MOST_TARGETS: Final = 1_000
#: What a file may have that is never in memory as a whole.
MOST_STREAMED_BYTES: Final = 1 << 38
MOST_STREAMED_LINES: Final = 100_000_000


class Judged:
    """The results of a file by case and target: of several of one case on one target, the worst.

    ``counts`` are of all results, by target and verdict, and so is the number of ``unexpected``.
    ``twice`` has the cases and targets with several.
    """

    def __init__(
        self,
        results: Iterable[ResultRecord] = (),
        worst: MutableMapping[tuple[str, str], ResultRecord] | None = None,
    ) -> None:
        self.worst = {} if worst is None else worst
        self.counts: dict[str, Counter[Verdict]] = {}
        self.unexpected = 0
        self.twice: dict[tuple[str, str], None] = {}
        self._replaced: dict[str, Counter[Verdict]] = {}
        for result in results:
            self.add(result)

    def add(self, result: ResultRecord) -> None:
        """Count a result, and keep it unless it is better than another of its case and target."""
        self.counts.setdefault(result.target, Counter())[result.verdict] += 1
        self.unexpected += result.unexpected
        key = result.case, result.target
        before = self.worst.get(key)
        if before is not None:
            self.twice[key] = None
            better = before if severity(result) < severity(before) else result
            self._replaced.setdefault(result.target, Counter())[better.verdict] += 1
            if better is result:
                return
        self.worst[key] = result

    @property
    def totals(self) -> dict[str, Counter[Verdict]]:
        """The number of the worst results, by target and verdict."""
        none = Counter[Verdict]()
        return {name: n - self._replaced.get(name, none) for name, n in self.counts.items()}


@dataclass
class Run:
    """The content of a results file. ``problems``: why it is incomplete or unreliable."""

    path: Path
    header: Header
    cases: MutableMapping[str, CaseRecord] = field(default_factory=dict)
    judged: Judged = field(default_factory=Judged)
    infrastructure: list[InfrastructureRecord] = field(default_factory=list)
    footer: Footer | None = None
    problems: tuple[str, ...] = ()
    instability: list[InstabilityRecord] = field(default_factory=list)

    @property
    def results(self) -> tuple[ResultRecord, ...]:
        """The worst result of each case on each target, in the order of the file."""
        return tuple(self.judged.worst.values())


def read(
    path: Path | str, light: Callable[[ResultRecord], ResultRecord] = lambda result: result
) -> Run:
    """Read a results file, complete or cut short; one whose name ends in ``.xz`` is unpacked.

    A file that ends too early is read as far as possible, and its ``problems`` say so. Any other
    error raises `ResultsError` with ``file:line``, and so does a file that is no regular one, or
    larger than a run can be. A pipe of this process (``/dev/stdin``) is read to its end. ``light``
    gives what is kept of a result.
    """
    return read_into(path, {}, Judged(), MOST_LINES, MOST_BYTES, light)


def read_into(
    path: Path | str,
    cases: MutableMapping[str, CaseRecord],
    judged: Judged,
    most_lines: int,
    most_bytes: int,
    light: Callable[[ResultRecord], ResultRecord] = lambda result: result,
) -> Run:
    """Read a results file as `read` does, with other bounds, into ``cases`` and ``judged``."""
    path, problems = Path(path), list[str]()
    records = stream(path, problems, most_lines, most_bytes)
    run = Run(path, cast(Header, next(records)[1]), cases, judged)
    for _, record in records:
        if run.footer is not None and _AFTER not in problems:
            problems.append(_AFTER)
        match record:
            case CaseRecord():
                if cases.setdefault(record.id, record) != record:
                    problems.append(f"Case {record.id} is described twice, differently.")
            case ResultRecord():
                judged.add(light(record))
            case InfrastructureRecord():
                run.infrastructure.append(record)
            case InstabilityRecord():
                run.instability.append(record)
            case Footer():
                run.footer = record
    for target in run.header.targets:
        judged.counts.setdefault(target.name, Counter())
    if len(judged.counts) > MOST_TARGETS:
        raise ResultsError(f"{path}: no results file: it has more than {MOST_TARGETS:,} targets.")
    run.problems = tuple(dict.fromkeys([*problems, *_doubts(run)]))
    return run


_AFTER: Final = "There is more after its footer."


def stream(
    path: Path,
    problems: list[str],
    most_lines: int,
    most_bytes: int,
) -> Iterator[tuple[bytes, Record]]:
    """Each line of a results file with its record, one at a time; the first is a header.

    ``problems`` gets a sentence if the file ends too early. Raises `ResultsError` as `read` does,
    with the given bounds for the unpacked file.
    """
    begun = False
    try:
        with _opened(path) as raw:
            packed = Unpacked(raw) if path.suffix == ".xz" else None
            file = io.BufferedReader(packed) if packed is not None else raw
            lines = _lines(path, file, most_lines, most_bytes)
            for line, record in _records(path, lines, problems):
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
    path: Path, file: Iterable[bytes], problems: list[str]
) -> Iterator[tuple[bytes, Record]]:
    """Each line with its record; a last line that is not JSON is one more problem, not an error."""
    broken: ResultsError | None = None
    for number, line in enumerate(file, 1):
        if broken is not None:
            raise broken
        if line.isspace():
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


def _doubts(run: Run) -> Iterator[str]:
    """Why a run is unreliable."""
    counts = run.judged.counts
    footer, selection = run.footer, run.header.selection
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
    if len(run.cases) != selection.cases:
        yield f"{len(run.cases)} cases are described where {selection.cases} were selected."

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
            ("unexpected results", run.judged.unexpected, footer.unexpected),
            ("infrastructure failures", len(run.infrastructure), footer.infrastructure),
            ("results that did not repeat", len(run.instability), footer.instability),
        ):
            if number != claim:
                yield f"The footer counts {claim} {what}; there are {number}."

    known = {target.name for target in run.header.targets}
    if len(known) < len(run.header.targets):
        yield "Two of its targets have one name."
    for name in counts:
        if name not in known:
            yield f"Results for {name}, which is no target of the run."
    described = set(run.cases)
    if names := sorted({case for case, _ in run.judged.worst if case not in described}):
        yield f"Results for cases that are not described: {abbreviated(names)}."
    if pairs := [f"{case} on {target}" for case, target in run.judged.twice]:
        yield f"More than one result for {abbreviated(pairs)}."


def abbreviated(names: Sequence[str], most: int = 3) -> str:
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")
