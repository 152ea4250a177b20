"""The fields by which a case file describes calls of the operator on one session."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, get_type_hints

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Strict,
    Tag,
    create_model,
)

from conformance.base.dtypes import DType, FloatType
from conformance.operator.signature import ATTRIBUTE_BY_NAME, INPUT_NAMES, INPUTS, OUTPUT_NAMES


class CallError(ValueError):
    """A call is impossible; ``field`` is the field of the case that is wrong."""

    def __init__(self, field: str, sentence: str) -> None:
        super().__init__(sentence)
        self.field = field


def alternative(value: object) -> str:
    """The tag of the union alternative of ``value``, so that errors concern only that one."""
    return "<mapping>" if isinstance(value, dict | BaseModel) else f"<{type(value).__name__}>"


Integer = Annotated[int, Strict(), Field(ge=-(2**63), le=2**63 - 1)]
Length = Annotated[int, Strict(), Field(ge=0, le=2**31 - 1)]
Count = Annotated[int, Strict(), Field(ge=1, le=2**31 - 1)]
RealNumber = Annotated[float, Strict()]
Flag = Annotated[bool, Strict()]
Scalar = Annotated[
    Annotated[Integer, Tag("<int>")]
    | Annotated[RealNumber, Tag("<float>")]
    | Annotated[str, Tag("<str>")],
    Discriminator(alternative, "alternative", "expected a number or a string"),
]
PositionIds = Annotated[
    Annotated[Flag, Tag("<bool>")] | Annotated[Literal["implied"], Tag("<str>")],
    Discriminator(alternative, "alternative", "expected true, false or implied"),
]
DimExpression = Annotated[
    Annotated[Integer, Tag("<int>")] | Annotated[str, Tag("<str>")],
    Discriminator(alternative, "alternative", "expected a number or a field's name"),
]
LengthCounts = tuple[
    Annotated[
        Annotated[Length, Tag("<int>")] | Annotated[tuple[Length, ...], Tag("<list>")],
        Discriminator(
            lambda value: "<list>" if isinstance(value, list | tuple) else alternative(value),
            "alternative",
            "expected a number, or in a loop a list of numbers for each call",
        ),
    ],
    ...,
]
NestedNumbers = Annotated[
    Annotated[Integer, Tag("<int>")]
    | Annotated[RealNumber, Tag("<float>")]
    | Annotated[list[object], Tag("<list>")],
    Discriminator(alternative, "alternative", "expected numbers, nested like the shape"),
]

State = Literal["connected", "omitted", "trailing"]
CacheKind = Literal["none", "concatenated", "static"]
if TYPE_CHECKING:
    InputName = str
    ConstantName = str
    OutputName = str
    AttributeName = str
else:  # a case file can name no others
    InputName = Literal[INPUT_NAMES]
    ConstantName = Literal[tuple(one.name for one in INPUTS if one.is_weight)]
    OutputName = Literal[OUTPUT_NAMES]
    AttributeName = Literal[tuple(ATTRIBUTE_BY_NAME)]


class Model(BaseModel):
    """Base of the models: frozen, rejects unknown fields, writes infinities and NaN to JSON."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        ser_json_inf_nan="strings",
    )


class Values(Model):
    """How the values of an input are drawn."""

    kind: Literal["uniform", "marked", "constant"] = "uniform"
    """`marked`: in each head of a token one element is large, a different one than in neighbouring
    tokens; the rest is uniform and small. One token too many or too few shows in that element."""
    low: RealNumber = -1.0
    """Lower end of `uniform`."""
    high: RealNumber = 1.0
    """Upper end of `uniform`; for an integer type it is included."""
    step: RealNumber = 0.0
    """`uniform`: values are rounded to multiples of this, halves to even; 0: not rounded."""
    odd_heads: RealNumber = 1.0
    """`uniform`: factor for the values of every second head (the second, the fourth, …)."""
    value: RealNumber = 0.0
    """The number of `constant`; `.inf`, `-.inf` and `.nan` are allowed."""


class ElementOverride(Model):
    """Elements of an input that differ from the rest."""

    at: Annotated[tuple[Integer, ...], Field(min_length=1)]
    """Leading indices; they select all elements below. Negative indices count from the end."""
    count: Count = 1
    """How many consecutive values the last index takes, from the one in `at` on."""
    value: RealNumber
    """The value of these elements; `.inf`, `-.inf` and `.nan` are allowed."""


class InputOverride(Model):
    """One input, written by hand. Fields that are not set keep what the case's fields imply."""

    state: State = "connected"
    """`omitted`: an empty name in the node's input list; `trailing`: the list ends before it."""
    shape: tuple[DimExpression, ...] | None = None
    """Dims: numbers, or a field's name with an offset or a factor (`sequence_length+1`)."""
    dtype: DType | None = None
    values: Values | None = None
    data: NestedNumbers | None = None
    """The values themselves, nested like the shape, which follows from them."""
    elements: tuple[ElementOverride, ...] = ()
    """Single elements with other values than `values` or `data` give them."""
    same_as: InputName | None = None
    """The input whose tensor this one is, too: the node's input list names it twice."""


class OutputOverride(Model):
    """One output, written by hand."""

    state: State = "connected"
    shape: tuple[DimExpression, ...] | None = None
    """The shape that the graph declares; if not set, only the rank is declared."""
    buffer: tuple[DimExpression, ...] | None = None
    """The shape of the memory that the program binds the output to; if not set, the runtime
    allocates it."""


_EXPECTED: Final = "expected connected, omitted, trailing or a mapping of overrides"
InputField = Annotated[
    Annotated[State, Tag("<str>")] | Annotated[InputOverride, Tag("<mapping>")],
    Discriminator(alternative, "alternative", _EXPECTED),
]
OutputField = Annotated[
    Annotated[State, Tag("<str>")] | Annotated[OutputOverride, Tag("<mapping>")],
    Discriminator(alternative, "alternative", _EXPECTED),
]


class EarlierCall(Model):
    """A call before another one of the same session: the fields in which it differs from it.

    It has inputs of its own, also a past.
    """

    refused: Flag = False
    """The call is illegal. Whether it is refused is not judged, but the calls after it are."""
    batch_size: Count | None = None
    sequence_length: Length | None = None
    past_sequence_length: Length | None = None
    max_sequence_length: Count | None = None
    total_sequence_lengths: Annotated[tuple[Length, ...], Field(min_length=1)] | None = None
    total_sequence_length: Length | None = None
    query_seqlens: Annotated[tuple[Length, ...], Field(min_length=1)] | None = None
    inputs: dict[InputName, InputField] = Field(default_factory=dict)
    """Inputs of a refused call that are written by hand."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call, or a loop of calls, of the operator. Every field can be an axis of a matrix.

    Values are checked where they are read (:class:`CallFields`), not when a call is made of them.
    """

    graph: Annotated[str, Field(min_length=1)] | None = None
    """An ONNX file, relative to the case file: the model of the case, in place of a single node.
    Its nodes say what the call is; beside it an entry has `dtype`, lengths and `seed` only."""
    dtype: FloatType = "float32"
    """Storage type of query, key, value and, unless `cache_dtype` says otherwise, the cache."""
    cache_dtype: (
        Literal["float32", "float16", "bfloat16", "int8", "uint8", "float8e4m3fn"] | None
    ) = None
    """Storage type of past and present, where it differs (quantised caches). `uint8` with
    kv_cache_bit_width 4 holds two values a byte."""
    batch_size: Count = 1
    sequence_length: Length = 1
    """Number of query tokens."""
    kv_sequence_length: Length | None = None
    """Number of new key/value tokens, if it differs from `sequence_length`."""
    past_sequence_length: Length = 0
    """Number of tokens before the call (of the longest sequence). The cache holds them all, except
    a sliding-window cache."""
    cache: CacheKind | None = None
    """`concatenated`: the past holds exactly the past tokens. `static`: a buffer of
    max_sequence_length rows. Default: static if that is given, otherwise concatenated if there are
    past tokens, otherwise none."""
    max_sequence_length: Count | None = None
    """Capacity of a static cache or of a sliding-window cache."""
    shared_buffer: Flag = False
    """Past and present are the same memory (static cache only)."""
    num_heads: Count = 4
    kv_num_heads: Count = 2
    head_size: Length = 16
    key_value: Literal["new", "packed", "zero_length", "zero_valued", "omitted"] = "new"
    """`new`: key and value of the new tokens. `packed`: both are part of query. `zero_length`:
    connected, with length 0. `zero_valued`: all zeros. `omitted`: not connected and not packed."""
    total_sequence_lengths: LengthCounts | None = None
    """Number of tokens of each sequence, past and new, if they differ (ragged batch). In a loop:
    after its first call, or a list of these numbers for each call. Where that is fewer than the
    tokens before and the new ones, the last tokens before the call are taken back."""
    total_sequence_length: Length | None = None
    """The input of that name, if it is not the length of the longest sequence: the capacity of a
    static cache, as programs with fixed shapes pass it, or with `query_seqlens` any upper bound."""
    query_seqlens: Annotated[LengthCounts, Field(min_length=1)] | None = None
    """Number of query tokens of each sequence; the other rows of query, key and value are padding.
    Connects query_seqlens. In a loop: a list of these numbers for each call."""
    presents: Literal["both", "none", "key_only", "value_only"] = "both"
    """Which of present_key and present_value are connected."""
    dims: Literal["symbolic", "static"] = "symbolic"
    """How the graph declares its inputs' batch and sequence dims."""
    loop: Annotated[tuple[Count, ...], Field(min_length=2)] | None = None
    """A loop of calls: the sequence_length of each. The past of each is the present before it; a
    growing cache is cut to the tokens that are not taken back."""
    earlier_calls: tuple[EarlierCall, ...] = ()
    """Calls of the same session before this one, in order: for each the fields that differ. A batch
    of another size has equal lengths unless it gives its own, and so has a call before a loop. One
    that is `refused` is illegal, and the calls after it must be computed all the same."""

    rotary: Literal["none", "half_split", "interleaved"] = "none"
    rotary_dim: Count | None = None
    """Number of rotated elements of a head, if fewer than `head_size`."""
    rotary_cache_length: Count | None = None
    """Rows of cos_cache and sin_cache; default: as many as the call needs."""
    position_ids: PositionIds = False
    """Connect position_ids, with positions that differ from those that the operator would use
    without them; `implied`: with the same ones, as exporters write them."""
    attention_bias: Literal["none", "full", "one_batch", "one_head", "one_batch_one_head"] = "none"
    """Connect attention_bias; `one_batch`, `one_head`: that dim is 1 and is broadcast."""
    head_sink: Flag = False
    """Connect head_sink."""
    qk_norm: Flag = False
    """Connect q_norm_weight and k_norm_weight."""
    constants: tuple[ConstantName, ...] = ()
    """The connected inputs that are constants of the model, and not inputs of it."""

    scale: RealNumber | None = None
    softcap: RealNumber | None = None
    local_window_size: Integer | None = None
    smooth_softmax: Integer | None = None
    causal: Integer | None = None
    qk_output: Integer | None = None
    k_quant_type: Literal["NONE", "PER_TENSOR", "PER_CHANNEL"] | None = None
    v_quant_type: Literal["NONE", "PER_TENSOR", "PER_CHANNEL"] | None = None
    kv_cache_bit_width: Integer | None = None
    """Follows from `cache_dtype` int8 and float8e4m3fn, unless it is set, also to null."""
    qk_norm_epsilon: RealNumber | None = None
    sliding_window_cache: Integer | None = None
    q_norm_epsilon: RealNumber | None = None
    """Epsilon of the norm of queries, in place of `qk_norm_epsilon`."""
    k_norm_epsilon: RealNumber | None = None
    """Epsilon of the norm of keys, in place of `qk_norm_epsilon`."""

    attributes: dict[AttributeName, Scalar | None] = field(default_factory=dict)
    """Attributes set directly, overriding the fields above; null leaves one out."""
    inputs: dict[InputName, InputField] = field(default_factory=dict)
    """Inputs written by hand: a state, or a mapping of overrides."""
    outputs: dict[OutputName, OutputField] = field(default_factory=dict)
    """Outputs written by hand: a state, or a mapping of overrides."""

    seed: Length = 0
    """Seed of the drawn values."""
    values_from: Annotated[str, Field(min_length=1)] | None = None
    """A file with the values of all inputs, relative to the case file: NumPy's `.npz`, with an
    array for each connected input under the operator's name for it, in the shape that the other
    fields give it. bfloat16 and float8 are unsigned integers with the same bits."""

    @property
    def cache_kind(self) -> CacheKind:
        """``cache``, or its default if it is not set."""
        if self.cache is not None:
            return self.cache
        if self.max_sequence_length is not None:
            return "static"
        return "concatenated" if self.past_sequence_length or self.loop else "none"

    @property
    def written_totals(self) -> list[tuple[int, ...]]:
        """``total_sequence_lengths``: of the first call, or of each of a loop; () if not set."""
        counts = self.total_sequence_lengths or ()
        lists = [each for each in counts if isinstance(each, tuple)]
        return lists or [tuple(each for each in counts if isinstance(each, int))]

    @property
    def calls(self) -> tuple[Call, ...]:
        """The calls of the session: the earlier ones, each with all its fields, and this one."""
        if not self.earlier_calls:
            return (self,)
        alone = replace(self, earlier_calls=(), cache=self.cache_kind)
        single = replace(alone, loop=None)
        equal = replace(single, total_sequence_lengths=None, query_seqlens=None)
        earlier = []
        for each in self.earlier_calls:
            changes = {name: value for name, value in each if value is not None}
            del changes["refused"]
            resized = changes.get("batch_size", self.batch_size) != self.batch_size
            earlier.append(replace(equal if resized or self.loop else single, **changes))
        return (*earlier, alone)

    def as_written(self, mode: Literal["python", "json"] = "python") -> dict[str, Any]:
        """The fields that differ from their defaults, as a case file has them."""
        values = {name: getattr(self, name) for name in CALL_FIELDS}
        return CallFields.model_construct(**values).model_dump(mode=mode, exclude_defaults=True)

    def json(self) -> str:
        """All fields as JSON."""
        values = {name: getattr(self, name) for name in CALL_FIELDS}
        return CallFields.model_construct(**values).model_dump_json()


#: The names of the fields of a call.
CALL_FIELDS: Final = tuple(each.name for each in fields(Call))
_PLAIN: Final = Call()


if TYPE_CHECKING:

    class CallFields(Model):
        """The fields of a call, as a file has them."""

else:
    _TYPES = get_type_hints(Call, include_extras=True)
    CallFields = create_model(
        "CallFields",
        __base__=Model,
        __module__=__name__,
        **{name: (_TYPES[name], getattr(_PLAIN, name)) for name in CALL_FIELDS},
    )
    CallFields.__described_by__ = Call


def checked_call(values: Mapping[str, Any]) -> Call:
    """The call with these fields, which are checked. Raises pydantic's `ValidationError`."""
    return Call(**dict(CallFields.model_validate(values)))


#: The fields that an entry can have beside ``graph``; the others follow from the graph's nodes.
GRAPH_FIELDS: Final = (
    "graph", "dtype", "batch_size", "sequence_length", "past_sequence_length",
    "total_sequence_lengths", "query_seqlens", "max_sequence_length", "shared_buffer", "seed",
)  # fmt: skip
#: The fields that cannot be combined with ``values_from``, with the reason.
NOT_BESIDE_VALUES: Final = {
    "loop": "a file has the values of one call",
    "earlier_calls": "a file has the values of one call",
    "relation": "a variant needs values that are drawn",
    "seed": "the values are not drawn",
}


@dataclass(frozen=True, kw_only=True)
class GraphCall(Call):
    """One call of a model with several nodes; the other fields describe its main node.

    The main node is the first GroupQueryAttention. ``content`` are the bytes of the ONNX file, so
    that the call completely determines what is run; JSON has their digest instead.
    """

    content: bytes = field(repr=False)

    def json(self) -> str:
        """All fields as JSON, with the digest of the content."""
        return f'{super().json()[:-1]},"content":"{hashlib.sha256(self.content).hexdigest()}"}}'


@dataclass(frozen=True, kw_only=True)
class GivenCall(Call):
    """One call whose input values are in a file, which `conformance.case.given` reads.

    ``digest`` is the digest of the file's content, so that the call completely determines what is
    run, regardless of the path ``file``.
    """

    file: Path = field(repr=False)
    digest: str

    def json(self) -> str:
        """All fields as JSON, with the digest."""
        return f'{super().json()[:-1]},"digest":"{self.digest}"}}'
