"""Reads results files, complete or cut short, up to limits on their size."""

from __future__ import annotations

import lzma
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import IO, Final, cast

from pydantic import ValidationError

from conformance.base.words import not_run
from conformance.results.packed import unpacking
from conformance.results.records import (
    FORMAT,
    MOST_BYTES_A_LINE,
    RECORD_LINE,
    AnyCaseRecord,
    CaseRecord,
    Footer,
    Header,
    InfrastructureRecord,
    InstabilityRecord,
    Record,
    ResultRecord,
    ShippedCaseRecord,
)
from conformance.results.results_error import ResultsError, cause_of
from conformance.results.same import is_same_case
from conformance.results.shipped import DescribedCases, described, is_in_corpus
from conformance.results.store import Store
from conformance.results.verdicts import VERDICTS, Verdict

#: The most that a packed file may have if it is read into memory: a small file of a stranger can
#: stand for any number of bytes. A file that is not packed is as large as it is.
MOST_BYTES: Final = 1 << 28
MOST_LINES: Final = 500_000
MOST_TARGETS: Final = 1_000


@dataclass
class Run:
    """The content of a results file. ``problems`` say why it is incomplete or unreliable."""

    path: Path
    header: Header
    store: Store = field(default_factory=Store)
    cases: Mapping[str, CaseRecord] = field(default_factory=dict)
    infrastructure: list[InfrastructureRecord] = field(default_factory=list)
    footer: Footer | None = None
    problems: tuple[str, ...] = ()
    instability: list[InstabilityRecord] = field(default_factory=list)
    redescribed: list[str] = field(default_factory=list)
    """The ids of cases that are described several times, differently."""
    undescribed: list[str] = field(default_factory=list)
    """The ids of cases that have a result but no description."""
    changed: dict[str, str] = field(default_factory=dict)
    """The digests, by id, of the cases that this suite's corpus does not have, or not the same."""
    goes_on: bool = False
    """Whether there are records after the footer."""

    @property
    def worst(self) -> Mapping[tuple[str, str], ResultRecord]:
        """The worst result of each case on each target, in the order of the file."""
        return self.store.worst

    @property
    def results(self) -> tuple[ResultRecord, ...]:
        """The values of `worst`."""
        return tuple(result for _, result in self.worst.items())

    @cached_property
    def counts(self) -> Mapping[str, Counter[Verdict]]:
        """The number of all results by target and verdict; a target of the header has one."""
        return self._of_targets(self.store.counts(str(self.path)))

    @cached_property
    def totals(self) -> Mapping[str, Counter[Verdict]]:
        """The number of the results in `worst` by target and verdict."""
        return self._of_targets(self.store.totals(str(self.path)))

    def _of_targets(self, counts: dict[str, Counter[Verdict]]) -> dict[str, Counter[Verdict]]:
        return counts | {
            target.name: Counter() for target in self.header.targets if target.name not in counts
        }

    @property
    def not_run(self) -> int:
        """The number of selected cases without a result or a failure, on all targets together."""
        results = sum(count.total() for count in self.counts.values())
        failed = sum(each.case is not None for each in self.infrastructure)
        return max(0, self.header.selection.results - results - failed)


def read(path: Path | str, store: Store | None = None, *, bounded: bool = True) -> Run:
    """Read a results file; one whose name ends in ``.xz`` is decompressed.

    A file that ends too early is read as far as possible, and its ``problems`` say so. For any
    other error, `ResultsError` is raised with ``file:line``; so it is for a packed file that is too
    large, if it is ``bounded``, and for one that is neither a regular file nor a pipe of this
    process (``/dev/stdin``). Cases and results are added to ``store``.
    """
    return doubted(take(Path(path), store or Store(), bounded=bounded))


def take(path: Path, store: Store, *, bounded: bool = False) -> Run:
    """Read a results file and add its content to ``store``.

    What a packed file has is limited only if ``bounded``; the cases are then kept in memory. The
    ``problems`` say only whether it ends too early. Raises `ResultsError` as `read` does.
    """
    problems: list[str] = []
    records = stream(path, problems, bounded=bounded)
    header = cast(Header, next(records)[1])
    in_memory: dict[str, AnyCaseRecord] = {}
    run = Run(path, header, store, DescribedCases(in_memory) if bounded else store.cases)
    known, judged = set[str](), dict[str, None]()
    targets = {target.name for target in header.targets}
    for line, record in records:
        run.goes_on = run.footer is not None
        match record:
            case ShippedCaseRecord() if not is_in_corpus(record):
                run.changed[record.id] = record.digest
            case CaseRecord() | ShippedCaseRecord():
                known.add(record.id)
                if bounded:
                    in_memory.setdefault(record.id, record)
                first = store.add_case(record.id, line)
                if first is not None and not is_same_case(first, described(record)):
                    run.redescribed.append(record.id)
            case ResultRecord():
                judged[record.case] = None
                targets.add(record.target)
                store.add_result(record, line, str(path))
            case InfrastructureRecord():
                run.infrastructure.append(record)
            case InstabilityRecord():
                run.instability.append(record)
            case Footer():
                run.footer = record
    if len(targets) > MOST_TARGETS:
        raise ResultsError(f"{path}: no results file: it has more than {MOST_TARGETS:,} targets.")
    known.update(run.changed)
    run.undescribed = [id for id in judged if id not in known and id not in store.cases]
    run.problems = tuple(problems)
    return run


def stream(
    path: Path, problems: list[str], *, bounded: bool = False
) -> Iterator[tuple[bytes, Record]]:
    """The lines of a results file and their records, one by one; the first record is a header.

    If the file ends too early, a sentence is added to ``problems``. The numbers of lines and bytes
    of a packed file are limited if ``bounded``. Raises `ResultsError` as `read` does.
    """
    begun = False
    broken: ResultsError | None = None
    try:
        with unpacking(path) as file:
            for number, line in enumerate(_lines(path, file, bounded and path.suffix == ".xz"), 1):
                if broken is not None:
                    raise broken
                if line.isspace():
                    continue
                try:
                    record = RECORD_LINE.validate_json(line)
                except ValidationError as error:
                    broken = ResultsError(f"{path}:{number}: {_first_error(error, line)}.")
                    if number == 1 or not _is_no_json(error):
                        raise broken from None
                    continue
                if not begun and not isinstance(record, Header):
                    break
                if begun and isinstance(record, Header):
                    sentence = f"{path}:{number}: a second header; give each file by itself."
                    raise ResultsError(sentence)
                begun = True
                yield line, record
    except EOFError:
        problems.append("Its compressed data is broken off.")
    except (OSError, lzma.LZMAError, ValueError) as error:
        raise ResultsError(f"Cannot read results from {path}: {cause_of(error)}.") from None
    if not begun:
        raise ResultsError(f"{path}: not a results file: it does not begin with a header.")
    if broken is not None:
        problems.append("Its last line is broken off.")


def _lines(path: Path, file: IO[bytes], bounded: bool) -> Iterator[bytes]:
    """The lines of ``file``. Raises `ResultsError` for a line that is too long and, if ``bounded``,
    for too many lines or bytes."""
    number = size = 0
    while line := file.readline(MOST_BYTES_A_LINE + 1):
        number += 1
        size += len(line)
        if len(line) > MOST_BYTES_A_LINE:
            raise ResultsError(f"{path}:{number}: longer than {MOST_BYTES_A_LINE:,} bytes.")
        if bounded and (number > MOST_LINES or size > MOST_BYTES):
            most = f"{MOST_LINES:,} lines or {MOST_BYTES:,} bytes"
            raise ResultsError(f"{path}: it has more than {most} unpacked; unpack it first.")
        yield line


#: For a line with more errors, the errors are not listed: each takes a kilobyte.
_MOST_ERRORS: Final = 1000


def _is_no_json(error: ValidationError) -> bool:
    return error.error_count() == 1 and error.errors()[0]["type"] == "json_invalid"


def _first_error(error: ValidationError, line: bytes) -> str:
    """The first error of a line, as half a sentence."""
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


def doubted(run: Run) -> Run:
    """The run with all its ``problems``: where it contradicts itself, and how much is missing."""
    problems = [*run.problems, *contradictions(run), *_missing(run)]
    return replace(run, problems=tuple(dict.fromkeys(problems)))


def _missing(run: Run) -> Iterator[str]:
    """How much of the selection is missing in the file, a sentence each."""
    footer, selection, stopped = run.footer, run.header.selection, False
    if footer is None:
        yield "It has no footer: the run was cut short."
    elif stopped := not footer.complete:
        how = f"Stopped: {not_run(run.not_run)}" if run.not_run else "The run was stopped"
        yield f"{how}."
    results = sum(count.total() for count in run.counts.values())
    missing = selection.results - results
    if missing > 0 and not stopped:
        yield f"{missing} of {selection.results} results are missing."
    elif missing < 0:
        yield f"There are {results} results where {selection.results} were expected."
    if (cases := len({*run.cases, *run.changed})) != selection.cases:
        yield f"{cases} cases are described where {selection.cases} were selected."


def contradictions(run: Run) -> Iterator[str]:
    """Where parts of the file contradict each other, a sentence each."""
    if run.goes_on:
        yield "There is more after its footer."
    for id in run.redescribed:
        yield f"Case {id} is described twice, differently."
    counts, footer = run.counts, run.footer
    if footer is not None:
        for name in dict.fromkeys([*counts, *footer.counts]):
            actual, claimed = counts.get(name, Counter()), footer.counts.get(name, {})
            for verdict in VERDICTS:
                if actual[verdict] != claimed.get(verdict, 0):
                    yield (
                        f"The footer counts {claimed.get(verdict, 0)} {verdict} on {name}; "
                        f"there are {actual[verdict]}."
                    )
        for what, number, claim in (
            ("unexpected results", run.store.unexpected(str(run.path)), footer.unexpected),
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
    if run.changed:
        yield (
            f"{len(run.changed)} of its cases are not in this suite's corpus as they were run "
            f"({abbreviated([*run.changed])}), so their calls and contracts cannot be shown; "
            "gqa merge, in the suite that ran them, writes a file that describes them."
        )
    if run.undescribed:
        names = abbreviated(sorted(run.undescribed))
        yield f"Results for cases that are not described: {names}."
    if pairs := [f"{case} on {target}" for case, target in run.store.repeated()]:
        yield f"More than one result for {abbreviated(pairs)}."


def abbreviated(names: Sequence[str], most: int = 3) -> str:
    """The first ``most`` names, and the number of the others."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")
