"""output and output_qk: their types, their shapes, and the content of output_qk."""

import numpy as np
from kernel import Kernel
from registry import declare, mutant


@mutant(Kernel.results)
def output_in_float32(kernel, call, query, keys, values):
    """output has the type of the arithmetic, float32, not that of query."""
    made = Kernel.results(kernel, call, query, keys, values)
    return {**made, "output": made["output"].astype(np.float32)}


@mutant(Kernel.results)
def output_flattened(kernel, call, query, keys, values):
    """output has rank 2: the tokens of all sequences in one dim."""
    made = Kernel.results(kernel, call, query, keys, values)
    return {**made, "output": made["output"].reshape(-1, call.heads * call.size)}


@mutant(Kernel.results)
def output_by_heads(kernel, call, query, keys, values):
    """output has rank 4: the heads have a separate dim."""
    made = Kernel.results(kernel, call, query, keys, values)
    shape = (call.batch, call.queries, call.heads, call.size)
    return {**made, "output": made["output"].reshape(shape)}


@mutant(Kernel.results)
def output_of_the_last_token_alone(kernel, call, query, keys, values):
    """output has a row for the last token only, the only one that sampling needs."""
    made = Kernel.results(kernel, call, query, keys, values)
    return {**made, "output": made["output"][:, -1:]}


@mutant(Kernel.finish)
def output_not_written_after_row_64(kernel, call, output):
    """The tokens after the first tile of 64 are not computed."""
    output = output.copy()
    output[:, 64:] = 0
    return Kernel.finish(kernel, call, output)


@mutant(Kernel.finish)
def output_is_nan_where_it_is_zero(kernel, call, output):
    """A row that must be zero is NaN, from a division by a sum of zero."""
    empty = ~output.any(axis=3, keepdims=True)
    return Kernel.finish(kernel, call, np.where(empty, np.float32(np.nan), output))


@mutant(Kernel.shown_stage)
def output_qk_stages_swapped(kernel, call):
    """output_qk has scores where probabilities are requested, and vice versa."""
    return 3 - Kernel.shown_stage(kernel, call)


def _keeping(change):
    """A replacement of `Kernel.logits` that keeps wrong values for output_qk."""

    def logits(kernel, call, b, query, key):
        kernel.memory["shown"] = change(kernel, call, b, query, key)
        return Kernel.logits(kernel, call, b, query, key)

    return logits


def _show_kept(kernel, call, b, shown, logits, weights):
    seen = np.where(np.isneginf(logits), logits, kernel.memory["shown"])
    Kernel.show(kernel, call, b, shown, seen, weights)


def output_qk_without_bias(kernel, call, b, query, key):
    """output_qk has the scores before attention_bias is added."""
    return kernel.cap(call, kernel.scale(call, kernel.products(call, query, key)))


def output_qk_not_scaled(kernel, call, b, query, key):
    """output_qk has the products of query and key before they are scaled."""
    return kernel.products(call, query, key)


def output_qk_before_softcap(kernel, call, b, query, key):
    """output_qk has the scores before softcap."""
    scores = kernel.scale(call, kernel.products(call, query, key))
    return kernel.add_bias(call, b, scores)


for change in (output_qk_without_bias, output_qk_not_scaled, output_qk_before_softcap):
    declare(change, logits=_keeping(change), show=_show_kept)


@mutant(Kernel.show)
def output_qk_without_the_sink(kernel, call, b, shown, logits, weights):
    """The probabilities in output_qk sum to one, although a sink takes a part."""
    total = weights.sum(axis=2, keepdims=True)
    weights = weights / np.where(total == 0, np.float32(1), total)
    Kernel.show(kernel, call, b, shown, logits, weights)


@mutant(Kernel.show)
def output_qk_by_kv_head(kernel, call, b, shown, logits, weights):
    """output_qk of every head is that of the first head of its group."""
    group = call.heads // call.kv_heads
    first = np.arange(call.heads) // group * group
    Kernel.show(kernel, call, b, shown, logits[first], weights[first])


@mutant(Kernel.show)
def output_qk_of_the_first_sequence(kernel, call, b, shown, logits, weights):
    """Only the first sequence's part of output_qk is written."""
    if b == 0:
        Kernel.show(kernel, call, b, shown, logits, weights)


@mutant(Kernel.show)
def output_qk_of_masked_keys_too(kernel, call, b, shown, logits, weights):
    """The probabilities of masked keys in output_qk are not zero."""
    spread = np.where(weights == 0, np.float32(1) / max(weights.shape[2], 1), weights)
    Kernel.show(kernel, call, b, shown, logits, spread)
