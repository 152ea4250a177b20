"""The records of a results file, one JSON object per line.

A file has a header, then each case followed by its results, with infrastructure failures and
instability in between, and a footer. Each line is strict JSON and is written at once, so a run that
is killed loses no result. A file without a footer is incomplete. The JSON Schema is
``reports/results.schema.json``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple, Self, TypeVar

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainSerializer,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    ValidationInfo,
    WithJsonSchema,
    model_serializer,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from conformance.base.json_schemas import WithDescriptions
from conformance.base.target_names import split_version
from conformance.base.text import unbroken
from conformance.case.contract import Contract
from conformance.operator.call import State
from conformance.results.verdicts import Verdict
from conformance.results.wrong_outputs import WrongOutput, wrong_outputs

FORMAT: Literal["gqa-results/1"] = "gqa-results/1"

OutcomeName = Literal["ran", "rejected", "crashed", "timed_out", "unavailable"]
StageName = Literal["load", "run"]


# JSON has no NaN and no infinities, so these three words stand for them. NaN is always the same
# object, math.nan, so that records that contain it compare equal.
_WORDS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def _from_json(value: object, info: ValidationInfo) -> object:
    if isinstance(value, str):
        if value not in _WORDS:
            raise ValueError("must be a number, 'nan', 'inf' or '-inf'")
        return _WORDS[value]
    if isinstance(value, float) and not math.isfinite(value):
        if info.mode == "json":
            raise ValueError("NaN and Infinity are not JSON: write 'nan', 'inf' or '-inf'")
        return math.nan if math.isnan(value) else value
    return value


def _to_json(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


RecordedNumber = Annotated[
    float,
    BeforeValidator(_from_json),
    PlainSerializer(_to_json, when_used="json"),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"enum": list(_WORDS)}]}),
]


def _rounded(value: float) -> float:
    short = float(f"{value:.6g}")
    # A share that is beyond the budget remains so.
    return short if math.isfinite(value) and (short > 1) == (value > 1) else value


#: A number of which six significant digits are enough.
Figure = Annotated[RecordedNumber, AfterValidator(_rounded)]


def _writable(value: object) -> object:
    """Escape lone surrogates (bytes that were not UTF-8), which no file can contain."""
    if isinstance(value, str) and not value.isascii():
        return value.encode("utf-8", "backslashreplace").decode()
    return value


class _Unless:
    """A type whose validators are needed only for strings without ``pattern``, which are few."""

    def __init__(self, pattern: str) -> None:
        self._usual = core_schema.str_schema(pattern=pattern)

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.union_schema(
            [self._usual, handler(source)], mode="left_to_right", custom_error_type="string_type"
        )

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {"type": "string"}


Text = Annotated[str, BeforeValidator(_writable), _Unless("")]
"""Untrusted text of any length."""


Name = Annotated[str, BeforeValidator(_writable), AfterValidator(unbroken), _Unless(r"^[^\n\r]*\z")]
"""Untrusted text that stands in a line, such as a name."""


class _OnlyTheFirst(FailFast):
    __hash__ = object.__hash__  # a part of a union must have one


_T = TypeVar("_T")
#: Any number of items. Only the first wrong item is reported, because each error takes memory.
Several = Annotated[tuple[_T, ...], _OnlyTheFirst()]

#: The longest line of a results file. Real ones have at most 30 kB.
MOST_BYTES_A_LINE: Final = 1 << 23


class _Part(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        json_schema_serialization_defaults_required=True,
    )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        # the schema of all fields, as if a serializer omitted none
        return handler({key: part for key, part in schema.items() if key != "serialization"})


class Selection(_Part):
    """The cases and targets that were selected for the run."""

    text: Name
    """The selection as in the command: `cases/shared_kv.yaml -k float16`."""
    cases: int
    """The number of cases selected."""
    results: int
    """The number of results expected: cases times targets."""
    only_failed: bool = False
    """Whether cases that had not failed before were left out (`--lf`)."""


class UncalledParts(_Part):
    """The parts of the operator in a runtime that the suite's signature lacks."""

    declared_by: Name
    """The runtime that has the schema, with its release: `onnxruntime 1.33.0`."""
    inputs: Several[Name] = ()
    outputs: Several[Name] = ()
    attributes: Several[Name] = ()
    types: dict[Name, Several[Name]] = {}
    """The types that the signature lacks, by the input, output or attribute."""


class TargetDescription(_Part):
    """The description of a target by its runner."""

    runtime: Name
    version: Name
    execution_provider: Name | None = None
    """Null: the runtime has no execution providers."""
    device: Name | None = None
    adapter: Name | None = None
    """One word for the adapter, if results may differ by it: `lavapipe`."""
    name: Name | None = None
    """The runner's own name, if it has one: `nxrt`."""
    threads: int | Literal["default"] | None = None
    """The number of threads of the runtime; `default`: it chooses itself."""
    dtypes: Several[Name] = ()
    features: Several[Name] = ()
    provider_options: dict[Name, Text] = {}
    """The options of the execution provider."""
    versions: dict[Name, Name] = {}
    """The versions of everything else that may affect a result, by name."""
    uncalled: UncalledParts | None = None
    """The parts of the operator that no case calls; null: none, or unknown."""


class TargetRecord(_Part):
    """A target of the run."""

    name: Name
    """Its name with version and adapter: `cpu@1.31.1`, `webgpu@1.30.0+lavapipe`."""
    ep: Name
    """The argument of `--ep`: `cpu`."""
    describe: TargetDescription | None = None
    unavailable: Text | None = None
    """Why the target could not be used: one sentence; null if it could."""
    fix: Text | None = None
    """A command that makes it available."""

    @property
    def base(self) -> str:
        """Its name without version and adapter: `cpu`."""
        return split_version(self.name)[0]


class ShardRecord(_Part):
    """The part of a run that a file has, if the run was divided among machines."""

    number: int
    """The number of the shard, from 1."""
    of: int
    """The number of shards."""
    cases: int
    """The number of cases of all shards."""
    results: int
    """The number of results expected of all shards."""


class Header(_Part):
    """The first line: the suite, the selection, the targets, the machine and the time."""

    kind: Literal["header"] = "header"
    format: Literal["gqa-results/1"] = FORMAT
    suite: Name
    """Version of the suite."""
    corpus: Name
    """Digest of the case files."""
    selection: Selection
    targets: Several[TargetRecord]
    machine: dict[Name, Name]
    """Facts about the machine, by name: system, processor, memory …"""
    start: AwareDatetime
    shard: ShardRecord | None = None
    """Null if the file has a whole run. `selection` counts only the cases of the shard."""
    left_out: Several[Name] = ()
    """The details that a compact file omits, each in a few words. Missing fields of results have
    their defaults."""


class _Sparse(_Part):
    """A part that is written without fields that have their defaults, to keep files small."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=False)
    #: Fields that are always written.
    whole: ClassVar[tuple[str, ...]] = ()
    _usual: ClassVar[Mapping[str, object]] = {}

    @model_serializer(mode="wrap")
    def _without_the_usual(self, handler: SerializerFunctionWrapHandler) -> Any:
        written = handler(self)
        values = self.__dict__
        for name, default in type(self)._usual.items():
            value = values[name]
            # `is` is fast, and most values are the default; -0.0 == 0.0, but it is written
            if value is default or (
                type(value) is type(default) and value == default and str(value) == str(default)
            ):
                written.pop(name, None)
        return written

    @classmethod
    def __pydantic_init_subclass__(cls, **_: object) -> None:
        cls._usual = {
            name: field.default
            for name, field in cls.model_fields.items()
            if name not in cls.whole and not field.is_required()
        }


class Recipe(_Sparse):
    """How to make an input's values exactly, with NumPy alone.

    They are computed in float64 (those of an integer type in int64), in the input's shape, and then
    rounded to its type. A number of RandomState is
    ``numpy.random.RandomState(zlib.crc32(stream.encode())).random_sample(shape)``; ``gqa export``
    writes a Python program that makes all inputs.
    """

    kind: Literal[
        "uniform", "marked", "constant", "numbers", "positions", "cosines", "sines", "packed"
    ] = "uniform"
    """`uniform`: low + r * (high - low) for each number r of RandomState; of an integer type
    floor(low + r * (high - low + 1)). `marked`: the same, and then in each head of each token the
    element (stride * place) % head_size becomes 0.5 + abs(element) / 2, and the others are divided
    by `divisor`. Here place is the token's position (`starts` has the first of each sequence, 0 if
    it is empty) plus 5 times its sequence plus 3 times its head, and stride is the first number
    from 1 + 3 * head_size // 8 on that is coprime to head_size. `constant`: `value`.
    `numbers`: they are listed. `positions`: `count` from each of `starts`, repeated until the
    shape is full. `cosines` and `sines`: of 0.75 * row * 500 ** (-column / columns). `packed`:
    `parts` side by side in the last dim."""
    stream: Name = ""
    """The random stream of `uniform` and `marked`: seed, call of the loop, and input."""
    low: RecordedNumber = -1.0
    high: RecordedNumber = 1.0
    step: RecordedNumber = 0.0
    """Unless it is 0, numbers are rounded to multiples of it."""
    odd_heads: RecordedNumber = 1.0
    """Factor of every other head, starting with the second."""
    head_size: int = 0
    """The size of a head, if the recipe needs it."""
    starts: Several[int] = ()
    count: int = 0
    divisor: RecordedNumber = 1.0
    value: int | RecordedNumber = 0
    numbers: Several[int | RecordedNumber] = ()
    """The values, in C order."""
    width: int = 0
    """The size of the last dim of a part of `packed`."""
    parts: Several[Recipe] = ()
    but: tuple[
        tuple[Several[int], int | RecordedNumber] | tuple[Several[int], int | RecordedNumber, int],
        ...,
    ] = ()
    """Elements that have another value; applied last. Each item has leading indices and the value
    of all elements below them; a third entry is the number of consecutive values of the last
    index."""


#: The beginning of the description of values that are read from a file.
FROM_FILE: Final = "from the file "


class CallInput(_Sparse):
    """An input of the operator in the first call."""

    whole = ("shape", "dtype", "values")

    name: Name
    state: State
    shape: Several[int | Name] | None = None
    dtype: Name | None = None
    constant: bool = False
    """Whether it is a constant of the model instead of an input."""
    same_as: Name | None = None
    """The other input that has the same tensor: the node names the tensor twice."""
    holds: Name | None = None
    """The output that is bound to this memory, which the node does not name."""
    values: Text | None = None
    """A description of its values."""
    dims: Several[Name | None] = ()
    """The names of its dims in the graph, null for a fixed dim; empty if all are fixed."""
    recipe: Recipe | None = None
    """How its values are made; null if they are read from a file and too many to list."""


class LaterInput(_Sparse):
    """An input of a later call that differs from the first call, or a past of its own."""

    name: Name
    shape: Several[int | Name] | None = None
    """Null if it is the same as in the first call."""
    recipe: Recipe


class CallOutput(_Part):
    """An output of the operator."""

    name: Name
    state: State
    shape: Several[int | Name] | None = None
    """Null if the contract does not determine it."""
    dtype: Name | None = None


class GraphRecord(_Sparse):
    """The model of a case that is not a single node of the operator."""

    whole = ("nodes",)

    file: Name
    """The path of the ONNX file in the case."""
    digest: Name
    """The SHA-256 digest of the file."""
    nodes: dict[Name, int]
    """The number of nodes by operator."""
    weights: Several[CallInput] = ()
    """The constants whose data is not in the file."""
    content: Text = ""
    """The file, compressed by zlib and in base64; empty if it is too long."""


class CallRecord(_Sparse):
    """The call: its inputs, outputs and attributes. For a graph, they are the inputs and outputs of
    the graph and the attributes of its first GroupQueryAttention."""

    whole = ("attributes", "steps")

    inputs: Several[CallInput]
    outputs: Several[CallOutput]
    attributes: dict[Name, int | RecordedNumber | Name] = {}
    """The attributes that are set."""
    steps: int = 1
    """The number of calls. A past that `later` does not list is the present of the call before."""
    later: Several[Several[LaterInput]] = ()
    """For each later call, the inputs that differ from the first call."""
    keep: Several[int | None] = ()
    """For each later call, the rows of the present before it that are its past; null: all."""
    refused: Several[int] = ()
    """The numbers of the calls that are illegal, after which a program goes on."""
    shared_buffer: bool = False
    """Whether present_key and present_value use the memory of past_key and past_value."""
    graph: GraphRecord | None = None
    """Null if the model is a single node."""


class CaseRecord(_Part):
    """A case, written once before its results."""

    kind: Literal["case"] = "case"
    id: Name
    file: Name
    theme: Name
    """The stem of the file's name."""
    question: Text
    """The question that the theme answers."""
    name: Name
    title: Text = ""
    """A description of the call: `Borrow a cache: key and value of length 0`."""
    axes: dict[Name, Name] = {}
    """The label of each axis."""
    why: Text = ""
    tags: Several[Name] = ()
    links: Several[Text] = ()
    contract: Contract
    relation: Text | None = None
    """The variant that must agree with the call, and the reason."""
    call: CallRecord

    @property
    def entry(self) -> str:
        """The entry of the case file, as it is typed in commands: ``theme/name``."""
        return f"{self.theme}/{self.name}"


class ShippedCaseRecord(_Part):
    """A case of the corpus, in place of its description."""

    kind: Literal["shipped_case"] = "shipped_case"
    id: Name
    digest: Name
    """A digest of the case, by which a reader knows whether its corpus has the same case."""


class HeadMap(_Part):
    """The map of one head, of the characters of :class:`ErrorMap`: a row for each token, a column
    for each element of the head. In output_qk they are queries and keys."""

    batch: int
    """The index of the sequence."""
    head: int
    rows: Several[Text]
    """Rows of equal length; long sides are divided into blocks, as in the map of all heads."""
    tokens: int
    """The number of rows, unless a row is a block of several."""
    elements: int
    """The number of columns, unless a column is a block of several."""


class ErrorMap(_Sparse):
    """A map of the errors in an output: a row for each head, a character for each position.

    A character gives the largest share of the budget in a head at a position: `0` within the
    budget, `1` up to 10 times it, `2` up to 100 times … `9` beyond that, `!` not finite, `X` the
    worst element of the output, `.` where the operator defines nothing. In output_qk, `-` is right
    and `#` is wrong at a key that the lengths and masks hide from the query. Long sides are divided
    into blocks, each shown by its worst.
    """

    whole = ("rows", "heads", "positions")

    rows: Several[Text]
    """Rows of equal length: sequence by sequence, and within a sequence head by head."""
    heads: int
    """Batch size times heads: the number of rows, unless a row is a block of several."""
    positions: int
    """The number of characters of a row, unless a character is a block of several."""
    lengths: Several[int] = ()
    """The number of tokens of each sequence after the call; empty if it is not known."""
    edges: dict[Literal["new", "window", "end"], Several[int]] = {}
    """For each sequence, the first position of the new tokens, the first query whose window is
    shorter than what precedes it, and the first position after the end of the sequence."""
    worst: HeadMap | None = None
    """The map of the head with the worst element."""


class _PartOfResult(_Part):
    """A part of a result, which is written without the fields that have their defaults."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=False)


class OutputErrorRecord(_PartOfResult):
    """The worst element of one output in one step."""

    output: Name
    step: int = 0
    index: Several[int] | None = None
    """Null if nothing could be compared (wrong shape or dtype)."""
    got: RecordedNumber | None = None
    want: RecordedNumber | None = None
    absolute: Figure | None = None
    relative: Figure | None = None
    budget: Figure | None = None
    """The largest absolute error allowed there."""
    share: Figure | None = None
    """The error as a share of the budget; above 1 it is wrong."""
    needed: Figure | None = None
    """The smallest tolerance constant that would have passed."""
    compared: int | None = None
    """The number of elements compared."""
    undefined: int | None = 0
    """The number of elements that were not compared because the operator does not define them."""
    where: ErrorMap | None = None
    """A map of the errors, if the output is beyond its budget and has heads and positions."""


class _Fault(_PartOfResult):
    """The common fields of faults."""

    model_config = ConfigDict(json_schema_extra=lambda schema: schema["required"].insert(0, "kind"))

    output: Name
    step: int | None = None
    """The index of the call in a loop; null for a single call."""

    @model_serializer(mode="wrap")
    def _with_its_kind(self, handler: SerializerFunctionWrapHandler) -> Any:
        return {"kind": self.__dict__["kind"], **handler(self)}


class RunsDiffer(_Fault):
    """Two runs on the same input differ in a defined element of an output."""

    kind: Literal["runs_differ"] = "runs_differ"


class WrongDtype(_Fault):
    """An output does not have the dtype that the operator specifies."""

    kind: Literal["dtype"] = "dtype"
    got: Name
    want: Name


class WrongShape(_Fault):
    """An output does not have the shape that the operator specifies."""

    kind: Literal["shape"] = "shape"
    got: Several[int]
    want: Several[int]


class BeyondBudget(_Fault):
    """An output is beyond its error budget; the element is the one with the largest share."""

    kind: Literal["beyond_budget"] = "beyond_budget"
    index: Several[int]
    got: RecordedNumber
    want: RecordedNumber
    budget: RecordedNumber
    """The largest absolute error allowed there; 0: the element must be exact."""
    share: Figure
    """The error as a share of the budget."""


class RelationBroken(_Fault):
    """A case and its variant are correct on their own, but differ by more than is allowed."""

    kind: Literal["relation"] = "relation"
    name: Name
    """The name of the relation: `packed_qkv`."""
    index: Several[int]
    got: RecordedNumber
    """The element of the case."""
    other: RecordedNumber
    """The element of the variant."""
    budget: RecordedNumber
    """The largest difference allowed there; 0: they must be equal."""
    share: Figure
    """The difference as a share of the budget."""


Fault = Annotated[
    RunsDiffer | WrongDtype | WrongShape | BeyondBudget | RelationBroken,
    Field(discriminator="kind"),
]
"""One thing that is wrong with a result."""
FaultKind = Literal["runs_differ", "dtype", "shape", "beyond_budget", "relation"]


class Milliseconds(_PartOfResult):
    """Times, in ms."""

    load: Figure | None = None
    """The time to create the session."""
    run: Figure | None = None
    """The time of the fastest repeat."""
    total: Figure | None = None
    """The time from the request to the answer."""


class FlakyRecord(_Part):
    """How often a flaky case fails: one that does not fail in every run of a release."""

    verdicts: Several[Verdict]
    """All verdicts that the case is known to have."""
    failed: int
    """The number of results that were not `pass`."""
    runs: int
    """The number of all results."""


class ExpectationRecord(_PartOfResult):
    """The line of an expectations file that applies to the result."""

    file: Name
    line: int
    verdict: Verdict
    link: Text
    why: Text
    flaky: FlakyRecord | None = None
    """Set if the verdict of the case varies from run to run."""


class RelationRecord(_Part):
    """The difference between a call and its variant."""

    name: Name
    what: Text
    """A description of the variant, to follow "the same call"."""
    share: Figure
    """The largest difference as a share of the allowed one; above 1 the relation is broken."""
    identical: bool
    """Whether all compared elements are equal bit for bit."""
    sentence: Text
    """A sentence about the largest difference, for people."""


def _derived(result: dict[str, Any]) -> tuple[WrongOutput, ...]:
    """The wrong outputs of a result that does not list them."""
    return wrong_outputs(result.get("faults", ()), result.get("errors", ()))


class _OfOutcome(NamedTuple):
    """What a result with an outcome can be and have, beside what all results have."""

    verdicts: tuple[Verdict, ...]
    always: tuple[str, ...] = ()
    """The fields that it must have."""
    sometimes: Mapping[str, tuple[Verdict, ...]] = {}
    """Further fields that it can have, each with the verdicts that can have it."""


_RAN: Final[tuple[Verdict, ...]] = ("pass", "wrong", "accepted", "fallback")
_OUTCOMES: Final[Mapping[OutcomeName, _OfOutcome]] = {
    "ran": _OfOutcome(
        verdicts=_RAN,
        sometimes={
            **dict.fromkeys(("placement", "kernels", "ms"), _RAN),
            **dict.fromkeys(("errors", "share", "bits", "reading"), ("pass", "wrong", "accepted")),
            "relation": ("pass", "wrong"),
            **dict.fromkeys(("faults", "wrong_outputs"), ("wrong", "accepted")),
            "hazard": ("pass",),
            "values_right": ("accepted",),
            "other_kernel": ("fallback",),
        },
    ),
    "rejected": _OfOutcome(
        verdicts=("pass", "unsupported"),
        always=("stage", "message"),
        sometimes={
            **dict.fromkeys(("code", "vague"), ("pass", "unsupported")),
            "hazard": ("pass",),
        },
    ),
    "crashed": _OfOutcome(verdicts=("crash",), always=("message",)),
    "timed_out": _OfOutcome(verdicts=("timeout",), always=("time_limit",)),
    "unavailable": _OfOutcome(verdicts=("skip",)),
}


def can_have(outcome: OutcomeName, verdict: Verdict, name: str) -> bool:
    """Whether a result can have a field, which some results have and others have not."""
    of = _OUTCOMES[outcome]
    return name in of.always or verdict in of.sometimes.get(name, ())


#: The fields that only some outcomes or verdicts can have.
OF_SOME: Final = frozenset(
    name for of in _OUTCOMES.values() for name in (*of.always, *of.sometimes)
)


class ResultRecord(_PartOfResult):
    """The judged result of a case on a target."""

    kind: Literal["result"]
    case: Name
    target: Name
    verdict: Verdict
    unexpected: bool
    vague: bool = False
    """Whether the call was rejected with a message that has none of the contract's words."""
    hazard: Text | None = None
    """For `pass`: a sentence about a harmful value that the contract leaves undefined."""
    reading: Name | None = None
    """The reading of the documentation by which the result was judged, one of those that the
    contract names; null: the usual one."""
    outcome: OutcomeName
    stage: StageName | None = None
    code: Name | None = None
    message: Text | None = None
    """The full message of the runtime; for a crash, the sentence about it."""
    reason: Text
    """The reason for the verdict: one sentence, for people."""
    faults: Several[Fault] = ()
    """The faults of the outputs: in the order of calls and outputs, the worst error last."""
    of_variant: bool = False
    """Whether outcome, verdict and numbers are those of the variant; the case itself is correct."""
    errors: Several[OutputErrorRecord] = ()
    share: Figure | None = None
    """The largest share of `errors`."""
    wrong_outputs: Several[WrongOutput] = Field(default_factory=_derived)
    """The wrong outputs; both presents are `presents`. If missing, it is derived from faults and
    errors."""
    relation: RelationRecord | None = None
    """Set if the case names a relation, and both the case and its variant are correct."""
    placement: Name | None = None
    """The execution provider on which the node ran."""
    kernels: Several[Name] | None = None
    """The kernels that ran, each once, as the runtime reports them; null if it reports none."""
    other_kernel: bool = False
    """For `fallback`: whether it ran on the requested execution provider, but not, or not provably,
    with the kernel that the target names. Such a result says nothing about that kernel."""
    time_limit: RecordedNumber | None = None
    """For `timed_out`: the seconds after which the process was killed."""
    ms: Milliseconds | None = None
    grown_mb: RecordedNumber = 0.0
    """Megabytes (of 2^20 bytes) by which the resident memory of the runner's processes grew since
    the case before in the same process; 0 where there was none, or no `/proc`."""
    stderr: Text = ""
    """The end of the runner's standard error during this case: at most 64 KiB, as JSON, if the
    result is unexpected or red, else 2 KiB."""
    bits: Text | None = None
    """A digest of all defined elements: targets with the same digest returned the same bits."""
    values_right: bool | None = None
    """For `accepted`: whether the values are nevertheless correct; null if not compared."""
    insensitive: Text = ""
    """A warning: why the case could not show a fault in some part of its call. Only for cases
    outside the corpus; in the corpus such a case is not run."""
    contract: Contract | None = None
    """The contract on the target's execution provider, if the case has one for it."""
    expectation: ExpectationRecord | None = None
    reproduce: Text
    """The command that runs this case."""

    @model_validator(mode="after")
    def _has_what_its_verdict_can_have(self) -> Self:
        of = _OUTCOMES[self.outcome]
        if self.verdict not in of.verdicts:
            raise ValueError(f"what {self.outcome.replace('_', ' ')} cannot be '{self.verdict}'")
        for name in OF_SOME & self.model_fields_set:
            is_there = getattr(self, name) not in (None, False, ())
            if is_there and not can_have(self.outcome, self.verdict, name):
                raise ValueError(f"a result '{self.verdict}' cannot have '{name}'")
        for name in of.always:
            if getattr(self, name) is None:
                raise ValueError(f"a result '{self.verdict}' must have '{name}'")
        return self

    @property
    def known(self) -> ExpectationRecord | None:
        """The expectation that covers the result; None if there is none."""
        return None if self.unexpected else self.expectation

    @property
    def flaky(self) -> FlakyRecord | None:
        """How often the case fails, if it is flaky and the result is expected."""
        return self.known.flaky if self.known else None


def contract_of(case: CaseRecord, result: ResultRecord) -> Contract:
    """The contract of the case on the target of the result."""
    return result.contract or case.contract


class InfrastructureRecord(_Part):
    """A failure of the runner or the suite, which is not a result of the case."""

    kind: Literal["infrastructure"] = "infrastructure"
    target: Name
    case: Name | None = None
    message: Text
    fix: Text | None = None


class InstabilityRecord(_Part):
    """A result that did not repeat when the case was run alone.

    The result of the case is the one that it had alone; this record is about the target.
    """

    kind: Literal["instability"] = "instability"
    target: Text
    case: Text
    """The case that had the result."""
    verdict: Verdict
    """The verdict that did not repeat: `crash`, `wrong` …"""
    before: Text | None = None
    """The case that ran before in the same process."""
    message: Text
    """A sentence about what happened."""
    unexpected: bool = True
    """Whether no expectation of the target covers this."""
    expectation: ExpectationRecord | None = None


Counts = dict[Text, dict[Verdict, int]]


class Footer(_Part):
    """The last line: totals of the file."""

    kind: Literal["footer"] = "footer"
    complete: bool
    """Whether each selected case has a result or an infrastructure failure on each target; false
    if the run was stopped before its end."""
    counts: Counts
    """The number of results by target and verdict, without zeros."""
    infrastructure: int
    unexpected: int
    instability: int = 0
    """The number of results that did not repeat alone."""
    not_run: int = 0
    """The number of cases, on all targets together, that have neither a result nor a failure, since
    the run was stopped or a runner was given up."""
    end: AwareDatetime
    seconds: float


AnyCaseRecord = CaseRecord | ShippedCaseRecord
Record = Header | AnyCaseRecord | ResultRecord | InfrastructureRecord | InstabilityRecord | Footer
CASE_LINE: TypeAdapter[AnyCaseRecord] = TypeAdapter(
    Annotated[AnyCaseRecord, Field(discriminator="kind")]
)
RECORD_LINE: TypeAdapter[Record] = TypeAdapter(Annotated[Record, Field(discriminator="kind")])


def results_schema() -> dict[str, Any]:
    """JSON Schema of one line of a results file."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "One line of a gqa-conformance results file",
        **RECORD_LINE.json_schema(mode="serialization", schema_generator=WithDescriptions),
    }
