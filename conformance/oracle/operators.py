"""The operators around GroupQueryAttention that the oracle knows, in float64, with their errors.

Standard operators are those of onnx.reference, computed with float64 arrays. The contributed
operators that exporters emit are computed in this module, by their documentation in ONNX Runtime.
For each operator there is the largest error of a correct kernel, an absolute number for each
element of its result, as in ``docs/tolerance.md``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from conformance.base.array_types import Array
from conformance.operator.signature import DOMAIN
from conformance.oracle.errors import OracleError
from conformance.oracle.numbers import Float, Storage
from conformance.oracle.tolerance import EXP, NORM, NORMALISE, TANH, A, floor_of

NodeAttributes = Mapping[str, Any]
NodeInputs = Sequence[Any]
"""The inputs of a node: float64 for each floating-point type; None for an omitted one."""
Compute = Callable[[NodeAttributes, NodeInputs], list[Array]]
Error = Callable[[NodeAttributes, NodeInputs, Sequence[Array]], list[Any]]


@dataclass(frozen=True)
class Operator:
    """The computation of an operator, and the errors of its arithmetic.

    ``compute``: None for one of onnx.reference. ``error``: None for one that rounds only its
    result. ``factors``: the two matrices, for an operator that multiplies matrices. ``exact``: it
    rounds nothing. ``moves``: it only moves numbers, together with the errors of its inputs.
    """

    compute: Compute | None = None
    error: Error | None = None
    factors: Callable[[NodeAttributes, NodeInputs], tuple[Float, Float]] | None = None
    exact: bool = False
    moves: bool = False

    def errors(
        self, attributes: NodeAttributes, given: NodeInputs, made: Sequence[Array], storage: Storage
    ) -> list[Array]:
        """The largest error of each output, including that of rounding it to storage."""
        found = [storage.unit * np.abs(each) + floor_of(storage) for each in made]
        if self.factors is not None:
            found[0] += _sum_error(*self.factors(attributes, given), storage)
        if self.error is not None:
            own = self.error(attributes, given, made)
            found = [a + b for a, b in zip(found, own, strict=True)]
        return [np.nan_to_num(each, posinf=0.0) for each in found]


def operator_of(domain: str, op_type: str) -> Operator | None:
    """The operator, if the oracle knows it."""
    return OPERATORS.get((domain, op_type))


# Errors of the arithmetic


def _relative(units: float) -> Error:
    return lambda _, __, made: [units * A * np.abs(each) for each in made]


def _sum_error(a: Float, b: Float, storage: Storage) -> Float:
    """The error of a product of matrices with sums of n terms: n roundings of each term in float32.

    Some kernels keep the sums in the storage type. The worst case of that is n u |a| @ |b|, larger
    than the sums themselves; sums of random signs are off by a part of u sqrt(n) |a b|, in which |a
    b| is the root of the sum of the squares of the terms.
    """
    terms = a.shape[-1]
    error: Float = (terms + 2) * A * (np.abs(a) @ np.abs(b))
    if storage.unit > A:
        error += storage.unit * np.sqrt(terms * (a**2 @ b**2))
    return error


def _reduced(mean: bool) -> Operator:
    """A sum or a mean: each term is rounded at most as often as there are terms."""

    def compute(attributes: NodeAttributes, given: NodeInputs) -> list[Array]:
        axes = attributes.get("axes", _at(given, 1))
        if axes is None or not len(axes):
            if attributes.get("noop_with_empty_axes"):
                return [given[0]]
            axes = range(given[0].ndim)
        reduce: Callable[..., Any] = np.mean if mean else np.sum
        found = reduce(
            given[0], axis=tuple(map(int, axes)), keepdims=bool(attributes.get("keepdims", 1))
        )
        return [np.asarray(found).astype(given[0].dtype)]

    def error(attributes: NodeAttributes, given: NodeInputs, made: Sequence[Array]) -> list[Any]:
        terms = given[0].size / max(made[0].size, 1)
        return [terms * A * compute(attributes, [np.abs(given[0]), *given[1:]])[0]]

    return Operator(compute, error)


def _of_exp(_: NodeAttributes, given: NodeInputs, made: Sequence[Array]) -> list[Any]:
    return [(2 * np.abs(given[0]) + EXP) * A * np.abs(made[0])]


def _of_tanh(_: NodeAttributes, given: NodeInputs, made: Sequence[Array]) -> list[Any]:
    """A small result has an absolute error: GPUs compute it as a difference of exponentials."""
    return [A * (2.0 + TANH * np.abs(made[0]))]


def _of_sigmoid(_: NodeAttributes, given: NodeInputs, made: Sequence[Array]) -> list[Any]:
    return [A * (1.0 + 8.0 * np.abs(made[0]))]


def _of_softmax(attributes: NodeAttributes, given: NodeInputs, made: Sequence[Array]) -> list[Any]:
    axis = attributes.get("axis", -1)
    x = np.where(np.isfinite(given[0]), given[0], 0.0)
    below = np.max(x, axis=axis, keepdims=True, initial=0.0) - x
    return [(2 * x.shape[axis] + NORMALISE + EXP + 2 * np.abs(below)) * A * made[0]]


def _of_angle(_: NodeAttributes, given: NodeInputs, made: Sequence[Array]) -> list[Any]:
    return [8 * A * (1.0 + np.abs(given[0]))]


# Matrices


def _factors(attributes: NodeAttributes, given: NodeInputs) -> tuple[Float, Float]:
    a, b = attributes.get("alpha", 1.0) * given[0], given[1]
    if attributes.get("transA"):
        a = np.swapaxes(a, -1, -2)
    if attributes.get("transB"):
        b = np.swapaxes(b, -1, -2)
    return a, b


def _fused_matmul(attributes: NodeAttributes, given: NodeInputs) -> list[Array]:
    for name in ("transBatchA", "transBatchB"):
        if attributes.get(name):
            raise OracleError(f"FusedMatMul with {name} is unknown to the oracle.")
    a, b = _factors(attributes, given)
    return [a @ b]


def _gemm(attributes: NodeAttributes, given: NodeInputs) -> list[Array]:
    a, b = _factors(attributes, given)
    made = a @ b
    return [made if _at(given, 2) is None else made + attributes.get("beta", 1.0) * given[2]]


def unpacked(codes: Array, bits: int) -> Float:
    """The numbers that share bytes [..., n], low bits first, as [..., n * 8 / bits]."""
    if bits == 8:
        return codes.astype(np.float64)
    shifts = np.arange(0, 8, bits)
    parts = (codes[..., None].astype(np.int64) >> shifts) & ((1 << bits) - 1)
    return parts.reshape(*codes.shape[:-1], -1).astype(np.float64)


def _nbits_matrix(attributes: NodeAttributes, given: NodeInputs) -> Float:
    """The weights [K, N] of a MatMulNBits, dequantised."""
    terms, columns = attributes["K"], attributes["N"]
    bits, block = attributes.get("bits", 4), attributes["block_size"]
    if bits not in (2, 4, 8):
        raise OracleError(f"MatMulNBits of {bits} bits is unknown to the oracle.")
    if _at(given, 4) is not None or attributes.get("weight_prepacked"):
        raise OracleError("MatMulNBits with g_idx or prepacked weights is unknown to the oracle.")
    blocks = -(-terms // block)
    codes = unpacked(given[1].reshape(columns, blocks, -1), bits)
    scales = given[2].reshape(columns, blocks, 1)
    middle = _at(given, 3)
    zero: Any = 2.0 ** (bits - 1)
    if middle is not None and middle.dtype == np.uint8:
        zero = unpacked(middle.reshape(columns, -1), bits)[:, :blocks, None]
    elif middle is not None:
        zero = middle.reshape(columns, blocks, 1)
    matrix = ((codes - zero) * scales).reshape(columns, -1)[:, :terms]
    return np.ascontiguousarray(matrix.T)


def _nbits(attributes: NodeAttributes, given: NodeInputs) -> list[Array]:
    made = given[0] @ _nbits_matrix(attributes, given)
    return [made if _at(given, 5) is None else made + given[5]]


#: The accuracy_level of MatMulNBits by which the input may be quantised to int8.
_INT8: Final = 4


def _nbits_error(attributes: NodeAttributes, given: NodeInputs, made: Sequence[Array]) -> list[Any]:
    """With accuracy_level 4 the input may be rounded to int8, block by block."""
    if attributes.get("accuracy_level", 0) != _INT8:
        return [0.0]
    a, b = np.abs(given[0]), np.abs(_nbits_matrix(attributes, given))
    block = attributes["block_size"]
    largest = np.maximum.reduceat(a, np.arange(0, a.shape[-1], block), axis=-1)
    return [np.repeat(largest / 254.0, block, axis=-1)[..., : a.shape[-1]] @ b]


def _gather_quantised(attributes: NodeAttributes, given: NodeInputs) -> list[Array]:
    data, ids, scales = given[0], given[1], given[2]
    if data.dtype != np.uint8 or attributes.get("gather_axis", 0) != 0:
        raise OracleError(
            f"GatherBlockQuantized of {data.dtype} along axis {attributes.get('gather_axis', 0)}"
            " is unknown to the oracle; it knows uint8 along axis 0."
        )
    bits, block = attributes.get("bits", 4), attributes.get("block_size", 128)
    codes = unpacked(data, bits)
    axis = attributes.get("quantize_axis", 1) % codes.ndim
    zeros: Any = 2.0 ** (bits - 1)
    if _at(given, 3) is not None:
        zeros = unpacked(given[3], bits)
        zeros = np.take(zeros, np.arange(scales.shape[-1]), axis=-1)
        zeros = np.repeat(zeros, block, axis=axis)
        zeros = np.take(zeros, np.arange(codes.shape[axis]), axis=axis)
    spread = np.repeat(scales, block, axis=axis)
    spread = np.take(spread, np.arange(codes.shape[axis]), axis=axis)
    return [((codes - zeros) * spread)[ids]]


# Norms


def _rms_norm(attributes: NodeAttributes, given: NodeInputs) -> list[Array]:
    axes = _axes(attributes, given[0])
    mean = np.mean(given[0] ** 2, axis=axes, keepdims=True)
    inverse = 1.0 / np.sqrt(mean + attributes.get("epsilon", 1e-5))
    return [given[0] * inverse * given[1], inverse]


def _layer_norm(attributes: NodeAttributes, given: NodeInputs) -> list[Array]:
    axes = _axes(attributes, given[0])
    mean = np.mean(given[0], axis=axes, keepdims=True)
    centred = given[0] - mean
    variance = np.mean(centred**2, axis=axes, keepdims=True)
    inverse = 1.0 / np.sqrt(variance + attributes.get("epsilon", 1e-5))
    made = centred * inverse * given[1]
    if _at(given, 2) is not None:
        made = made + given[2]
    return [made, mean, inverse]


def _axes(attributes: NodeAttributes, x: Float) -> tuple[int, ...]:
    return tuple(range(attributes.get("axis", -1) % x.ndim, x.ndim))


def _rms_error(attributes: NodeAttributes, given: NodeInputs, made: Sequence[Array]) -> list[Any]:
    terms = math.prod(given[0].shape[axis] for axis in _axes(attributes, given[0]))
    error = (terms / 2 + NORM) * A * np.abs(made[0])
    return [error, *(np.abs(each) * (terms / 2 + NORM) * A for each in made[1:])]


def _layer_error(attributes: NodeAttributes, given: NodeInputs, made: Sequence[Array]) -> list[Any]:
    axes = _axes(attributes, given[0])
    terms = math.prod(given[0].shape[axis] for axis in axes)
    inverse, bias = made[2], 0.0 if _at(given, 2) is None else given[2]
    largest = np.max(np.abs(given[0]), axis=axes, keepdims=True, initial=0.0)
    of_mean = terms * A * largest
    error = of_mean * inverse * np.abs(given[1])
    error = error + (terms + NORM) * A * (np.abs(made[0]) + np.abs(bias))
    return [error, of_mean, (terms + NORM) * A * inverse]


def _skip(norm: Compute, biases: int) -> Compute:
    """A norm of the sum of two inputs; ``biases``: the index of the bias of that sum."""

    def compute(attributes: NodeAttributes, given: NodeInputs) -> list[Array]:
        total = _total(given, biases)
        made = norm(
            {"epsilon": attributes.get("epsilon", 1e-12 if biases == 4 else 1e-5)},
            [total, given[2], given[3] if biases == 4 and _at(given, 3) is not None else None],
        )
        inverse = made[-1]
        mean = made[1] if len(made) == 3 else np.zeros_like(inverse)
        return [made[0], mean, inverse, total]

    return compute


def _total(given: NodeInputs, biases: int) -> Float:
    total: Float = given[0] + given[1]
    return total if _at(given, biases) is None else total + given[biases]


def _skip_error(biases: int) -> Error:
    def error(_: NodeAttributes, given: NodeInputs, made: Sequence[Array]) -> list[Any]:
        total = made[3]
        of_sum = 2 * A * (np.abs(given[0]) + np.abs(given[1]) + np.abs(total))
        x = [total, given[2], given[3] if biases == 4 and _at(given, 3) is not None else None]
        if biases == 4:
            own = _layer_error({}, x, [made[0], made[1], made[2]])
        else:
            own = [*_rms_error({}, x, [made[0], made[2]])]
        moved = of_sum * np.abs(made[2]) * np.abs(given[2])
        return [own[0] + moved, own[-1], own[-1], of_sum]

    return error


# Rotary embeddings


def _rotary(
    attributes: NodeAttributes, given: NodeInputs, contributed: bool
) -> tuple[Float, Float]:
    """The rotated input, and the magnitudes |x1 cos| + |x2 sin| of its elements."""
    if contributed:
        x, positions, cos, sin = given[:4]
        if attributes.get("is_packed_batching") or attributes.get("scale", 1.0) != 1.0:
            raise OracleError("RotaryEmbedding with packed batches or a scale is unknown.")
    else:
        x, cos, sin, positions = *given[:3], _at(given, 3)
    shape = x.shape
    if x.ndim == 3:
        heads = attributes.get("num_heads", 0)
        width = attributes.get("rotary_embedding_dim", 0) if contributed else 0
        if not heads and not width:
            heads = shape[2] // (2 * cos.shape[-1])
        x = x.reshape(*shape[:2], heads or -1, shape[2] // heads if heads else width)
        x = x.swapaxes(1, 2)
    length = x.shape[2]
    if positions is not None:
        if positions.size == 1 and contributed:
            positions = positions.reshape(1, 1) + np.arange(length)[None]
        cos, sin = cos[positions], sin[positions]
    cos, sin = cos[:, None], sin[:, None]
    half = cos.shape[-1]
    turned, magnitude = x.copy(), np.abs(x)
    slices = slice(0, half), slice(half, 2 * half)
    if attributes.get("interleaved"):
        slices = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    first, second = ((..., each) for each in slices)
    turned[first] = x[first] * cos - x[second] * sin
    turned[second] = x[second] * cos + x[first] * sin
    magnitude[first] = np.abs(x[first] * cos) + np.abs(x[second] * sin)
    magnitude[second] = np.abs(x[second] * cos) + np.abs(x[first] * sin)

    def back(array: Float) -> Float:
        return array.swapaxes(1, 2).reshape(shape) if len(shape) == 3 else array

    return back(turned), back(magnitude)


def _rotary_operator(contributed: bool) -> Operator:
    return Operator(
        lambda attributes, given: [_rotary(attributes, given, contributed)[0]],
        lambda attributes, given, _: [2 * A * _rotary(attributes, given, contributed)[1]],
    )


# Activations


_erf = np.vectorize(math.erf, otypes=[np.float64])


def _gelu(attributes: NodeAttributes, given: NodeInputs) -> list[Array]:
    x = given[0] if _at(given, 1) is None else given[0] + given[1]
    if attributes.get("approximate", "none") == "tanh":
        return [_tanh_gelu(x)]
    return [0.5 * x * (1.0 + _erf(x / math.sqrt(2.0)))]


def _tanh_gelu(x: Float) -> Float:
    made: Float = 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))
    return made


def _fast_gelu(_: NodeAttributes, given: NodeInputs) -> list[Array]:
    return [_tanh_gelu(given[0] if _at(given, 1) is None else given[0] + given[1])]


def _logistic(x: Float) -> Float:
    made: Float = 0.5 * (1.0 + np.tanh(0.5 * x))
    return made


def _of_gate(_: NodeAttributes, given: NodeInputs, made: Sequence[Array]) -> list[Any]:
    """x times a number from 0 to 1 that is close to a difference of numbers close to 1."""
    x = np.abs(given[0]) + (0.0 if _at(given, 1) is None else np.abs(given[1]))
    return [(TANH + 4) * A * x]


def _at(given: NodeInputs, index: int) -> Any:
    return given[index] if index < len(given) else None


_MOVES: Final = (
    "Concat", "Constant", "ConstantOfShape", "DepthToSpace", "Expand", "Flatten", "Gather",
    "GatherElements", "GatherND", "Identity", "Pad", "Reshape", "ScatterElements", "ScatterND",
    "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Trilu", "Unsqueeze", "Where",
)  # fmt: skip
_EXACT: Final = (
    "Abs", "And", "Ceil", "Clip", "CumSum", "Equal", "Floor", "Greater", "GreaterOrEqual", "IsInf",
    "IsNaN", "Less", "LessOrEqual", "Max", "Min", "Mod", "Neg", "NonZero", "Not", "Or", "Range",
    "ReduceMax", "ReduceMin", "Relu", "Round", "Shape", "Sign", "Size", "Xor",
)  # fmt: skip

#: The operators that the oracle knows, by domain and type, but attention and Cast.
OPERATORS: Final[Mapping[tuple[str, str], Operator]] = {
    **{("", name): Operator(moves=True) for name in _MOVES},
    **{("", name): Operator(exact=True) for name in _EXACT},
    **{("", name): Operator() for name in ("Add", "Sub", "Mul", "Div", "Sqrt", "Reciprocal")},
    ("", "Pow"): Operator(error=_relative(16)),
    ("", "Exp"): Operator(error=_of_exp),
    ("", "Tanh"): Operator(error=_of_tanh),
    ("", "Erf"): Operator(error=_relative(TANH)),
    ("", "Sigmoid"): Operator(lambda _, given: [_logistic(given[0])], _of_sigmoid),
    ("", "Cos"): Operator(error=_of_angle),
    ("", "Sin"): Operator(error=_of_angle),
    ("", "Softmax"): Operator(error=_of_softmax),
    ("", "MatMul"): Operator(factors=_factors),
    ("", "Gemm"): Operator(_gemm, factors=_factors),
    ("", "ReduceSum"): _reduced(mean=False),
    ("", "ReduceMean"): _reduced(mean=True),
    ("", "LayerNormalization"): Operator(_layer_norm, _layer_error),
    ("", "RMSNormalization"): Operator(_rms_norm, _rms_error),
    ("", "SimplifiedLayerNormalization"): Operator(_rms_norm, _rms_error),
    (DOMAIN, "SimplifiedLayerNormalization"): Operator(_rms_norm, _rms_error),
    (DOMAIN, "SkipSimplifiedLayerNormalization"): Operator(_skip(_rms_norm, 3), _skip_error(3)),
    (DOMAIN, "SkipLayerNormalization"): Operator(_skip(_layer_norm, 4), _skip_error(4)),
    ("", "RotaryEmbedding"): _rotary_operator(contributed=False),
    (DOMAIN, "RotaryEmbedding"): _rotary_operator(contributed=True),
    ("", "Gelu"): Operator(_gelu, _of_gate),
    (DOMAIN, "Gelu"): Operator(_gelu, _of_gate),
    (DOMAIN, "BiasGelu"): Operator(_gelu, _of_gate),
    (DOMAIN, "FastGelu"): Operator(_fast_gelu, _of_gate),
    (DOMAIN, "QuickGelu"): Operator(
        lambda attributes, given: [given[0] * _logistic(attributes.get("alpha", 1.702) * given[0])],
        _of_gate,
    ),
    ("", "Swish"): Operator(
        lambda attributes, given: [given[0] * _logistic(attributes.get("alpha", 1.0) * given[0])],
        _of_gate,
    ),
    (DOMAIN, "FusedMatMul"): Operator(_fused_matmul, factors=_factors),
    (DOMAIN, "MatMulNBits"): Operator(
        _nbits,
        _nbits_error,
        lambda attributes, given: (given[0], _nbits_matrix(attributes, given)),
    ),
    (DOMAIN, "GatherBlockQuantized"): Operator(_gather_quantised),
}
