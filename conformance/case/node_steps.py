"""The steps of a call: their lengths, and their tensors with shapes, dtypes and values.

This module alone derives tensors from the fields of a case. The model generator, the input values,
the oracle and ``gqa show`` all use its result.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache, partial
from typing import Final, Literal

from conformance.base.dtypes import INTEGER_RANGE
from conformance.case.overrides import check_rank, check_values, dim_of, elements_of, shape_of
from conformance.operator.call import (
    Call,
    InputOverride,
    OutputOverride,
    State,
    Values,
)
from conformance.operator.features import INPUT_RULES, OUTPUT_RULES
from conformance.operator.parts.key_value import new_tokens
from conformance.operator.positions import are_drawn, drawn, implied
from conformance.operator.signature import INPUTS, NAMED_AXES, OUTPUTS, TYPES, Axis, Parameter
from conformance.operator.tensors import ShapeError, Step, Tensor

#: Largest number of elements of a tensor (256 MiB of float32).
MAX_ELEMENTS: Final = 1 << 26
#: Largest number of elements of the inputs of a call together.
MAX_INPUT_ELEMENTS: Final = 1 << 27
#: Largest number of sequences of a batch.
MAX_BATCH: Final = 1 << 16
#: Largest number of scores of a call, one for each query token, key and head: 8,192 queries and
#: keys in two heads. The oracle takes about a minute for them.
MAX_SCORES: Final = 1 << 27
#: Largest number of scores of a call with output_qk, which keeps them all in memory.
MAX_SHOWN_SCORES: Final = 1 << 25


def node_steps(call: Call) -> tuple[Step, ...]:
    """The steps of the node that the fields of ``call`` describe. Raises :class:`ShapeError`."""
    if call.batch_size > MAX_BATCH:
        raise ShapeError("batch_size", f"{call.batch_size} sequences; at most {MAX_BATCH} fit")
    session = _session_of(call)
    rows = max(_rows_needed(each, [step for step, _ in lengths]) for each, lengths in session)
    steps = []
    for number, (each, lengths) in enumerate(session):
        with _field_of(number if number < len(call.earlier_calls) else None):
            steps += [_with_tensors(each, step, past, rows) for step, past in lengths]
    elements = sum(map(input_elements, steps))
    if elements > MAX_INPUT_ELEMENTS:
        sentence = f"the inputs have {elements} elements; at most {MAX_INPUT_ELEMENTS} fit"
        raise ShapeError("batch_size", sentence)
    _check_steps(call, steps)
    return _with_constants(call, _with_free_dims(steps))


def _with_free_dims(steps: list[Step]) -> list[Step]:
    """The steps; the model takes the shapes that refused calls give an input by hand."""
    if not any(step.refused for step in steps):
        return steps
    free: dict[str, tuple[str | None, ...]] = {}
    for each in zip(*(step.inputs for step in steps), strict=True):
        own = each[-1]
        if written := next((tensor.dims for tensor in each if tensor.dims != own.dims), None):
            sizes = zip(*(tensor.shape or () for tensor in each), strict=True)
            free[own.name] = tuple(
                name if usual or len({*of_calls}) > 1 else None
                for name, usual, of_calls in zip(written, own.dims, sizes, strict=True)
            )
    return [
        replace(step, inputs=tuple(t._replace(dims=free.get(t.name, t.dims)) for t in step.inputs))
        for step in steps
    ]


def _with_constants(call: Call, steps: list[Step]) -> tuple[Step, ...]:
    """The steps with the constants that all of them share. Raises :class:`ShapeError`."""
    constants: dict[str, Tensor] = {}
    for name in call.constants:
        tensor = steps[0].input(name)
        if not tensor.connected:
            raise ShapeError("constants", f"{name} is not connected, so it cannot be a constant")
        if tensor.same_as:
            raise ShapeError("constants", f"{name} is the tensor of {tensor.same_as}; name that")
        if name in constants:
            raise ShapeError("constants", f"{name} is listed twice")
        constants[name] = tensor._replace(constant=True)
    if not constants:
        return tuple(steps)
    return tuple(
        replace(step, inputs=tuple(constants.get(each.name, each) for each in step.inputs))
        for step in steps
    )


def input_elements(step: Step) -> int:
    """The number of elements of all inputs of ``step``."""
    tensors = (*step.inputs, *step.weights)
    return sum(math.prod(tensor.shape) for tensor in tensors if tensor.shape is not None)


def _check_steps(call: Call, steps: list[Step]) -> None:
    """Check the requirements of a loop, static dims and a shared buffer on the tensors."""
    shapes = {tuple(tensor.shape for tensor in step.inputs) for step in steps}
    if call.dims == "static" and len(shapes) > 1:
        raise ShapeError(
            "dims", "static dims need the same shapes in all calls: a static cache, equal lengths"
        )
    if call.earlier_calls:
        connected = [
            {
                (each.name, each.dtype, each.rank, each.same_as)
                for each in step.inputs
                if each.connected
            }
            for step in steps
        ]
        if some := sorted(connected[0].union(*connected) - connected[0].intersection(*connected)):
            sentence = (
                f"{some[0][0]} is connected in some calls only, or with another type or rank;"
                " give it in each, or in none"
            )
            raise ShapeError("earlier_calls", sentence)
    if call.loop or call.shared_buffer:
        for field, tensors in (("inputs", steps[0].inputs), ("outputs", steps[0].outputs)):
            for tensor in tensors:
                if tensor.name.startswith(("past_", "present_")) and not tensor.connected:
                    raise ShapeError(
                        f"{field}.{tensor.name}",
                        f"a loop and a shared buffer need {tensor.name} connected",
                    )
                if tensor.name.startswith("past_") and tensor.same_as:
                    sentence = "a loop and a shared buffer need a tensor for each past"
                    raise ShapeError(f"inputs.{tensor.name}", sentence)


def _rows_needed(call: Call, steps: list[Step]) -> int:
    """Rows of the rotary tables: the cache's capacity, or the number of tokens at the end.

    Drawn positions may need more. Raises :class:`ShapeError` if the case sets tables with too few
    rows.
    """
    end = max(each.positions.end(each.sequence_length) for each in steps) if are_drawn(call) else 0
    if call.rotary_cache_length is not None:
        if end > call.rotary_cache_length:
            raise ShapeError(
                "rotary_cache_length",
                f"the drawn position_ids need {end} rows; give more, or write position_ids by hand",
            )
        return call.rotary_cache_length
    new = sum(each.new_tokens for each in steps)
    longest = max(each.total_sequence_length for each in steps)
    return max(call.past_sequence_length + new, longest, call.max_sequence_length or 0, end, 1)


def _with_tensors(call: Call, step: Step, past: int, rotary_rows: int) -> Step:
    sequence_length, new, total = step.sequence_length, step.new_tokens, step.total_sequence_length
    heads = call.batch_size * call.num_heads
    buffer = (call.max_sequence_length or 0) if call.cache_kind == "static" else past
    keys = max(past + new, total) if call.sliding_window_cache == 1 else max(buffer, past + new)
    most = MAX_SHOWN_SCORES if call.qk_output else MAX_SCORES
    if heads * sequence_length * keys > most:
        raise ShapeError(
            "sequence_length",
            f"{sequence_length} query tokens, {keys} keys and {heads} heads are too many"
            f" for the oracle: at most {most} scores{' with output_qk' if call.qk_output else ''}",
        )
    names = {
        "batch_size": call.batch_size,
        "sequence_length": sequence_length,
        "kv_sequence_length": new,
        "past_sequence_length": past,
        "max_sequence_length": buffer,
        "total_sequence_length": total,
        "num_heads": call.num_heads,
        "kv_num_heads": call.kv_num_heads,
        "head_size": call.head_size,
        "hidden_size": call.num_heads * call.head_size,
        "kv_hidden_size": call.kv_num_heads * call.head_size,
    }
    sizes = names | {
        "packed_hidden_size": names["hidden_size"] + 2 * names["kv_hidden_size"],
        "rotary_cache_length": rotary_rows,
        "rotary_pairs": (call.rotary_dim or call.head_size) // 2,
    }
    cache_dtype = call.cache_dtype or call.dtype
    inputs = [_input(call, parameter, names, sizes, cache_dtype) for parameter in INPUTS]
    inputs = _with_same_tensors(call, inputs)
    outputs = [_output(call, parameter, names, cache_dtype) for parameter in OUTPUTS]
    return replace(
        step,
        inputs=_mark_trailing(inputs, "inputs"),
        outputs=_mark_trailing(outputs, "outputs"),
        buffers=tuple(_buffers(call, names, cache_dtype)),
    )


def _with_same_tensors(call: Call, inputs: list[tuple[Tensor, bool]]) -> list[tuple[Tensor, bool]]:
    """The inputs; one that shares its tensor with another input gets its shape and type."""
    by_name = {tensor.name: tensor for tensor, _ in inputs}
    others = {
        name: override.same_as
        for name, override in call.inputs.items()
        if isinstance(override, InputOverride) and override.same_as
    }
    found = []
    for tensor, explicit in inputs:
        other = others.get(tensor.name)
        if other is not None:
            field, their = f"inputs.{tensor.name}", by_name[other]
            if call.inputs[tensor.name] != InputOverride(same_as=other):
                raise ShapeError(
                    field, f"{tensor.name} is the tensor of {other}: nothing else fits"
                )
            if other in others or not their.connected:
                raise ShapeError(field, f"{other} has no tensor of its own")
            tensor = their._replace(name=tensor.name, same_as=other)
        found.append((tensor, explicit))
    return found


_NO_OVERRIDE: Final = InputOverride()


@lru_cache(maxsize=1024)
def _unconnected(name: str, state: State, dtype: str, rank: int) -> Tensor:
    return Tensor(name, state, dtype, rank)


@lru_cache(maxsize=1024)
def _named(axes: tuple[Axis, ...]) -> tuple[str | None, ...]:
    """The names of the dims in the graph; None for one without a name."""
    return tuple(axis if isinstance(axis, str) and axis in NAMED_AXES else None for axis in axes)


def _dtype(parameter: Parameter, call: Call, cache_dtype: str) -> str:
    if parameter.type == "T":
        return call.dtype
    if parameter.type == "T_CACHE":
        return cache_dtype
    return TYPES[parameter.type][0]  # of types with one dtype


def _input(
    call: Call,
    parameter: Parameter,
    names: Mapping[str, int],
    sizes: Mapping[str, int],
    cache_dtype: str,
) -> tuple[Tensor, bool]:
    """The input, and whether its state is explicit: set by an override or by the case's fields.

    ``names`` are the sizes that an override can name, ``sizes`` those of the axes.
    """
    name, rule = parameter.name, INPUT_RULES[parameter.name]
    override = call.inputs.get(name)
    dtype = _dtype(parameter, call, cache_dtype)
    if override is None and not rule.connected(call):
        return _unconnected(name, "omitted", dtype, parameter.rank), False
    field = f"inputs.{name}"
    if isinstance(override, str):
        override = InputOverride(state=override)
    if override is not None and override.state != "connected":
        if override != InputOverride(state=override.state):
            raise ShapeError(field, f"{name} is {override.state}, so it has no shape and no values")
        return _unconnected(name, override.state, dtype, parameter.rank), True
    override = override or _NO_OVERRIDE
    dtype = override.dtype or dtype
    axes = rule.axes(call) if rule.axes else parameter.axes
    shape = tuple([sizes[axis] if isinstance(axis, str) else axis for axis in axes])
    dims = _named(axes)
    values = rule.values(call, sizes["total_sequence_length"]) if rule.values else None
    if override.shape is not None:
        shape = tuple(dim_of(dim, names, field) for dim in override.shape)
        dims = tuple(f"{name}_{axis}" for axis in range(len(shape)))
    if override.data is not None:
        found = shape_of(override.data, dtype, field)
        if override.shape is not None and found != shape:
            raise ShapeError(field, f"data has the shape {found}, but shape is {shape}")
        if found != shape:
            shape, dims = found, tuple(f"{name}_{axis}" for axis in range(len(found)))
    check_rank(shape, field)
    if math.prod([dim or 1 for dim in shape]) > MAX_ELEMENTS:  # NumPy's limit ignores zeros too
        raise ShapeError(
            field, f"{name} of shape {shape} is too large: at most {MAX_ELEMENTS} elements"
        )
    if override.values is not None:
        check_values(override, override.values, dtype, field)
        values = override.values
    elif values is not None and dtype in INTEGER_RANGE:
        low, high = INTEGER_RANGE[dtype]
        values = Values(low=low, high=high)
    if call.dims == "static":
        dims = (None,) * len(shape)
    elements = elements_of(override, shape, dtype, field)
    return Tensor(
        name, "connected", dtype, len(shape), shape, values, override.data, dims, elements
    ), True


def _output(
    call: Call, parameter: Parameter, names: Mapping[str, int], cache_dtype: str
) -> tuple[Tensor, bool]:
    name = parameter.name
    dtype = _dtype(parameter, call, cache_dtype)
    override = call.outputs.get(name)
    if isinstance(override, str):
        override = OutputOverride(state=override)
    if override is not None:
        shape = None
        if override.shape is not None:
            shape = tuple(dim_of(dim, names, f"outputs.{name}") for dim in override.shape)
            check_rank(shape, f"outputs.{name}")
        return Tensor(name, override.state, dtype, parameter.rank, shape), True
    wanted = bool(OUTPUT_RULES[name](call))
    return Tensor(name, "connected" if wanted else "omitted", dtype, parameter.rank), wanted


def _buffers(call: Call, names: Mapping[str, int], cache_dtype: str) -> Iterator[Tensor]:
    """The memory that the program binds outputs to. Raises :class:`ShapeError`."""
    for parameter in OUTPUTS:
        name, override = parameter.name, call.outputs.get(parameter.name)
        if not isinstance(override, OutputOverride) or override.buffer is None:
            continue
        field = f"outputs.{name}"
        if call.loop or call.shared_buffer or override.state != "connected":
            sentence = "a buffer is for a connected output of one call without a shared buffer"
            raise ShapeError(field, sentence)
        shape = tuple(dim_of(dim, names, field) for dim in override.buffer)
        check_rank(shape, field)
        dtype, zeros = _dtype(parameter, call, cache_dtype), Values(kind="constant")
        buffer = f"{name}_buffer"
        yield Tensor(buffer, "connected", dtype, len(shape), shape, zeros, holds=name)


def _mark_trailing(tensors: list[tuple[Tensor, bool]], field: str) -> tuple[Tensor, ...]:
    """The tensors, marked as trailing after the last used one; an explicit `omitted` is used."""
    last = max(
        (i for i, (t, explicit) in enumerate(tensors) if explicit and t.state != "trailing"),
        default=-1,
    )
    marked = []
    for index, (tensor, explicit) in enumerate(tensors):
        if explicit and tensor.state == "trailing" and index < last:
            raise ShapeError(
                f"{field}.{tensor.name}",
                f"{tensor.name} cannot be trailing: {tensors[last][0].name} follows it",
            )
        state: State = tensor.state if index <= last else "trailing"
        marked.append(
            tensor
            if state == tensor.state
            else _unconnected(tensor.name, state, tensor.dtype, tensor.rank)
        )
    return tuple(marked)


# The lengths of each call: its new tokens, its past, and what is taken back


def _session_of(call: Call) -> list[tuple[Call, list[tuple[Step, int]]]]:
    """Each call of the session with its steps, as :func:`_lengths_of` gives them.

    The numbers of the last call are drawn as if it were alone.
    """
    *earlier, own = call.calls
    steps, session = [*_lengths_of(own)], []
    for number, each in enumerate(earlier):
        with _field_of(number):
            ((step, past),) = _lengths_of(each)
        refused = call.earlier_calls[number].refused
        step = replace(step, index=len(steps) + number, refused=refused)
        session.append((each, [(step, past)]))
    return [*session, (own, steps)]


@contextmanager
def _field_of(earlier: int | None) -> Iterator[None]:
    """Within the block, the field of a :class:`ShapeError` is one of this earlier call, if any."""
    try:
        yield
    except ShapeError as error:
        if earlier is None:
            raise
        raise ShapeError(f"earlier_calls.{earlier}.{error.field}", str(error)) from None


def _lengths_of(call: Call) -> Iterator[tuple[Step, int]]:
    """Each step without its tensors, and the number of rows of a past without a buffer.

    Raises :class:`ShapeError`.
    """
    positions_of = partial(drawn, call) if are_drawn(call) else implied
    past, total = call.past_sequence_length, 0
    totals: tuple[int, ...] = ()
    for index, sequence_length in enumerate(call.loop or (call.sequence_length,)):
        new = new_tokens(call, sequence_length)
        queries = _written_numbers(call, "query_seqlens", index)
        written = _written_numbers(call, "total_sequence_lengths", index)
        added = queries or (new,) * call.batch_size
        before = totals or (past,) * call.batch_size
        totals = written or tuple(map(int.__add__, before, added))
        rows = past = max(past, total)
        if index and written:
            past = _kept(index + 1, before, added, totals)
        keep = past if past < rows and call.cache_kind == "concatenated" else None
        total = _total_of(call, sequence_length, totals, queries)
        if max(total, *totals) > INTEGER_RANGE["int32"][1]:
            raise ShapeError("past_sequence_length", f"{total} tokens exceed the range of int32")
        positions = positions_of(sequence_length, totals, queries)
        step = Step(
            index, sequence_length, new, totals, total, positions, (), (), index > 0, queries, keep
        )
        yield step, past


def _kept(call: int, before: Sequence[int], added: Sequence[int], totals: Sequence[int]) -> int:
    """The most tokens of a sequence that a later call keeps. Raises :class:`ShapeError`."""
    for sequence, (old, new, total) in enumerate(zip(before, added, totals, strict=True)):
        if total > old + new:
            sentence = (
                f"sequence {sequence} has {old} tokens before call {call} and gets {new}, so it"
                f" cannot have {total} after it"
            )
            raise ShapeError("total_sequence_lengths", sentence)
    return max(0, *map(int.__sub__, totals, added))


def _written_numbers(
    call: Call, field: Literal["query_seqlens", "total_sequence_lengths"], index: int
) -> tuple[int, ...] | None:
    """What a field says of a call of a loop, or of the single call; None if it says nothing.

    Raises :class:`ShapeError` unless there is a number for each sequence.
    """
    counts = getattr(call, field)
    if counts is None:
        return None
    lists = [each for each in counts if isinstance(each, tuple)]
    if lists and not call.loop:
        raise ShapeError(field, "only a loop has a list for each call")
    if call.loop and (lists or field == "query_seqlens"):
        if not len(lists) == len(counts) == len(call.loop):
            sentence = f"a loop of {len(call.loop)} calls needs as many lists of numbers"
            raise ShapeError(field, sentence)
        counts = lists[index]
    elif index:
        return None
    if len(counts) != call.batch_size:
        raise ShapeError(field, f"{len(counts)} numbers for a batch of {call.batch_size}")
    return tuple(counts)


def _total_of(
    call: Call, sequence_length: int, totals: Sequence[int], queries: Sequence[int] | None
) -> int:
    """The input total_sequence_length of a call.

    With query_seqlens the rows of the padding must fit, too, except into a sliding-window cache: a
    growing cache gets as many rows as the input says.
    """
    if call.total_sequence_length is not None:
        return call.total_sequence_length
    longest = max(totals, default=0)
    if queries is None or call.sliding_window_cache == 1:
        return longest
    if call.cache_kind == "static":
        return max(longest, sequence_length)
    starts = (total - query for total, query in zip(totals, queries, strict=False))
    return max(longest, *(start + sequence_length for start in starts))
