"""The heads: which key/value head a query head uses, and the memory layout."""

import numpy as np
from kernel import Kernel
from registry import mutant


@mutant(Kernel.kv_head)
def heads_modulo(kernel, call):
    """Query head n uses key/value head n % kv_num_heads, not that of its group."""
    return np.arange(call.heads) % call.kv_heads


@mutant(Kernel.kv_head)
def heads_reversed(kernel, call):
    """Groups use the key/value heads in reverse order."""
    return Kernel.kv_head(kernel, call)[::-1]


@mutant(Kernel.kv_head)
def heads_all_first(kernel, call):
    """Every query head uses the first key/value head."""
    return np.zeros(call.heads, np.int64)


@mutant(Kernel.kv_head)
def heads_group_of_kv_num_heads(kernel, call):
    """A group has kv_num_heads query heads."""
    return np.minimum(np.arange(call.heads) // call.kv_heads, call.kv_heads - 1)


@mutant(Kernel.kv_head)
def heads_one_too_late(kernel, call):
    """A group ends one query head late."""
    heads = np.maximum(np.arange(call.heads) - 1, 0)
    return heads // (call.heads // call.kv_heads)


@mutant(Kernel.unpack)
def packed_query_value_key(kernel, call, heads):
    """Packed QKV is read as query, value, key."""
    query, key, value = Kernel.unpack(kernel, call, heads)
    return query, value, key


@mutant(Kernel.unpack)
def packed_key_value_query(kernel, call, heads):
    """Packed QKV is read as key, value, query."""
    k = call.kv_heads
    return heads[:, :, 2 * k :], heads[:, :, :k], heads[:, :, k : 2 * k]


@mutant(Kernel.unpack)
def packed_by_group(kernel, call, heads):
    """Packed QKV is read group by group: the query heads of a group, its key, its value."""
    group = call.heads // call.kv_heads
    shape = (call.batch, call.queries, call.kv_heads, group + 2, call.size)
    grouped = heads.reshape(shape)
    query = grouped[:, :, :, :group].reshape(call.batch, call.queries, call.heads, call.size)
    return query, grouped[:, :, :, group], grouped[:, :, :, group + 1]


@mutant(Kernel.unpack)
def packed_value_one_head_early(kernel, call, heads):
    """In packed QKV values are read one head before their place."""
    query, key, _ = Kernel.unpack(kernel, call, heads)
    start = call.heads + call.kv_heads - 1
    return query, key, heads[:, :, start : start + call.kv_heads]


@mutant(Kernel.unpack)
def packed_by_planes(kernel, call, heads):
    """Packed QKV is read as a whole query, then a whole key, then a whole value."""
    flat, tokens = heads.reshape(call.batch, -1), call.queries * call.size
    cuts = np.cumsum([tokens * call.heads, tokens * call.kv_heads])
    counts = (call.heads, call.kv_heads, call.kv_heads)
    parts = np.split(flat, cuts, axis=1)
    return tuple(
        part.reshape(call.batch, call.queries, count, call.size)
        for part, count in zip(parts, counts, strict=True)
    )


@mutant(Kernel.split)
def key_laid_out_by_heads(kernel, call):
    """key is read as if each head held its tokens side by side."""
    query, key, value = Kernel.split(kernel, call)
    shape = (call.batch, call.kv_heads, call.new, call.size)
    return query, np.ascontiguousarray(key).reshape(shape).swapaxes(1, 2), value


@mutant(Kernel.split)
def query_laid_out_by_heads(kernel, call):
    """query is read as if each head held its tokens side by side."""
    query, key, value = Kernel.split(kernel, call)
    shape = (call.batch, call.heads, call.queries, call.size)
    return np.ascontiguousarray(query).reshape(shape).swapaxes(1, 2), key, value


@mutant(Kernel.finish)
def output_laid_out_by_heads(kernel, call, output):
    """output holds the tokens of a head side by side, not the heads of a token."""
    return Kernel.finish(kernel, call, np.ascontiguousarray(output.swapaxes(1, 2)))


@mutant(Kernel.past_rows)
def past_laid_out_by_tokens(kernel, call, side, b):
    """The past is read as if each token held its heads side by side."""
    rows = Kernel.past_rows(kernel, call, side, b)
    count, length, width = rows.shape
    return rows.reshape(length, count, width).swapaxes(0, 1)


@mutant(Kernel.finish)
def last_head_dropped(kernel, call, output):
    """The loop over the heads ends one early."""
    if call.heads > 1:
        output = output.copy()
        output[:, :, -1] = 0
    return Kernel.finish(kernel, call, output)


@mutant(Kernel.products)
def head_size_in_vectors_of_sixteen(kernel, call, query, key):
    """The elements of a head after the last whole vector of sixteen are left out of q.k."""
    whole = call.size // 16 * 16 or call.size
    return Kernel.products(kernel, call, query[..., :whole], key[..., :whole])
