"""The computation of logits from q.k: scale and softcap."""

import numpy as np
from kernel import Kernel
from registry import mutant


@mutant(Kernel.factor)
def scale_ignored(kernel, call):
    """Scores are not scaled at all."""
    return np.float32(1)


@mutant(Kernel.factor)
def scale_always_default(kernel, call):
    """The attribute scale is not read."""
    return np.float32(call.size**-0.5)


@mutant(Kernel.factor)
def scale_squared(kernel, call):
    """The scale is applied to query and to key."""
    return Kernel.factor(kernel, call) ** 2


@mutant(Kernel.factor)
def scale_default_one_over_head_size(kernel, call):
    """The default scale is 1 / head_size."""
    return np.float32(call.get("scale", 0.0) or 1.0 / call.size)


@mutant(Kernel.factor)
def scale_default_by_hidden_size(kernel, call):
    """The default scale is computed from the width of all heads together."""
    return np.float32(call.get("scale", 0.0) or (call.heads * call.size) ** -0.5)


@mutant(Kernel.factor)
def scale_default_by_kv_hidden_size(kernel, call):
    """The default scale is computed from the width of key."""
    return np.float32(call.get("scale", 0.0) or (call.kv_heads * call.size) ** -0.5)


@mutant(Kernel.factor)
def scale_one_is_default(kernel, call):
    """A scale of 1 is treated as not set."""
    given = call.get("scale", 0.0)
    return np.float32(call.size**-0.5 if given in (0.0, 1.0) else given)


@mutant(Kernel.logits)
def scale_after_softcap(kernel, call, b, query, key):
    """Scores are capped before they are scaled."""
    capped = kernel.cap(call, kernel.products(call, query, key))
    return kernel.add_bias(call, b, kernel.scale(call, capped))


@mutant(Kernel.logits)
def scale_after_bias(kernel, call, b, query, key):
    """The bias is scaled with the scores."""
    if call.get("softcap", 0.0):
        return Kernel.logits(kernel, call, b, query, key)
    return kernel.scale(call, kernel.add_bias(call, b, kernel.products(call, query, key)))


@mutant(Kernel.factor)
def scale_one_percent_off(kernel, call):
    """The scale is one percent too large."""
    return np.float32(Kernel.factor(kernel, call) * 1.01)


@mutant(Kernel.cap)
def softcap_ignored(kernel, call, scores):
    """softcap is not read."""
    return scores


@mutant(Kernel.cap)
def softcap_ignored_for_one_token(kernel, call, scores):
    """The path for a single token ignores softcap."""
    return scores if call.queries == 1 else Kernel.cap(kernel, call, scores)


@mutant(Kernel.logits)
def softcap_after_bias(kernel, call, b, query, key):
    """The bias is capped with the scores."""
    scores = kernel.scale(call, kernel.products(call, query, key))
    return kernel.cap(call, kernel.add_bias(call, b, scores))


@mutant(Kernel.cap)
def softcap_without_division(kernel, call, scores):
    """The cap is softcap tanh(score), without the division by softcap."""
    cap = np.float32(call.get("softcap", 0.0))
    return cap * np.tanh(scores) if cap else scores


@mutant(Kernel.cap)
def softcap_without_product(kernel, call, scores):
    """The cap is tanh(score / softcap), without the multiplication by softcap."""
    cap = np.float32(call.get("softcap", 0.0))
    return np.tanh(scores / cap) if cap else scores


@mutant(Kernel.cap)
def softcap_clips(kernel, call, scores):
    """Scores beyond softcap are clamped, and the others are unchanged."""
    cap = np.float32(call.get("softcap", 0.0))
    return np.clip(scores, -cap, cap) if cap else scores


@mutant(Kernel.cap)
def softcap_of_gemma_always(kernel, call, scores):
    """Scores are capped at 50, whatever the value of softcap is."""
    return np.float32(50) * np.tanh(scores / np.float32(50))


@mutant(Kernel.cap)
def softcap_by_a_rough_tanh(kernel, call, scores):
    """tanh is a fraction of two polynomials, good to three digits."""
    cap = np.float32(call.get("softcap", 0.0))
    if not cap:
        return scores
    x = np.clip(scores / cap, -3, 3)
    return cap * x * (27 + x * x) / (27 + 9 * x * x)


@mutant(Kernel.cap)
def softcap_loses_the_sign(kernel, call, scores):
    """Negative scores are capped at zero."""
    capped = Kernel.cap(kernel, call, scores)
    return np.maximum(capped, 0) if call.get("softcap", 0.0) else capped


@mutant(Kernel.products)
def query_and_key_swapped_heads(kernel, call, query, key):
    """Each query uses the keys of the next head."""
    return Kernel.products(kernel, call, query, np.roll(key, -1, axis=0))
