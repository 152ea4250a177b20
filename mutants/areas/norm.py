"""The RMS norm of queries and keys."""

import numpy as np
from kernel import Kernel
from registry import mutant

SIDES = "Only the theme of the norm sets the epsilon of one side."


@mutant()
class norm_after_rotary(Kernel):
    """Heads are normalised after they are rotated."""

    def normalise(self, call, query, key):
        return query, key

    def turn_query(self, call, query):
        turned = Kernel.turn_query(self, call, query)
        return (
            Kernel.normalise(self, call, turned, turned)[0] if call.has("q_norm_weight") else turned
        )

    def turn_key(self, call, key):
        turned = Kernel.turn_key(self, call, key)
        return (
            Kernel.normalise(self, call, turned, turned)[1] if call.has("q_norm_weight") else turned
        )


@mutant(Kernel.normalise)
def norm_ignored(kernel, call, query, key):
    """The norm's weights are connected but not read."""
    return query, key


@mutant(Kernel.normalise)
def norm_of_queries_alone(kernel, call, query, key):
    """Keys are not normalised."""
    return Kernel.normalise(kernel, call, query, key)[0], key


@mutant(Kernel.normalise)
def norm_of_keys_alone(kernel, call, query, key):
    """Queries are not normalised."""
    return query, Kernel.normalise(kernel, call, query, key)[1]


@mutant(Kernel.normalise)
def norm_weights_swapped(kernel, call, query, key):
    """The weights of queries and keys are swapped."""
    if not call.has("q_norm_weight"):
        return query, key
    q = kernel.rms_norm(call, query, call.inputs["k_norm_weight"], "q")
    return q, kernel.rms_norm(call, key, call.inputs["q_norm_weight"], "k")


@mutant(Kernel.epsilon)
def norm_without_epsilon(kernel, call, side):
    """No epsilon is added to the mean of squares."""
    return np.float32(0)


@mutant(Kernel.epsilon)
def norm_epsilon_always_default(kernel, call, side):
    """The epsilon attributes are not read; the default is used."""
    return np.float32(1e-6)


@mutant(Kernel.epsilon, only=SIDES)
def norm_epsilons_of_sides_ignored(kernel, call, side):
    """q_norm_epsilon and k_norm_epsilon are not read."""
    return np.float32(call.get("qk_norm_epsilon", 1e-6))


@mutant(Kernel.epsilon, only=SIDES)
def norm_epsilons_swapped(kernel, call, side):
    """The epsilons of queries and keys are swapped."""
    return Kernel.epsilon(kernel, call, {"q": "k", "k": "q"}[side])


@mutant(Kernel.epsilon, only=SIDES)
def norm_epsilon_of_queries_for_both(kernel, call, side):
    """q_norm_epsilon is used for keys, too."""
    return Kernel.epsilon(kernel, call, "q")


@mutant(Kernel.epsilon, only=SIDES)
def norm_epsilon_of_both_first(kernel, call, side):
    """qk_norm_epsilon, if it is set, overrides the epsilons of the sides."""
    own = call.get(f"{side}_norm_epsilon", 1e-6)
    return np.float32(call.get("qk_norm_epsilon", own))


@mutant(Kernel.rms_norm)
def norm_epsilon_outside_the_root(kernel, call, heads, weight, side):
    """epsilon is added after the square root, not before it."""
    x = heads.astype(np.float32)
    root = np.sqrt(np.mean(x * x, axis=-1, keepdims=True))
    return x / (root + kernel.epsilon(call, side)) * weight.astype(np.float32)


@mutant(Kernel.rms_norm)
def norm_over_all_heads(kernel, call, heads, weight, side):
    """The mean of squares is that of all heads of a token."""
    x = heads.astype(np.float32)
    mean = np.mean(x * x, axis=(2, 3), keepdims=True)
    return x / np.sqrt(mean + kernel.epsilon(call, side)) * weight.astype(np.float32)


@mutant(Kernel.rms_norm)
def norm_weight_plus_one(kernel, call, heads, weight, side):
    """The weight is read as an offset from one, as Gemma stores it."""
    return Kernel.rms_norm(kernel, call, heads, weight.astype(np.float32) + 1, side)


@mutant(Kernel.rms_norm)
def norm_without_weight(kernel, call, heads, weight, side):
    """The multiplication by the weight is missing."""
    return Kernel.rms_norm(kernel, call, heads, np.ones_like(weight), side)


@mutant(Kernel.rms_norm)
def norm_of_a_layer(kernel, call, heads, weight, side):
    """The mean is subtracted first, as in a layer norm."""
    x = heads.astype(np.float32)
    return Kernel.rms_norm(kernel, call, x - x.mean(axis=-1, keepdims=True), weight, side)


@mutant(Kernel.rms_norm)
def norm_by_the_sum(kernel, call, heads, weight, side):
    """Heads are divided by the root of the sum of squares, not of the mean of squares."""
    return Kernel.rms_norm(kernel, call, heads, weight, side) / np.float32(call.size**0.5)
