"""Arithmetic that is too imprecise, and sums that overflow."""

import ml_dtypes
import numpy as np
from kernel import Kernel
from registry import mutant

BFLOAT16 = ml_dtypes.bfloat16


def rounded(x, dtype):
    """``x`` (float32), rounded to ``dtype``, which is bfloat16 or float16; in float32.

    NumPy's conversion to float16 takes 60 ns for each number that underflows.
    """
    if dtype != np.float16:
        return x.astype(dtype).astype(np.float32)
    power = (x.view(np.uint32) & np.uint32(0x7F800000)).view(np.float32)
    # A sum with it ends at the last bit of float16: 10 bits below the first, or 2 ** -24.
    large = np.maximum(power, np.float32(2**-14)) * np.float32(1.5 * 2**13)
    return np.where(np.abs(x) < 65520, (x + large) - large, x * np.float32(np.inf))


def _summed(left, right, dtype):
    """left @ right with every product and every partial sum rounded to ``dtype``."""
    left, right = left.astype(dtype).astype(np.float32), right.astype(dtype).astype(np.float32)
    total = np.zeros((*left.shape[:-1], right.shape[-1]), np.float32)
    for i in range(left.shape[-1]):
        product = rounded(left[..., :, i, None] * right[..., i, None, :], dtype)
        total = rounded(total + product, dtype)
    return total


@mutant(Kernel.products)
def query_key_summed_in_storage(kernel, call, query, key):
    """float16 and bfloat16 products of query and key are accumulated in their own type."""
    if call.dtype == np.float32:
        return Kernel.products(kernel, call, query, key)
    return _summed(query, key.swapaxes(1, 2), call.dtype)


@mutant(Kernel.weigh)
def values_summed_in_storage(kernel, call, weights, value):
    """float16 and bfloat16 values are weighted and added up in their own type."""
    if call.dtype == np.float32:
        return Kernel.weigh(kernel, call, weights, value)
    return _summed(weights, value, call.dtype)


@mutant(Kernel.products)
def query_key_in_ten_bits(kernel, call, query, key):
    """float32 queries and keys are multiplied with ten bits of mantissa, as TF32 does."""
    return Kernel.products(kernel, call, _ten_bits(query), _ten_bits(key))


@mutant(Kernel.weigh)
def values_in_ten_bits(kernel, call, weights, value):
    """float32 values are weighted with ten bits of mantissa, as TF32 does."""
    return Kernel.weigh(kernel, call, _ten_bits(weights), _ten_bits(value))


def _ten_bits(x):
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)


@mutant(Kernel.weigh)
def probabilities_in_bfloat16(kernel, call, weights, value):
    """Probabilities are rounded to bfloat16, whatever the type of query."""
    return Kernel.weigh(kernel, call, weights.astype(BFLOAT16).astype(np.float32), value)


@mutant(Kernel.weigh)
def probabilities_in_eight_bits(kernel, call, weights, value):
    """Probabilities are rounded to multiples of 1/255."""
    return Kernel.weigh(kernel, call, np.rint(weights * 255) / np.float32(255), value)


@mutant(Kernel.exp)
def exp_in_float16(kernel, x):
    """exp and its argument are computed in float16."""
    return np.exp(x.astype(np.float16)).astype(np.float32)


@mutant(Kernel.exp)
def exp_by_a_table(kernel, x):
    """exp is taken from a table for multiples of 1/64."""
    return np.exp(np.rint(x * 64) / np.float32(64))


@mutant(Kernel.top)
def softmax_without_maximum(kernel, logits, sink):
    """The maximum is not subtracted before exp, so that large scores overflow."""
    return np.zeros((*logits.shape[:2], 1), np.float32)


@mutant(Kernel.top)
def softmax_with_the_global_minimum(kernel, logits, sink):
    """The smallest logit is subtracted before exp, not the largest."""
    finite = np.where(np.isneginf(logits), np.inf, logits)
    least = finite.min(axis=2, keepdims=True, initial=np.inf)
    return np.where(np.isinf(least), np.float32(0), least)


@mutant(Kernel.top)
def softmax_maximum_of_the_first_row(kernel, logits, sink):
    """All queries of a head subtract the maximum of the first query."""
    return np.broadcast_to(Kernel.top(kernel, logits, sink)[:, :1], (*logits.shape[:2], 1))


@mutant(Kernel.tables)
def tables_in_bfloat16(kernel, call, positions):
    """cos_cache and sin_cache are rounded to bfloat16."""
    cos, sin = Kernel.tables(kernel, call, positions)
    return cos.astype(BFLOAT16).astype(np.float32), sin.astype(BFLOAT16).astype(np.float32)


@mutant(Kernel.finish)
def output_through_bfloat16(kernel, call, output):
    """output is rounded to bfloat16 before it is converted to its own type."""
    return Kernel.finish(kernel, call, output.astype(BFLOAT16).astype(np.float32))


@mutant(Kernel.scale)
def scores_in_bfloat16(kernel, call, products):
    """Scores are kept in bfloat16, whatever the type of query."""
    return Kernel.scale(kernel, call, products).astype(BFLOAT16).astype(np.float32)


@mutant(Kernel.softmax)
def softmax_summed_in_storage(kernel, call, b, logits):
    """The terms of a softmax are accumulated in the type of query, one after another."""
    weights = Kernel.softmax(kernel, call, b, logits).astype(call.dtype)
    total = np.zeros(weights.shape[:2], call.dtype)
    for j in range(weights.shape[2]):
        total = total + weights[:, :, j]
    total = total.astype(np.float32)[..., None]
    if kernel.sink(call) is not None:
        return weights.astype(np.float32)
    return weights.astype(np.float32) / np.where(total == 0, np.float32(1), total)
