"""The positions of queries and keys."""

import numpy as np
from kernel import Kernel
from registry import mutant

WRITTEN = "A first prompt with other positions than its own is written by hand, in one place."


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
    """All sequences have the positions of the first."""
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


@mutant(Kernel.positions, only=WRITTEN)
def position_ids_all_for_a_prompt(kernel, call):
    """A first prompt reads all position_ids, not only the first."""
    if call.first_prompt and call.has("position_ids"):
        return call.inputs["position_ids"]
    return Kernel.positions(kernel, call)


@mutant(Kernel.positions, only=WRITTEN)
def position_ids_of_the_first_row_for_a_prompt(kernel, call):
    """Every sequence of a first prompt reads all position_ids of the first."""
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
    """All sequences have the position_ids of the first."""
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
