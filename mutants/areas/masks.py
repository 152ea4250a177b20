"""The keys that a query may attend to."""

import numpy as np
from kernel import Kernel
from registry import mutant


@mutant(Kernel.window)
def window_one_longer(kernel, call):
    """A local window sees one token more than it should."""
    window = Kernel.window(kernel, call)
    return window if window == -1 else window + 1


@mutant(Kernel.window)
def window_one_shorter(kernel, call):
    """A local window is one token shorter, so that its first key is lost."""
    window = Kernel.window(kernel, call)
    return window if window == -1 else window - 1


@mutant(Kernel.window)
def window_ignored(kernel, call):
    """A local window is ignored."""
    return -1


@mutant(Kernel.window)
def window_ignored_for_one_token(kernel, call):
    """The path for a single token ignores the local window."""
    return -1 if call.queries == 1 else Kernel.window(kernel, call)


@mutant(Kernel.window)
def window_ignored_for_prompts(kernel, call):
    """A first prompt is computed without its local window."""
    return -1 if call.first_prompt else Kernel.window(kernel, call)


@mutant(Kernel.visible)
def window_of_the_last_query(kernel, call, b, tokens):
    """All queries use the local window of the last query."""
    seen = Kernel.visible(kernel, call, b, tokens)
    window, j = kernel.window(call), kernel.first_place(call, b) + np.arange(tokens)
    return seen if window == -1 else seen & (j > call.lengths[b] - 1 - window)


@mutant(Kernel.last_visible)
def causal_one_more(kernel, call, i):
    """A query sees the key after its own."""
    return i + 1


@mutant(Kernel.last_visible)
def causal_one_less(kernel, call, i):
    """A query does not see its own key."""
    return i - 1


@mutant(Kernel.last_visible)
def causal_ignored(kernel, call, i):
    """Every query sees every key."""
    return i + call.total


@mutant(Kernel.last_visible)
def causal_ignored_on_a_past(kernel, call, i):
    """Several tokens on a past attend to each other in both directions."""
    return i if call.first_prompt else i + call.total


@mutant(Kernel.visible)
def causal_always(kernel, call, b, tokens):
    """The attribute causal is not read: the mask is always causal."""
    i = kernel.query_places(call, b)[:, None]
    return Kernel.visible(kernel, call, b, tokens) & (np.arange(tokens) <= i)


@mutant(Kernel.last_visible)
def causal_top_left(kernel, call, i):
    """The causal mask is aligned with the first key, not with the last one."""
    return np.arange(call.queries)[:, None]


@mutant(Kernel.query_places)
def causal_by_the_longest(kernel, call, b):
    """The mask places the queries of every sequence at the end of the longest."""
    return call.total - call.queries + np.arange(call.queries)


@mutant(Kernel.new_length)
def padding_visible(kernel, call, b):
    """Queries attend to the padding of a prompt as if it were tokens."""
    return 0 if call.borrowed else call.new


@mutant(Kernel.visible)
def last_key_unseen(kernel, call, b, tokens):
    """The loop over the keys ends one early."""
    seen = Kernel.visible(kernel, call, b, tokens)
    seen[:, tokens - 1 :] = False
    return seen


@mutant(Kernel.visible)
def first_key_unseen(kernel, call, b, tokens):
    """The loop over the keys begins at the second."""
    seen = Kernel.visible(kernel, call, b, tokens)
    seen[:, :1] &= tokens == 1
    return seen


@mutant(Kernel.visible)
def keys_in_tiles_of_eight(kernel, call, b, tokens):
    """The keys after the last whole tile of eight are left out."""
    seen = Kernel.visible(kernel, call, b, tokens)
    seen[:, max(tokens // 8 * 8, 8) :] = False
    return seen


@mutant(Kernel.softmax)
def mask_before_softcap(kernel, call, b, logits):
    """Masked scores pass through the softcap and become its negative, not minus infinity."""
    cap = np.float32(call.get("softcap", 0.0))
    masked = np.where(np.isneginf(logits), -cap, logits) if cap else logits
    return Kernel.softmax(kernel, call, b, masked)


@mutant(
    Kernel.weigh,
    kind="hazard",
    only="Only the boundaries of values have NaN and infinity behind a mask.",
)
def masked_values_spread(kernel, call, weights, value):
    """A NaN or infinite value affects queries that do not attend to it: zero times it is NaN."""
    return weights @ value


@mutant(Kernel.softmax)
def row_without_a_key_in_the_first_tile(kernel, call, b, logits):
    """Tiles of 32: a row that attends to no key of the first tile is NaN if another row does."""
    weights = Kernel.softmax(kernel, call, b, logits)
    if logits.shape[2] > 32:
        hidden = np.isneginf(logits[:, :, :32]).all(axis=2)
        for first in range(0, call.queries, 32):
            rows = hidden[:, first : first + 32]
            weights[:, first : first + 32][rows & ~rows.all(axis=1, keepdims=True)] = np.nan
    return weights
