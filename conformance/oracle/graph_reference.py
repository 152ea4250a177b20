"""The oracle for a graph of several nodes: its outputs in float64, and their error budgets.

Nothing is rounded to the storage type between nodes. GroupQueryAttention is computed by
:mod:`conformance.oracle.reference`, everything else by :mod:`conformance.oracle.operators`. A graph
is computed several times:

* twice with different numbers in the elements that an attention leaves undefined: padding, rows of
  a cache beyond the end. An element of an output is defined if it is the same both times.
* `TRIALS` times with errors: each element that a node computes is moved by the largest error of a
  correct kernel, up or down at random. The distance by which that moves the outputs is the part of
  their budgets that comes from earlier nodes (docs/tolerance.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.helper import get_attribute_value, make_graph, make_model
from onnx.reference import ReferenceEvaluator

from conformance.base.array_types import NUMPY, WORD_OF_ONNX, Array
from conformance.operator.signature import DOMAIN, INPUT_NAMES, OP_TYPE, OUTPUT_NAMES
from conformance.oracle.errors import OracleError
from conformance.oracle.numbers import FLOAT_DTYPES, Float, Storage
from conformance.oracle.operators import Operator, operator_of
from conformance.oracle.reference import Reference, compute, outputs_of
from conformance.oracle.tolerance import budgets, floor_of

#: How often a graph is computed with errors. Of 16 numbers of a normal distribution the largest is
#: below one standard deviation once in 400 times, and that of real errors is less than half of it.
TRIALS: Final = 16


@dataclass(frozen=True, eq=False)
class _Tensor:
    """A tensor inside the graph.

    ``numbers`` are float64 for a floating-point type, else unchanged. In a computation with errors,
    ``used`` are the numbers with the error of the node that made them, which the next nodes get.
    ``unit`` is that error, the largest of a correct kernel; NaN if it is unknown. Among integers
    only the codes of a quantised cache have one, and it moves nothing; others have None.
    """

    numbers: Array
    dtype: np.dtype[Any]
    used: Array
    unit: Float | None

    @property
    def is_float(self) -> bool:
        """Whether it is of a floating-point type."""
        return self.dtype in FLOAT_DTYPES

    def moved(self, move: Callable[..., Array], *others: _Tensor) -> _Tensor:
        """The tensor with its elements, and those of ``others``, in other places."""
        parts = (self, *others)
        numbers, used = (move(*(getattr(p, n) for p in parts)) for n in ("numbers", "used"))
        units = [each.unit for each in parts if each.unit is not None]
        return replace(self, numbers=numbers, used=used, unit=move(*units))

    @classmethod
    def exact(cls, array: Array) -> _Tensor:
        """An input or a constant."""
        if array.dtype not in FLOAT_DTYPES:
            return cls(array, array.dtype, array, None)
        numbers = array.astype(np.float64)
        return cls(numbers, array.dtype, numbers, np.zeros_like(numbers))


@dataclass(frozen=True, eq=False)
class _Node:
    """A node, ready to be computed."""

    proto: onnx.NodeProto
    attributes: Mapping[str, Any]
    operator: Operator | None
    evaluator: ReferenceEvaluator | None

    @property
    def name(self) -> str:
        """The node's name in error messages."""
        return f"{self.proto.op_type} {self.proto.name}".strip()


@dataclass(frozen=True, eq=False)
class _Errors:
    """The errors of one computation: how far each tensor is moved, and the random signs."""

    units: Mapping[str, Float]
    signs: np.random.RandomState


class _Garbage:
    """Numbers for undefined elements.

    Numbers of the two kinds, 0 and 1, are never equal, not even if they are doubled and rounded
    down.
    """

    def __init__(self, kind: int) -> None:
        self._kind = kind
        self._stream = np.random.RandomState(kind)

    def numbers(self, shape: tuple[int, ...]) -> Float:
        """From `kind` to `kind` + 1."""
        return self._kind + self._stream.random_sample(shape)


@dataclass(eq=False)
class GraphReference:
    """A graph that can be computed. Raises :class:`OracleError` for an operator that is unknown."""

    model: onnx.ModelProto
    _constants: dict[str, _Tensor] = field(init=False)
    _nodes: list[_Node] = field(init=False)

    def __post_init__(self) -> None:
        graph = self.model.graph
        self._constants = {tensor.name: _constant(tensor) for tensor in graph.initializer}
        opsets = [each for each in self.model.opset_import if each.domain in ("", "ai.onnx")]
        self._nodes = [_prepared(node, opsets) for node in graph.node]

    def references(self, inputs: Mapping[str, Array]) -> dict[str, Reference]:
        """The outputs of the graph, with their unit budgets.

        Raises:
            OracleError: a node has no defined meaning; the message names it.
        """
        first = self._run(inputs, _Garbage(0))
        second = self._run(inputs, _Garbage(1))
        units = {
            n: each.unit for n, each in first.items() if each.is_float and each.unit is not None
        }
        names = [output.name for output in self.model.graph.output]
        moved = {name: np.zeros(first[name].numbers.shape) for name in names}
        for trial in range(TRIALS):
            errors = _Errors(units, np.random.RandomState(100 + trial))
            made = self._run(inputs, _Garbage(0), errors)
            for name in names:
                distance = np.abs(
                    made[name].numbers.astype(np.float64) - first[name].numbers.astype(np.float64)
                )
                moved[name] = np.maximum(moved[name], np.nan_to_num(distance))
        return {name: _reference(first[name], second[name], moved[name]) for name in names}

    def values(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Every tensor that a node makes, in float64; undefined elements are arbitrary."""
        made = self._run(inputs, _Garbage(0))
        known = self._constants.keys() | inputs.keys()
        return {name: each.numbers for name, each in made.items() if name not in known}

    def _run(
        self,
        inputs: Mapping[str, Array],
        garbage: _Garbage,
        errors: _Errors | None = None,
    ) -> dict[str, _Tensor]:
        known = {**self._constants, **{n: _Tensor.exact(array) for n, array in inputs.items()}}
        for node in self._nodes:
            try:
                given = [known[name] if name else None for name in node.proto.input]
            except KeyError as error:
                raise OracleError(f"{node.name} reads {error}, which nothing makes.") from None
            try:
                made = _computed(node, given, garbage, errors)
            except OracleError as error:
                raise OracleError(f"{node.name}: {error}") from None
            except Exception as error:  # NumPy's, of shapes that do not fit
                raise OracleError(f"{node.name} cannot be computed: {_line(error)}") from error
            known.update((name, each) for name, each in zip(node.proto.output, made) if name)  # noqa: B905
        return known


def _constant(tensor: onnx.TensorProto) -> _Tensor:
    try:
        return _Tensor.exact(numpy_helper.to_array(tensor))
    except Exception as error:  # of several classes, for data that do not fit the dims
        raise OracleError(f"The constant {tensor.name}: {_line(error)}") from error


def _reference(first: _Tensor, second: _Tensor, moved: Float) -> Reference:
    """An output, from two computations without errors and the largest move by errors."""
    same = first.numbers == second.numbers
    if first.is_float:
        same &= np.isfinite(first.numbers)
    numbers = first.numbers.astype(np.float64)
    own = np.zeros_like(numbers) if first.unit is None else first.unit
    return Reference(np.where(same, numbers, 0.0), same, first.dtype, unit=own + moved)


def _prepared(proto: onnx.NodeProto, opsets: Sequence[onnx.OperatorSetIdProto]) -> _Node:
    attributes = {each.name: get_attribute_value(each) for each in proto.attribute}
    attributes = {k: v.decode() if isinstance(v, bytes) else v for k, v in attributes.items()}
    domain = "" if proto.domain == "ai.onnx" else proto.domain
    operator = operator_of(domain, proto.op_type)
    if _is_attention(proto) or (domain, proto.op_type) in (("", "Cast"), ("", "Attention")):
        return _Node(proto, attributes, None, None)
    if operator is None:
        name = f"{domain}.{proto.op_type}" if domain else proto.op_type
        raise OracleError(f"The operator {name} is unknown to the oracle (node {proto.name}).")
    evaluator = None
    if operator.compute is None:
        graph = make_graph(
            [proto],
            "node",
            [onnx.ValueInfoProto(name=name) for name in dict.fromkeys(proto.input) if name],
            [onnx.ValueInfoProto(name=name) for name in proto.output if name],
        )
        try:
            evaluator = ReferenceEvaluator(make_model(graph, opset_imports=list(opsets)))
        except Exception as error:  # of several classes, for attributes without a meaning
            raise OracleError(f"{proto.op_type} {proto.name}: {_line(error)}") from error
    return _Node(proto, attributes, operator, evaluator)


def _line(error: Exception) -> str:
    """The first line of an error's message."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def _is_attention(node: onnx.NodeProto) -> bool:
    return node.op_type == OP_TYPE and node.domain == DOMAIN


# Nodes that are not attention


def _computed(
    node: _Node,
    given: Sequence[_Tensor | None],
    garbage: _Garbage,
    errors: _Errors | None,
) -> list[_Tensor]:
    """The outputs of a node; elements that it leaves undefined become ``garbage``."""
    if _is_attention(node.proto):
        return _attention(node, given, garbage, errors)
    if node.operator is None:
        if node.proto.op_type == "Cast":
            return [_cast(node, given[0], errors)]
        return _standard_attention(node, given, garbage, errors)
    operator = node.operator
    arrays = _apply(node, [each and each.used for each in given])
    dtype = _dtype(node, given)
    floats = [each for each in given if each is not None and each.is_float]
    if operator.moves:
        if not floats:
            return [_made(array, dtype) for array in arrays]
        numbers = _apply(node, [each and each.numbers for each in given])
        moved: Sequence[Array | None] = [None] * len(arrays)  # nobody reads units among errors
        if errors is None:
            moved = _apply(node, [each and (each.unit if each.is_float else each.numbers)
                                  for each in given])  # fmt: skip
        return [
            _made(number, dtype, used, unit)
            for number, used, unit in zip(numbers, arrays, moved, strict=True)
        ]
    units = [np.zeros(array.shape) for array in arrays]
    if errors is None and floats and not operator.exact:
        used = [each and each.used for each in given]
        units = operator.errors(node.attributes, used, arrays, Storage.of(dtype))
    return [
        _with_error(name, array, dtype, unit, errors)
        for name, array, unit in zip(node.proto.output, arrays, units)  # noqa: B905
    ]


def _apply(node: _Node, arrays: Sequence[Any]) -> list[Array]:
    assert node.operator is not None
    with np.errstate(all="ignore"):
        if node.operator.compute is not None:
            return node.operator.compute(node.attributes, arrays)
        assert node.evaluator is not None
        # The only node of the evaluator, which takes as long as a small node itself.
        made = node.evaluator.rt_nodes_[0].run(*arrays)
        if len(made) < len(node.proto.output):
            raise ValueError(f"it makes {len(made)} outputs, not {len(node.proto.output)}")
    return [
        np.asarray(array) if name else np.zeros(0)
        for name, array in zip(node.proto.output, made, strict=False)
    ]


def _dtype(node: _Node, given: Sequence[_Tensor | None]) -> np.dtype[Any]:
    """The floating-point type of a node's results, if they have such a type."""
    if node.proto.op_type == "GatherBlockQuantized":
        given = given[2:3]
    for each in given:
        if each is not None and each.is_float:
            return each.dtype
    value = node.attributes.get("value")
    if isinstance(value, onnx.TensorProto):
        return NUMPY.get(WORD_OF_ONNX.get(value.data_type, ""), np.dtype(np.float32))
    return np.dtype(np.float32)


def _made(
    array: Array, dtype: np.dtype[Any], used: Array | None = None, unit: Array | None = None
) -> _Tensor:
    """A tensor; an array of other than floating-point numbers keeps its type and has no error."""
    if not _is_float(array):
        return _Tensor(array, array.dtype, array, None)
    numbers = array.astype(np.float64)
    return _Tensor(
        numbers,
        dtype,
        numbers if used is None else used.astype(np.float64),
        np.zeros_like(numbers) if unit is None else unit.astype(np.float64),
    )


def _is_float(array: Array) -> bool:
    return array.dtype.kind == "f" or array.dtype in FLOAT_DTYPES


def _with_error(
    name: str, array: Array, dtype: np.dtype[Any], unit: Array, errors: _Errors | None
) -> _Tensor:
    """The result of a node, moved by its error if ``errors`` has it."""
    if errors is None or not _is_float(array) or name not in errors.units:
        return _made(array, dtype, None, unit)
    unit = errors.units[name]
    signs = np.where(errors.signs.random_sample(array.shape) < 0.5, -1.0, 1.0)
    return _made(array, dtype, array + signs * unit, unit)


def _cast(node: _Node, given: _Tensor | None, errors: _Errors | None) -> _Tensor:
    """A cast: between floating-point types nothing is rounded; a narrower type has an error."""
    assert given is not None
    to = NUMPY.get(WORD_OF_ONNX.get(node.attributes["to"], ""))
    if node.attributes["to"] == onnx.TensorProto.BOOL:
        to = np.dtype(bool)
    if to is None:
        raise OracleError("it casts to a type that is unknown to the oracle.")
    if to not in FLOAT_DTYPES:
        return _made(given.used.astype(to), to)
    storage = Storage.of(to)
    if not given.is_float:
        numbers = given.numbers.astype(np.float64)
        inexact = numbers.astype(to).astype(np.float64) != numbers
        unit = np.where(inexact, storage.unit * np.abs(numbers), 0.0)
        return _with_error(node.proto.output[0], numbers, to, unit, errors)
    if storage.unit <= Storage.of(given.dtype).unit:
        return _Tensor(given.numbers, to, given.used, given.unit)
    unit = storage.unit * np.abs(given.used) + floor_of(storage)
    return _with_error(node.proto.output[0], given.used, to, unit, errors)


# Attention


def _attention(
    node: _Node,
    given: Sequence[_Tensor | None],
    garbage: _Garbage,
    errors: _Errors | None,
) -> list[_Tensor]:
    """A GroupQueryAttention."""
    tensors = {n: t for n, t in zip(INPUT_NAMES, given, strict=False) if t is not None}
    dtype = tensors["query"].dtype
    inputs = {name: each.used for name, each in tensors.items()}
    for name in ("k_scale", "v_scale"):
        if name in inputs:
            inputs[name] = inputs[name].astype(np.float32)
    connected = {n: made for n, made in zip(OUTPUT_NAMES, node.proto.output, strict=False) if made}
    references = outputs_of(compute(inputs, node.attributes, connected, dtype=dtype), connected)
    units = budgets(references) if errors is None else {}
    made = {}
    for name, one in references.items():
        array = _filled(one, garbage)
        if one.dtype not in FLOAT_DTYPES:
            codes = array.astype(one.dtype)
            made[name] = _Tensor(codes, one.dtype, codes, units.get(name))
            continue
        unit = np.nan_to_num(units.get(name, np.zeros_like(array)))
        made[name] = _with_error(connected[name], array, one.dtype, unit, errors)
    nothing = _Tensor.exact(np.zeros(0, np.float32))
    return [made.get(name, nothing) for name in OUTPUT_NAMES[: len(node.proto.output)]]


def _filled(reference: Reference, garbage: _Garbage) -> Float:
    """The values of an output, with garbage in its undefined elements."""
    fill = garbage.numbers(reference.value.shape)
    if reference.dtype not in FLOAT_DTYPES:
        fill = np.floor(2.0 * fill)  # codes
    return np.where(reference.defined, reference.value, fill)


#: The attributes of the standard Attention, each with whether a value of it is known here.
_KNOWN: Final[Mapping[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(("q_num_heads", "kv_num_heads"), lambda number: number > 0),
    **dict.fromkeys(("is_causal", "softcap", "qk_matmul_output_mode"), lambda number: number >= 0),
    **dict.fromkeys(("left_window_size", "right_window_size"), lambda number: number >= -1),
    "scale": lambda scale: scale != 0,  # which means the default in GroupQueryAttention
    "softmax_precision": lambda dtype: dtype in (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE),
}


def _standard_attention(
    node: _Node,
    given: Sequence[_Tensor | None],
    garbage: _Garbage,
    errors: _Errors | None,
) -> list[_Tensor]:
    """The standard Attention, as a GroupQueryAttention that attends to a cache of all its keys.

    Whatever hides keys is a bias of -inf. The row of a query without keys is undefined.
    """
    attributes = node.attributes
    for name, number in attributes.items():
        if name not in _KNOWN:
            raise OracleError(f"the attribute {name} is unknown to the oracle.")
        if not _KNOWN[name](number):
            raise OracleError(f"its {name} {number} is unknown to the oracle.")
    if any(node.proto.output[3:]):
        raise OracleError("an Attention whose scores are an output is unknown.")
    slots: list[_Tensor | None] = [*given, *[None] * (7 - len(given))]
    query, key, value, mask, *pasts, lengths = slots
    assert query is not None
    flat = query.used.ndim == 3
    assert key is not None
    assert value is not None
    presents = []
    for new, past in zip((key, value), pasts, strict=True):
        rows = new.moved(lambda array: _heads(array, attributes["kv_num_heads"])) if flat else new
        presents.append(past.moved(lambda *parts: np.concatenate(parts, 2), rows) if past else rows)
    keys, values = (each.used for each in presents)
    if keys.shape != values.shape:
        raise OracleError("an Attention whose values have another size than its keys is unknown.")
    queries = _heads(query.used, attributes["q_num_heads"]) if flat else query.used
    (batch, heads, length, size), (kv_heads, total) = queries.shape, keys.shape[1:3]
    inputs: dict[str, Array] = {
        "query": queries.swapaxes(1, 2).reshape(batch, length, heads * size),
        **dict.fromkeys(("key", "value"), np.zeros((batch, 0, kv_heads * size))),
        "past_key": keys,
        "past_value": values,
        "seqlens_k": np.full(batch, total - 1, np.int32),
        "total_sequence_length": np.array(total, np.int32),
    }
    columns = np.arange(total)
    visible, first = np.full((1, 1, length, total), True), np.array([total - key.used.shape[-2]])
    if lengths is not None:
        visible = visible & (columns < lengths.used.reshape(-1, 1, 1, 1))
        first = lengths.used.reshape(-1) - length
    own = first.reshape(-1, 1, 1, 1) + np.arange(length)[:, None]
    before, after = (attributes.get(f"{side}_window_size", -1) for side in ("left", "right"))
    if before >= 0:
        visible = visible & (columns >= own - before)
    if attributes.get("is_causal") or after >= 0:
        visible = visible & (columns <= own + (0 if attributes.get("is_causal") else after))
    bias = np.where(visible, 0.0, -np.inf)
    if mask is not None:
        added = np.where(mask.used, 0.0, -np.inf) if mask.used.dtype == bool else mask.used
        lacking = [(0, 0)] * (added.ndim - 1) + [(0, total - added.shape[-1])]
        bias = bias + np.pad(added, lacking, constant_values=-np.inf)
    if bias.any():
        inputs["attention_bias"] = bias
    named: dict[str, Any] = {"num_heads": heads, "kv_num_heads": kv_heads, "causal": 0}
    named |= {name: attributes[name] for name in ("scale", "softcap") if name in attributes}
    references = outputs_of(compute(inputs, named, ("output",), dtype=query.dtype), ("output",))
    array, unit = _filled(references["output"], garbage), budgets(references)["output"]
    if not flat:
        shape = batch, length, heads, size
        array, unit = (each.reshape(shape).swapaxes(1, 2) for each in (array, unit))
    output = node.proto.output[0]
    made = _with_error(output, array, query.dtype, np.nan_to_num(unit), errors)
    return [made, *presents][: len(node.proto.output)]


def _heads(array: Array, heads: int) -> Array:
    """[B, S, N * D] as [B, N, S, D]."""
    return array.reshape(*array.shape[:2], heads, -1).swapaxes(1, 2)
