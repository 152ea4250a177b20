"""A call's tensors: which inputs and outputs are connected, of which shape, dtype and values.

This is the one place where the fields of a case become tensors; the model, the values, the oracle
and ``gqa show`` all read it from here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from conformance.base.dtypes import INTEGER_RANGE
from conformance.base.signature import ATTRIBUTES, INPUTS, OUTPUTS, Parameter
from conformance.case.call import Call, InputOverride, OutputOverride, State, Values

#: A tensor is never larger than this many elements (256 MiB of float32): a case is a small thing.
MAX_ELEMENTS: Final = 1 << 26
#: Nor has a call more scores, one for each query token, key and head: the oracle holds them all, in
#: 80 bytes each.
MAX_SCORES: Final = 1 << 25

#: About the largest score that queries make, up or down, if nothing asks for others.
SCORE: Final = 2.0

_EXPRESSION = re.compile(r"([a-z_]+)(?:\s*([-+*])\s*([0-9]{1,9}))?")


@dataclass(frozen=True)
class Tensor:
    """An input or output of one call.

    ``shape`` is None for what is not connected, and for outputs unless the graph is to declare it.
    ``values`` None means: as this input's meaning asks (lengths, positions, cos and sin tables).
    ``dims`` are the names that the graph gives to its dims, or None for a fixed one. ``elements`` are
    leading indices, and the number that all elements below have instead.
    """

    name: str
    state: State
    dtype: str
    rank: int
    shape: tuple[int, ...] | None = None
    values: Values | None = None
    data: object = None
    dims: tuple[str | None, ...] = ()
    elements: tuple[tuple[tuple[int, ...], float], ...] = ()

    @property
    def connected(self) -> bool:
        """Whether the node has this input or output."""
        return self.state == "connected"


@dataclass(frozen=True)
class Step:
    """One call: its tensors in the order of the signature, and the lengths they stand for.

    ``total_lengths`` are the tokens of each sequence after the call, ``new_tokens`` how many
    key/value tokens it brings, ``carried`` whether its past is the present of the call before.
    """

    index: int
    sequence_length: int
    new_tokens: int
    total_lengths: tuple[int, ...]
    total_sequence_length: int
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    carried: bool

    def input(self, name: str) -> Tensor:
        """The input ``name``."""
        return next(tensor for tensor in self.inputs if tensor.name == name)

    @property
    def connected_outputs(self) -> tuple[str, ...]:
        """Names of the outputs that the node has."""
        return tuple(tensor.name for tensor in self.outputs if tensor.connected)


class ShapeError(ValueError):
    """A shape, or the numbers given for it, cannot be; ``field`` is where the case says so."""

    def __init__(self, field: str, sentence: str) -> None:
        super().__init__(sentence)
        self.field = field


def attributes_of(call: Call) -> dict[str, int | float | str]:
    """The node's attributes, in the order of the signature; what is left out is not there."""
    made: dict[str, int | float | str | None] = {
        attribute.name: getattr(call, attribute.name)
        for attribute in ATTRIBUTES
        if attribute.name in Call.model_fields
    }
    made["do_rotary"] = 1 if call.rotary != "none" else None
    made["rotary_interleaved"] = 1 if call.rotary == "interleaved" else None
    made.update({str(name): value for name, value in call.attributes.items()})
    return {
        attribute.name: value
        for attribute in ATTRIBUTES
        if (value := made.get(attribute.name)) is not None
    }


def steps_of(call: Call) -> tuple[Step, ...]:
    """The calls of a case, one unless it loops. Raises :class:`ShapeError`."""
    steps: list[Step] = []
    past = call.past_sequence_length
    lengths: tuple[int, ...] | None = call.total_sequence_lengths
    last_row = _rows_needed(call)
    for index, sequence_length in enumerate(call.loop or (call.sequence_length,)):
        new = _new_tokens(call, sequence_length)
        if index == 0:
            totals = lengths if lengths is not None else (past + new,) * call.batch_size
        else:
            totals = tuple(length + new for length in steps[-1].total_lengths)
            past = steps[-1].total_sequence_length
        total = max(totals, default=0)
        if total > INTEGER_RANGE["int32"][1]:
            raise ShapeError("past_sequence_length", f"{total} tokens are more than int32 can say")
        steps.append(_step(call, index, sequence_length, new, past, totals, total, last_row))
    _check_steps(call, steps)
    return tuple(steps)


def _check_steps(call: Call, steps: list[Step]) -> None:
    """What the calls of a loop, and a shared buffer, need of their tensors."""
    shapes = {tuple(tensor.shape for tensor in step.inputs) for step in steps}
    if call.dims == "static" and len(shapes) > 1:
        raise ShapeError(
            "dims", "static dims need calls of one shape: a static cache and equal lengths"
        )
    if call.loop or call.shared_buffer:
        for field, tensors in (("inputs", steps[0].inputs), ("outputs", steps[0].outputs)):
            for tensor in tensors:
                if tensor.name.startswith(("past_", "present_")) and not tensor.connected:
                    raise ShapeError(
                        f"{field}.{tensor.name}",
                        f"a loop and a shared buffer need {tensor.name} connected",
                    )


def _new_tokens(call: Call, sequence_length: int) -> int:
    if call.key_value in ("zero_length", "omitted"):
        return 0
    if call.kv_sequence_length is not None:
        return call.kv_sequence_length
    return sequence_length


def _rows_needed(call: Call) -> int:
    """Rows of the rotary tables: the capacity of the cache, or the tokens there are at the end."""
    if call.rotary_cache_length is not None:
        return call.rotary_cache_length
    new = sum(_new_tokens(call, length) for length in call.loop or (call.sequence_length,))
    longest = max(call.total_sequence_lengths or (0,))
    return max(call.past_sequence_length + new, longest, call.max_sequence_length or 0, 1)


def _step(
    call: Call,
    index: int,
    sequence_length: int,
    new: int,
    past: int,
    totals: tuple[int, ...],
    total: int,
    rotary_rows: int,
) -> Step:
    batch, heads, kv_heads, size = (
        call.batch_size,
        call.num_heads,
        call.kv_num_heads,
        call.head_size,
    )
    buffer = (call.max_sequence_length or 0) if call.cache_kind == "static" else past
    keys = max(past + new, total) if call.sliding_window_cache == 1 else max(buffer, past + new)
    if batch * heads * sequence_length * keys > MAX_SCORES:
        raise ShapeError(
            "sequence_length",
            f"{sequence_length} query tokens, {keys} keys and {batch * heads} heads are too many"
            f" for the oracle: at most {MAX_SCORES} scores",
        )
    names = {
        "batch_size": batch,
        "sequence_length": sequence_length,
        "kv_sequence_length": new,
        "past_sequence_length": past,
        "max_sequence_length": buffer,
        "total_sequence_length": total,
        "num_heads": heads,
        "kv_num_heads": kv_heads,
        "head_size": size,
        "hidden_size": heads * size,
        "kv_hidden_size": kv_heads * size,
    }
    made = _natural(call, names, rotary_rows)
    given = _given(call)
    cache_dtype = call.cache_dtype or call.dtype
    inputs = [
        _input(call, parameter, made[parameter.name], parameter.name in given, names, cache_dtype)
        for parameter in INPUTS
    ]
    outputs = [_output(call, parameter, names, cache_dtype) for parameter in OUTPUTS]
    return Step(
        index=index,
        sequence_length=sequence_length,
        new_tokens=new,
        total_lengths=totals,
        total_sequence_length=total,
        inputs=_placed(inputs, "inputs"),
        outputs=_placed(outputs, "outputs"),
        carried=index > 0,
    )


#: An input as the fields make it: shape, names of the dims (None: fixed), and how it is drawn.
_Natural = tuple[tuple[int, ...], tuple[str | None, ...], Values | None]


# Made once: a step has a dozen of them, and the corpus thousands of steps.
_PLAIN: Final = Values()
_MARKED: Final = Values(kind="marked")
_ZEROS: Final = Values(kind="constant", value=0.0)
_NOTHING_SAID: Final = InputOverride()


@lru_cache(maxsize=1024)
def _uniform(low: float, high: float, odd_heads: float = 1.0) -> Values:
    return Values(low=low, high=high, odd_heads=odd_heads)


def _natural(call: Call, names: Mapping[str, int], rotary_rows: int) -> dict[str, _Natural]:
    """Every input as it is where it is connected, by the fields or by an override."""
    batch, heads, size = call.batch_size, call.num_heads, call.head_size
    kv_heads, sequence_length = call.kv_num_heads, names["sequence_length"]
    keys = names["total_sequence_length"]
    sink = keys.bit_length() / 2.0  # so that it weighs about as much as all keys together
    hidden, kv_hidden = names["hidden_size"], names["kv_hidden_size"]
    width = hidden + 2 * kv_hidden if call.key_value == "packed" else hidden
    zeros = _ZEROS if call.key_value == "zero_valued" else None
    capacity = "max_sequence_length" if call.cache_kind == "static" else "past_sequence_length"
    one_batch = call.attention_bias in ("one_batch", "one_batch_one_head")
    one_head = call.attention_bias in ("one_head", "one_batch_one_head")
    tokens = ("batch_size", "sequence_length")

    new = (
        (batch, names["kv_sequence_length"], kv_hidden),
        ("batch_size", "kv_sequence_length", None),
    )
    stored = size // 2 if _packs_two(call) else size
    past = (
        (batch, kv_heads, names["max_sequence_length"], stored),
        ("batch_size", None, capacity, None),
    )
    cached = token_values(call)
    if call.cache_dtype == "float8e4m3fn":  # of the order of the new tokens, times the scales below
        cached = _uniform(-100.0, 100.0)
    table: _Natural = (
        (rotary_rows, (call.rotary_dim or size) // 2),
        ("rotary_cache_length", None),
        None,
    )
    bias: _Natural = (
        (
            1 if one_batch else batch,
            1 if one_head else heads,
            sequence_length,
            names["total_sequence_length"],
        ),
        (
            None if one_batch else "batch_size",
            None,
            "sequence_length",
            "total_sequence_length",
        ),
        _uniform(-2.0, 2.0),
    )
    norm: _Natural = ((size,), (None,), _uniform(0.5, 2.5))
    return {
        "query": ((batch, sequence_length, width), (*tokens, None), _query_values(call, keys)),
        "key": (*new, zeros or token_values(call)),
        "value": (*new, zeros or token_values(call)),
        "past_key": (*past, cached),
        "past_value": (*past, cached),
        "seqlens_k": ((batch,), ("batch_size",), None),
        "total_sequence_length": ((), (), None),
        "cos_cache": table,
        "sin_cache": table,
        "position_ids": ((batch, sequence_length), tokens, None),
        "attention_bias": bias,
        "head_sink": ((heads,), (None,), _uniform(sink, sink + 3.0)),
        "k_scale": _quantisation_scale(call, call.k_quant_type),
        "v_scale": _quantisation_scale(call, call.v_quant_type),
        "q_norm_weight": ((size,), (None,), _uniform(1.5, 3.5)),
        "k_norm_weight": norm,
    }


def token_values(call: Call) -> Values:
    """Keys and values, if nobody says anything else: marked, or where they are quantised, of all
    codes alike."""
    return _PLAIN if _quantised(call) else _MARKED


def _query_values(call: Call, keys: int) -> Values:
    """Queries whose scores differ by what can be seen, whatever the head size and the scale.

    With marked keys (:class:`conformance.case.call.Values`) they are about `scale * high` at most.
    So near each other, a wrong score shows and no key is lost beside the others. A softcap needs
    scores of its own size, in every other head, and the sink of smooth_softmax, whose logit is 0,
    all ``keys`` together below it. In quantised keys all elements of a head count alike.
    """
    scale = abs(call.scale or 0.0)
    if not 0.0 < scale < math.inf:
        scale = 1.0 / math.sqrt(call.head_size)
    if _quantised(call):
        scale *= math.sqrt(call.head_size)
    cap = abs(call.softcap or 0.0)
    if call.smooth_softmax == 1 and not call.head_sink and not _quantised(call):
        below = 0.5 + keys.bit_length()  # more than the logarithm of keys
        return _uniform(-1.25 * below / scale, -0.75 * below / scale)
    score = max(SCORE, min(2.5 * cap, 250.0))
    high = min(max(score / scale, 1.0), 4096.0)
    return _uniform(-high, high, SCORE / score)


def _quantisation_scale(call: Call, kind: str | None) -> _Natural:
    shape = (1, call.kv_num_heads, 1, call.head_size) if kind == "PER_CHANNEL" else (1,)
    values = _uniform(0.1, 0.2) if _packs_two(call) else _uniform(0.01, 0.02)
    return shape, (None,) * len(shape), values


def _quantised(call: Call) -> bool:
    """Whether past and present hold codes."""
    return call.cache_dtype in ("int8", "uint8", "float8e4m3fn")


def _packs_two(call: Call) -> bool:
    """Whether past and present hold two values a byte."""
    return call.cache_dtype == "uint8" and call.kv_cache_bit_width == 4


def _given(call: Call) -> set[str]:
    """The inputs that the fields connect."""
    wanted = {
        ("query", "seqlens_k", "total_sequence_length"): True,
        ("key", "value"): call.key_value in ("new", "zero_length", "zero_valued"),
        ("past_key", "past_value"): call.cache_kind != "none",
        ("cos_cache", "sin_cache"): call.rotary != "none",
        ("position_ids",): call.position_ids,
        ("attention_bias",): call.attention_bias != "none",
        ("head_sink",): call.head_sink,
        ("k_scale",): call.k_quant_type not in (None, "NONE"),
        ("v_scale",): call.v_quant_type not in (None, "NONE"),
        ("q_norm_weight", "k_norm_weight"): call.qk_norm,
    }
    return {name for names, is_wanted in wanted.items() if is_wanted for name in names}


def _dtype(parameter: Parameter, call: Call, cache_dtype: str) -> str:
    if parameter.type == "T":
        return call.dtype
    if parameter.type == "T_CACHE":
        return cache_dtype
    return {"T_KV_SCALE": "float32", "M": "int32"}.get(parameter.type, parameter.type)


def _input(
    call: Call,
    parameter: Parameter,
    natural: _Natural,
    given: bool,
    names: Mapping[str, int],
    cache_dtype: str,
) -> tuple[Tensor, bool]:
    """The input, and whether the case itself says its state; ``given``: its fields do."""
    name = parameter.name
    field = f"inputs.{name}"
    said = call.inputs.get(name)  # type: ignore[call-overload]
    dtype = _dtype(parameter, call, cache_dtype)
    if isinstance(said, str):
        said = InputOverride(state=said)
    if said is None and not given:
        return Tensor(name, "omitted", dtype, parameter.rank), False
    if said is not None and said.state != "connected":
        if said != InputOverride(state=said.state):
            raise ShapeError(field, f"{name} is {said.state}, so it has no shape and no numbers")
        return Tensor(name, said.state, dtype, parameter.rank), True
    said = said or _NOTHING_SAID
    dtype = said.dtype or dtype
    shape, dims, values = natural
    if said.shape is not None:
        shape = tuple(_dim(dim, names, field) for dim in said.shape)
        dims = tuple(f"{name}_{axis}" for axis in range(len(shape)))
    if said.data is not None:
        found = _shape_of(said.data, dtype, field)
        if said.shape is not None and found != shape:
            raise ShapeError(field, f"data has the shape {found}, shape says {shape}")
        if found != shape:
            shape, dims = found, tuple(f"{name}_{axis}" for axis in range(len(found)))
    if math.prod(max(dim, 1) for dim in shape) > MAX_ELEMENTS:  # NumPy counts so as well
        raise ShapeError(
            field, f"{name} of shape {shape} is too large: at most {MAX_ELEMENTS} elements"
        )
    if said.values is not None:
        _check_values(said, said.values, dtype, field)
        values = said.values
    elif values is not None and dtype in INTEGER_RANGE:
        low, high = INTEGER_RANGE[dtype]
        values = Values(low=low, high=high)
    if call.dims == "static":
        dims = (None,) * len(shape)
    elements = _elements(said, shape, dtype, field)
    return Tensor(
        name, "connected", dtype, len(shape), shape, values, said.data, dims, elements
    ), True


def _elements(
    said: InputOverride, shape: tuple[int, ...], dtype: str, field: str
) -> tuple[tuple[tuple[int, ...], float], ...]:
    for element in said.elements:
        within = all(-size <= index < size for index, size in zip(element.at, shape, strict=False))
        if len(element.at) > len(shape) or not within:
            raise ShapeError(field, f"there is nothing at {list(element.at)} in the shape {shape}")
        _check_number(element.value, dtype, field)
    return tuple((element.at, element.value) for element in said.elements)


def _output(
    call: Call, parameter: Parameter, names: Mapping[str, int], cache_dtype: str
) -> tuple[Tensor, bool]:
    name = parameter.name
    dtype = _dtype(parameter, call, cache_dtype)
    said = call.outputs.get(name)  # type: ignore[call-overload]
    if isinstance(said, str):
        said = OutputOverride(state=said)
    if said is not None:
        shape = None
        if said.shape is not None:
            shape = tuple(_dim(dim, names, f"outputs.{name}") for dim in said.shape)
        return Tensor(name, said.state, dtype, parameter.rank, shape), True
    wanted = {
        "output": True,
        "present_key": call.presents in ("both", "key_only"),
        "present_value": call.presents in ("both", "value_only"),
        "output_qk": bool(call.qk_output),
    }[name]
    return Tensor(name, "connected" if wanted else "omitted", dtype, parameter.rank), wanted


def _placed(tensors: list[tuple[Tensor, bool]], field: str) -> tuple[Tensor, ...]:
    """Ends the list before the unneeded rest; an `omitted` that the case asks for stays."""
    last = max(
        (i for i, (t, said) in enumerate(tensors) if said and t.state != "trailing"), default=-1
    )
    placed = []
    for index, (tensor, said) in enumerate(tensors):
        if said and tensor.state == "trailing" and index < last:
            raise ShapeError(
                f"{field}.{tensor.name}",
                f"{tensor.name} cannot be trailing: {tensors[last][0].name} comes after it",
            )
        state: State = tensor.state if index <= last else "trailing"
        placed.append(
            tensor
            if state == tensor.state
            else Tensor(tensor.name, state, tensor.dtype, tensor.rank)
        )
    return tuple(placed)


def _dim(dim: int | str, names: Mapping[str, int], field: str) -> int:
    if isinstance(dim, str):
        match = _EXPRESSION.fullmatch(dim.strip())
        if not match or match[1] not in names:
            known = ", ".join(names)
            raise ShapeError(field, f"dim '{dim}' is not NAME, NAME+N, NAME-N or NAME*N of {known}")
        value = names[match[1]]
        operand = int(match[3] or 0)
        dim = {None: value, "+": value + operand, "-": value - operand, "*": value * operand}[
            match[2]
        ]
    if dim < 0:
        raise ShapeError(field, f"a dim cannot be negative, found {dim}")
    return dim


def _check_values(said: InputOverride, values: Values, dtype: str, field: str) -> None:
    unused = Values()
    if said.data is not None:
        raise ShapeError(field, "data are the numbers themselves; values beside it say nothing")
    kind = values.kind
    uniform = values.model_copy(update={"kind": "uniform", "value": unused.value})
    if kind != "uniform" and uniform != unused:
        sentence = f"low, high, step and odd_heads belong to the kind uniform, not to {kind}"
        raise ShapeError(field, sentence)
    if kind != "constant" and values.value != unused.value:
        raise ShapeError(field, f"value belongs to the kind constant, not to {kind}")
    if kind == "constant":
        _check_number(values.value, dtype, field)
        return
    if not 0 <= values.high - values.low < math.inf:
        raise ShapeError(
            field, f"low {values.low} and high {values.high} are no range of finite numbers"
        )
    for bound in (values.low, values.high):
        _check_number(bound, dtype, field)
    if not 0 <= values.step < math.inf:
        raise ShapeError(field, f"step {values.step} is no positive number")


def _check_number(number: float, dtype: str, field: str) -> None:
    """Whether ``dtype`` has the number, an integer in range; float types round whatever comes."""
    if dtype not in INTEGER_RANGE:
        try:
            float(number)
        except OverflowError:
            raise ShapeError(field, "data holds a number beyond float64") from None
        return
    low, high = INTEGER_RANGE[dtype]
    if not low <= number <= high or number != int(number):
        raise ShapeError(field, f"{number} is no {dtype}")


def _shape_of(data: object, dtype: str, field: str) -> tuple[int, ...]:
    """Shape of nested lists of numbers; raises ShapeError where they are uneven."""
    if not isinstance(data, list):
        if isinstance(data, bool) or not isinstance(data, int | float):
            raise ShapeError(field, f"data holds numbers, found {data!r}")
        _check_number(data, dtype, field)
        return ()
    inner = {_shape_of(item, dtype, field) for item in data}
    if len(inner) > 1:
        raise ShapeError(field, "data is uneven: its rows have different shapes")
    return (len(data), *(inner.pop() if inner else ()))
