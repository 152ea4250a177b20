"""A correct GroupQueryAttention kernel in NumPy, split into the steps in which kernels have faults.

It is written from the operator's documentation in the way real kernels work and shares no code with
the oracle: inputs in their storage type, arithmetic in float32, one rounding to storage for a
rotated key, for a rotated query and for the output. Each step is a method; a mutant replaces one.

Letters: B batch_size, S sequence_length, L kv_sequence_length, P rows of the past buffers,
T total_sequence_length, N num_heads, K kv_num_heads, D head_size.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray
FLOATS = (np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
FLOAT8 = np.dtype(ml_dtypes.float8_e4m3fn)

#: Attributes of type float; the other numeric ones are integers.
SIDE_EPSILONS = ("q_norm_epsilon", "k_norm_epsilon")
FLOAT_ATTRIBUTES = dict.fromkeys(("scale", "softcap", "qk_norm_epsilon", *SIDE_EPSILONS), float)

#: Attributes that are 0 or 1, with their defaults.
SWITCHES = {"do_rotary": 0, "rotary_interleaved": 0, "causal": 1, "sliding_window_cache": 0}

#: The types of a quantised cache, by kv_cache_bit_width.
QUANTISED = {4: (np.dtype(np.uint8),), 8: (np.dtype(np.int8), FLOAT8)}


class Refused(Exception):
    """The kernel rejects the call; the message gives the reason."""


@dataclass
class Call:
    """One call: its inputs, attributes and outputs, and the sizes derived from them."""

    inputs: Mapping[str, Array]
    attributes: Mapping[str, Any]
    outputs: Collection[str]
    batch: int = 0
    queries: int = 0
    new: int = 0
    past: int = 0
    total: int = 0
    heads: int = 0
    kv_heads: int = 0
    size: int = 0
    lengths: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    """Tokens of each sequence after the call."""
    counts: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    """Query tokens of each sequence that are not padding, if query_seqlens is connected."""
    packed: bool = False
    shared: bool = False
    """Past and present are the same memory."""

    def has(self, name: str) -> bool:
        return name in self.inputs

    def get(self, name: str, default: Any) -> Any:
        return self.attributes.get(name, default)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.inputs["query"].dtype

    @property
    def first_prompt(self) -> bool:
        """Whether the queries are the first tokens of their sequences."""
        return self.queries == self.total and not self.chunks

    @property
    def chunks(self) -> bool:
        """Whether query_seqlens says how many queries of a sequence are tokens, not padding."""
        return self.has("query_seqlens")

    @property
    def rows(self) -> int:
        """Rows of the present buffers."""
        return self.past if self.sliding else max(self.past, self.total)

    @property
    def sliding(self) -> bool:
        """Whether the buffers hold only a window of the sequence."""
        return bool(self.get("sliding_window_cache", 0))

    @property
    def borrowed(self) -> bool:
        """Whether all keys and values are in the past."""
        return self.new == 0


class Kernel:
    """The operator. ``memory`` is for state that a faulty kernel keeps from call to call."""

    def __init__(self) -> None:
        self.memory: dict[str, Any] = {}

    def run(
        self, inputs: Mapping[str, Array], attributes: Mapping[str, Any], outputs: Collection[str]
    ) -> dict[str, Array]:
        """The connected ``outputs`` of one call. Raises `Refused`."""
        with np.errstate(all="ignore"):  # padding may hold anything
            call = self.known(inputs, attributes, outputs)
            query, key, value = self.split(call)
            query, key = self.normalise(call, query, key)
            query = self.turn_query(call, query)
            key = self.turn_key(call, key)
            keys = self.join(call, "key", key)
            values = self.join(call, "value", value)
            return self.results(call, query, keys, values)

    def known(
        self, inputs: Mapping[str, Array], attributes: Mapping[str, Any], outputs: Collection[str]
    ) -> Call:
        """The call with its sizes. Raises `Refused`."""
        call = Call(inputs, attributes, outputs, shared=self.memory.get("shared", False))
        self.accept(call)
        return call

    def results(
        self,
        call: Call,
        query: Array,
        keys: tuple[list[Array], Array],
        values: tuple[list[Array], Array],
    ) -> dict[str, Array]:
        """The outputs that are connected, by name."""
        made = self.attend(call, query, keys[0], values[0])
        made["present_key"], made["present_value"] = keys[1], values[1]
        return {name: made[name] for name in call.outputs}

    # Which calls are accepted and which are rejected

    def accept(self, call: Call) -> None:
        """Reads the sizes of the call and rejects calls without a meaning."""
        self.check_attributes(call)
        self.check_types(call)
        self.check_quantisation(call)
        self.read_sizes(call)
        self.check_key_value(call)
        self.check_past(call)
        self.read_lengths(call)
        self.read_counts(call)
        self.check_lengths(call)
        self.check_rotary(call)
        self.check_position_ids(call)
        self.check_bias(call)
        self.check_sink(call)
        self.check_norm(call)
        self.check_scales(call)
        self.check_presents(call)
        self.check_sliding(call)
        self.check_extras(call)

    def refuse(self, message: str) -> None:
        """Raises `Refused`."""
        raise Refused(message)

    def check_attributes(self, call: Call) -> None:
        self.check_kinds(call)
        self.check_heads(call)
        self.check_window(call)
        if call.get("smooth_softmax", -1) not in (-1, 0, 1):
            self.refuse("smooth_softmax must be -1, 0 or 1")
        for name in FLOAT_ATTRIBUTES:
            if not np.isfinite(call.get(name, 0.0)):
                self.refuse(f"{name} must be finite")
        for name in ("softcap", "qk_norm_epsilon"):
            if call.get(name, 0.0) < 0:
                self.refuse(f"{name} must not be negative")
        for name in SIDE_EPSILONS:
            if call.get(name, 1.0) <= 0:
                self.refuse(f"{name} must be positive")
        for name, default in SWITCHES.items():
            if call.get(name, default) not in (0, 1):
                self.refuse(f"{name} must be 0 or 1")
        if call.get("qk_output", 0) not in (0, 1, 2):
            self.refuse("qk_output must be 0, 1 or 2")
        if "output" not in call.outputs:
            self.refuse("output must be connected")
        if bool(call.get("qk_output", 0)) != ("output_qk" in call.outputs):
            self.refuse("output_qk is connected if and only if qk_output is 1 or 2")

    def check_kinds(self, call: Call) -> None:
        for name, value in call.attributes.items():
            kind = FLOAT_ATTRIBUTES.get(name) or (str if name.endswith("_quant_type") else int)
            if type(value) is not kind:
                self.refuse(f"the attribute {name} has the wrong type")

    def check_heads(self, call: Call) -> None:
        for name in ("num_heads", "kv_num_heads"):
            if call.get(name, 0) < 1:
                self.refuse(f"{name} must be given and positive")
        if call.attributes["num_heads"] % call.attributes["kv_num_heads"]:
            self.refuse("num_heads must be a multiple of kv_num_heads")

    def check_window(self, call: Call) -> None:
        window = call.get("local_window_size", -1)
        if window != -1 and window < 1:
            self.refuse(f"local_window_size {window} must be -1 or positive")
        self.check_window_causal(call)

    def check_window_causal(self, call: Call) -> None:
        if call.get("local_window_size", -1) != -1 and not call.get("causal", 1):
            self.refuse("local_window_size must be -1 when causal is 0")

    def check_types(self, call: Call) -> None:
        if not call.has("query") or call.dtype not in FLOATS:
            self.refuse("query must be connected, of float32, float16 or bfloat16")
        names = ("key", "value", "cos_cache", "sin_cache", "attention_bias", "head_sink")
        names += ("q_norm_weight", "k_norm_weight")
        for name in names:
            if call.has(name) and call.inputs[name].dtype != call.dtype:
                self.refuse(f"{name} must have the type of query")
        for name in ("seqlens_k", "total_sequence_length"):
            if not call.has(name) or call.inputs[name].dtype != np.int32:
                self.refuse(f"{name} must be connected, of type int32")

    def read_sizes(self, call: Call) -> None:
        query = call.inputs["query"]
        if query.ndim != 3:
            self.refuse("query must have rank 3")
        call.batch, call.queries, width = query.shape
        call.heads = int(call.attributes["num_heads"])
        call.kv_heads = int(call.attributes["kv_num_heads"])
        call.packed = not call.has("key") and not call.has("value")
        past = call.inputs.get("past_key")
        if call.packed and past is not None and past.ndim == 4:
            # If query has no room for key and value, they were omitted to borrow the past.
            call.packed = width != call.heads * self.unpacked_size(call, past)
        heads = call.heads + 2 * call.kv_heads if call.packed else call.heads
        if width == 0 or width % heads:
            self.refuse("the hidden_size of query does not fit num_heads and kv_num_heads")
        call.size = width // heads
        if call.packed:
            call.new = call.queries
        else:
            call.new = call.inputs["key"].shape[1] if call.has("key") else 0
        call.past = past.shape[2] if past is not None and past.ndim == 4 else 0
        total = call.inputs["total_sequence_length"]
        if total.ndim > 1 or total.size != 1:
            self.refuse("total_sequence_length must be a scalar")
        call.total = int(total.reshape(-1)[0])

    def unpacked_size(self, call: Call, past: Array) -> int:
        """The head_size according to a past buffer."""
        return int(past.shape[3]) * (2 if self.bits(call) == 4 else 1)

    def check_key_value(self, call: Call) -> None:
        if call.has("key") != call.has("value"):
            self.refuse("key and value must be connected together")
        width = call.kv_heads * call.size
        for name in ("key", "value"):
            if call.has(name) and (
                call.inputs[name].ndim != 3 or call.inputs[name].shape[::2] != (call.batch, width)
            ):
                self.refuse(f"{name} must be [{call.batch}, L, {width}], by the head_size of query")
        self.check_equal_lengths(call)

    def check_equal_lengths(self, call: Call) -> None:
        if call.has("key") and call.inputs["key"].shape[1] != call.inputs["value"].shape[1]:
            self.refuse("key and value must have one sequence length")

    def check_past(self, call: Call) -> None:
        self.check_both_pasts(call)
        size = call.size // 2 if self.bits(call) == 4 else call.size
        for name in ("past_key", "past_value"):
            if not call.has(name):
                continue
            array = call.inputs[name]
            if array.ndim != 4 or (array.shape[0], array.shape[1], array.shape[3]) != (
                call.batch,
                call.kv_heads,
                size,
            ):
                self.refuse(f"{name} must be [batch_size, kv_num_heads, rows, head_size]")
            if array.shape[2] != call.past:
                self.refuse("past_key and past_value must have one length")
            if not self.quantised(call, name[5:]) and array.dtype != call.dtype:
                self.refuse(f"{name} must have query's type: {name[5]}_quant_type is NONE")

    def check_both_pasts(self, call: Call) -> None:
        if call.has("past_key") != call.has("past_value"):
            self.refuse("past_key and past_value must be connected together")

    def read_lengths(self, call: Call) -> None:
        lengths = call.inputs["seqlens_k"]
        fits = lengths.ndim and all(dim in (1, call.batch) for dim in lengths.shape)
        if not fits or lengths.size != call.batch:
            self.refuse("seqlens_k must have one element for each sequence of the batch")
        call.lengths = lengths.reshape(-1).astype(np.int64) + 1

    def read_counts(self, call: Call) -> None:
        """Reads query_seqlens."""
        if call.chunks:
            counts = call.inputs["query_seqlens"]
            if counts.dtype != np.int32 or counts.shape != (call.batch,):
                self.refuse("query_seqlens must be [batch_size], of type int32")
            call.counts = counts.astype(np.int64)

    def check_chunks(self, call: Call) -> None:
        """Checks the requirements of chunks that are padded on the right."""
        if not call.get("causal", 1):
            self.refuse("query_seqlens needs causal 1")
        if not call.has("past_key"):
            self.refuse("query_seqlens needs past_key and past_value")
        if call.new != call.queries:
            self.refuse("query_seqlens needs key and value as long as query")
        self.check_counts(call)
        if call.sliding:
            return
        if call.queries > call.total:
            self.refuse("total_sequence_length must be at least the tokens of query")
        self.check_chunk_room(call)

    def check_counts(self, call: Call) -> None:
        if np.any(call.counts < 0) or np.any(call.counts > np.minimum(call.queries, call.lengths)):
            self.refuse("query_seqlens must lie between 0 and the tokens of query and sequence")

    def check_chunk_room(self, call: Call) -> None:
        old = call.lengths - call.counts
        if np.any(old > call.past) or np.any(old + call.queries > call.rows):
            self.refuse("query_seqlens leaves more past tokens than the buffers have room for")

    def check_lengths(self, call: Call) -> None:
        self.check_seqlens(call)
        if call.chunks:
            self.check_chunks(call)
            return
        if call.queries > call.total:
            self.refuse("total_sequence_length counts the query's tokens too")
        if call.new == 0 and call.past == 0:
            self.refuse("key and value are empty and there is no past_key")
        if call.past and call.new not in (0, call.queries):
            self.refuse("with a past, key must have the sequence length of query, or 0")
        if not call.past and call.new < call.queries:
            self.refuse("key must be as long as query where there is no past")
        if not call.sliding:
            self.check_room(call)
        if not call.first_prompt and np.any(call.lengths < call.queries):
            self.refuse("seqlens_k says that a sequence is shorter than its query tokens")

    def check_seqlens(self, call: Call) -> None:
        if np.any(call.lengths < 1) or np.any(call.lengths > call.total):
            self.refuse("seqlens_k must lie between 0 and total_sequence_length - 1")

    def check_room(self, call: Call) -> None:
        if call.total > call.past and call.total != call.past + call.new:
            self.refuse("total_sequence_length fits neither the past and key nor a past buffer")

    def check_rotary(self, call: Call) -> None:
        if not call.get("do_rotary", 0):
            return
        self.check_tables(call)
        self.check_positions(call)

    def check_tables(self, call: Call) -> None:
        if not call.has("cos_cache") or not call.has("sin_cache"):
            self.refuse("cos_cache and sin_cache must be connected when do_rotary is 1")
        cos, sin = call.inputs["cos_cache"], call.inputs["sin_cache"]
        if cos.ndim != 2 or cos.shape != sin.shape or not 1 <= cos.shape[1] <= call.size // 2:
            self.refuse("cos_cache and sin_cache must be [max_sequence_length, rotary_dim / 2]")

    def check_positions(self, call: Call) -> None:
        rows = call.inputs["cos_cache"].shape[0]
        starts = [self.start(call, b) for b in range(call.batch)]
        places = np.array(starts)[:, None] + np.arange(call.queries)
        real = places < call.lengths[:, None]
        if call.has("position_ids") and call.inputs["position_ids"].shape != real.shape:
            return  # this is rejected elsewhere
        positions = np.where(real, self.positions(call), 0)
        if np.any(positions < 0) or np.any(positions >= rows):
            self.refuse(f"a rotary position has no row in cos_cache, which has {rows}")
        if call.new > max(call.queries, rows):
            self.refuse(f"a key has no row in cos_cache, which has {rows}")

    def check_position_ids(self, call: Call) -> None:
        if call.has("position_ids"):
            ids = call.inputs["position_ids"]
            if ids.dtype != np.int64 or ids.shape != (call.batch, call.queries):
                self.refuse("position_ids must be [batch_size, sequence_length], of type int64")

    def check_bias(self, call: Call) -> None:
        if not call.has("attention_bias"):
            return
        shape = call.inputs["attention_bias"].shape
        if (
            len(shape) != 4
            or shape[0] not in (1, call.batch)
            or shape[1] not in (1, call.heads)
            or shape[2] != call.queries
        ):
            self.refuse("attention_bias must be [batch_size or 1, num_heads or 1, S, T]")
        self.check_bias_width(call)

    def check_bias_width(self, call: Call) -> None:
        if call.inputs["attention_bias"].shape[3] != call.total:
            self.refuse("the last dim of attention_bias must be total_sequence_length")

    def check_sink(self, call: Call) -> None:
        if call.has("head_sink") and call.inputs["head_sink"].shape != (call.heads,):
            self.refuse("head_sink must be [num_heads]")

    def check_norm(self, call: Call) -> None:
        if call.has("q_norm_weight") != call.has("k_norm_weight"):
            self.refuse("q_norm_weight and k_norm_weight must be connected together")
        for name in ("q_norm_weight", "k_norm_weight"):
            if call.has(name) and call.inputs[name].shape != (call.size,):
                self.refuse(f"{name} must be [head_size]")

    def check_quantisation(self, call: Call) -> None:
        """Checks attributes and types of a quantised cache; scales are checked with the sizes."""
        for side in ("key", "value"):
            kind, past = call.get(f"{side[0]}_quant_type", "NONE"), f"past_{side}"
            if kind not in ("NONE", "PER_TENSOR", "PER_CHANNEL"):
                self.refuse(f"{side[0]}_quant_type {kind} is none of the quantization types")
            if kind == "NONE":
                continue
            if not call.has(past):
                self.refuse(f"{past} must be connected for a quantised cache, to give its type")
            if call.get("kv_cache_bit_width", 8) not in (4, 8):
                self.refuse("kv_cache_bit_width must be 4 or 8")
            if call.inputs[past].dtype not in QUANTISED[self.bits(call)]:
                self.refuse(f"the type of {past} does not fit kv_cache_bit_width and quant_type")

    def check_scales(self, call: Call) -> None:
        for side in ("key", "value"):
            name = f"{side[0]}_scale"
            if not self.quantised(call, side):
                continue
            if not call.has(name) or call.inputs[name].dtype != np.float32:
                self.refuse(f"{name} must be connected, of float32, for a quantised cache")
            shape = call.inputs[name].shape
            by_channel = call.get(f"{side[0]}_quant_type", "NONE") == "PER_CHANNEL"
            wanted = (1, call.kv_heads, 1, call.size) if by_channel else (1, 1, 1, 1)
            padded = (1,) * (4 - len(shape)) + shape
            fits = [size in (1, most) for size, most in zip(padded, wanted, strict=False)]
            if len(padded) != 4 or not all(fits):
                self.refuse(f"{name} must broadcast to {wanted}")
            scale = call.inputs[name]
            if not np.all(np.isfinite(scale) & (scale > 0)):
                self.refuse(f"{name} must hold positive numbers")

    def check_presents(self, call: Call) -> None:
        """Checks that a call with a past and new tokens has presents, in which they are joined."""
        present = {"present_key", "present_value"} <= set(call.outputs)
        own = np.all(call.lengths == call.counts) if call.chunks else call.first_prompt
        if call.past and call.new and not own and not present:
            self.refuse("present_key and present_value must be connected: past and key join there")

    def check_sliding(self, call: Call) -> None:
        if not call.sliding:
            return
        window = call.get("local_window_size", -1)
        if window < 1:
            self.refuse("sliding_window_cache needs a local_window_size")
        if not call.has("past_key") or call.past < window:
            self.refuse("sliding_window_cache needs a past_key of local_window_size rows at least")
        if call.borrowed:
            self.refuse("sliding_window_cache does not go with kv_sequence_length 0")
        if call.batch > 1 and call.queries > 1 and not call.first_prompt and not call.chunks:
            self.refuse("several tokens on a window cache need a batch_size of 1")

    def check_extras(self, call: Call) -> None:
        """Accepts everything; mutants reject calls here."""

    # Heads

    def split(self, call: Call) -> tuple[Array, Array, Array]:
        """query [B, S, N, D], key and value [B, L, K, D]."""
        query = call.inputs["query"]
        if call.packed:
            count = call.heads + 2 * call.kv_heads
            heads = query.reshape(call.batch, call.queries, count, call.size)
            return self.unpack(call, heads)
        nothing = np.zeros((call.batch, 0, call.kv_heads, call.size), query.dtype)
        shape = (call.batch, call.new, call.kv_heads, call.size)
        key, value = (
            call.inputs[name].reshape(shape) if call.has(name) and call.new else nothing
            for name in ("key", "value")
        )
        return query.reshape(call.batch, call.queries, call.heads, call.size), key, value

    def unpack(self, call: Call, heads: Array) -> tuple[Array, Array, Array]:
        """Splits packed heads [B, S, N + 2 K, D] into those of query, key and value."""
        n, k = call.heads, call.kv_heads
        return heads[:, :, :n], heads[:, :, n : n + k], heads[:, :, n + k :]

    def kv_head(self, call: Call) -> Array:
        """[N]: the key/value head of each query head."""
        return np.arange(call.heads) // (call.heads // call.kv_heads)

    # Norm and rotary

    def normalise(self, call: Call, query: Array, key: Array) -> tuple[Array, Array]:
        """RMS norm of each head, if the weights are connected."""
        if not call.has("q_norm_weight"):
            return query, key
        q = self.rms_norm(call, query, call.inputs["q_norm_weight"], "q")
        return q, self.rms_norm(call, key, call.inputs["k_norm_weight"], "k")

    def rms_norm(self, call: Call, heads: Array, weight: Array, side: str) -> Array:
        x = heads.astype(np.float32)
        mean = np.mean(x * x, axis=-1, keepdims=True)
        return x / np.sqrt(mean + self.epsilon(call, side)) * weight.astype(np.float32)

    def epsilon(self, call: Call, side: str) -> np.float32:
        """The epsilon of a side, q or k: its own attribute, or else the common one."""
        both = call.get("qk_norm_epsilon", 1e-6)
        return np.float32(call.get(f"{side}_norm_epsilon", both))

    def start(self, call: Call, b: int) -> int:
        """Place in its sequence of the first query of sequence ``b``."""
        if call.chunks:
            return int(call.lengths[b] - call.counts[b])
        return 0 if call.first_prompt else int(call.lengths[b]) - call.queries

    def positions(self, call: Call) -> Array:
        """[B, S]: rows of the rotary tables for the queries."""
        steps = np.arange(call.queries)
        if not call.has("position_ids"):
            return np.array([self.start(call, b) + steps for b in range(call.batch)])
        ids = call.inputs["position_ids"]
        if call.first_prompt:
            return np.broadcast_to(ids.reshape(-1)[:1] + steps, ids.shape)
        return ids

    def key_positions(self, call: Call) -> Array:
        """[B, L]: rows of the rotary tables for the new keys."""
        if call.new == call.queries:
            return self.positions(call)
        return np.broadcast_to(np.arange(call.new), (call.batch, call.new))

    def turn_query(self, call: Call, query: Array) -> Array:
        if not call.get("do_rotary", 0):
            return query
        return self.turn(call, query, self.positions(call))

    def turn_key(self, call: Call, key: Array) -> Array:
        if not call.get("do_rotary", 0):
            return key
        return self.turn(call, key, self.key_positions(call))

    def tables(self, call: Call, positions: Array) -> tuple[Array, Array]:
        """cos and sin [B, tokens, 1, half] at ``positions``; padding may lie outside."""
        rows = np.clip(positions, 0, call.inputs["cos_cache"].shape[0] - 1)
        cos, sin = call.inputs["cos_cache"], call.inputs["sin_cache"]
        return cos[rows][:, :, None].astype(np.float32), sin[rows][:, :, None].astype(np.float32)

    def pairs(self, call: Call) -> tuple[slice, slice]:
        """The pairs of elements of a head."""
        half = call.inputs["cos_cache"].shape[1]
        if call.get("rotary_interleaved", 0):
            return slice(0, 2 * half, 2), slice(1, 2 * half, 2)
        return slice(0, half), slice(half, 2 * half)

    def turn(self, call: Call, heads: Array, positions: Array) -> Array:
        """Heads [B, tokens, heads, D] rotated by ``positions`` [B, tokens]."""
        cos, sin = self.tables(call, positions)
        first, second = self.pairs(call)
        x = heads.astype(np.float32)
        turned = x.copy()
        turned[..., first], turned[..., second] = self.rotate(
            x[..., first], x[..., second], cos, sin
        )
        return turned

    def rotate(self, x1: Array, x2: Array, cos: Array, sin: Array) -> tuple[Array, Array]:
        return x1 * cos - x2 * sin, x1 * sin + x2 * cos

    # The cache

    def past_length(self, call: Call, b: int) -> int:
        """The number of tokens of the past buffer for sequence ``b``."""
        if call.chunks:
            tokens = int(call.lengths[b] - call.counts[b])
        elif call.borrowed:
            tokens = int(call.lengths[b])
        elif call.first_prompt or call.new != call.queries:
            return 0
        else:
            tokens = int(call.lengths[b]) - call.queries
        return self.resident(call, tokens) if call.sliding else tokens

    def new_length(self, call: Call, b: int) -> int:
        """New keys of sequence ``b``, without padding."""
        if call.chunks:
            return int(call.counts[b])
        if call.borrowed:
            return 0
        if call.first_prompt or call.new != call.queries:
            return min(call.new, int(call.lengths[b]))
        return call.new

    def resident(self, call: Call, tokens: int) -> int:
        """Rows of a sliding window cache in use when a sequence has ``tokens`` tokens."""
        capacity = call.past
        if tokens <= capacity:
            return tokens
        step = capacity - int(call.get("local_window_size", -1)) + 1
        return tokens - step * -(-(tokens - capacity) // step)

    def place(self, call: Call, b: int) -> int:
        """The first row of the buffer after the past, where the new tokens go."""
        return self.past_length(call, b)

    def join(self, call: Call, side: str, new: Array) -> tuple[list[Array], Array]:
        """Joins the past and the ``new`` tokens [B, L, K, D] of a ``side``.

        Returns for each sequence the tokens that attention reads, float32 [K, tokens, D], and the
        present.
        """
        stored = self.store(call, side, new).swapaxes(1, 2)
        width = stored.shape[3]
        present = self.empty_present(call, side, (call.batch, call.kv_heads, call.rows, width))
        read = []
        for b in range(call.batch):
            old, count = self.past_length(call, b), self.new_length(call, b)
            room = max(call.past, old + count, call.rows)
            space = np.zeros((call.kv_heads, room, width), stored.dtype)
            if call.past:
                self.put(space, 0, self.past_rows(call, side, b))
            self.put(space, self.place(call, b), stored[b, :, :count])
            tokens = old + count
            read.append(self.load(call, side, space[:, : self.readable(call, b, tokens)]))
            present[b] = self.kept(call, side, b, space, tokens)
        return read, present

    def put(self, space: Array, at: int, rows: Array) -> None:
        """Write ``rows`` into ``space`` from row ``at`` on, if there is room."""
        at = max(at, 0)
        end = min(at + rows.shape[1], space.shape[1])
        space[:, at:end] = rows[:, : max(end - at, 0)]

    def past_rows(self, call: Call, side: str, b: int) -> Array:
        return call.inputs[f"past_{side}"][b]

    def readable(self, call: Call, b: int, tokens: int) -> int:
        """The number of rows of the joined buffer that attention may read."""
        return tokens

    def bind(self, buffer: Array, present: Array) -> None:
        """Write a present into the buffer that it is bound to: that of its past, or another."""
        if buffer.shape != present.shape:
            self.refuse("a present has other rows than the buffer that it is bound to")
        buffer[...] = present

    def empty_present(self, call: Call, side: str, shape: tuple[int, ...]) -> Array:
        return np.zeros(shape, self.cache_dtype(call, side))

    def kept(self, call: Call, side: str, b: int, space: Array, tokens: int) -> Array:
        """The rows [K, rows, width] of the present buffer, from the joined buffer ``space``.

        ``tokens`` is the number of joined tokens.
        """
        if not call.sliding:
            return space[:, : call.rows]
        rows = np.zeros((space.shape[0], call.rows, space.shape[2]), space.dtype)
        count = self.resident(call, int(call.lengths[b]))
        self.put(rows, 0, space[:, tokens - count : tokens])
        return rows

    # Quantised caches

    def quantised(self, call: Call, side: str) -> bool:
        return bool(call.get(f"{side[0]}_quant_type", "NONE") != "NONE")

    def bits(self, call: Call) -> int:
        return int(call.get("kv_cache_bit_width", 8))

    def cache_dtype(self, call: Call, side: str) -> np.dtype[Any]:
        if not self.quantised(call, side):
            return call.dtype
        past = call.inputs.get(f"past_{side}")
        if past is not None:
            return past.dtype
        return np.dtype(np.uint8 if self.bits(call) == 4 else np.int8)

    def scale_of(self, call: Call, side: str) -> Array:
        """The scales of a side, float32, broadcastable to [B, tokens, K, D]."""
        scale = call.inputs[f"{side[0]}_scale"]
        if scale.size == 1:
            return scale.reshape(1, 1, 1, 1)
        whole = np.broadcast_to(scale, (1, call.kv_heads, 1, call.size))
        return whole.reshape(1, 1, call.kv_heads, call.size)

    def store(self, call: Call, side: str, new: Array) -> Array:
        """New tokens [B, L, K, D] as stored in the cache."""
        if not self.quantised(call, side):
            return new.astype(call.dtype)
        scaled = new.astype(np.float32) / self.scale_of(call, side)
        if self.cache_dtype(call, side) == FLOAT8:
            return self.to_float8(scaled)
        low, high = (-8, 7) if self.bits(call) == 4 else (-128, 127)
        whole = self.clamp(self.round(scaled), low, high)
        return self.pack(whole) if self.bits(call) == 4 else whole.astype(np.int8)

    def round(self, scaled: Array) -> Array:
        return np.rint(scaled)

    def clamp(self, whole: Array, low: int, high: int) -> Array:
        return np.clip(whole, low, high)

    def to_float8(self, scaled: Array) -> Array:
        return np.clip(scaled, -448.0, 448.0).astype(FLOAT8)

    def pack(self, whole: Array) -> Array:
        """Two numbers of 4 bits in a byte, the first in its low half."""
        digits = (whole + self.zero_point()).astype(np.uint8)
        return digits[..., 0::2] | digits[..., 1::2] << 4

    def unpack_digits(self, packed: Array) -> Array:
        digits = np.stack([packed & 15, packed >> 4], axis=-1)
        return digits.reshape(*packed.shape[:-1], -1).astype(np.float32) - self.zero_point()

    def zero_point(self) -> int:
        return 8

    def load(self, call: Call, side: str, rows: Array) -> Array:
        """Rows [K, tokens, width] of a buffer as attention uses them: float32 [K, tokens, D]."""
        if not self.quantised(call, side):
            return rows.astype(np.float32)
        four = self.bits(call) == 4
        whole = self.unpack_digits(rows) if four else rows.astype(np.float32)
        return whole * self.scale_of(call, side)[0].swapaxes(0, 1)

    # Attention

    def attend(
        self, call: Call, query: Array, keys: list[Array], values: list[Array]
    ) -> dict[str, Array]:
        """output [B, S, N * D], and output_qk [B, N, S, T] if it is connected."""
        turned = query.astype(call.dtype).astype(np.float32)
        output = np.zeros((call.batch, call.queries, call.heads, call.size), np.float32)
        made: dict[str, Array] = {}
        if "output_qk" in call.outputs:
            shape = (call.batch, call.heads, call.queries, call.total)
            made["output_qk"] = np.zeros(shape, np.float32)
        heads = self.kv_head(call)
        for b in range(call.batch):
            key, value = keys[b][heads], values[b][heads]
            logits = self.logits(call, b, turned[b].swapaxes(0, 1), key)
            visible = self.visible(call, b, key.shape[1])
            logits = np.where(visible, logits, np.float32(-np.inf))
            weights = self.softmax(call, b, logits)
            output[b] = self.weigh(call, weights, value).swapaxes(0, 1)
            if "output_qk" in made:
                self.show(call, b, made["output_qk"], logits, weights)
        made["output"] = self.finish(call, output)
        if "output_qk" in made:
            made["output_qk"] = made["output_qk"].astype(call.dtype)
        return made

    def finish(self, call: Call, output: Array) -> Array:
        width = call.heads * call.size
        return output.reshape(call.batch, call.queries, width).astype(call.dtype)

    def show(self, call: Call, b: int, shown: Array, logits: Array, weights: Array) -> None:
        """Writes the part of output_qk for sequence ``b``."""
        first = self.first_place(call, b)
        what = logits if self.shown_stage(call) == 1 else weights
        shown[b, :, :, first : first + what.shape[2]] = what

    def shown_stage(self, call: Call) -> int:
        return int(call.get("qk_output", 0))

    def logits(self, call: Call, b: int, query: Array, key: Array) -> Array:
        """[N, S, tokens] from query [N, S, D] and key [N, tokens, D], not masked yet."""
        scores = self.scale(call, self.products(call, query, key))
        return self.add_bias(call, b, self.cap(call, scores))

    def products(self, call: Call, query: Array, key: Array) -> Array:
        return query @ key.swapaxes(1, 2)

    def scale(self, call: Call, products: Array) -> Array:
        return products * self.factor(call)

    def factor(self, call: Call) -> np.float32:
        return np.float32(call.get("scale", 0.0) or call.size**-0.5)

    def cap(self, call: Call, scores: Array) -> Array:
        cap = np.float32(call.get("softcap", 0.0))
        return cap * np.tanh(scores / cap) if cap else scores

    def first_place(self, call: Call, b: int) -> int:
        """Place in its sequence of the first row that attention reads."""
        if not call.sliding:
            return 0
        return int(call.lengths[b]) - self.past_length(call, b) - self.new_length(call, b)

    def add_bias(self, call: Call, b: int, logits: Array) -> Array:
        if not call.has("attention_bias"):
            return logits
        bias = self.bias(call, b).astype(np.float32)
        first = self.first_place(call, b)
        return logits + bias[:, :, first : first + logits.shape[2]]

    def bias(self, call: Call, b: int) -> Array:
        """attention_bias of sequence ``b``, [N or 1, S, T]."""
        bias = call.inputs["attention_bias"]
        return bias[b if len(bias) > 1 else 0]

    def visible(self, call: Call, b: int, tokens: int) -> Array:
        """[S, tokens]: whether a query may attend to a key."""
        i = self.query_places(call, b)[:, None]
        j = self.first_place(call, b) + np.arange(tokens)
        seen = np.ones((call.queries, tokens), bool)
        if call.get("causal", 1):
            seen &= j <= self.last_visible(call, i)
        window = self.window(call)
        if window != -1:
            seen &= j > i - window
        return seen

    def query_places(self, call: Call, b: int) -> Array:
        return self.start(call, b) + np.arange(call.queries)

    def last_visible(self, call: Call, i: Array) -> Array:
        """The last key that the query at place ``i`` may attend to."""
        return i

    def window(self, call: Call) -> int:
        return int(call.get("local_window_size", -1))

    def sink(self, call: Call) -> Array | None:
        """[N]: the sink's logit of each head."""
        if call.has("head_sink"):
            return call.inputs["head_sink"].astype(np.float32)
        if call.get("smooth_softmax", -1) == 1:
            return np.zeros(call.heads, np.float32)
        return None

    def softmax(self, call: Call, b: int, logits: Array) -> Array:
        """[N, S, tokens]; rows that attend to nothing are 0."""
        sink = self.sink(call)
        top = self.top(logits, sink)
        weights = self.exp(logits - top)
        total = weights.sum(axis=2, keepdims=True, dtype=np.float32)
        if sink is not None:
            total = total + self.exp(sink[:, None, None] - top)
        return weights / np.where(total == 0, np.float32(1), total)

    def top(self, logits: Array, sink: Array | None) -> Array:
        """[N, S, 1]: the number subtracted before exp to avoid overflow."""
        top = logits.max(axis=2, keepdims=True, initial=-np.inf)
        if sink is not None:
            top = np.maximum(top, sink[:, None, None])
        return np.where(np.isinf(top), np.float32(0), top)

    def exp(self, x: Array) -> Array:
        return np.exp(x)

    def weigh(self, call: Call, weights: Array, value: Array) -> Array:
        """[N, S, D] from weights [N, S, tokens] and value [N, tokens, D]."""
        if np.isfinite(value).all():
            return weights @ value
        # Zero times infinity is NaN, so values without weight must not take part.
        terms = weights[..., None] * value[:, None]
        return np.where(weights[..., None] == 0, np.float32(0), terms).sum(axis=2)
