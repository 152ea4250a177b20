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


@mutant(Kernel.finish, only="Only calls on one session have batches of several sizes.")
def sequences_of_the_first_run(kernel, call, output):
    """A session computes as many sequences as the first run had; the others stay zero."""
    made = Kernel.finish(kernel, call, output)
    made[kernel.memory.setdefault("sequences", call.batch) :] = 0
    return made


@mutant(only="Only calls on one session come after a refused one.")
class error_of_a_refused_call(Kernel):
    """The call after a refused one finds the error of that one set, and returns zeros."""

    def refuse(self, message):
        self.memory["error"] = message
        super().refuse(message)

    def finish(self, call, output):
        made = super().finish(call, output)
        return np.zeros_like(made) if self.memory.pop("error", "") else made


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


class Recognising(Kernel):
    """A kernel that recognises a cache by its memory.

    Its ``memory["longest"]`` are the most tokens that each sequence had in the cache before a call.
    In a loop in which no token is taken back, these are the tokens before the call.
    """

    def read_lengths(self, call):
        super().read_lengths(call)
        past, own = call.inputs.get("past_key"), self.memory.get("caches", ())
        known = past is not None and any(np.may_share_memory(past, each) for each in own)
        self.memory["longest"] = self.memory["most"] if known else np.zeros(call.batch, np.int64)
        self.memory["most"] = np.maximum(self.memory["longest"], call.lengths)

    def results(self, call, query, keys, values):
        made = super().results(call, query, keys, values)
        caches = (call.inputs.get("past_key"), made.get("present_key"))
        self.memory["caches"] = [each for each in caches if each is not None]
        return made

    def rows_before(self, call, b):
        """The rows that hold the most tokens that sequence ``b`` ever had before."""
        longest = int(self.memory["longest"][b])
        return self.resident(call, longest) if call.sliding else longest


@mutant()
class rejected_rows_attended_to(Recognising):
    """A row of a buffer that once held a token is attended to, even if the token was taken back."""

    def readable(self, call, b, tokens):
        return max(tokens, int(self.memory["longest"][b])) if not call.sliding else tokens

    def visible(self, call, b, tokens):
        return super().visible(call, b, tokens) | (np.arange(tokens) >= call.lengths[b])


@mutant()
class tokens_appended_to_rejected_ones(Recognising):
    """New tokens are written after all rows that once held a token of the sequence."""

    def place(self, call, b):
        return max(super().place(call, b), self.rows_before(call, b))


@mutant()
class rows_written_once(Recognising):
    """A row that holds a token is not written again, even if the token was taken back."""

    def place(self, call, b):
        self.memory["written"] = self.rows_before(call, b)
        return super().place(call, b)

    def put(self, space, at, rows):
        there = min(max(self.memory.pop("written", 0) - at, 0), rows.shape[1])
        super().put(space, at + there, rows[:, there:])


@mutant()
class positions_never_go_back(Recognising):
    """Tokens are rotated at places after all tokens that the sequence ever had."""

    def positions(self, call):
        positions = super().positions(call)
        ever = self.memory["longest"][:, None] + np.arange(call.queries)
        given = call.borrowed or call.has("position_ids")
        return positions if given else np.maximum(positions, ever)


@mutant(only="only the theme rewind takes evicted tokens back")
class evictions_are_not_undone(Recognising):
    """A window cache counts evicted tokens from call to call, and a new chat keeps the count."""

    def past_length(self, call, b):
        self.memory["ever"] = int(self.memory["longest"][b])
        return super().past_length(call, b)

    def kept(self, call, side, b, space, tokens):
        self.memory["ever"] = int(self.memory["most"][b])
        return super().kept(call, side, b, space, tokens)

    def resident(self, call, tokens):
        ever = self.memory["ever"]
        evicted = ever - super().resident(call, ever)
        return max(min(super().resident(call, tokens), tokens - evicted), 0)
