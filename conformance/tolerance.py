"""The error model: how far a right kernel may be from the exact result, element by element.

``docs/tolerance.md`` derives it. In one sentence: the storage type rounds only what the
operator's definition hands to memory or to a matrix unit (turned query and key, probabilities,
output), everything else is float32 arithmetic, and every such rounding is followed to the output
with the magnitudes of the case itself. There is no constant for a case, an operator feature or a
dtype; one constant a target class multiplies the whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import numpy as np

from conformance.oracle import Attention, Reference
from conformance.oracle.numbers import LARGEST_FLOAT32, Float, Storage

TargetClass = Literal["cpu", "gpu"]

#: What a unit budget is multiplied with, by the class of the target: K in docs/tolerance.md.
CONSTANTS: Final[Mapping[TargetClass, float]] = {"cpu": 2.0, "gpu": 2.0}

#: Unit roundoff of the arithmetic between roundings to storage: float32.
A: Final = 2.0**-24
#: Relative error of a float32 exp, in units of A (2 ulp).
EXP: Final = 4.0
#: Relative error of a float32 tanh, in units of A (4 ulp).
TANH: Final = 8.0
#: Roundings on the way from a dot product to a score: the scale itself and its multiplication.
SCALE: Final = 3.0
#: Roundings after the two sums of the softmax: reciprocal, multiplication, and a block's seam.
NORMALISE: Final = 4.0
#: Below this, float32 arithmetic may flush to zero, on purpose or in a fast exp.
FLUSH: Final = 2.0**-126


def _floor(storage: Storage) -> float:
    """Return the largest absolute error of rounding a tiny number to storage."""
    return max(storage.smallest / 2, FLUSH)


def budgets(
    references: Mapping[str, Reference], past_key_error: Float | None = None
) -> dict[str, Float]:
    """Return the unit budget of each output: float64, its shape, absolute, K not applied.

    A budget of 0 demands the exact value: copies of inputs. Where the reference is undefined the
    number means nothing.

    Args:
        references: the outputs of one call.
        past_key_error: in a loop, the unit budget of the present_key that the runtime's past_key
            is, [B, K, P, D], 0 where undefined: the reference had the exact turned keys, the
            runtime its own. None: the past is an input, the same for both.
    """
    return {name: budget(reference, past_key_error) for name, reference in references.items()}


def budget(reference: Reference, past_key_error: Float | None = None) -> Float:
    """Return the unit budget of one output (see :func:`budgets`)."""
    if reference.attention is not None:
        budget = output_budget(reference.attention, reference.dtype, past_key_error)
        return budget.reshape(reference.value.shape)
    if reference.magnitude is not None:
        error = rotary_error(reference.magnitude, reference.dtype)
        return error + _resized(past_key_error, error.shape[2])
    return np.zeros_like(reference.value)


def arithmetic_budget(reference: Reference, past_key_error: Float | None = None) -> Float:
    """Return the unit budget of one output in a kernel that rounds to storage at its end alone.

    That is how the kernels of the class ``cpu`` work: float32 arithmetic inside, whatever the
    storage type. Two such kernels differ far less than two that are merely right; relations
    between two forms of a call rest on that (see :mod:`conformance.relations`).
    """
    arithmetic = np.dtype(np.float32)
    if reference.attention is None or reference.dtype == arithmetic:
        return budget(reference, past_key_error)
    storage = Storage.of(reference.dtype)
    inside = output_budget(reference.attention, arithmetic, past_key_error)
    inside = inside.reshape(reference.value.shape)
    return inside + storage.unit * np.abs(reference.value) + _floor(storage)


def _resized(past_key_error: Float | None, length: int) -> Float | float:
    """Return the error of a past in a buffer of ``length`` rows; 0 for rows that it has not."""
    if past_key_error is None:
        return 0.0
    kept = past_key_error[:, :, :length]
    return np.pad(kept, ((0, 0), (0, 0), (0, length - kept.shape[2]), (0, 0)))


def shares(got: Float, value: Float, unit: Float, target_class: TargetClass) -> Float:
    """Return each element's error as a share of its budget K * unit; above 1 is too much.

    Undefined elements are 0, whatever the runtime left there. An exact value is 0 even where the
    budget is 0; a wrong value where the budget is 0, and NaN or infinity anywhere, are infinite.

    Args:
        got: what the runtime returned, in float64.
        value: what it must be, of the same shape.
        unit: the unit budget, from :func:`budgets`, and NaN where the value is undefined.
        target_class: the kind of target, for K.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        share: Float = np.abs(got - value) / (CONSTANTS[target_class] * unit)
    share[np.isnan(share)] = np.inf
    share[(got == value) | np.isnan(unit)] = 0.0
    return share


def rotary_error(magnitude: Float, dtype: np.dtype[Any]) -> Float:
    """Return the error of turned elements from their magnitudes |x1 cos| + |x2 sin|; 0 for copies.

    Two products and a sum in float32, then one rounding to storage.
    """
    storage = Storage.of(dtype)
    return np.where(magnitude > 0.0, (storage.unit + 2 * A) * magnitude + _floor(storage), 0.0)


def logit_error(
    attention: Attention, dtype: np.dtype[Any], past_key_error: Float | None = None
) -> Float:
    """Return the largest error of each logit before the softmax, [B, K, G, S, T]."""
    storage = Storage.of(dtype)
    q, k = np.abs(attention.query), np.abs(attention.key)[:, :, None]
    scale, head_size = abs(attention.scale), q.shape[-1]

    # The query enters the matrix unit turned, scaled or both: one rounding to storage, whichever.
    query_error = (
        storage.unit * np.maximum(q, attention.query_magnitude)
        + 2 * A * attention.query_magnitude
        + _floor(storage) * max(1.0, 1.0 / scale)
    )
    key_error = rotary_error(attention.key_magnitude, dtype)
    key_error = (key_error + _resized(past_key_error, key_error.shape[2]))[:, :, None]
    in_dot_product = (query_error + head_size * A * q) @ k.swapaxes(-1, -2)
    in_dot_product += (q + query_error) @ key_error.swapaxes(-1, -2)
    score_error = scale * in_dot_product + SCALE * A * np.abs(attention.scores)
    if attention.softcap:
        cap, s = attention.softcap, np.abs(attention.scores)
        # tanh is flatter the farther from 0: the worst error is the one towards 0.
        score_error = np.abs(cap * np.tanh(s / cap) - cap * np.tanh((s - score_error) / cap))
        score_error += (TANH + 1) * A * np.abs(attention.capped)

    exists = np.isfinite(attention.logits)
    logits = np.where(exists, attention.logits, 0.0)
    below_top = np.where(exists, _top(attention)[..., None] - logits, 0.0)
    error = score_error + A * np.abs(logits) + _exp_error(below_top)
    return np.where(exists, error, 0.0)


def sink_error(attention: Attention) -> Float:
    """Return the largest error of the sink's logit, [B, K, G, S]: it only goes into exp."""
    if attention.sink is None:
        return np.zeros_like(attention.sink_probability)
    return _exp_error(_top(attention) - np.maximum(attention.sink[:, :, None], -LARGEST_FLOAT32))


def _exp_error(below_top: Float) -> Float:
    """Return the relative error of exp(-below_top): its argument is rounded twice, then itself."""
    return 2 * A * below_top + EXP * A


def output_budget(
    attention: Attention, dtype: np.dtype[Any], past_key_error: Float | None = None
) -> Float:
    """Return the unit budget of an output, [B, S, K, G, D]."""
    storage = Storage.of(dtype)
    p = attention.probabilities
    visible = attention.visible[:, None, None]
    keys = visible.sum(axis=-1, keepdims=True)

    weight_error = (storage.unit + (2 * keys + NORMALISE) * A) * p + np.minimum(p, _floor(storage))
    from_sums = (weight_error + FLUSH * visible) @ np.abs(attention.value)[:, :, None]
    logit_errors = logit_error(attention, dtype, past_key_error)
    from_logits = _moved_by(attention, logit_errors, sink_error(attention))
    from_storing = storage.unit * np.abs(attention.output) + _floor(storage)
    total: Float = from_logits + from_sums + from_storing
    return total.transpose(0, 3, 1, 2, 4)


def _top(attention: Attention) -> Float:
    """Return the largest logit of each row, the sink's included, [B, K, G, S]; 0 if none."""
    top = np.max(attention.logits, axis=-1, initial=-np.inf)
    if attention.sink is not None:
        top = np.maximum(top, attention.sink[:, :, None])
    return np.where(np.isfinite(top), top, 0.0)


def _moved_by(attention: Attention, logit_errors: Float, sink_errors: Float) -> Float:
    """Return how far errors of the logits can move the output, [B, K, G, S, D].

    With logits off by at most e_j the output moves by at most
    sum_j p_j (exp(e_j) - 1) |v_j - o| / sum_j p_j exp(-e_j), and never out of the range of the
    values attended to. A sink is one more key, whose value is 0.
    """
    p, sink = attention.probabilities, attention.sink_probability
    least = (p * np.exp(-logit_errors)).sum(axis=-1) + sink * np.exp(-sink_errors)
    least = np.maximum(least, 1e-30)  # beyond that, the range of the values is the bound
    gain = p * np.expm1(np.minimum(logit_errors, 60.0)) / least[..., None]
    sink_gain = sink * np.expm1(np.minimum(sink_errors, 60.0)) / least
    return _weighted_distances(attention, gain, sink_gain[..., None])


def _weighted_distances(attention: Attention, gain: Float, sink_gain: Float) -> Float:
    """Return sum_j gain_j |v_j - o|, at most the largest |v_j - o|, [B, K, G, S, D].

    |v_j - o| is a tensor [S, T, D] for each head: rows are taken in blocks of a few megabytes.
    """
    batch_size, kv_num_heads, group, queries, keys = gain.shape
    moved = np.zeros_like(attention.output)
    block = max(1, 2**17 // max(1, keys * moved.shape[-1] * group))
    for b in range(batch_size):
        for h in range(kv_num_heads):
            for start in range(0, queries, block):
                rows = (b, h, slice(None), slice(start, start + block))
                output = attention.output[rows]
                distance = attention.value[b, h] - output[..., None, :]
                np.abs(distance, out=distance)
                sums = (gain[rows][..., None, :] @ distance)[..., 0, :]
                sums += sink_gain[rows] * np.abs(output)
                if np.any(gain[rows].sum(axis=-1) + sink_gain[rows][..., 0] > 1.0):
                    sums = np.minimum(sums, _farthest(attention, rows, distance))
                moved[rows] = sums
    return moved


def _farthest(attention: Attention, rows: tuple[int, int, slice, slice], distance: Float) -> Float:
    """Return the largest distance of an output from a value attended to, [G, rows, D]."""
    attended = np.isfinite(attention.logits[rows])[..., None]
    farthest: Float = np.max(np.where(attended, distance, 0.0), axis=-2, initial=0.0)
    if attention.sink is not None:
        farthest = np.maximum(farthest, np.abs(attention.output[rows]))
    return farthest
