"""The positions of queries and keys."""

import numpy as np
from kernel import Kernel
from registry import mutant

LONG = "Only one case has tables of more than 32,768 rows, which are large."


@mutant(Kernel.positions)
def positions_one_too_far(kernel, call):
    """Positions count from one."""
    return Kernel.positions(kernel, call) + 1


@mutant(Kernel.positions)
def positions_from_zero(kernel, call):
    """Every call rotates its tokens like the first tokens of their sequence."""
    return np.broadcast_to(np.arange(call.queries), (call.batch, call.queries))


@mutant(Kernel.positions)
def positions_of_the_first_sequence(kernel, call):
    """All sequences use the positions of the first sequence."""
    positions = Kernel.positions(kernel, call)
    return np.broadcast_to(positions[:1], positions.shape)


@mutant(Kernel.positions)
def positions_by_the_longest(kernel, call):
    """Positions follow from total_sequence_length, not from each sequence's own length."""
    if call.has("position_ids"):
        return Kernel.positions(kernel, call)
    start = call.total - call.queries
    return np.broadcast_to(start + np.arange(call.queries), (call.batch, call.queries))


@mutant(Kernel.positions)
def positions_from_the_buffer(kernel, call):
    """Positions begin at the length of the past buffer, not at the number of its tokens."""
    if call.has("position_ids"):
        return Kernel.positions(kernel, call)
    start = 0 if call.first_prompt else call.past
    return np.broadcast_to(start + np.arange(call.queries), (call.batch, call.queries))


@mutant(Kernel.positions)
def position_of_the_first_token(kernel, call):
    """All tokens of a call are rotated by the position of the first."""
    positions = Kernel.positions(kernel, call)
    return np.broadcast_to(positions[:, :1], positions.shape)


@mutant(Kernel.key_positions)
def key_positions_from_zero(kernel, call):
    """New keys are rotated as if there were no past."""
    return np.broadcast_to(np.arange(call.new), (call.batch, call.new))


def _without_ids(kernel, call):
    inputs = call.inputs
    call.inputs = {name: array for name, array in inputs.items() if name != "position_ids"}
    positions = Kernel.positions(kernel, call)
    call.inputs = inputs
    return positions


@mutant(Kernel.positions)
def position_ids_ignored(kernel, call):
    """position_ids are not read."""
    return _without_ids(kernel, call)


@mutant(Kernel.positions)
def position_ids_ignored_on_a_past(kernel, call):
    """position_ids are read for a first prompt only."""
    return Kernel.positions(kernel, call) if call.first_prompt else _without_ids(kernel, call)


@mutant(Kernel.positions)
def position_ids_ignored_for_prompts(kernel, call):
    """position_ids of a first prompt are not read; it always begins at zero."""
    return _without_ids(kernel, call) if call.first_prompt else Kernel.positions(kernel, call)


@mutant(Kernel.positions)
def position_ids_all_for_a_prompt(kernel, call):
    """A first prompt reads all position_ids, not only the first."""
    if call.first_prompt and call.has("position_ids"):
        return call.inputs["position_ids"]
    return Kernel.positions(kernel, call)


@mutant(Kernel.positions)
def position_ids_of_the_first_row_for_a_prompt(kernel, call):
    """In a first prompt, every sequence reads all position_ids of the first sequence."""
    if call.first_prompt and call.has("position_ids"):
        ids = call.inputs["position_ids"]
        return np.broadcast_to(ids[:1], ids.shape)
    return Kernel.positions(kernel, call)


@mutant(Kernel.positions)
def position_ids_first_alone(kernel, call):
    """Only the first of position_ids is read, even with a past."""
    if call.has("position_ids") and call.queries:
        ids = call.inputs["position_ids"]
        return np.broadcast_to(ids[:1, :1] + np.arange(call.queries), ids.shape)
    return Kernel.positions(kernel, call)


@mutant(Kernel.positions)
def position_ids_of_the_first_sequence(kernel, call):
    """All sequences use the position_ids of the first sequence."""
    positions = Kernel.positions(kernel, call)
    return (
        np.broadcast_to(positions[:1], positions.shape) if call.has("position_ids") else positions
    )


@mutant(Kernel.start)
def position_ids_move_the_mask(kernel, call, b):
    """The first of a sequence's position_ids also determines its queries' places in the mask."""
    if call.has("position_ids") and call.queries and not call.first_prompt:
        return int(call.inputs["position_ids"][b, 0])
    return Kernel.start(kernel, call, b)


@mutant(Kernel.positions)
def positions_modulo_1024(kernel, call):
    """Row indices of the rotary tables are taken modulo 1,024."""
    return np.asarray(Kernel.positions(kernel, call)) % 1024


@mutant(Kernel.positions)
def positions_modulo_2048(kernel, call):
    """Row indices of the rotary tables are taken modulo 2,048."""
    return np.asarray(Kernel.positions(kernel, call)) % 2048


@mutant(Kernel.positions)
def positions_in_8_bits(kernel, call):
    """Positions are held in uint8."""
    return np.asarray(Kernel.positions(kernel, call)).astype(np.uint8).astype(np.int64)


@mutant(Kernel.positions, only=LONG)
def positions_in_16_bits(kernel, call):
    """Positions are held in int16."""
    return np.asarray(Kernel.positions(kernel, call)).astype(np.int16).astype(np.int64)


@mutant(Kernel.positions, only=LONG)
def positions_in_16_bits_without_sign(kernel, call):
    """Positions are held in uint16."""
    return np.asarray(Kernel.positions(kernel, call)).astype(np.uint16).astype(np.int64)


@mutant(Kernel.positions)
def positions_in_float16(kernel, call):
    """Positions are held in float16, which represents all integers up to 2,048."""
    positions = np.minimum(Kernel.positions(kernel, call), 65504)
    return positions.astype(np.float16).astype(np.int64)


@mutant(Kernel.positions)
def positions_up_to_the_total(kernel, call):
    """A position is at most that of the last token in the longest sequence."""
    return np.minimum(Kernel.positions(kernel, call), call.total - 1)


@mutant(Kernel.positions)
def position_ids_from_one(kernel, call):
    """position_ids are read as counting from one."""
    positions = Kernel.positions(kernel, call)
    return np.maximum(positions - 1, 0) if call.has("position_ids") else positions


@mutant(Kernel.positions)
def position_ids_added(kernel, call):
    """position_ids are added to the positions that follow from the lengths."""
    positions = Kernel.positions(kernel, call)
    if call.has("position_ids") and not call.first_prompt:
        return positions + _without_ids(kernel, call)
    return positions


@mutant(Kernel.positions)
def position_ids_first_of_each_sequence(kernel, call):
    """Only the first of each sequence's position_ids is read; the others count on from it."""
    positions = Kernel.positions(kernel, call)
    if call.has("position_ids") and call.queries:
        return positions[:, :1] + np.arange(call.queries)
    return positions


@mutant(Kernel.positions)
def position_ids_first_of_each_tile(kernel, call):
    """Of each 32 tokens, only the first one's element of position_ids is read."""
    positions = Kernel.positions(kernel, call)
    if call.has("position_ids") and call.queries:
        token = np.arange(call.queries)
        return positions[:, token // 32 * 32] + token % 32
    return positions


@mutant(Kernel.positions)
def position_ids_transposed(kernel, call):
    """position_ids are read as [sequence_length, batch_size]."""
    positions = Kernel.positions(kernel, call)
    if call.has("position_ids"):
        return positions.reshape(call.queries, call.batch).T
    return positions


@mutant(Kernel.positions)
def position_ids_of_the_sequence_before(kernel, call):
    """Each sequence uses the position_ids of the sequence before it."""
    positions = Kernel.positions(kernel, call)
    return np.roll(positions, 1, axis=0) if call.has("position_ids") else positions


@mutant(Kernel.turn_query)
def position_ids_for_keys_alone(kernel, call, query):
    """Queries are rotated by their place, new keys by position_ids."""
    if not call.get("do_rotary", 0):
        return query
    return kernel.turn(call, query, _without_ids(kernel, call))


@mutant(Kernel.key_positions)
def position_ids_for_queries_alone(kernel, call):
    """New keys are rotated by their place, queries by position_ids."""
    if call.new == call.queries:
        return _without_ids(kernel, call)
    return Kernel.key_positions(kernel, call)
