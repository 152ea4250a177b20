"""The results file: one JSON object a line, written as a run goes, read back, joined.

A file is a header, then a case and its results, infrastructure problems among them, and a footer.
Each line is strict JSON and is written whole, so that a run that is killed loses nothing it has
judged; a file without its footer says by that alone that it is not all there. Its JSON Schema is
``reports/results.schema.json``, made by ``python -m conformance.results.records``.
"""

from __future__ import annotations

import json
import lzma
import math
import os
import stat
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import (
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    PlainSerializer,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    model_serializer,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from conformance.base.paths import file_to_write
from conformance.case.call import State
from conformance.case.case import Contract

FORMAT: Literal["gqa-results/1"] = "gqa-results/1"

Verdict = Literal[
    "crash", "timeout", "wrong", "accepted", "fallback", "unsupported", "pass", "skip"
]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
"""Worst first."""
_BADNESS = {verdict: rank for rank, verdict in enumerate(VERDICTS)}

Outcome = Literal["ran", "rejected", "crashed", "timed_out", "unavailable"]
Stage = Literal["load", "run"]


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The worst of ``verdicts``; ``ValueError`` if there are none."""
    return min(verdicts, key=_BADNESS.__getitem__)


class ResultsError(Exception):
    """A results file that cannot be written or read: one sentence for the person who ran it."""


# JSON has no NaN and no infinities, so these three words stand for them. NaN is always the one
# object math.nan, which lets records that hold it compare equal.
_WORDS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def _from_json(value: object, info: ValidationInfo) -> object:
    if isinstance(value, str):
        if value not in _WORDS:
            raise ValueError("must be a number, 'nan', 'inf' or '-inf'")
        return _WORDS[value]
    if isinstance(value, float) and not math.isfinite(value):
        if info.mode == "json":
            raise ValueError("NaN and Infinity are no JSON: write 'nan', 'inf' or '-inf'")
        return math.nan if math.isnan(value) else value
    return value


def _to_json(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


Number = Annotated[
    float,
    BeforeValidator(_from_json),
    PlainSerializer(_to_json, when_used="json"),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"enum": list(_WORDS)}]}),
]


def _writable(value: object) -> object:
    """Spell out lone surrogates (bytes that were no UTF-8), which no file can hold."""
    if isinstance(value, str) and not value.isascii():
        return value.encode("utf-8", "backslashreplace").decode()
    return value


Text = Annotated[str, BeforeValidator(_writable)]
"""Text from anywhere: data, of any length, with any characters in it."""


class _Part(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        json_schema_serialization_defaults_required=True,
    )


class Selection(_Part):
    """What the run set out to do."""

    text: Text
    """What was selected, in the words of the command (`cases/shared_kv.yaml -k float16`)."""
    cases: int
    """Number of cases selected."""
    results: int
    """Number of results expected: cases times targets."""


class Description(_Part):
    """What a target's runner said about itself."""

    runtime: Text
    version: Text
    execution_provider: Text | None = None
    """Null: the runtime has no such notion."""
    device: Text | None = None
    adapter: Text | None = None
    """The word for it, where results may differ by it: `lavapipe`."""
    dtypes: tuple[Text, ...] = ()
    features: tuple[Text, ...] = ()
    versions: dict[Text, Text] = {}
    """Version of everything else that matters, by name."""


class Target(_Part):
    """A column of the matrix."""

    name: Text
    """As typed and pinned: `cpu@1.31.1`, or with the adapter: `webgpu@1.30.0+lavapipe`."""
    ep: Text
    """As asked for: `cpu`."""
    describe: Description | None = None
    unavailable: Text | None = None
    """One sentence, if the target could not be tried here."""
    fix: Text | None = None
    """The command that mends that."""


class Header(_Part):
    """First line: what is run, where and when."""

    kind: Literal["header"] = "header"
    format: Literal["gqa-results/1"] = FORMAT
    suite: Text
    """Version of the suite."""
    corpus: Text
    """Digest of the case files."""
    selection: Selection
    targets: tuple[Target, ...]
    machine: dict[Text, Text]
    """Of the machine, by name: system, processor, memory …"""
    start: AwareDatetime


class _Sparse(_Part):
    """A part of which a file has only what is not as usual: there are thousands of them."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=False)
    #: Fields that are always written.
    whole: ClassVar[tuple[str, ...]] = ()
    _usual: ClassVar[Mapping[str, object]] = {}

    @model_serializer(mode="wrap")
    def _without_the_usual(self, handler: SerializerFunctionWrapHandler) -> Any:
        written = handler(self)
        for name, default in type(self)._usual.items():
            value = getattr(self, name)
            # -0.0 and 0 equal 0.0, and are not the same
            if type(value) is type(default) and value == default and str(value) == str(default):
                written.pop(name, None)
        return written

    @classmethod
    def __pydantic_init_subclass__(cls, **_: object) -> None:
        cls._usual = {
            name: field.default
            for name, field in cls.model_fields.items()
            if name not in cls.whole and not field.is_required()
        }

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        # of the fields, whatever the serializer leaves out of them
        return handler({key: part for key, part in schema.items() if key != "serialization"})


class Recipe(_Sparse):
    """How an input's numbers are made, exactly, with NumPy alone.

    They are computed in float64 (those of an integer type in int64), in the input's shape, and then
    rounded to its type. A number of RandomState is
    ``numpy.random.RandomState(zlib.crc32(stream.encode())).random_sample(shape)``; a
    Python program that makes them all is what ``gqa export`` writes.
    """

    kind: Literal[
        "uniform", "marked", "constant", "numbers", "positions", "cosines", "sines", "packed"
    ] = "uniform"
    """`uniform`: low + r * (high - low) for each number r of RandomState; of an integer type
    floor(low + r * (high - low + 1)). `marked`: those, and then in the head of each token the
    element (stride * place) % head_size becomes 0.5 + abs(it) / 2, and the others are divided by
    `divisor`. There place is its position (`starts` tells the first of each sequence, 0 if it is
    empty) plus 5 times its sequence plus 3 times its head, and stride the first number from
    1 + 3 * head_size // 8 on that has no divisor in common with head_size. `constant`: `value`.
    `numbers`: they are written out. `positions`: `count` from each of `starts`, repeated until the
    shape is full. `cosines` and `sines`: of row * 10000 ** (-column / columns). `packed`: `parts`
    side by side in the last dim."""
    stream: Text = ""
    """Names the stream of `uniform` and `marked`: seed, call of the loop and input."""
    low: Number = -1.0
    high: Number = 1.0
    step: Number = 0.0
    """The numbers are rounded to multiples of this, unless it is 0."""
    odd_heads: Number = 1.0
    """Factor of every other head, beginning with the second."""
    head_size: int = 0
    """Where heads matter: elements of one."""
    starts: tuple[int, ...] = ()
    count: int = 0
    divisor: Number = 1.0
    value: int | Number = 0
    numbers: tuple[int | Number, ...] = ()
    """In C order."""
    width: int = 0
    """Of a part of `packed`: its last dim."""
    parts: tuple[Recipe, ...] = ()
    but: tuple[tuple[tuple[int, ...], int | Number], ...] = ()
    """At last, leading indices and the number that all elements below have instead."""


class CallInput(_Sparse):
    """One of the operator's inputs, as the (first) call gives it."""

    whole = ("shape", "dtype", "values")

    name: Text
    state: State
    shape: tuple[int | Text, ...] | None = None
    dtype: Text | None = None
    values: Text | None = None
    """How its numbers are made, in words."""
    dims: tuple[Text | None, ...] = ()
    """The names that the graph gives to its dims; null is one that is fixed, none: all are."""
    recipe: Recipe | None = None
    """How its numbers are made; null in files of before there were recipes."""


class LaterInput(_Sparse):
    """An input as a later call of a loop gives it, where that is not as the first call does."""

    name: Text
    shape: tuple[int | Text, ...] | None = None
    """Null: as in the first."""
    recipe: Recipe


class CallOutput(_Part):
    """One of the operator's outputs."""

    name: Text
    state: State
    shape: tuple[int | Text, ...] | None = None
    """Null: the contract fixes none."""
    dtype: Text | None = None


class CallRecord(_Sparse):
    """The call, drawn out."""

    whole = ("attributes", "steps")

    inputs: tuple[CallInput, ...]
    outputs: tuple[CallOutput, ...]
    attributes: dict[Text, int | Number | Text] = {}
    """Those that are set."""
    steps: int = 1
    """Number of calls; more than one is a loop, each call's past the present before it."""
    later: tuple[tuple[LaterInput, ...], ...] = ()
    """For each call after the first, the inputs that are not as in the first."""
    shared_buffer: bool = False
    """Whether present_key and present_value lie in the memory of past_key and past_value."""


class CaseRecord(_Part):
    """A case, written once before its results."""

    kind: Literal["case"] = "case"
    id: Text
    file: Text
    theme: Text
    """Stem of the file."""
    question: Text
    """The one that the theme answers."""
    name: Text
    title: Text = ""
    """What a caller wants to do, in words: `Borrow a cache: key and value of length 0`."""
    axes: dict[Text, Text] = {}
    """Label of each axis."""
    why: Text = ""
    tags: tuple[Text, ...] = ()
    links: tuple[Text, ...] = ()
    contract: Contract
    relation: Text | None = None
    """The call's other form, which must agree with it, and why."""
    call: CallRecord

    @property
    def entry(self) -> str:
        """The entry of a case file that the case comes of, as it is typed: ``theme/name``."""
        return f"{self.theme}/{self.name}"


class ErrorMap(_Part):
    """Where in an output the error sits: heads down, positions across.

    A character tells the largest share of the budget in a head at a position: `0` within the
    budget, `1` up to 10 times it, `2` up to 100 times … `9` beyond that or not finite, `.` where
    the operator defines nothing. Long sides are told in blocks, each by its worst.
    """

    rows: tuple[Text, ...]
    """Equally long; batch by batch, in each head by head."""
    heads: int
    """Batch size times heads; that many rows, or fewer where rows are blocks."""
    positions: int
    """Likewise, for the characters of a row."""


class Error(_Part):
    """The worst element of one output in one step."""

    output: Text
    step: int = 0
    index: tuple[int, ...] | None = None
    """Where it is; null if nothing could be compared (another shape or dtype)."""
    got: Number | None = None
    want: Number | None = None
    absolute: Number | None = None
    relative: Number | None = None
    budget: Number | None = None
    """Largest absolute error allowed there."""
    share: Number | None = None
    """Error as a share of that budget: above 1 is wrong."""
    needed: Number | None = None
    """The smallest tolerance constant that would have passed."""
    compared: int | None = None
    """Number of elements compared."""
    undefined: int | None = None
    """Number of elements never looked at, because the operator does not define them."""
    where: ErrorMap | None = None
    """Of an output beyond its budget that has heads and positions."""


class Milliseconds(_Part):
    """Times, in ms."""

    load: Number | None = None
    """Creating the session."""
    run: Number | None = None
    """The fastest repeat."""
    total: Number | None = None
    """From request to answer."""


class ExpectationRecord(_Part):
    """The line of an expectation file that matched."""

    file: Text
    line: int
    verdict: Verdict
    link: Text
    why: Text


class RelationRecord(_Part):
    """How far a call and its other form are from each other."""

    name: Text
    what: Text
    """The other form, in words that follow "the same call"."""
    share: Number
    """The largest difference as a share of what is allowed; above 1 they disagree."""
    identical: bool
    """Whether all that was compared is the same to the bit."""
    sentence: Text
    """Where they differ most."""


class ResultRecord(_Part):
    """One case on one target, judged."""

    kind: Literal["result"] = "result"
    case: Text
    target: Text
    verdict: Verdict
    unexpected: bool
    vague: bool = False
    """A rejection that names none of the contract's words."""
    outcome: Outcome
    stage: Stage | None = None
    code: Text | None = None
    message: Text | None = None
    """The runtime's own, in full."""
    reason: Text
    """Why this verdict: one sentence."""
    errors: tuple[Error, ...] = ()
    share: Number | None = None
    """The worst of `errors`."""
    relation: RelationRecord | None = None
    """Present where the case names a relation and both forms ran and were right."""
    placement: Text | None = None
    """Where the node really ran."""
    ms: Milliseconds | None = None
    stderr: Text = ""
    """Its end, as written during this case."""
    bits: Text | None = None
    """Digest of all that is defined in the outputs: two targets with the same return the same."""
    values_right: bool | None = None
    """Of `accepted`: whether the values were right all the same."""
    expectation: ExpectationRecord | None = None
    reproduce: Text
    """The command that repeats this case alone."""

    @property
    def known(self) -> ExpectationRecord | None:
        """The expectation that tells of it; None for what is unexpected all the same."""
        return None if self.unexpected else self.expectation


class Infrastructure(_Part):
    """A problem that is none of the runtime's doing; it never counts as a pass or a fail."""

    kind: Literal["infrastructure"] = "infrastructure"
    target: Text
    case: Text | None = None
    message: Text
    fix: Text | None = None


Counts = dict[Text, dict[Verdict, int]]


class Footer(_Part):
    """Last line: what there should be above it."""

    kind: Literal["footer"] = "footer"
    complete: bool
    """False: the run was stopped before its end."""
    counts: Counts
    """Results by target and verdict; zeros are left out."""
    infrastructure: int
    unexpected: int
    end: AwareDatetime
    seconds: float


Record = Header | CaseRecord | ResultRecord | Infrastructure | Footer
_LINE: TypeAdapter[Record] = TypeAdapter(Annotated[Record, Field(discriminator="kind")])


def results_schema() -> dict[str, Any]:
    """JSON Schema of one line of a results file."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "One line of a gqa-conformance results file",
        **_LINE.json_schema(mode="serialization"),
    }


class Writer:
    """Writes a results file line by line, and is a context manager that never leaves it unmarked.

    The first failure raises `ResultsError`, whether it is the folder, the rights or the disk; what
    is written afterwards goes nowhere and raises nothing, so that the run can go on telling the
    terminal. `failure` keeps that first error.
    """

    def __init__(self, path: Path | str, header: Header) -> None:
        self.path = Path(path)
        self.failure: ResultsError | None = None
        self._counts = {target.name: Counter[Verdict]() for target in header.targets}
        self._infrastructure = self._unexpected = self._size = 0
        self._finished = False
        self._since = time.monotonic()
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._file = -1
        try:
            self._file = os.open(self.path, flags, 0o666)
        except (OSError, ValueError) as error:
            raise self._failed(error) from None
        self._write(header)

    def case(self, record: CaseRecord) -> None:
        """Write a case; once, before its results."""
        self._write(record)

    def result(self, record: ResultRecord) -> None:
        """Write a result and count it."""
        self._write(record)
        self._counts.setdefault(record.target, Counter())[record.verdict] += 1
        self._unexpected += record.unexpected

    def infrastructure(self, record: Infrastructure) -> None:
        """Write an infrastructure problem and count it."""
        self._write(record)
        self._infrastructure += 1

    def finish(self, complete: bool) -> None:
        """Write the footer. ``complete``: the run came to its end."""
        if self._finished:
            return
        self._finished = True
        counts: Counts = {
            name: {verdict: count[verdict] for verdict in VERDICTS if count[verdict]}
            for name, count in self._counts.items()
        }
        self._write(
            Footer(
                complete=complete,
                counts=counts,
                infrastructure=self._infrastructure,
                unexpected=self._unexpected,
                end=datetime.now(UTC),
                seconds=round(time.monotonic() - self._since, 3),
            )
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Whoever leaves without `finish` was interrupted, and the file must say so.
        try:
            self.finish(complete=False)
        except ResultsError:
            if error is None:
                raise
        finally:
            self._close()

    def _write(self, record: Record) -> None:
        line = record.model_dump_json().encode() + b"\n"
        if self.failure is not None:
            return
        try:
            rest = memoryview(line)
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError as error:
            failure = self._failed(error)
            self._cut()
            self._close()
            raise failure from None
        self._size += len(line)

    def _cut(self) -> None:
        """Take back the piece of a line that still went in."""
        try:
            if stat.S_ISREG(os.fstat(self._file).st_mode):
                os.ftruncate(self._file, self._size)
        except OSError:
            pass  # reading copes with a broken last line

    def _close(self) -> None:
        file, self._file = self._file, -1
        if file < 0:
            return
        try:
            os.close(file)
        except OSError as error:
            if self.failure is None:
                raise self._failed(error) from None

    def _failed(self, error: OSError | ValueError) -> ResultsError:
        self.failure = ResultsError(f"Cannot write results to {self.path}: {cause_of(error)}.")
        return self.failure


def cause_of(error: Exception) -> str:
    """What the system says of it, in a few words; else what the error says itself."""
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


@dataclass(frozen=True)
class Run:
    """A results file, read. ``problems``: why it is not all there or not to be relied on."""

    path: Path
    header: Header
    cases: Mapping[str, CaseRecord]
    results: tuple[ResultRecord, ...]
    infrastructure: tuple[Infrastructure, ...]
    footer: Footer | None
    problems: tuple[str, ...]

    def counts(self) -> dict[str, Counter[Verdict]]:
        """Results by target and verdict, counted anew; each target of the header is there."""
        counts = {target.name: Counter[Verdict]() for target in self.header.targets}
        for result in self.results:
            counts.setdefault(result.target, Counter())[result.verdict] += 1
        return counts


def read(path: Path | str) -> Run:
    """Read a results file, whole or cut short; one whose name ends in ``.xz`` is unpacked.

    A file that ends too early is read as far as it goes, and its ``problems`` say so. Anything
    else that is no results file raises `ResultsError` with ``file:line``.
    """
    path = Path(path)
    problems: list[str] = []
    try:
        with lzma.open(path) if path.suffix == ".xz" else path.open("rb") as file:
            records = list(_records(path, file, problems))
    except (OSError, EOFError, lzma.LZMAError, ValueError) as error:
        raise ResultsError(f"Cannot read results from {path}: {cause_of(error)}.") from None

    header = records[0] if records else None
    if not isinstance(header, Header):
        raise ResultsError(f"{path}: not a results file: it does not begin with a header.")
    cases: dict[str, CaseRecord] = {}
    results: list[ResultRecord] = []
    infrastructure: list[Infrastructure] = []
    footer: Footer | None = None
    for record in records[1:]:
        if footer is not None:
            problems.append("There is more after its footer.")
        match record:
            case CaseRecord():
                if cases.setdefault(record.id, record) != record:
                    problems.append(f"Case {record.id} is described twice, differently.")
            case ResultRecord():
                results.append(record)
            case Infrastructure():
                infrastructure.append(record)
            case Footer():
                footer = record
    run = Run(path, header, cases, tuple(results), tuple(infrastructure), footer, ())
    problems = list(dict.fromkeys([*problems, *_doubts(run)]))
    return Run(path, header, cases, run.results, run.infrastructure, footer, tuple(problems))


def _records(path: Path, file: Iterable[bytes], problems: list[str]) -> Iterator[Record]:
    """Each line's record; a last line that is no JSON is one more problem, not an error."""
    broken: ResultsError | None = None
    for number, line in enumerate(file, 1):
        if broken is not None:
            raise broken
        if line.isspace():
            continue
        try:
            record = _LINE.validate_json(line)
            if number > 1 and isinstance(record, Header):
                raise ResultsError(f"{path}:{number}: a second header; give each file by itself.")
            yield record
        except ValidationError as error:
            failure = ResultsError(f"{path}:{number}: {_what(error, line)}.")
            if number == 1 or error.errors(include_url=False)[0]["type"] != "json_invalid":
                raise failure from None
            broken = failure
    if broken is not None:
        problems.append("Its last line is broken off.")


def _what(error: ValidationError, line: bytes) -> str:
    """What is wrong with a line, in half a sentence."""
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"][1:])
    if where == "format":
        return f"written in another format ({str(first['input'])[:40]!r}); this one is {FORMAT}"
    if first["type"] == "json_invalid":
        return f"not a line of JSON ({first['msg'].removeprefix('Invalid JSON: ')})"
    if first["type"] in ("union_tag_invalid", "union_tag_not_found") or not first["loc"]:
        return "not a record of a results file"
    what = first["msg"].removeprefix("Value error, ")
    return f"{where}: {what}" if where else what


def _doubts(run: Run) -> Iterator[str]:
    """Why a run cannot be relied on."""
    footer, selection = run.footer, run.header.selection
    if footer is None:
        yield "It has no footer: the run was cut short."
    elif not footer.complete:
        yield "The run was stopped before its end."

    missing = selection.results - len(run.results)
    if missing > 0:
        yield f"{missing} of {selection.results} results are missing."
    elif missing < 0:
        yield f"There are {len(run.results)} results where {selection.results} were expected."
    if len(run.cases) != selection.cases:
        yield f"{len(run.cases)} cases are described where {selection.cases} were selected."

    counts = run.counts()
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
            ("unexpected results", sum(r.unexpected for r in run.results), footer.unexpected),
            ("infrastructure problems", len(run.infrastructure), footer.infrastructure),
        ):
            if number != claim:
                yield f"The footer counts {claim} {what}; there are {number}."

    known = {target.name for target in run.header.targets}
    if len(known) < len(run.header.targets):
        yield "Two of its targets have one name."
    for name in counts:
        if name not in known:
            yield f"Results for {name}, which is no target of the run."
    unknown = sorted({r.case for r in run.results} - run.cases.keys())
    if unknown:
        yield f"Results for cases that are not described: {_some(unknown)}."
    pairs = Counter((r.case, r.target) for r in run.results)
    twice = [f"{case} on {target}" for (case, target), n in pairs.items() if n > 1]
    if twice:
        yield f"More than one result for {_some(twice)}."


def _some(names: Sequence[str], most: int = 3) -> str:
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


@dataclass(frozen=True)
class Column:
    """A target of one of several runs; ``label`` is unique among them."""

    label: str
    target: Target
    run: Run


@dataclass(frozen=True)
class Joined:
    """Several runs side by side.

    ``results`` is keyed by (case id, column label) and holds the worst where a file has several;
    ``problems`` and ``infrastructure`` come with the file or column they belong to.
    """

    runs: tuple[Run, ...]
    columns: tuple[Column, ...]
    cases: Mapping[str, CaseRecord]
    results: Mapping[tuple[str, str], ResultRecord]
    infrastructure: tuple[tuple[str, Infrastructure], ...]
    problems: tuple[str, ...]


def join(runs: Sequence[Run]) -> Joined:
    """Put several runs side by side: all their cases, and a column for each target of each run.

    A target that several files have in common is told apart by its file.
    """
    if not runs:
        raise ResultsError("No results files were given.")
    targets = [
        {target.name: target for target in run.header.targets}
        | {
            name: Target(name=name, ep=name)
            for name in run.counts()
            if name not in {target.name for target in run.header.targets}
        }
        for run in runs
    ]
    shared = {name for name, n in Counter(name for t in targets for name in t).items() if n > 1}
    columns: list[Column] = []
    cases: dict[str, CaseRecord] = {}
    results: dict[tuple[str, str], ResultRecord] = {}
    infrastructure: list[tuple[str, Infrastructure]] = []
    problems: list[str] = []
    for run, called, mine in zip(runs, _file_names(runs), targets, strict=True):
        labels: dict[str, str] = {}
        for name in mine:
            label = f"{name} ({called})" if name in shared else name
            labels[name] = _unlike(label, {*labels.values(), *(column.label for column in columns)})
        columns += [Column(labels[name], target, run) for name, target in mine.items()]
        prefix = f"{called}: " if len(runs) > 1 else ""
        problems += [prefix + problem for problem in run.problems]
        others = [
            case.id
            for case in run.cases.values()
            if outline(cases.setdefault(case.id, case)) != outline(case)
        ]
        if others:
            problems.append(
                f"{called}: cases that are others than in files before, and shown as there: "
                f"{_some(others)}."
            )
        for result in run.results:
            key = result.case, labels[result.target]
            other = results.get(key)
            if other is None or worst((result.verdict, other.verdict)) != other.verdict:
                results[key] = result
        infrastructure += [(labels.get(i.target, i.target), i) for i in run.infrastructure]
    return Joined(
        tuple(runs), tuple(columns), cases, results, tuple(infrastructure), tuple(problems)
    )


def _unlike(label: str, taken: Collection[str]) -> str:
    """``label``, with a number where it is taken."""
    number = 1
    while (other := f"{label} #{number}" if number > 1 else label) in taken:
        number += 1
    return other


def outline(case: CaseRecord) -> object:
    """What every results file tells of a case's call and contract, however old it is."""
    call = case.call
    inputs = [(t.name, t.state, t.shape, t.dtype, t.values) for t in call.inputs]
    outputs = [(t.name, t.state, t.dtype) for t in call.outputs]
    return inputs, outputs, repr(call.attributes), call.steps, case.contract


def _file_names(runs: Sequence[Run]) -> list[str]:
    """What to call each run's file: its name, with as many folders as tell it apart."""
    paths = [run.path.absolute() for run in runs]
    for parts in range(1, max(len(path.parts) for path in paths) + 1):
        names = ["/".join(path.parts[-parts:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [f"{run.path.name} #{n}" for n, run in enumerate(runs, 1)]


def _write_schema() -> None:
    text = json.dumps(results_schema(), indent=2) + "\n"
    file_to_write("reports/results.schema.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    _write_schema()
