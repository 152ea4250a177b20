"""The records of a results file: one JSON object per line.

A file has a header, then each case followed by its results, with infrastructure failures and
instability in between, and a footer. Each line is strict JSON and is written at once, so a run
that is killed loses nothing that it has judged; a file without a footer is incomplete. Its JSON
Schema is ``reports/results.schema.json``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal, TypeVar

from pydantic import (
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    GetJsonSchemaHandler,
    PlainSerializer,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    ValidationInfo,
    WithJsonSchema,
    model_serializer,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from conformance.base.json_schemas import WithDescriptions
from conformance.case.call import State
from conformance.case.contract import Contract
from conformance.results.verdicts import Verdict
from conformance.results.wrong_outputs import WrongOutput, wrong_outputs

FORMAT: Literal["gqa-results/1"] = "gqa-results/1"

Outcome = Literal["ran", "rejected", "crashed", "timed_out", "unavailable"]
Stage = Literal["load", "run"]


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


Number = Annotated[
    float,
    BeforeValidator(_from_json),
    PlainSerializer(_to_json, when_used="json"),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"enum": list(_WORDS)}]}),
]


def _writable(value: object) -> object:
    """Escape lone surrogates (bytes that were not UTF-8), which no file can contain."""
    if isinstance(value, str) and not value.isascii():
        return value.encode("utf-8", "backslashreplace").decode()
    return value


Text = Annotated[str, BeforeValidator(_writable)]
"""Untrusted text of any length, with any characters."""


class _OnlyTheFirst(FailFast):
    __hash__ = object.__hash__  # a part of a union must have one


_T = TypeVar("_T")
#: Any number of items. Of a million wrong ones only the first is an error, which takes memory.
Several = Annotated[tuple[_T, ...], _OnlyTheFirst()]

#: The longest line of a results file. Real ones have at most 30 kB.
MOST_BYTES_A_LINE: Final = 1 << 23


class _Part(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        json_schema_serialization_defaults_required=True,
    )


class Selection(_Part):
    """What was to be run."""

    text: Text
    """The selection as it is typed in the command (`cases/shared_kv.yaml -k float16`)."""
    cases: int
    """Number of cases selected."""
    results: int
    """Number of results expected: cases times targets."""
    only_failed: bool = False
    """Whether `--lf` left out cases that had not failed."""


class UncalledParts(_Part):
    """What the operator's schema in a runtime has and the suite's signature lacks."""

    declared_by: Text
    """The runtime that has the schema, with its release: `onnxruntime 1.33.0`."""
    inputs: Several[Text] = ()
    outputs: Several[Text] = ()
    attributes: Several[Text] = ()
    types: dict[Text, Several[Text]] = {}
    """Of inputs, outputs and attributes that the signature has: the types that it lacks."""


class TargetDescription(_Part):
    """A target as its runner describes it."""

    runtime: Text
    version: Text
    execution_provider: Text | None = None
    """Null: the runtime has no execution providers."""
    device: Text | None = None
    adapter: Text | None = None
    """One word for the adapter, if results may differ by it: `lavapipe`."""
    name: Text | None = None
    """What the runner calls itself, if it does: `openvino`."""
    threads: int | Literal["default"] | None = None
    """With how many threads the runtime computes; `default`: as many as it chooses."""
    dtypes: Several[Text] = ()
    features: Several[Text] = ()
    versions: dict[Text, Text] = {}
    """Version of everything else that may affect a result, by name."""
    uncalled: UncalledParts | None = None
    """The parts of the operator that no case calls; null: none, or the runtime cannot say."""


class TargetRecord(_Part):
    """A column of the matrix."""

    name: Text
    """With version and, if there is one, adapter: `cpu@1.31.1`, `webgpu@1.30.0+lavapipe`."""
    ep: Text
    """As typed: `cpu`."""
    describe: TargetDescription | None = None
    unavailable: Text | None = None
    """One sentence, if the target could not be used here."""
    fix: Text | None = None
    """The command that makes it available."""

    @property
    def base(self) -> str:
        """Its name without version and adapter: `cpu`."""
        return self.name.rpartition("@")[0] or self.name


class ShardRecord(_Part):
    """Which part of a run a file has, where the run is divided among machines."""

    number: int
    """From 1."""
    of: int
    """Number of shards."""
    cases: int
    """Number of cases of all shards."""
    results: int
    """Number of results expected of all shards."""


class Header(_Part):
    """The first line: what is run, where and when."""

    kind: Literal["header"] = "header"
    format: Literal["gqa-results/1"] = FORMAT
    suite: Text
    """Version of the suite."""
    corpus: Text
    """Digest of the case files."""
    selection: Selection
    targets: Several[TargetRecord]
    machine: dict[Text, Text]
    """Facts about the machine, by name: system, processor, memory …"""
    start: AwareDatetime
    shard: ShardRecord | None = None
    """Null: the file is of a whole run. `selection` counts what this shard has."""
    left_out: Several[Text] = ()
    """What a compact file leaves out, each in a few words. Fields of its results that are missing
    have their defaults."""


class _Sparse(_Part):
    """A part that is written without the fields that have their defaults, to keep files small."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=False)
    #: Fields that are always written.
    whole: ClassVar[tuple[str, ...]] = ()
    _usual: ClassVar[Mapping[str, object]] = {}

    @model_serializer(mode="wrap")
    def _without_the_usual(self, handler: SerializerFunctionWrapHandler) -> Any:
        written = handler(self)
        values = self.__dict__  # many are the default itself, and a run writes many parts
        for name, default in type(self)._usual.items():
            value = values[name]
            # -0.0 and 0 equal 0.0, and are not the same
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

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        # of the fields, whatever the serializer leaves out of them
        return handler({key: part for key, part in schema.items() if key != "serialization"})


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
    stream: Text = ""
    """Name of the random stream of `uniform` and `marked`: seed, call of the loop and input."""
    low: Number = -1.0
    high: Number = 1.0
    step: Number = 0.0
    """The numbers are rounded to multiples of this, unless it is 0."""
    odd_heads: Number = 1.0
    """Factor of every other head, starting with the second."""
    head_size: int = 0
    """Elements of one head, where they matter."""
    starts: Several[int] = ()
    count: int = 0
    divisor: Number = 1.0
    value: int | Number = 0
    numbers: Several[int | Number] = ()
    """In C order."""
    width: int = 0
    """Last dim of a part of `packed`."""
    parts: Several[Recipe] = ()
    but: tuple[tuple[Several[int], int | Number] | tuple[Several[int], int | Number, int], ...] = ()
    """Applied last: leading indices, and the number that all elements below them have instead. A
    third item says how many consecutive values the last index takes."""


#: How the words about values begin that a file gives.
FROM_FILE: Final = "from the file "


class CallInput(_Sparse):
    """One of the operator's inputs in the (first) call."""

    whole = ("shape", "dtype", "values")

    name: Text
    state: State
    shape: Several[int | Text] | None = None
    dtype: Text | None = None
    constant: bool = False
    """Whether it is a constant of the model, and not an input of it."""
    same_as: Text | None = None
    """The other input whose tensor it is: the node names that twice."""
    values: Text | None = None
    """How its values are made, in words."""
    dims: Several[Text | None] = ()
    """The names of its dims in the graph; null for a fixed dim; empty if all are fixed."""
    recipe: Recipe | None = None
    """How its values are made; null where a file gives more than can be listed."""


class LaterInput(_Sparse):
    """An input of a later call of a loop that differs from the first call."""

    name: Text
    shape: Several[int | Text] | None = None
    """Null: as in the first call."""
    recipe: Recipe


class CallOutput(_Part):
    """One of the operator's outputs."""

    name: Text
    state: State
    shape: Several[int | Text] | None = None
    """Null: the contract does not fix it."""
    dtype: Text | None = None


class GraphRecord(_Sparse):
    """The model of a case, where it is not a single node of the operator."""

    whole = ("nodes",)

    file: Text
    """The ONNX file, as the case names it."""
    digest: Text
    """SHA-256 of the file."""
    nodes: dict[Text, int]
    """How many nodes of each operator there are."""
    weights: Several[CallInput] = ()
    """The constants whose data the file leaves out."""
    content: Text = ""
    """The file, compressed by zlib and in base64; empty if that is long."""


class CallRecord(_Sparse):
    """The call: inputs, outputs and attributes. Those of a graph are the graph's inputs and
    outputs, and the attributes of its first GroupQueryAttention."""

    whole = ("attributes", "steps")

    inputs: Several[CallInput]
    outputs: Several[CallOutput]
    attributes: dict[Text, int | Number | Text] = {}
    """Those that are set."""
    steps: int = 1
    """Number of calls; more than one is a loop, in which each past is the present before it."""
    later: Several[Several[LaterInput]] = ()
    """For each call after the first, the inputs that differ from the first."""
    shared_buffer: bool = False
    """Whether present_key and present_value use the memory of past_key and past_value."""
    graph: GraphRecord | None = None
    """Null: the model is a single node."""


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
    """What the call does, in words: `Borrow a cache: key and value of length 0`."""
    axes: dict[Text, Text] = {}
    """Label of each axis."""
    why: Text = ""
    tags: Several[Text] = ()
    links: Several[Text] = ()
    contract: Contract
    relation: Text | None = None
    """The variant, which must agree with the call, and why."""
    call: CallRecord

    @property
    def entry(self) -> str:
        """The entry of the case file that the case is from, as it is typed: ``theme/name``."""
        return f"{self.theme}/{self.name}"


class ErrorMap(_Part):
    """Where in an output the error is: a row for each head, a character for each position.

    A character gives the largest share of the budget in a head at a position: `0` within the
    budget, `1` up to 10 times it, `2` up to 100 times … `9` beyond that or not finite, `.` where
    the operator defines nothing. Long sides are divided into blocks, each shown by its largest.
    """

    rows: Several[Text]
    """Of equal length; sequence by sequence, and within a sequence head by head."""
    heads: int
    """Batch size times heads; that many rows, or fewer where rows are blocks."""
    positions: int
    """Likewise for the characters of a row."""


class OutputErrorRecord(_Part):
    """The worst element of one output in one step."""

    output: Text
    step: int = 0
    index: Several[int] | None = None
    """Null if nothing could be compared (another shape or dtype)."""
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
    """Number of elements that are not compared, because the operator does not define them."""
    where: ErrorMap | None = None
    """For an output beyond its budget that has heads and positions."""


class _Fault(_Part):
    """What all faults have."""

    output: Text
    step: int | None = None
    """The call of a loop, from 0; null: the case is a single call."""


class RunsDiffer(_Fault):
    """Two runs on the same input differ in a defined element of an output."""

    kind: Literal["runs_differ"] = "runs_differ"


class WrongDtype(_Fault):
    """An output has another dtype than the operator specifies."""

    kind: Literal["dtype"] = "dtype"
    got: Text
    want: Text


class WrongShape(_Fault):
    """An output has another shape than the operator specifies."""

    kind: Literal["shape"] = "shape"
    got: Several[int]
    want: Several[int]


class BeyondBudget(_Fault):
    """The element with the largest error, as a share of its error budget, is beyond that budget."""

    kind: Literal["beyond_budget"] = "beyond_budget"
    index: Several[int]
    got: Number
    want: Number
    budget: Number
    """Largest absolute error allowed there; 0: the element must be exact."""
    share: Number
    """Error as a share of that budget."""


class RelationBroken(_Fault):
    """A case and its variant are correct by themselves and differ by more than is allowed."""

    kind: Literal["relation"] = "relation"
    name: Text
    """Of the relation: `packed_qkv`."""
    index: Several[int]
    got: Number
    """The element of the case …"""
    other: Number
    """… and of its variant."""
    budget: Number
    """Largest difference allowed there; 0: they must be equal."""
    share: Number
    """Difference as a share of that."""


Fault = Annotated[
    RunsDiffer | WrongDtype | WrongShape | BeyondBudget | RelationBroken,
    Field(discriminator="kind"),
]
"""One thing that is wrong with a result."""
FaultKind = Literal["runs_differ", "dtype", "shape", "beyond_budget", "relation"]


class Milliseconds(_Part):
    """Times, in ms."""

    load: Number | None = None
    """Creating the session."""
    run: Number | None = None
    """The fastest repeat."""
    total: Number | None = None
    """From request to answer."""


class FlakyRecord(_Part):
    """How often a case fails that does not fail in each run of one release."""

    verdicts: Several[Verdict]
    """All that it is known to have."""
    failed: int
    """Results that were not `pass` …"""
    runs: int
    """… of so many."""


class ExpectationRecord(_Part):
    """The line of an expectations file that is for the result."""

    file: Text
    line: int
    verdict: Verdict
    link: Text
    why: Text
    flaky: FlakyRecord | None = None
    """Set if the case has one verdict in some runs and another one in others."""


class RelationRecord(_Part):
    """How far a call and its variant are from each other."""

    name: Text
    what: Text
    """The variant, in words that follow "the same call"."""
    share: Number
    """The largest difference as a share of what is allowed; above 1 the relation is broken."""
    identical: bool
    """Whether everything that was compared is equal bit for bit."""
    sentence: Text
    """Where they differ most, for people."""


def _derived(result: dict[str, Any]) -> tuple[WrongOutput, ...]:
    """The wrong outputs of a result that does not list them."""
    return wrong_outputs(result.get("faults", ()), result.get("errors", ()))


class ResultRecord(_Part):
    """One case on one target, judged."""

    # A compact file leaves out the fields that have their defaults, except its kind.
    model_config = ConfigDict(
        json_schema_serialization_defaults_required=False,
        json_schema_extra=lambda schema: schema["required"].insert(0, "kind"),
    )

    kind: Literal["result"] = "result"
    case: Text
    target: Text
    verdict: Verdict
    unexpected: bool
    vague: bool = False
    """Whether it is a rejection whose message names none of the contract's words."""
    hazard: Text | None = None
    """Of `pass`: what came out badly although the contract leaves it undefined, in a sentence."""
    reading: Text | None = None
    """The reading of the documentation by which faults and figures are, of those that the contract
    names; null: the usual one."""
    outcome: Outcome
    stage: Stage | None = None
    code: Text | None = None
    message: Text | None = None
    """The runtime's message, in full; of a crash, the sentence about it."""
    reason: Text
    """Why this verdict: one sentence, for people."""
    faults: Several[Fault] = ()
    """What is wrong with what it returned: in the order of calls and outputs, and then the worst
    error."""
    of_variant: bool = False
    """Whether outcome, verdict and figures are those of the variant; the case itself is correct."""
    errors: Several[OutputErrorRecord] = ()
    share: Number | None = None
    """The worst of `errors`."""
    wrong_outputs: Several[WrongOutput] = Field(default_factory=_derived)
    """Which outputs are wrong; both presents are `presents`. Left out, it is derived from faults
    and errors."""
    relation: RelationRecord | None = None
    """Set if the case names a relation, and both the case and its variant are correct."""
    placement: Text | None = None
    """The execution provider on which the node really ran."""
    kernels: Several[Text] | None = None
    """The kernels that ran, each once, as the runtime reports them; null: it reports none."""
    other_kernel: bool = False
    """Of `fallback`: whether it ran on the requested execution provider, but not, or not provably,
    with the kernel that the target names. Such a result says nothing about that kernel."""
    time_limit: Number | None = None
    """Of `timed_out`: after so many seconds the process was killed."""
    ms: Milliseconds | None = None
    stderr: Text = ""
    """The end of what the runner wrote to standard error during this case: at most 64 KiB, as JSON,
    of a result that is unexpected or red, and 2 KiB of any other."""
    bits: Text | None = None
    """Digest of all defined elements: two targets with the same digest return the same bits."""
    values_right: bool | None = None
    """Of `accepted`: whether the values are nevertheless correct."""
    insensitive: Text = ""
    """A warning: why the case could not show a fault in some part of its call. Only of cases that
    are not in the corpus; in the corpus such a case is not run."""
    contract: Contract | None = None
    """The contract on the target's execution provider, where the case has one for it."""
    expectation: ExpectationRecord | None = None
    reproduce: Text
    """The command that runs this case."""

    @property
    def known(self) -> ExpectationRecord | None:
        """The expectation that covers the result; None if the result is unexpected."""
        return None if self.unexpected else self.expectation

    @property
    def flaky(self) -> FlakyRecord | None:
        """How often the case fails, if it is known to be flaky and the result is as expected."""
        return self.known.flaky if self.known else None


def contract_of(case: CaseRecord, result: ResultRecord) -> Contract:
    """The contract by which the result was judged."""
    return result.contract or case.contract


class InfrastructureRecord(_Part):
    """A failure of the runner or the suite; it never counts as a pass or a fail."""

    kind: Literal["infrastructure"] = "infrastructure"
    target: Text
    case: Text | None = None
    message: Text
    fix: Text | None = None


class InstabilityRecord(_Part):
    """A result of a case that it did not have when it was run alone, and that no case caused.

    The result of the case itself is the one that it had alone. This one is the target's.
    """

    kind: Literal["instability"] = "instability"
    target: Text
    case: Text
    """The case that met it."""
    verdict: Verdict
    """What it met: `crash`, `wrong` …"""
    before: Text | None = None
    """The case that had run before in the same process."""
    message: Text
    """What happened: a sentence."""
    unexpected: bool = True
    """Whether no expectation of the target covers it."""
    expectation: ExpectationRecord | None = None


Counts = dict[Text, dict[Verdict, int]]


class Footer(_Part):
    """The last line: totals of the file."""

    kind: Literal["footer"] = "footer"
    complete: bool
    """Whether each selected case has a result or an infrastructure failure of its own on each
    target. False: the run was stopped before its end."""
    counts: Counts
    """Number of results by target and verdict, without zeros."""
    infrastructure: int
    unexpected: int
    instability: int = 0
    """Number of results that did not repeat alone."""
    end: AwareDatetime
    seconds: float


Record = Header | CaseRecord | ResultRecord | InfrastructureRecord | InstabilityRecord | Footer
RECORD_LINE: TypeAdapter[Record] = TypeAdapter(Annotated[Record, Field(discriminator="kind")])


def results_schema() -> dict[str, Any]:
    """JSON Schema of one line of a results file."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "One line of a gqa-conformance results file",
        **RECORD_LINE.json_schema(mode="serialization", schema_generator=WithDescriptions),
    }
