"""The messages between harness and runner: JSON lines, one request, one answer with its ``id``.

Once before its answer to a run request, a runner may report that it is compiling
(`CompilingNotice`).

The models in this module define the protocol (runners/README.md describes it); the JSON Schemas
under ``runners/schema/`` are made from them. Nothing that a runner writes is trusted:
`parse_answer` either returns a checked answer to exactly this request, or raises `ProtocolError`
with one sentence.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Final, Literal, overload

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    TypeAdapter,
    ValidationError,
)

from conformance.base.dtypes import DType
from conformance.base.target_names import MAX_LENGTH, NAME
from conformance.base.text import exact_line, unbroken

#: Output files are directly in the folder of the request, so a name has no slash and no leading
#: dot: a runner cannot name a file anywhere else.
FILE_NAME: Final = r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$"

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


class ProtocolError(Exception):
    """A runner's line is not an answer to the request; the message gives the reason."""


class _Message(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        json_schema_serialization_defaults_required=True,
    )


Id = Annotated[int, Field(ge=0)]
#: Keeps a runtime's words on one line.
ON_ONE_LINE: Final = AfterValidator(unbroken)
ProtocolLine = Annotated[str, ON_ONE_LINE]
ProtocolName = Annotated[str, Field(min_length=1), ON_ONE_LINE]
FileName = Annotated[str, Field(pattern=FILE_NAME, max_length=200)]
AbsolutePath = Annotated[str, Field(pattern=r"^/")]
#: What a step left: its output files, or the error's text.
StepResult = Annotated[
    Annotated[dict[ProtocolName, FileName], Field(min_length=1), Tag("<files>")]
    | Annotated[str, Tag("<error>")],
    Discriminator(lambda value: "<error>" if isinstance(value, str) else "<files>"),
]
AnswerMilliseconds = Annotated[float, Field(ge=0)]
#: Of an answer after which the process cannot be trusted.
ReplaceProcess = Annotated[
    bool,
    Field(
        description="The process may be damaged, as a GPU's context is after an error of the "
        "device: it is replaced, and the case tried once more, alone."
    ),
]
#: Words in lower case.
Kernel = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]*$", max_length=40)]
#: Without control characters, since results, reports and terminals use it as a name.
Version = Annotated[str, Field(pattern=r"^[!-~]([ -~]*[!-~])?$", max_length=100)]
#: Of an input, an output or an attribute of the operator, or of a type.
SchemaName = Annotated[str, Field(min_length=1, max_length=100), ON_ONE_LINE]
SchemaTypes = Annotated[frozenset[SchemaName], Field(max_length=50)]
SchemaParameters = Annotated[dict[SchemaName, SchemaTypes], Field(max_length=200)]


# Requests


class StepFiles(_Message):
    """One call of the model: where each of its inputs comes from.

    An input is in files or in carry, never in both; the first step carries nothing.
    """

    files: dict[ProtocolName, ProtocolName]
    """Graph input to its TensorProto file, relative to the bundle."""
    carry: dict[ProtocolName, ProtocolName] = {}
    """Graph input to an output of the step before in the same repeat, as the runtime made
    it."""
    keep: Annotated[int, Field(ge=0)] | None = None
    """Of each carried output only so many first rows, along its third dim (feature keep)."""
    share: dict[ProtocolName, ProtocolName] = {}
    """Graph output to the graph input whose memory it must use (feature shared_buffer)."""
    may_be_rejected: bool = False
    """The call is illegal: after an error the next step is run (feature may_be_rejected)."""


class DescribeRequest(_Message):
    """Asks for the runtime and its abilities. The first request to every runner process."""

    id: Id
    cmd: Literal["describe"] = "describe"


class RunRequest(_Message):
    """Load the model once, then run all steps in order, and repeat that `repeat` times."""

    id: Id
    cmd: Literal["run"] = "run"
    bundle: AbsolutePath
    """The case's directory; the runner reads it and writes nothing there."""
    out: AbsolutePath
    """An existing empty directory for the output files."""
    repeat: Annotated[int, Field(ge=1)] = 2
    steps: tuple[StepFiles, ...] = Field(min_length=1)


Request = DescribeRequest | RunRequest


# Answers


class OperatorSchema(_Message):
    """The schema of com.microsoft.GroupQueryAttention in a runtime."""

    declared_by: Annotated[str, Field(min_length=1, max_length=200), ON_ONE_LINE]
    """The runtime that has this schema, with its release: onnxruntime 1.31.1."""
    inputs: SchemaParameters
    """Each input, with the types that it can have."""
    outputs: SchemaParameters
    """Each output, with the types that it can have."""
    attributes: Annotated[dict[SchemaName, SchemaName], Field(max_length=200)]
    """Each attribute, with its type: int, float or string."""


class DescribedAnswer(_Message):
    """The runtime is available. Sent once per process, before anything else."""

    id: Id
    outcome: Literal["described"]
    runtime: Annotated[str, Field(min_length=1, max_length=100), ON_ONE_LINE]
    """The runtime's name, such as onnxruntime or tract."""
    version: Version
    name: Annotated[str, Field(pattern=NAME, max_length=MAX_LENGTH)] | None = None
    """What results call a target that was started by its path (`exec:`), such as nxrt; not
    the name of a target of this suite."""
    execution_provider: ProtocolName | None
    """Where nodes are requested to run; null if the runtime has no execution providers. If not
    null, every `ran` answer gives its placement."""
    device: Annotated[str, Field(min_length=1, max_length=500), ON_ONE_LINE]
    """In words: the processor and its cores, or the GPU."""
    adapter: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$", max_length=60)] | None = None
    """One word for the adapter that it computes on, if results may differ by adapter. It is
    part of the target's name in results."""
    dtypes: tuple[DType, ...]
    """The dtypes that tensors may have; cases of another dtype are skipped."""
    features: tuple[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")], ...] = ()
    """What it can do beyond plain runs: shared_buffer, keep, may_be_rejected."""
    lacks: dict[ProtocolName, ProtocolName | None] = {}
    """What the adapter lacks although the runtime supports it, such as float16, each with the
    exact command that mends it, or null."""
    threads: Annotated[int, Field(ge=1)] | Literal["default"] | None = None
    """With how many threads the runtime computes; default: as many as it chooses."""
    provider_options: dict[ProtocolName, ProtocolLine] = {}
    """The options of the execution provider."""
    versions: dict[ProtocolName, ProtocolLine] = {}
    """Versions of everything that may affect a result, for the record."""
    operator: OperatorSchema | None = None
    """The operator as the runtime declares it; null if the runtime cannot say. Parts that no
    case calls are reported."""


class UnavailableAnswer(_Message):
    """To describe: nothing can be run here. To run: this one case cannot be run here."""

    id: Id
    outcome: Literal["unavailable"]
    reason: ProtocolName
    """One sentence: what is missing."""
    fix: ProtocolName | None = None
    """The exact command that repairs it, if there is one."""


class Times(_Message):
    """Milliseconds of a case, without reading and writing files."""

    load: AnswerMilliseconds
    """Creating the session from the model."""
    run: AnswerMilliseconds
    """All steps once: the fastest of the repeats."""


class RanAnswer(_Message):
    """All steps ran, as often as requested. The runner does not check the values.

    No file name occurs twice: each repeat writes its own files, since they are compared.
    """

    id: Id
    outcome: Literal["ran"]
    placement: ProtocolName | None = None
    """The execution provider on which the node really ran, as the runtime proves it."""
    kernels: Annotated[tuple[Kernel, ...], Field(min_length=1, max_length=20)] | None = None
    """The kernels of the operator that really ran, each once, as the runtime reports them; null
    if it reports none."""
    runs: tuple[tuple[StepResult, ...], ...]
    """For each repeat, for each step: graph output to the name of its TensorProto file in
    out; or the error's full text if the step was rejected, and may be."""
    ms: Times


class RejectedAnswer(_Message):
    """The runtime returned an error when it loaded the model, or when it ran a step."""

    id: Id
    outcome: Literal["rejected"]
    stage: Literal["load", "run"]
    step: int = Field(default=0, ge=0)
    """The step that was rejected; 0 at stage load."""
    code: ProtocolLine | None = None
    """The runtime's error code, if it has one."""
    message: str
    """The full text of the error."""
    changed: Annotated[list[ProtocolName], Field(max_length=100)] = Field(default_factory=list)
    """Inputs of the graph that the runtime had changed when it returned the error."""
    replace_process: ReplaceProcess = False


class CrashedAnswer(_Message):
    """The runtime died in a step, and the runner lives.

    Either the runtime is a program that the runner starts for each call, which died or panicked; or
    its device failed in the runner's own process, which is then to be replaced. Any other runtime
    in the runner's own process ends the runner.
    """

    id: Id
    outcome: Literal["crashed"]
    step: Annotated[int, Field(ge=0)] | None = 0
    """The step in which it died; null if that is not known."""
    ended: ProtocolName
    """How it ended: the signal's name (SIGSEGV), or the runtime's word for it (panic,
    cudaErrorIllegalAddress)."""
    message: str = ""
    """What it wrote about it: the panic's text and place, if there is one."""
    replace_process: ReplaceProcess = False


class CompilingNotice(_Message):
    """Before the answer to run, at most once: something is compiled first.

    It extends the case's time limit, as runners/README.md says.
    """

    id: Id
    outcome: Literal["compiling"]


Answer = DescribedAnswer | UnavailableAnswer | RanAnswer | RejectedAnswer | CrashedAnswer
DescribeAnswer = DescribedAnswer | UnavailableAnswer
RunAnswer = RanAnswer | RejectedAnswer | CrashedAnswer | UnavailableAnswer

_TO_DESCRIBE: Final[TypeAdapter[DescribeAnswer]] = TypeAdapter(
    Annotated[DescribeAnswer, Field(discriminator="outcome")]
)
_TO_RUN: Final[TypeAdapter[RunAnswer | CompilingNotice]] = TypeAdapter(
    Annotated[RunAnswer | CompilingNotice, Field(discriminator="outcome")]
)


def to_line(request: Request) -> bytes:
    """``request`` as one line of ASCII JSON with its newline.

    ASCII, because a runner may read in any locale, and some readers split lines at U+2028.
    """
    return json.dumps(request.model_dump(), separators=(",", ":")).encode("ascii") + b"\n"


def announces(line: bytes, request: RunRequest) -> bool:
    """Whether ``line`` is the notice that the runner compiles first, and not the answer."""
    try:
        message = _TO_RUN.validate_json(line)
    except ValidationError:
        return False
    return isinstance(message, CompilingNotice) and message.id == request.id


@overload
def parse_answer(line: bytes, request: DescribeRequest) -> DescribeAnswer: ...
@overload
def parse_answer(line: bytes, request: RunRequest) -> RunAnswer: ...
def parse_answer(line: bytes, request: Request) -> Answer:
    """The answer to ``request`` in ``line``; `ProtocolError` if it contains anything else.

    It checks the JSON, the id, that the outcome belongs to this command, every field, and for
    ``ran`` that the repeats and steps are the requested ones and that no file is named twice. The
    session checks that the files exist, and that there is a placement if one is required. A
    `CompilingNotice` is not an answer: `announces` recognises the first one.
    """
    to = _TO_DESCRIBE if isinstance(request, DescribeRequest) else _TO_RUN
    try:
        answer: Answer | CompilingNotice = to.validate_json(line)
    except ValidationError as error:
        raise ProtocolError(_what_is_wrong(line, error)) from None
    if answer.id != request.id:
        notice = isinstance(answer, CompilingNotice)
        what = "it says that it is compiling for" if notice else "the answer has"
        raise ProtocolError(f"{what} id {answer.id} where {request.id} was sent")
    if isinstance(answer, CompilingNotice):
        raise ProtocolError("it says more than once that it is compiling")
    if isinstance(request, RunRequest):
        _check_against(answer, request)
    return answer


def _check_against(answer: Answer, request: RunRequest) -> None:
    """Raise `ProtocolError` unless ``answer`` has the requested steps and repeats."""
    steps = len(request.steps)
    if isinstance(answer, RejectedAnswer | CrashedAnswer) and (answer.step or 0) >= steps:
        what = "refuses" if isinstance(answer, RejectedAnswer) else "reports a crash in"
        raise ProtocolError(f"the answer {what} step {answer.step} of a case with {steps}")
    if not isinstance(answer, RanAnswer):
        return
    if len(answer.runs) != request.repeat:
        raise ProtocolError(
            f"the answer holds {len(answer.runs)} runs where {request.repeat} were requested"
        )
    seen: set[str] = set()
    for at, run in enumerate(answer.runs):
        if len(run) != steps:
            raise ProtocolError(f"run {at} of the answer holds {len(run)} steps, not {steps}")
        for number, files in enumerate(run):
            if isinstance(files, str):
                if not request.steps[number].may_be_rejected:
                    raise ProtocolError(f"the answer says that it ran, but refuses step {number}")
                continue
            for name in files.values():
                if name in seen:
                    raise ProtocolError(f"the answer names the file {name} twice")
                seen.add(name)


#: How errors name the types of a field that can have several.
_ALTERNATIVES: Final = ("constrained-int", "literal['default']", "<files>", "<error>")


def _what_is_wrong(line: bytes, error: ValidationError) -> str:
    """The sentence for a line that is not a valid answer, about its first error."""
    fault = error.errors(include_url=False, include_context=False)[0]
    text = f"{fault['msg'][:1].lower()}{fault['msg'][1:]}"
    # The first is the outcome; of a field with several types, the last is one of them.
    where = ".".join(str(part) for part in fault["loc"][1:] if part not in _ALTERNATIVES)
    if fault["type"] == "json_invalid":
        return f"the line is not JSON: {excerpt(line) or 'it is empty'}"
    if not where:
        return f"the line is not an answer to the request: {text}: {excerpt(line)}"
    if fault["type"] == "missing":
        return f"the answer lacks {where}"
    if fault["type"] == "extra_forbidden":
        return f"the answer has an unknown field {exact_line(where)}"
    found = exact_line(json.dumps(fault["input"]))
    return f"in the answer, {exact_line(where)} is {found}: {text}"


def excerpt(raw: bytes, most: int = 120) -> str:
    """The start of a runner's text on one line; bytes that are not UTF-8 are escaped."""
    return exact_line(raw[: 4 * most + 4].decode(errors="backslashreplace"), most)


# JSON Schemas


def schemas() -> dict[str, dict[str, Any]]:
    """The JSON Schemas of the messages, by file name under ``runners/schema/``.

    The harness sends complete requests, so every field of a request is required; an answer may
    leave out fields that have a default.
    """
    from conformance.base.json_schemas import WithDescriptions  # imports much of pydantic

    request: TypeAdapter[Request] = TypeAdapter(Request)
    answer: TypeAdapter[Answer | CompilingNotice] = TypeAdapter(Answer | CompilingNotice)
    return {
        "request.json": {
            "$schema": _DIALECT,
            "description": "A request to a runner: one line on its standard input.",
            **request.json_schema(mode="serialization", schema_generator=WithDescriptions),
        },
        "answer.json": {
            "$schema": _DIALECT,
            "description": "An answer of a runner: one line on its standard output; and the "
            "notice that may come before it.",
            **answer.json_schema(schema_generator=WithDescriptions),
        },
    }
