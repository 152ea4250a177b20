"""The sink: head_sink and smooth_softmax."""

import numpy as np
from kernel import Kernel
from registry import mutant


@mutant(Kernel.sink)
def sink_ignored(kernel, call):
    """head_sink is not read."""
    return np.zeros(call.heads, np.float32) if call.get("smooth_softmax", -1) == 1 else None


@mutant(Kernel.sink)
def smooth_softmax_ignored(kernel, call):
    """smooth_softmax is not read."""
    return Kernel.sink(kernel, call) if call.has("head_sink") else None


@mutant(Kernel.sink)
def smooth_softmax_everywhere(kernel, call):
    """Every softmax without a sink has a sink of zero."""
    sink = Kernel.sink(kernel, call)
    return np.zeros(call.heads, np.float32) if sink is None else sink


@mutant(Kernel.sink)
def smooth_softmax_before_head_sink(kernel, call):
    """With smooth_softmax a connected head_sink is not read."""
    if call.get("smooth_softmax", -1) == 1:
        return np.zeros(call.heads, np.float32)
    return Kernel.sink(kernel, call)


@mutant(Kernel.sink)
def smooth_softmax_zero_is_on(kernel, call):
    """smooth_softmax 0 is read as 1."""
    sink = Kernel.sink(kernel, call)
    on = sink is None and call.get("smooth_softmax", -1) == 0
    return np.zeros(call.heads, np.float32) if on else sink


@mutant(Kernel.sink)
def sink_scaled(kernel, call):
    """The sink is scaled like a score."""
    sink = Kernel.sink(kernel, call)
    return sink if sink is None else sink * kernel.factor(call)


@mutant(Kernel.sink)
def sink_capped(kernel, call):
    """The softcap is applied to the sink."""
    sink = Kernel.sink(kernel, call)
    return sink if sink is None else kernel.cap(call, sink)


@mutant(Kernel.sink)
def sink_of_the_first_head(kernel, call):
    """All heads use the sink of the first head."""
    sink = Kernel.sink(kernel, call)
    return sink if sink is None else np.full_like(sink, sink[0])


@mutant(Kernel.sink)
def sink_by_kv_head(kernel, call):
    """A head uses the sink at the index of its key/value head."""
    sink = Kernel.sink(kernel, call)
    return sink if sink is None else sink[kernel.kv_head(call)]


@mutant(Kernel.sink)
def sink_negative(kernel, call):
    """The sink has the wrong sign."""
    sink = Kernel.sink(kernel, call)
    return sink if sink is None else -sink


@mutant(Kernel.softmax)
def sink_in_the_maximum_alone(kernel, call, b, logits):
    """The sink is part of the maximum but not of the sum."""
    sink = kernel.sink(call)
    weights = np.exp(logits - kernel.top(logits, sink))
    total = weights.sum(axis=2, keepdims=True)
    return weights / np.where(total == 0, np.float32(1), total)


@mutant(Kernel.softmax)
def sink_without_exp(kernel, call, b, logits):
    """The sink itself is added to the sum, not its exponential."""
    sink = kernel.sink(call)
    if sink is None:
        return Kernel.softmax(kernel, call, b, logits)
    weights = np.exp(logits - kernel.top(logits, None))
    total = weights.sum(axis=2, keepdims=True) + sink[:, None, None]
    return weights / np.where(total == 0, np.float32(1), total)


@mutant(Kernel.softmax)
def sink_not_below_the_maximum(kernel, call, b, logits):
    """exp(sink) is added to a sum whose terms are relative to the maximum."""
    sink = kernel.sink(call)
    if sink is None:
        return Kernel.softmax(kernel, call, b, logits)
    weights = np.exp(logits - kernel.top(logits, None))
    total = weights.sum(axis=2, keepdims=True) + np.exp(sink)[:, None, None]
    return weights / total


@mutant(Kernel.softmax)
def sink_once_for_each_key(kernel, call, b, logits):
    """The sink is added to the sum once for every key."""
    sink = kernel.sink(call)
    if sink is None:
        return Kernel.softmax(kernel, call, b, logits)
    top = kernel.top(logits, sink)
    weights = np.exp(logits - top)
    extra = logits.shape[2] * np.exp(sink[:, None, None] - top)
    return weights / (weights.sum(axis=2, keepdims=True) + extra)


@mutant()
class sink_adds_to_the_output(Kernel):
    """The value of the sink is the first value, not zero."""

    def weigh(self, call, weights, value):
        if self.sink(call) is not None:
            weights = weights.copy()
            weights[:, :, 0] += 1 - weights.sum(axis=2)
        return Kernel.weigh(self, call, weights, value)
