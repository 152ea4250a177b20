"""A case: one call of the operator, fully concrete, and what is demanded of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, Strict

from conformance.dtypes import DType, FloatType

Int = Annotated[int, Strict()]
Length = Annotated[int, Strict(), Field(ge=0)]
Count = Annotated[int, Strict(), Field(ge=1)]
Number = Annotated[float, Strict()]
Flag = Annotated[bool, Strict()]
Scalar = Int | Number | str

State = Literal["connected", "omitted", "trailing"]
InputName = Literal[
    "query",
    "key",
    "value",
    "past_key",
    "past_value",
    "seqlens_k",
    "total_sequence_length",
    "cos_cache",
    "sin_cache",
    "position_ids",
    "attention_bias",
    "head_sink",
    "k_scale",
    "v_scale",
    "q_norm_weight",
    "k_norm_weight",
]
OutputName = Literal["output", "present_key", "present_value", "output_qk"]
AttributeName = Literal[
    "num_heads",
    "kv_num_heads",
    "scale",
    "softcap",
    "local_window_size",
    "do_rotary",
    "rotary_interleaved",
    "smooth_softmax",
    "qk_output",
    "k_quant_type",
    "v_quant_type",
    "kv_cache_bit_width",
    "qk_norm_epsilon",
    "sliding_window_cache",
    "causal",
]


class Model(BaseModel):
    """Frozen, and strict about unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Values(Model):
    """How an input's numbers are drawn."""

    kind: Literal["uniform", "constant"] = "uniform"
    low: Number = -1.0
    """Lower end of `uniform`."""
    high: Number = 1.0
    """Upper end of `uniform`."""
    value: Number = 0.0
    """The number of `constant`; `.inf`, `-.inf` and `.nan` are allowed."""


class InputOverride(Model):
    """One input, written by hand: whatever is not said stays as the case's fields make it."""

    state: State = "connected"
    """`omitted`: an empty name in the node's list; `trailing`: the list ends before it."""
    shape: tuple[Int | str, ...] | None = None
    """Dims: numbers, or a field's name with an offset or factor (`sequence_length+1`)."""
    dtype: DType | None = None
    values: Values | None = None
    data: Scalar | list[object] | None = None
    """The numbers themselves, nested as the shape is; the shape follows from them."""


class OutputOverride(Model):
    """One output, written by hand."""

    state: State = "connected"
    shape: tuple[Int | str, ...] | None = None
    """The shape that the graph declares; without it only the rank is declared."""


class Contract(Model):
    """What is demanded of a case, and who says so."""

    demands: Literal["computes", "rejects", "either"] = "computes"
    """`computes`: the oracle's values. `rejects`: an error that a person can act on. `either`: the
    specification is silent; compute right or reject."""
    basis: Literal["specified", "requested"] = "specified"
    """`specified`: documentation or a released decision. `requested`: an issue asks for it."""
    source: str
    """Where it is written: a link, or the document and its section."""
    why: str = ""
    """One sentence: why the contract is what it is."""
    mentions: tuple[str, ...] = ()
    """Words of which a rejection must name one, or it is marked vague."""


class Call(Model):
    """One call, or a loop of calls, of the operator. Every field can be an axis of a matrix."""

    dtype: FloatType = "float32"
    """Storage type of query, key, value and, unless `cache_dtype` says otherwise, the cache."""
    cache_dtype: Literal["float32", "float16", "bfloat16", "int8", "uint8", "float8e4m3fn"] | None = (
        None
    )
    """Storage type of past and present, where it differs (quantised caches)."""
    batch_size: Count = 1
    sequence_length: Length = 1
    """Number of query tokens."""
    kv_sequence_length: Length | None = None
    """Number of new key/value tokens, where it differs from `sequence_length`."""
    past_sequence_length: Length = 0
    """Number of tokens in the cache (of the longest sequence)."""
    cache: Literal["none", "concatenated", "static"] | None = None
    """`concatenated`: past holds just the past tokens. `static`: a buffer of `max_sequence_length`.
    Default: none without past tokens, else concatenated, or static if max_sequence_length is given."""
    max_sequence_length: Count | None = None
    """Capacity of a static cache."""
    shared_buffer: Flag = False
    """Past and present are the same memory (static cache only)."""
    num_heads: Count = 4
    kv_num_heads: Count = 2
    head_size: Count = 16
    key_value: Literal["new", "packed", "zero_length", "zero_valued", "omitted"] = "new"
    """`new`: key and value of the new tokens. `packed`: they are part of query. `zero_length`: given
    with length 0. `zero_valued`: all zeros. `omitted`: empty names, and query is just the query."""
    total_sequence_lengths: tuple[Length, ...] | None = None
    """Tokens of each sequence, past and new, where they differ from one another (ragged batch)."""
    presents: Literal["both", "none", "key_only", "value_only"] = "both"
    """Which of present_key and present_value are connected."""
    dims: Literal["symbolic", "static"] = "symbolic"
    """How the graph declares its inputs' batch and sequence dims."""
    loop: Annotated[tuple[Count, ...], Field(min_length=2)] | None = None
    """A loop of calls: the sequence_length of each. Each call's past is the present before it."""

    rotary: Literal["none", "half_split", "interleaved"] = "none"
    rotary_dim: Count | None = None
    """Rotated elements of a head, where fewer than `head_size`."""
    rotary_cache_length: Count | None = None
    """Rows of cos_cache and sin_cache; default: as many as the call needs."""
    position_ids: Flag = False
    """Connect position_ids, with the positions that the operator would take anyway."""
    attention_bias: Literal["none", "full", "one_batch", "one_head", "one_batch_one_head"] = "none"
    """Connect attention_bias; `one_…`: that dim is 1 and broadcasts."""
    head_sink: Flag = False
    """Connect head_sink."""

    scale: Number | None = None
    softcap: Number | None = None
    local_window_size: Int | None = None
    smooth_softmax: Int | None = None
    causal: Int | None = None
    qk_output: Int | None = None
    k_quant_type: Literal["NONE", "PER_TENSOR", "PER_CHANNEL"] | None = None
    v_quant_type: Literal["NONE", "PER_TENSOR", "PER_CHANNEL"] | None = None
    kv_cache_bit_width: Int | None = None
    qk_norm_epsilon: Number | None = None
    sliding_window_cache: Int | None = None

    attributes: dict[AttributeName, Scalar | None] = {}
    """Attributes written raw, whatever the fields above make of them; null leaves one out."""
    inputs: dict[InputName, State | InputOverride] = {}
    """Inputs written by hand: a state, or what differs."""
    outputs: dict[OutputName, State | OutputOverride] = {}
    """Outputs written by hand: a state, or what differs."""

    seed: Length = 0
    """Another seed draws other numbers."""

    @property
    def cache_kind(self) -> str:
        """``cache`` with its default filled in."""
        if self.cache is not None:
            return self.cache
        if self.max_sequence_length is not None:
            return "static"
        return "concatenated" if self.past_sequence_length or self.loop else "none"


class Description(Model):
    """What a case says beside its call."""

    why: str = ""
    """What this case would show that no other does."""
    tags: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    contract: Contract | None = None
    time_limit_seconds: Annotated[float, Field(gt=0)] = 30.0


class Fields(Call, Description):
    """All that defaults, an entry or a value of a compound axis may say."""


@dataclass(frozen=True)
class Case:
    """One concrete case.

    ``axes`` maps each axis of the matrix it came from to the value's label; ``line`` is where its
    entry begins in ``file``.
    """

    id: str
    theme: str
    name: str
    axes: dict[str, str]
    file: Path
    line: int
    question: str
    call: Call
    contract: Contract
    why: str
    tags: tuple[str, ...]
    links: tuple[str, ...]
    time_limit_seconds: float

    @property
    def label(self) -> str:
        """The id without its theme: ``name[axis=value,…]``."""
        return self.id.partition("/")[2]


def misfits(call: Call, demands: str) -> Iterator[tuple[str, str]]:
    """What in ``call`` cannot be, as (field, sentence).

    Calls that must be rejected may be wrong on purpose in what the operator checks; what the
    suite itself needs to build a call holds always.
    """
    kind = call.cache_kind
    if kind == "static" and call.max_sequence_length is None:
        yield "cache", "a static cache needs max_sequence_length"
    if kind != "static" and call.max_sequence_length is not None:
        yield "max_sequence_length", f"only a static cache has a capacity; cache is {kind}"
    if kind == "none" and call.past_sequence_length:
        yield "past_sequence_length", "cache is none, so there are no past tokens"
    if call.shared_buffer and kind != "static":
        yield "shared_buffer", "only a static cache can share its buffer"
    if (call.shared_buffer or call.loop) and call.presents != "both":
        yield "presents", "a shared buffer and a loop need both presents"
    if call.loop and call.sequence_length != 1:
        yield "sequence_length", "a loop gives the sequence_length of each call itself"
    if call.loop and kind == "none":
        yield "cache", "a loop needs a cache"
    if call.loop and call.dims == "static" and (kind != "static" or len(set(call.loop)) > 1):
        yield "dims", "static dims need calls of one shape: a static cache and equal lengths"
    if call.loop and (call.kv_sequence_length is not None or call.key_value == "omitted"):
        yield "loop", "a loop appends as many key/value tokens as it has query tokens, or none"
    if call.key_value in ("packed", "zero_length") and call.kv_sequence_length is not None:
        yield "kv_sequence_length", f"key_value {call.key_value} decides the length of key and value"
    lengths = call.total_sequence_lengths
    if lengths is not None and len(lengths) != call.batch_size:
        yield "total_sequence_lengths", f"{len(lengths)} lengths for a batch of {call.batch_size}"
    if call.rotary == "none" and call.position_ids:
        yield "position_ids", "positions matter to rotary only; rotary is none"
    if call.rotary == "none" and (call.rotary_dim or call.rotary_cache_length):
        field = "rotary_dim" if call.rotary_dim else "rotary_cache_length"
        yield field, "rotary is none"
    if demands != "computes":
        return
    hint = "; a case that is wrong on purpose has the contract 'rejects' or 'either'"
    if call.num_heads % call.kv_num_heads:
        yield (
            "num_heads",
            f"num_heads {call.num_heads} is not a multiple of kv_num_heads {call.kv_num_heads}{hint}",
        )
    if call.rotary != "none" and (call.rotary_dim or call.head_size) % 2:
        yield "rotary_dim", f"rotary turns pairs of elements: an even number of them{hint}"
    if (call.rotary_dim or 0) > call.head_size:
        yield (
            "rotary_dim",
            f"rotary_dim {call.rotary_dim} is more than head_size {call.head_size}{hint}",
        )
    if call.local_window_size is not None and call.local_window_size != -1:
        if call.causal == 0:
            yield "local_window_size", f"must be -1 when causal is 0{hint}"
        if call.local_window_size < 1:
            yield "local_window_size", f"a window has 1 token at least, or is -1{hint}"


