"""attention_bias: which of its numbers is added to which score."""

import numpy as np
from kernel import Kernel
from registry import mutant


@mutant(Kernel.add_bias)
def bias_ignored(kernel, call, b, logits):
    """attention_bias is not read."""
    return logits


@mutant(Kernel.add_bias)
def bias_ignored_for_one_token(kernel, call, b, logits):
    """The path for a single token does not read attention_bias."""
    return logits if call.queries == 1 else Kernel.add_bias(kernel, call, b, logits)


@mutant(Kernel.bias)
def bias_of_the_first_sequence(kernel, call, b):
    """Every sequence uses the bias of the first sequence."""
    return Kernel.bias(kernel, call, 0)


@mutant(Kernel.bias)
def bias_of_the_first_head(kernel, call, b):
    """Every head uses the bias of the first head."""
    return Kernel.bias(kernel, call, b)[:1]


@mutant(Kernel.bias)
def bias_by_kv_head(kernel, call, b):
    """A head uses the bias at the index of its key/value head."""
    bias = Kernel.bias(kernel, call, b)
    return bias[kernel.kv_head(call)] if len(bias) > 1 else bias


@mutant(Kernel.bias)
def bias_of_one_head_not_broadcast(kernel, call, b):
    """A bias with one head is added to the first head alone."""
    bias = Kernel.bias(kernel, call, b)
    if len(bias) == 1 and call.heads > 1:
        bias = np.concatenate([bias, np.zeros((call.heads - 1, *bias.shape[1:]), bias.dtype)])
    return bias


@mutant(Kernel.bias)
def bias_of_one_batch_not_broadcast(kernel, call, b):
    """A bias with one batch is added to the first sequence alone."""
    bias = Kernel.bias(kernel, call, b)
    return np.zeros_like(bias) if b and len(call.inputs["attention_bias"]) == 1 else bias


@mutant(Kernel.bias)
def bias_batch_and_head_mistaken(kernel, call, b):
    """The bias is read as if heads came before batches."""
    whole = call.inputs["attention_bias"]
    return whole.reshape(whole.shape[1], whole.shape[0], *whole.shape[2:])[:, b % len(whole)]


@mutant(Kernel.bias)
def bias_transposed(kernel, call, b):
    """The bias is read transposed if there are as many keys as queries."""
    bias = Kernel.bias(kernel, call, b)
    return bias.swapaxes(1, 2) if bias.shape[1] == bias.shape[2] else bias


@mutant(Kernel.bias)
def bias_of_the_first_query(kernel, call, b):
    """Every query uses the bias of the first query."""
    return Kernel.bias(kernel, call, b)[:, :1]


@mutant(Kernel.add_bias)
def bias_subtracted(kernel, call, b, logits):
    """The bias is subtracted."""
    return 2 * logits - Kernel.add_bias(kernel, call, b, logits)


@mutant(Kernel.bias)
def bias_scaled(kernel, call, b):
    """The bias is multiplied with the scale."""
    return Kernel.bias(kernel, call, b).astype(np.float32) * kernel.factor(call)


@mutant(Kernel.bias)
def bias_one_column_off(kernel, call, b):
    """Each key uses the bias of the next key."""
    return np.roll(Kernel.bias(kernel, call, b), -1, axis=2)


@mutant(Kernel.bias)
def bias_of_new_tokens_alone(kernel, call, b):
    """The bias of the past's keys is not read."""
    bias = Kernel.bias(kernel, call, b).copy()
    bias[:, :, : kernel.past_length(call, b)] = 0
    return bias


@mutant(Kernel.bias)
def bias_of_minus_infinity_is_zero(kernel, call, b):
    """A bias of minus infinity is ignored."""
    bias = Kernel.bias(kernel, call, b)
    return np.where(np.isneginf(bias.astype(np.float32)), np.zeros_like(bias), bias)


@mutant(Kernel.bias)
def bias_only_masks(kernel, call, b):
    """The bias is used as a mask: a number below -1 hides its key, other numbers have no effect."""
    bias = Kernel.bias(kernel, call, b).astype(np.float32)
    return np.where(bias < -1, np.float32(-np.inf), np.float32(0))
