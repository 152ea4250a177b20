"""Shapes and dtypes of the values of a model, by ONNX's shape inference.

ONNX does not know the operators of ``com.microsoft``. For those that exporters write around
attention, the functions below give the type of each output, so that inference continues after them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Final

import onnx
from onnx import TensorProto, TypeProto, defs, helper
from onnx.shape_inference import InferenceContext, InferenceError, infer_shapes

from conformance.base.array_types import WORD_OF_ONNX
from conformance.operator.signature import DOMAIN, OP_TYPE

#: A dim: its size, its name, or None if nothing is known about it.
ValueDim = int | str | None


@dataclass(frozen=True)
class ValueType:
    """What is known about a value.

    ``dtype`` is None if it is unknown or the value is not a tensor; ``dims`` is None if the rank is
    unknown.
    """

    dtype: str | None = None
    dims: tuple[ValueDim, ...] | None = None

    def dim(self, axis: int) -> ValueDim:
        """The dim, None if it is unknown."""
        if self.dims is None or not -len(self.dims) <= axis < len(self.dims):
            return None
        return self.dims[axis]

    def size(self, axis: int) -> int | None:
        """The dim if it is a number."""
        dim = self.dim(axis)
        return dim if isinstance(dim, int) else None


UNKNOWN: Final = ValueType()
#: Time for the inference of a model, which takes a second at most.
_SECONDS: Final = 20.0


def inferred(model: onnx.ModelProto) -> tuple[onnx.ModelProto, str]:
    """The model with the types of its values, and why inference failed ("" if it did not).

    A shape with 2³¹ dims keeps ONNX busy for hours, so its time is bounded.
    """

    from conformance.base.bounded import bounded  # imports multiprocessing

    def infer() -> bytes:
        return bytes(infer_shapes(model, data_prop=True).SerializeToString())

    with _registered():
        try:
            return onnx.ModelProto.FromString(bounded(infer, _SECONDS)), ""
        except (InferenceError, RuntimeError, ValueError, TypeError) as error:
            return model, str(error).strip().splitlines()[0]


def types_of(graph: onnx.GraphProto) -> dict[str, ValueType]:
    """The types of the graph's values, without those of its subgraphs."""
    found = {each.name: _as_type(each.type) for each in _declared(graph)}
    for tensor in graph.initializer:
        dims: tuple[ValueDim, ...] = tuple(tensor.dims)
        found[tensor.name] = ValueType(WORD_OF_ONNX.get(tensor.data_type), dims)
    return found


def _declared(graph: onnx.GraphProto) -> Iterator[onnx.ValueInfoProto]:
    yield from graph.value_info
    yield from graph.output
    yield from graph.input


def _as_type(proto: TypeProto) -> ValueType:
    if not proto.HasField("tensor_type"):
        return UNKNOWN
    tensor = proto.tensor_type
    dims: tuple[ValueDim, ...] | None = None
    if tensor.HasField("shape"):
        dims = tuple(
            dim.dim_value
            if dim.dim_value >= 0 and dim.HasField("dim_value")
            else dim.dim_param or None
            for dim in tensor.shape.dim
        )
    return ValueType(WORD_OF_ONNX.get(tensor.elem_type), dims)


# What the operators give


def _first_input(context: InferenceContext) -> None:
    """Every output has the type of the first input."""
    for output in range(context.get_num_outputs()):
        if context.has_output(output) and (given := context.get_input_type(0)) is not None:
            context.set_output_type(output, given)


def _normalised_sum(context: InferenceContext) -> None:
    """Outputs 0 and 3, the norm and the sum, have the type of the first input."""
    given = context.get_input_type(0)
    for output in (0, 3):
        if given is not None and output < context.get_num_outputs() and context.has_output(output):
            context.set_output_type(output, given)


def _quantised_product(context: InferenceContext) -> None:
    given, attribute = context.get_input_type(0), context.get_attribute("N")
    if given is not None and attribute is not None and _dims(given):
        context.set_output_type(0, _tensor(given, [*_dims(given)[:-1], attribute.i]))


def _gathered_blocks(context: InferenceContext) -> None:
    data, indices, scales = (context.get_input_type(index) for index in range(3))
    if data is None or indices is None or scales is None or not _dims(data):
        return
    bits, axis = context.get_attribute("bits"), context.get_attribute("gather_axis")
    width = _dims(data)[-1]
    if data.tensor_type.elem_type == TensorProto.UINT8 and isinstance(width, int):
        width *= 8 // (bits.i if bits is not None else 4)
    dims, at = [*_dims(data)[:-1], width], axis.i if axis is not None else 0
    context.set_output_type(0, _tensor(scales, [*dims[:at], *_dims(indices), *dims[at + 1 :]]))


def _attention(context: InferenceContext) -> None:
    """GroupQueryAttention: the output is like query; each present is like its past, and longer."""
    query = context.get_input_type(0)
    key = context.get_input_type(1) if context.has_input(1) else None
    past = context.get_input_type(3) if context.has_input(3) else None
    numbers = [context.get_attribute(name) for name in ("num_heads", "kv_num_heads")]
    if query is None or len(_dims(query)) != 3 or None in numbers:
        return
    heads, kv_heads = (number.i for number in numbers)
    batch, length, width = _dims(query)
    if key is None and isinstance(width, int) and heads + 2 * kv_heads:
        width = width * heads // (heads + 2 * kv_heads)
    context.set_output_type(0, _tensor(query, [batch, length, width]))
    rows: ValueDim = None
    size: ValueDim = width // heads if isinstance(width, int) and heads else None
    if past is not None and len(_dims(past)) == 4:
        borrowed = key is not None and len(_dims(key)) == 3 and _dims(key)[1] == 0
        rows, size = _dims(past)[2] if borrowed else None, _dims(past)[3]
    for output in (1, 2):
        if output < context.get_num_outputs() and context.has_output(output):
            context.set_output_type(
                output, _tensor(query if past is None else past, [batch, kv_heads, rows, size])
            )


def _dims(proto: TypeProto) -> list[ValueDim]:
    return list(_as_type(proto).dims or ())


def _tensor(like: TypeProto, dims: list[ValueDim]) -> TypeProto:
    return helper.make_tensor_type_proto(like.tensor_type.elem_type, dims)


_LIKE_FIRST: Final = (
    *("MultiHeadAttention", "RotaryEmbedding", "GemmaRotaryEmbedding", "MoE", "QMoE"),
    *("BiasGelu", "FastGelu", "Gelu", "QuickGelu"),
)
_RULES: Final[Mapping[tuple[str, str], Callable[[InferenceContext], None]]] = {
    ("", "SimplifiedLayerNormalization"): _first_input,
    (DOMAIN, OP_TYPE): _attention,
    **{(DOMAIN, name): _first_input for name in _LIKE_FIRST},
    (DOMAIN, "SkipLayerNormalization"): _normalised_sum,
    (DOMAIN, "SkipSimplifiedLayerNormalization"): _normalised_sum,
    (DOMAIN, "MatMulNBits"): _quantised_product,
    (DOMAIN, "GatherBlockQuantized"): _gathered_blocks,
}


@contextmanager
def _registered() -> Iterator[None]:
    """Within this context, ONNX knows the operators of the rules.

    Only within it: ``onnx.reference`` treats an operator that two domains have as a mistake.
    """
    new = [schema for schema in _schemas() if not defs.has(schema.name, schema.domain)]
    for schema in new:
        defs.register_schema(schema)
    try:
        yield
    finally:
        for schema in new:
            defs.deregister_schema(schema.name, schema.since_version, schema.domain)


@cache
def _schemas() -> tuple[defs.OpSchema, ...]:
    """The operators of the rules, with any number of inputs and outputs of any type."""
    parameter, option = defs.OpSchema.FormalParameter, defs.OpSchema.FormalParameterOption
    any_number = partial(parameter, param_option=option.Variadic, is_homogeneous=False, min_arity=0)
    everything = sorted(map(str, defs.get_schema("Identity").type_constraints[0].allowed_type_strs))
    made = []
    for (domain, name), rule in _RULES.items():
        schema = defs.OpSchema(
            name,
            domain,
            1,
            inputs=[any_number("inputs", "T")],
            outputs=[any_number("outputs", "U")],
            type_constraints=[("T", everything, ""), ("U", everything, "")],
        )
        schema.set_type_and_shape_inference_function(rule)
        made.append(schema)
    return tuple(made)
