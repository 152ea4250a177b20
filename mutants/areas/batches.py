"""Faults in the choice of the sequence of the batch whose numbers are read."""

import numpy as np
from kernel import Kernel
from registry import mutant


@mutant(Kernel.past_rows)
def past_of_the_first_sequence(kernel, call, side, b):
    """Every sequence reads the past of the first."""
    return Kernel.past_rows(kernel, call, side, 0)


@mutant(Kernel.past_rows)
def past_of_the_last_sequence(kernel, call, side, b):
    """Every sequence reads the past of the last."""
    return Kernel.past_rows(kernel, call, side, call.batch - 1)


@mutant(Kernel.past_rows)
def past_value_of_the_first_sequence(kernel, call, side, b):
    """Every sequence reads its own past keys and the past values of the first."""
    return Kernel.past_rows(kernel, call, side, 0 if side == "value" else b)


def _of_first(array):
    return np.broadcast_to(array[:1], array.shape)


@mutant(Kernel.split)
def key_of_the_first_sequence(kernel, call):
    """Every sequence uses the new keys of the first."""
    query, key, value = Kernel.split(kernel, call)
    return query, _of_first(key), value


@mutant(Kernel.split)
def value_of_the_first_sequence(kernel, call):
    """Every sequence uses the new values of the first."""
    query, key, value = Kernel.split(kernel, call)
    return query, key, _of_first(value)


@mutant(Kernel.split)
def query_of_the_first_sequence(kernel, call):
    """Every sequence uses the queries of the first."""
    query, key, value = Kernel.split(kernel, call)
    return _of_first(query), key, value


@mutant(Kernel.finish)
def output_of_the_last_sequence_alone(kernel, call, output):
    """Every sequence's output is written to the place of the first sequence."""
    written = np.zeros_like(output)
    written[0] = output[-1]
    return Kernel.finish(kernel, call, written)


@mutant(Kernel.finish)
def output_of_all_but_the_last_sequence(kernel, call, output):
    """The loop over the batch ends one early."""
    if call.batch > 1:
        output[-1] = 0
    return Kernel.finish(kernel, call, output)


@mutant(Kernel.split)
def value_batch_stride_of_query(kernel, call):
    """The values of a sequence are read with the batch stride of query."""
    query, key, value = Kernel.split(kernel, call)
    flat, stride = np.ravel(value), value[0].size * (call.heads // call.kv_heads)
    read = np.zeros_like(value)
    for b in range(call.batch):
        part = flat[b * stride : b * stride + value[0].size]
        read[b].reshape(-1)[: part.size] = part
    return query, key, read
