"""State wrongly kept from earlier runs, steps or sequences, and nondeterminism."""

import numpy as np
from kernel import Kernel
from registry import mutant

#: The content that earlier runs have left in this process's memory.
LEFT_OVER = {"value": np.float32(0.015625)}


@mutant(Kernel.finish)
def differs_by_chance(kernel, call, output):
    """Every run is slightly different, as if threads added in any order."""
    noise = np.random.default_rng().uniform(0.5, 1.5, output.shape).astype(np.float32)
    return Kernel.finish(kernel, call, output * (1 + np.float32(2**-7) * noise))


@mutant(Kernel.finish)
def differs_in_the_last_bit(kernel, call, output):
    """Every second run differs in the last bit of one element."""
    kernel.memory["runs"] = kernel.memory.get("runs", 0) + 1
    made = Kernel.finish(kernel, call, output)
    if made.size and kernel.memory["runs"] % 2 == 0:
        first = made.reshape(-1)[:1]
        first[...] = np.nextafter(first, np.full_like(first, 7))
    return made


@mutant(Kernel.finish)
def every_second_run_wrong(kernel, call, output):
    """Every second run of a session returns nothing but zeros."""
    kernel.memory["runs"] = kernel.memory.get("runs", 0) + 1
    return Kernel.finish(kernel, call, output * np.float32(kernel.memory["runs"] % 2))


@mutant(Kernel.finish)
def output_not_cleared(kernel, call, output):
    """output is added to the content that the previous run left in its memory."""
    left = kernel.memory.get("output")
    kernel.memory["output"] = output
    if left is not None and left.shape == output.shape:
        output = output + left
    return Kernel.finish(kernel, call, output)


@mutant(Kernel.finish)
def output_of_the_run_before(kernel, call, output):
    """A run returns the output of the previous run if that has the same shape."""
    left = kernel.memory.get("output", output)
    kernel.memory["output"] = output
    return Kernel.finish(kernel, call, left if left.shape == output.shape else output)


@mutant(Kernel.weigh)
def accumulator_not_cleared(kernel, call, weights, value):
    """The accumulator of a sequence starts with the result of the previous sequence."""
    made = Kernel.weigh(kernel, call, weights, value)
    left = kernel.memory.get("accumulator")
    kernel.memory["accumulator"] = made
    return made + left if left is not None and left.shape == made.shape else made


@mutant(Kernel.finish)
def memory_of_the_process_not_cleared(kernel, call, output):
    """A leftover of another session is added to the first element of output."""
    made = Kernel.finish(kernel, call, output + 0)
    if made.size:
        value = made.reshape(-1)[:1]
        left, LEFT_OVER["value"] = LEFT_OVER["value"], np.float32(abs(value[0]) + 0.015625)
        value[...] = (value.astype(np.float32) + left).astype(made.dtype)
    return made


@mutant(Kernel.past_rows)
def past_of_the_first_run(kernel, call, side, b):
    """A session keeps the past of its first step and reads it again in the next."""
    rows = Kernel.past_rows(kernel, call, side, b)
    kept = kernel.memory.setdefault((side, b), rows.copy())
    return kept if kept.size else rows


@mutant(Kernel.start)
def position_counted_by_the_session(kernel, call, b):
    """A session uses its own step count as the position, whatever the lengths are."""
    start = Kernel.start(kernel, call, b)
    if call.first_prompt:
        return start
    counted = kernel.memory.setdefault(("counted", b), start)
    if kernel.memory.get(("seen", b)) is not call.inputs:
        kernel.memory[("seen", b)] = call.inputs
        kernel.memory[("counted", b)] = counted + call.queries
        kernel.memory[("now", b)] = counted
    return kernel.memory[("now", b)]


@mutant(Kernel.positions)
def positions_of_the_first_run(kernel, call):
    """A session keeps the positions of its first step."""
    positions = Kernel.positions(kernel, call)
    kept = kernel.memory.setdefault(("positions", positions.shape), positions)
    return kept
