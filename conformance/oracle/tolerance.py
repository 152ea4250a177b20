"""The error model: the largest error of a correct kernel, for each element.

``docs/tolerance.md`` derives it. In short: numbers are rounded to the storage type only where the
operator's definition passes them to memory or to a matrix unit (rotated query and key,
probabilities, output); everything else is float32 arithmetic; and each of these rounding errors is
propagated to the output with the magnitudes of the case itself. There are no constants for single
cases, features or dtypes. One constant for each target class multiplies the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from conformance.oracle.attention import Attention
from conformance.oracle.cache import Tokens
from conformance.oracle.numbers import LARGEST_FLOAT32, Bool, Float, Storage

if TYPE_CHECKING:
    from conformance.oracle.reference import Reference

TargetClass = Literal["cpu", "gpu", "npu"]

#: The factor of the unit budget, by target class: K in docs/tolerance.md.
CONSTANTS: Final[Mapping[TargetClass, float]] = {"cpu": 2.0, "gpu": 2.0, "npu": 2.0}
#: The classes that compute scores and their exp in the storage type (docs/tolerance.md).
STORED_SCORES: Final[frozenset[TargetClass]] = frozenset({"npu"})

#: Unit roundoff of float32, the arithmetic between roundings to storage.
A: Final = 2.0**-24
#: Relative error of a float32 exp, in units of A (2 ulp).
EXP: Final = 4.0
#: Relative error of a float32 tanh, in units of A (4 ulp).
TANH: Final = 8.0
#: Roundings between a dot product and its score: the scale itself and the multiplication by it.
SCALE: Final = 3.0
#: Roundings after the two sums of the softmax: reciprocal, multiplication, rescaling of a block.
NORMALISE: Final = 4.0
#: Roundings of the RMS norm apart from its sum of squares: mean, epsilon, root, product, weight.
NORM: Final = 8.0
#: Roundings of a number's quotient by its scale: the scale's reciprocal and the product.
QUOTIENT: Final = 2.0
#: Numbers below this may be flushed to zero in float32 arithmetic, explicitly or by a fast exp.
FLUSH: Final = 2.0**-126


def floor_of(storage: Storage) -> float:
    """Return the largest absolute error of rounding a number close to 0 to storage."""
    return max(storage.smallest / 2, FLUSH)


@dataclass(frozen=True, eq=False)
class PastErrors:
    """In a loop: the largest errors of the runtime's past, compared with the oracle's.

    ``key`` and ``value`` are [B, K, P, D]. A past that is an input has no errors.
    """

    key: Float
    value: Float


def budgets(
    references: Mapping[str, Reference], past: PastErrors | None = None
) -> dict[str, Float]:
    """Return the unit budget of each output of one call, see :func:`unit_budget`.

    ``past``: in a loop, the errors that :func:`past_errors` gave for the call before.
    """
    return {name: unit_budget(name, reference, past) for name, reference in references.items()}


def past_errors(references: Mapping[str, Reference], past: PastErrors | None) -> PastErrors | None:
    """Return the errors of the presents, the past of a loop's next call; None without presents."""
    keys, values = (references.get(name) for name in ("present_key", "present_value"))
    if keys is None or values is None or keys.tokens is None or values.tokens is None:
        return None
    return PastErrors(
        stored_error(keys.tokens, None if past is None else past.key),
        stored_error(values.tokens, None if past is None else past.value),
    )


def arithmetic_budget(name: str, reference: Reference, past: PastErrors | None = None) -> Float:
    """Return the unit budget of one output for a kernel that rounds to storage only at its end.

    The kernels of the class ``cpu`` work in this way: they use float32 arithmetic for every storage
    type. Two results of such kernels differ far less than the budgets of correct kernels allow. The
    comparison of a call with its variant relies on that (see :mod:`conformance.case.relations`).
    """
    arithmetic = np.dtype(np.float32)
    if name != "output" or reference.dtype == arithmetic:
        return unit_budget(name, reference, past)
    storage = Storage.of(reference.dtype)
    inside = _of_blocks(reference, 1, lambda attention: output_budget(attention, arithmetic, past))
    return inside + storage.unit * np.abs(reference.value) + floor_of(storage)


def unit_budget(
    name: str, reference: Reference, past: PastErrors | None, stored_scores: bool = False
) -> Float:
    """Return the unit budget of an output: absolute errors in float64, without the factor K.

    A budget of 0 requires the exact value; copies of inputs have it. The budget of an undefined
    element has no meaning. NaN means that an element cannot be judged, which happens to a packed
    byte if its high half may be either of two codes. ``stored_scores``: the kernel computes scores
    and their exp in the storage type.
    """
    if reference.unit is not None:
        return reference.unit
    if reference.tokens is not None:
        past_error = None if past is None else past.key if name == "present_key" else past.value
        return _present_budget(reference.tokens, past_error)
    dtype, qk_output = reference.dtype, reference.qk_output
    a = Storage.of(dtype).unit if stored_scores else A
    if name == "output_qk":
        return _of_blocks(reference, 3, lambda each: qk_budget(each, dtype, qk_output, past, a))
    return _of_blocks(reference, 1, lambda each: output_budget(each, dtype, past, a))


def _of_blocks(reference: Reference, axis: int, budget: Callable[[Attention], Float]) -> Float:
    """Return a budget of the attention, computed in blocks along the ``axis`` of queries."""
    assert reference.work is not None
    parts = [budget(attention) for attention in reference.work.blocks()]
    whole = parts[0] if len(parts) == 1 else np.concatenate(parts, axis)
    return whole.reshape(reference.value.shape)


def _present_budget(tokens: Tokens, past_error: Float | None) -> Float:
    """Return the budget of a present in the units of the tensor: numbers, codes or bytes."""
    codes = stored_error(tokens, past_error)
    if tokens.format.quantised:
        codes /= tokens.format.step
    if not tokens.format.packed:
        return codes
    low, high = tokens.format.pairs(codes)
    return np.where(high > 0.0, np.nan, low)


def stored_error(tokens: Tokens, past_error: Float | None) -> Float:
    """Return the largest difference between the numbers that a runtime and the oracle store.

    In a quantised cache it is 0, except for numbers so close to a tie that their error may decide
    the rounding: there it is one quantisation step, the scale.
    """
    new = rows_between(tokens.past_row < 0)
    if tokens.magnitude is None and not tokens.format.quantised:
        error = np.zeros(tokens.value.shape)
    elif new == slice(0, tokens.past_row.shape[1]):
        error = _new_error(tokens)
    else:  # a long past takes time, and its tokens are copies
        error = np.zeros(tokens.value.shape)
        error[:, :, new] = _new_error(tokens.part(slice(None), slice(None), new))
    return error if past_error is None else error + _copied(past_error, tokens)


def _new_error(tokens: Tokens) -> Float:
    """Return the errors of tokens that this call stores; 0 for those of the past."""
    error = rotated_error(tokens)
    if tokens.format.quantised:
        error = _ambiguity(tokens, error) * tokens.format.step
    return error


def _ambiguity(tokens: Tokens, error: Float) -> Float:
    """Return the distance between the codes of the numbers plus and minus ``error``.

    The quotient by the scale is exact in float32 if the number is a copy and the scale is a power
    of two. Past tokens are not quantised again, so their distance is 0.
    """
    step = tokens.format.step
    quotient = tokens.exact / step
    inexact = (error > 0.0) | (np.frexp(step)[0] != 0.5)
    off = max(CONSTANTS.values()) * (error / step + QUOTIENT * A * inexact * np.abs(quotient))
    distance = tokens.format.round(quotient + off) - tokens.format.round(quotient - off)
    return np.where(tokens.past_row[:, None, :, None] < 0, distance, 0.0)


def _copied(past_error: Float | None, tokens: Tokens) -> Float | float:
    """Return the errors that tokens copied from the past already have, [B, K, tokens, D]."""
    if past_error is None or past_error.shape[2] == 0:
        return 0.0
    copied = (tokens.past_row >= 0)[:, None, :, None]
    rows = np.maximum(tokens.past_row, 0)[:, None, :, None]
    return np.where(copied, np.take_along_axis(past_error, rows, axis=2), 0.0)


def attended_error(tokens: Tokens, prompts: Bool, past_error: Float | None) -> Float:
    """Return the largest error of the keys or values that a runtime attends to, [B, K, T, D].

    The error is the difference from the oracle's numbers. Codes are multiplied by their scale, and
    the product may be rounded to the type T. In the sequences ``prompts`` [B], which are first
    prompts, a kernel may attend to the tokens as they were before quantisation (docs/oracle.md).
    """
    error = stored_error(tokens, past_error)
    if not tokens.format.quantised:
        return error
    error += (Storage.of(tokens.dtype).unit + A) * np.abs(tokens.value)
    if prompts.any():
        unstored = rotated_error(tokens)
        unstored += np.abs(tokens.exact - tokens.value)
        error += np.where(prompts[:, None, None, None], unstored, 0.0)
    return error


def shares(got: Float, value: Float, unit: Float, target_class: TargetClass) -> Float:
    """Return the error of each element as a share of its budget K * unit; above 1 is wrong.

    The share of an undefined element is 0, whatever its value is. The share of an exact value is 0,
    even if the budget is 0. The share of a wrong value with a budget of 0, of NaN and of infinity
    is infinite.

    Args:
        got: the runtime's values, in float64.
        value: the oracle's values, of the same shape.
        unit: the unit budgets from :func:`budgets`, with NaN for undefined elements.
        target_class: the class of the target, which determines K.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        share: Float = np.abs(got - value) / (CONSTANTS[target_class] * unit)
    share[np.isnan(share)] = np.inf
    share[(got == value) | np.isnan(unit)] = 0.0
    return share


def rotated_error(tokens: Tokens) -> Float:
    """Return the error of rotated elements with magnitudes |x1 cos| + |x2 sin|; 0 for copies.

    It comes from two products and a sum in float32 and one rounding to storage. If the heads
    [..., D] were normed before, the error of the norm is added.
    """
    magnitude, storage = tokens.magnitude, Storage.of(tokens.dtype)
    if magnitude is None:
        return np.zeros(tokens.value.shape)
    error: Float = (storage.unit + 2 * A) * magnitude
    error += floor_of(storage)
    if tokens.normed:
        error += _norm_error(magnitude, storage)
    return np.where(magnitude > 0.0, error, 0.0)


def _norm_error(magnitude: Float, storage: Storage) -> Float:
    """Return the error of the RMS norm of heads [..., D]: half that of the sum, and storage."""
    head_size = magnitude.shape[-1]
    error: Float = (storage.unit + (head_size / 2 + NORM) * A) * magnitude
    return error + floor_of(storage)


#: The number of scores for which a dozen intermediate arrays fit into the processor's cache.
_SCORES_AT_ONCE: Final = 1 << 15


def _parts(attention: Attention) -> Iterator[tuple[tuple[slice, ...], Attention]]:
    """Cut a large attention into rows of queries, each with the keys that one of them may see.

    The slices are those of B, K, S and T. Elements outside every part belong to keys that are
    hidden from a row.
    """
    batch_size, kv_num_heads, group, queries, keys = attention.logits.shape
    if attention.logits.size <= _SCORES_AT_ONCE:
        yield (slice(None),) * 4, attention
        return
    of_head = group * queries * keys
    heads = kv_num_heads if kv_num_heads * of_head <= _SCORES_AT_ONCE else 1
    rows = min(queries, max(1, _SCORES_AT_ONCE // (heads * group * keys)))
    for b in range(batch_size):
        for start in range(0, queries, rows):
            of_rows = slice(start, start + rows)
            of_keys = rows_between(attention.visible[b, of_rows])
            for head in range(0, kv_num_heads, heads):
                at = slice(b, b + 1), slice(head, head + heads), of_rows, of_keys
                yield at, attention.at(*at)


def score_error(
    attention: Attention, dtype: np.dtype[Any], key_error: Float, a: float = A
) -> Float:
    """Return the largest error of each score after softcap, [B, K, G, S, T].

    ``key_error`` [B, K, T, D] is that of the keys, as :func:`attended_error` returns it. Here and
    below, ``a`` is the unit roundoff of the arithmetic with scores.
    """
    storage = Storage.of(dtype)
    q, k = np.abs(attention.query), np.abs(attention.key)
    scale, head_size = abs(attention.scale), q.shape[-1]

    # The query enters the matrix unit rotated, scaled or both; in each case rounded once. A scale
    # of 0 makes it exactly 0.
    query_error = (
        storage.unit * np.maximum(q, attention.query_magnitude)
        + 2 * A * attention.query_magnitude
        + floor_of(storage) * (max(1.0, 1.0 / scale) if scale else 0.0)
    )
    if attention.query_normed:
        query_error += _norm_error(attention.query_magnitude, storage)
    error = _dot_products(query_error + head_size * A * q, k)
    if key_error.any():
        error += _dot_products(q + query_error, key_error)
    error *= scale
    error += SCALE * a * np.abs(attention.scores)
    if attention.softcap:
        cap, s = attention.softcap, np.abs(attention.scores)
        # tanh is flatter farther from 0, so an error towards 0 has the largest effect.
        error = np.abs(cap * np.tanh(s / cap) - cap * np.tanh((s - error) / cap))
        # A quotient by a huge cap may be subnormal, or flushed to 0.
        error += (TANH + 1) * a * np.abs(attention.capped) + cap * FLUSH
    return error


def _dot_products(queries: Float, keys: Float) -> Float:
    """Return the dot products of [B, K, G, S, D] with [B, K, T, D], as [B, K, G, S, T].

    All queries of a key/value head are one matrix, which is faster than a product for each.
    """
    batch_size, kv_num_heads, group, length, head_size = queries.shape
    rows = queries.reshape(batch_size, kv_num_heads, group * length, head_size)
    products: Float = rows @ keys.swapaxes(-1, -2)
    return products.reshape(*queries.shape[:-1], keys.shape[2])


def logit_error(
    attention: Attention, dtype: np.dtype[Any], key_error: Float, a: float = A
) -> Float:
    """Return the largest error of each logit, [B, K, G, S, T]; 0 for a logit of -inf."""
    error = score_error(attention, dtype, key_error, a)
    error += a * np.abs(attention.logits)
    return np.where(attention.attends, error, 0.0)


def weight_error(attention: Attention, logit_errors: Float, a: float = A) -> Float:
    """Return ``logit_errors`` plus the error of exp, expressed as an error of the logit."""
    error = _exp_error(attention.top[..., None] - attention.logits, a)
    error += logit_errors
    return np.where(attention.attends, error, 0.0)


def sink_error(attention: Attention, a: float = A) -> Float:
    """Return the largest error of the sink's logit, [B, K, G, S]: only that of exp."""
    if attention.sink is None:
        return np.zeros_like(attention.sink_probability)
    below_top = attention.top - np.maximum(attention.sink[:, :, None], -LARGEST_FLOAT32)
    return _exp_error(below_top, a)


def _exp_error(below_top: Float, a: float) -> Float:
    """Return the relative error of exp(-below_top): two roundings of the argument, and its own."""
    return 2 * a * below_top + EXP * a


def output_budget(
    attention: Attention, dtype: np.dtype[Any], past: PastErrors | None = None, a: float = A
) -> Float:
    """Return the unit budget of an output, [B, S, K, G, D]."""
    key_error, value_error = _key_error(attention, past), _value_error(attention, past)
    total = np.empty_like(attention.output)
    for (b, heads, rows, keys), part in _parts(attention):
        rest, gain, sink_gain = budget_and_gains(
            part, dtype, key_error[b, heads, keys], value_error[b, heads, keys], a
        )
        total[b, heads, :, rows] = rest + weighted_distances(part, gain, sink_gain)
    return total.transpose(0, 3, 1, 2, 4)


def budget_and_gains(
    attention: Attention,
    dtype: np.dtype[Any],
    key_error: Float,
    value_error: Float,
    a: float = A,
) -> tuple[Float, Float, Float]:
    """Return the unit budget [B, K, G, S, D] but for the errors of logits, and what these move.

    If the errors of the logits are at most e_j, the output moves by at most the sum over keys of
    gain_j |v_j - o|, where gain_j = p_j (exp(e_j) - 1) / sum_j p_j exp(-e_j), and it never leaves
    the range of the values attended to. The gains are [B, K, G, S, T] and [B, K, G, S, 1]: a sink
    is one more key, with the value 0. The errors of keys and values are [B, K, T, D].
    """
    storage = Storage.of(dtype)
    errors = weight_error(attention, logit_error(attention, dtype, key_error, a), a)
    sink_errors = sink_error(attention, a)
    magnitudes = np.abs(attention.value)[:, :, None]
    rest: Float = storage.unit * np.abs(attention.output) + floor_of(storage)
    lost = _sum_error(attention, storage, a)
    lost += FLUSH * attention.visible[:, None, None]
    rest += lost @ magnitudes
    if value_error.any():
        rest += _largest_weights(attention, errors, sink_errors) @ value_error[:, :, None]
    p, sink = attention.probabilities, attention.sink_probability
    least = _least_sum(attention, errors, sink_errors)
    gain = p * np.expm1(np.minimum(errors, 60.0)) / least[..., None]
    sink_gain = sink * np.expm1(np.minimum(sink_errors, 60.0)) / least
    return rest, gain, sink_gain[..., None]


def _key_error(attention: Attention, past: PastErrors | None) -> Float:
    return attended_error(attention.keys, attention.prompts, None if past is None else past.key)


def _value_error(attention: Attention, past: PastErrors | None) -> Float:
    return attended_error(attention.values, attention.prompts, None if past is None else past.value)


def qk_budget(
    attention: Attention,
    dtype: np.dtype[Any],
    qk_output: int,
    past: PastErrors | None = None,
    a: float = A,
) -> Float:
    """Return the unit budget of an output_qk, [B, K, G, S, T]: logits (1) or probabilities (2)."""
    key_error = _key_error(attention, past)
    budget = np.zeros_like(attention.logits)
    for (b, heads, rows, keys), part in _parts(attention):
        errors = logit_error(part, dtype, key_error[b, heads, keys], a)
        of_part = _logit_budget if qk_output == 1 else _probability_budget
        budget[b, heads, :, rows, keys] = of_part(part, Storage.of(dtype), errors, a)
    return budget


def _logit_budget(attention: Attention, storage: Storage, errors: Float, _: float) -> Float:
    logits = np.where(attention.attends, attention.logits, 0.0)
    return errors + storage.unit * np.abs(logits) + floor_of(storage)


def _probability_budget(attention: Attention, storage: Storage, errors: Float, a: float) -> Float:
    errors, sink_errors = weight_error(attention, errors, a), sink_error(attention, a)
    p, sink = attention.probabilities, attention.sink_probability
    most = (p * np.exp(np.minimum(errors, 60.0))).sum(axis=-1)
    most += sink * np.exp(np.minimum(sink_errors, 60.0))
    least = p * np.exp(-errors) / np.maximum(most, 1e-30)[..., None]
    moved = np.maximum(_largest_weights(attention, errors, sink_errors) - p, p - least)
    stored: Float = np.minimum(moved, 1.0) + _sum_error(attention, storage, a) + FLUSH
    return np.where(p > 0.0, stored, 0.0)


def _sum_error(attention: Attention, storage: Storage, a: float) -> Float:
    """Return the error of a probability from the softmax's sums and storage, [B, K, G, S, T]."""
    p = attention.probabilities
    keys = attention.visible.sum(axis=-1, keepdims=True)[:, None, None]
    error: Float = (storage.unit + 2 * keys * A + NORMALISE * a) * p
    error += np.minimum(p, floor_of(storage))
    return error


def _least_sum(attention: Attention, logit_errors: Float, sink_errors: Float) -> Float:
    """Return sum_j p_j exp(-e_j), including the sink, [B, K, G, S]."""
    p, sink = attention.probabilities, attention.sink_probability
    least = (p * np.exp(-logit_errors)).sum(axis=-1) + sink * np.exp(-sink_errors)
    floored: Float = np.maximum(least, 1e-30)  # the range of the values is the bound in this case
    return floored


def _largest_weights(attention: Attention, logit_errors: Float, sink_errors: Float) -> Float:
    """Return the largest probability that errors of the logits can cause, [B, K, G, S, T]."""
    least = _least_sum(attention, logit_errors, sink_errors)[..., None]
    weights = attention.probabilities * np.exp(np.minimum(logit_errors, 60.0)) / least
    return np.minimum(weights, 1.0)


def weighted_distances(attention: Attention, gain: Float, sink_gain: Float) -> Float:
    """Return sum_j gain_j |v_j - o|, at most the largest |v_j - o|, [B, K, G, S, D].

    |v_j - o| is a tensor [S, T, D] for each head, so rows are processed in blocks of a few MiB.
    """
    batch_size, kv_num_heads, group, queries, keys = gain.shape
    moved = np.zeros_like(attention.output)
    block = max(1, 2**17 // max(1, keys * moved.shape[-1] * group))
    heads = max(1, min(kv_num_heads, block // max(1, queries)))
    batches = max(1, block // max(1, queries * kv_num_heads))
    for b in range(0, batch_size, batches):
        for h in range(0, kv_num_heads, heads):
            for start in range(0, queries, block):
                of_heads = slice(b, b + batches), slice(h, h + heads)
                rows = (*of_heads, slice(None), slice(start, start + block))
                output, attended = attention.output[rows], attention.attends[rows]
                keys_of_rows = rows_between(attended)
                value = attention.value[(*of_heads, None, None, keys_of_rows)]
                distance = value - output[..., None, :]
                np.abs(distance, out=distance)
                sums = (gain[rows][..., None, keys_of_rows] @ distance)[..., 0, :]
                sums += sink_gain[rows] * np.abs(output)
                if may_leave_range(gain[rows], sink_gain[rows]):
                    farthest = _farthest(attended[..., keys_of_rows], distance)
                    if attention.sink is not None:
                        farthest = np.maximum(farthest, np.abs(output))
                    sums = np.minimum(sums, farthest)
                moved[rows] = sums
    return moved


def may_leave_range(gain: Float, sink_gain: Float) -> bool:
    """Whether :func:`weighted_distances` may be limited by the range of the values."""
    return bool(np.any(gain.sum(axis=-1, keepdims=True) + sink_gain > 1.0))


def rows_between(marked: Bool) -> slice:
    """The slice from the first to the last token that is marked in any row of [..., rows, T]."""
    at = np.flatnonzero(marked.any(axis=tuple(range(marked.ndim - 1))))
    return slice(at[0], at[-1] + 1) if at.size else slice(0)


def _farthest(attended: Bool, distance: Float) -> Float:
    """Return the largest distance between an output and a value attended to, [..., rows, D]."""
    farthest: Float = np.max(np.where(attended[..., None], distance, 0.0), axis=-2, initial=0.0)
    return farthest
