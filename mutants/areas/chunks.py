"""query_seqlens: chunks of queries that are padded on the right."""

import numpy as np
from kernel import Kernel
from registry import declare, mutant

TOTAL = (
    "Only the theme of query_seqlens has chunks for which total_sequence_length is an upper bound."
)
BESIDE = "Only the theme of query_seqlens has prompts beside chunks in one batch."
PADDING = "Only the theme of query_seqlens has NaN and infinity in padding and unused rows."
REFUSED = "The theme of refusals has all calls with query_seqlens that must be rejected."


def _counted(change):
    """A replacement of `Kernel.read_counts` with other counts, within the limits of the call."""

    def read_counts(kernel, call):
        Kernel.read_counts(kernel, call)
        if call.chunks and np.all(call.counts >= 0):
            most = np.minimum(call.queries, call.lengths)
            if np.all(call.counts <= most):
                call.counts = np.clip(change(call), 0, most)

    return read_counts


def _counts(name, sentence, change):
    step = _counted(change)
    step.__name__, step.__doc__ = name, sentence
    declare(step, read_counts=step)


_counts(
    "chunks_not_padded",
    "query_seqlens is not read: all rows of a chunk are tokens.",
    lambda call: np.full_like(call.counts, call.queries),
)
_counts(
    "chunks_as_long_as_the_first",
    "The first element of query_seqlens counts for all sequences.",
    lambda call: np.full_like(call.counts, call.counts[0]),
)
_counts(
    "chunks_as_long_as_the_longest",
    "The largest element of query_seqlens counts for all sequences.",
    lambda call: np.full_like(call.counts, call.counts.max()),
)
_counts(
    "chunks_in_reverse",
    "query_seqlens is read from the end of the batch.",
    lambda call: call.counts[::-1],
)
_counts(
    "chunks_one_more",
    "query_seqlens is taken for the index of the last token, as in seqlens_k.",
    lambda call: call.counts + 1,
)
_counts("chunks_one_less", "The last token of a chunk is left out.", lambda call: call.counts - 1)
_counts(
    "idle_entries_not_idle",
    "A 0 in query_seqlens means that the chunk is not padded.",
    lambda call: np.where(call.counts == 0, call.queries, call.counts),
)
_counts(
    "single_tokens_never_idle",
    "query_seqlens is not read where query has one token.",
    lambda call: np.ones_like(call.counts) if call.queries == 1 else call.counts,
)


@mutant(Kernel.past_length)
def chunk_past_by_the_padded_length(kernel, call, b):
    """The past ends S tokens before the end of the sequence, not Q tokens."""
    if not call.chunks:
        return Kernel.past_length(kernel, call, b)
    tokens = max(int(call.lengths[b]) - call.queries, 0)
    return kernel.resident(call, tokens) if call.sliding else tokens


@mutant(Kernel.past_length)
def chunk_past_by_the_total(kernel, call, b):
    """The length of the past of every sequence is total_sequence_length minus the chunk."""
    if not call.chunks or call.sliding:
        return Kernel.past_length(kernel, call, b)
    return min(call.total - call.queries, call.past)


@mutant(Kernel.place)
def chunk_after_the_buffers_rows(kernel, call, b):
    """The chunk is appended after all rows of a growing cache, not after its tokens."""
    place = Kernel.place(kernel, call, b)
    grows = call.chunks and not call.sliding and call.past < call.rows
    return min(call.past, call.rows - int(call.counts[b])) if grows else place


@mutant()
class chunk_starts_by_the_padded_length(Kernel):
    """Queries are placed as if the chunk were not padded: the last row is the last token."""

    def start(self, call, b):
        return int(call.lengths[b]) - call.queries if call.chunks else Kernel.start(self, call, b)


@mutant()
class chunk_starts_by_the_total(Kernel):
    """Queries are placed after the past of the longest possible sequence."""

    def start(self, call, b):
        return call.total - call.queries if call.chunks else Kernel.start(self, call, b)


@mutant(Kernel.start, only=TOTAL)
def chunk_is_a_prompt_by_the_total(kernel, call, b):
    """A chunk as long as total_sequence_length is a first prompt, whatever the past holds."""
    if call.chunks and call.queries == call.total:
        return 0
    return Kernel.start(kernel, call, b)


@mutant(Kernel.start, only=BESIDE)
def chunks_are_prompts_if_the_first_is(kernel, call, b):
    """If the first sequence has no past, all sequences are placed from 0 on."""
    if call.chunks and call.lengths[0] == call.counts[0]:
        return 0
    return Kernel.start(kernel, call, b)


@mutant(Kernel.positions)
def chunk_rotated_by_column(kernel, call):
    """Rotary uses the row in the chunk as the position."""
    if not call.chunks or call.has("position_ids"):
        return Kernel.positions(kernel, call)
    return np.broadcast_to(np.arange(call.queries), (call.batch, call.queries))


@mutant(Kernel.positions)
def chunk_rotated_from_the_padded_length(kernel, call):
    """Rotary counts as if the last row of the chunk were the last token."""
    if not call.chunks or call.has("position_ids"):
        return Kernel.positions(kernel, call)
    starts = np.maximum(call.lengths - call.queries, 0)
    return starts[:, None] + np.arange(call.queries)


@mutant(Kernel.positions)
def chunk_rotated_from_the_first_past(kernel, call):
    """Rotary counts on from the past of the first sequence in all sequences."""
    if not call.chunks or call.has("position_ids"):
        return Kernel.positions(kernel, call)
    steps = int(call.lengths[0] - call.counts[0]) + np.arange(call.queries)
    return np.broadcast_to(steps, (call.batch, call.queries))


@mutant(Kernel.visible)
def chunk_causal_from_the_padded_end(kernel, call, b, tokens):
    """The causal mask is aligned to the last row of the chunk: earlier rows see later tokens."""
    seen = Kernel.visible(kernel, call, b, tokens)
    if call.chunks and call.counts[b]:
        more = call.queries - int(call.counts[b])
        rows = np.minimum(np.arange(call.queries) + more, call.queries - 1)
        i, j = kernel.query_places(call, b), kernel.first_place(call, b) + np.arange(tokens)
        seen |= (j <= i[rows][:, None]) & (j > i[:, None])
    return seen


def _windowed(place):
    """A replacement of `Kernel.visible` whose window ends at another place."""

    def visible(kernel, call, b, tokens):
        seen = Kernel.visible(kernel, call, b, tokens)
        window = kernel.window(call)
        if not call.chunks or window == -1:
            return seen
        i, j = kernel.query_places(call, b), kernel.first_place(call, b) + np.arange(tokens)
        return (j <= i[:, None]) & (j > place(kernel, call, b)[:, None] - window)

    return visible


def chunk_window_from_the_end(kernel, call, b):
    """The window of every row ends at the last token of its sequence."""
    return np.full(call.queries, int(call.lengths[b]) - 1)


def chunk_window_from_the_padded_length(kernel, call, b):
    """The window is placed as if the chunk were not padded."""
    return int(call.lengths[b]) - call.queries + np.arange(call.queries)


for change in (chunk_window_from_the_end, chunk_window_from_the_padded_length):
    declare(change, visible=_windowed(change))


@mutant(Kernel.bias)
def chunk_bias_from_the_padded_end(kernel, call, b):
    """The rows of attention_bias are counted from the end of the chunk."""
    bias = Kernel.bias(kernel, call, b)
    return np.roll(bias, int(call.counts[b]) - call.queries, axis=1) if call.chunks else bias


@mutant(Kernel.kept)
def idle_cache_cleared(kernel, call, side, b, space, tokens):
    """The present of an idle entry is empty."""
    rows = Kernel.kept(kernel, call, side, b, space, tokens)
    return np.zeros_like(rows) if call.chunks and not call.counts[b] else rows


@mutant(Kernel.kept)
def idle_cache_of_the_entry_before(kernel, call, side, b, space, tokens):
    """The present of an idle entry is the past of the first entry."""
    rows = Kernel.kept(kernel, call, side, b, space, tokens)
    if call.chunks and b and not call.counts[b]:
        first = call.inputs[f"past_{side}"][0]
        rows[:, : first.shape[1]] = first[:, : rows.shape[1]]
    return rows


@mutant()
class window_cache_evicts_for_padding(Kernel):
    """A window cache makes room for the padding of a chunk, too."""

    def kept(self, call, side, b, space, tokens):
        if not call.chunks or not call.sliding:
            return Kernel.kept(self, call, side, b, space, tokens)
        rows = np.zeros((space.shape[0], call.rows, space.shape[2]), space.dtype)
        padding = call.queries - int(call.counts[b])
        count = max(self.resident(call, int(call.lengths[b]) + padding) - padding, 0)
        self.put(rows, 0, space[:, tokens - count : tokens])
        return rows


@mutant(only=PADDING)
class chunk_padding_spreads(Kernel):
    """Padding gets the weight 0, which turns an infinity or a NaN in it into NaN."""

    def join(self, call, side, new):
        read, present = Kernel.join(self, call, side, new)
        if call.chunks and side == "value":
            for b, count in enumerate(call.counts):
                rest = self.load(
                    call, side, self.store(call, side, new).swapaxes(1, 2)[b, :, count:]
                )
                read[b] = read[b] + 0 * rest.sum(axis=1, keepdims=True)
        return read, present


@mutant(only=PADDING)
class rows_behind_the_cache_spread(Kernel):
    """Unused rows of the cache get the weight 0, so that an infinity or a NaN in them spreads."""

    def join(self, call, side, new):
        read, present = Kernel.join(self, call, side, new)
        if call.chunks and side == "value":
            for b in range(call.batch):
                unused = self.past_rows(call, side, b)[:, int(call.lengths[b]) :]
                rest = self.load(call, side, unused)
                read[b] = read[b] + 0 * rest.sum(axis=1, keepdims=True)
        return read, present


@mutant(Kernel.check_chunk_room, kind="behaviour", only=REFUSED)
def accepts_chunks_without_room(kernel, call):
    """A chunk is accepted whose padding rows do not fit into the cache."""
    old = call.lengths - call.counts
    if np.any(old > call.past):
        kernel.refuse("query_seqlens leaves more past tokens than there are")


@mutant(Kernel.check_counts, kind="behaviour", only=REFUSED)
def accepts_counts_out_of_range(kernel, call):
    """query_seqlens outside the chunk or the sequence is clamped."""
    call.counts = np.clip(call.counts, 0, np.minimum(call.queries, call.lengths))


@mutant(Kernel.check_chunks, kind="behaviour", only=REFUSED)
def accepts_any_chunk(kernel, call):
    """The requirements of query_seqlens on the call are not checked."""
    kernel.check_counts(call)
    if call.has("past_key") and call.new == call.queries and not call.sliding:
        old = call.lengths - call.counts
        if np.any(old > call.past) or np.any(old + call.counts > call.rows):
            kernel.refuse("query_seqlens leaves more past tokens than the buffers have room for")
