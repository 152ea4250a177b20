"""Read one GroupQueryAttention call as a runtime would: from its tensors and attributes alone.

This module does not know about cases. The mapping of inputs holds the connected inputs; omitted
inputs are missing from it. Everything else follows from the shapes, the two length inputs and the
attributes. Names, shapes and defaults are those of the operator's documentation in ONNX Runtime
1.32. In shapes, B stands for batch_size, S for sequence_length (of query), L for
kv_sequence_length (of key and value), P for past_sequence_length (rows of the past buffer), T for
total_sequence_length, N for num_heads, K for kv_num_heads, D for head_size.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from conformance.operator.readings import ReadingName
from conformance.operator.signature import ATTRIBUTE_BY_NAME, INPUT_NAMES, OUTPUT_NAMES
from conformance.oracle.errors import OracleError
from conformance.oracle.numbers import FLOAT_DTYPES, Bool, Float, Int
from conformance.oracle.quantisation import FLOAT8, INT8, UINT8, Format

Inputs = Mapping[str, NDArray[Any]]
Attributes = Mapping[str, int | float | str]


@dataclass(frozen=True, eq=False)
class OracleCall:
    """One call with separate heads and with its numbers in float64, which represents them exactly.

    Token tensors have the layout BSNH and caches BNSH, as in the operator.
    """

    dtype: np.dtype[Any]
    """The type T of query, key, value and output, and of caches that are not quantised."""
    query: Float
    """[B, S, N, D]"""
    key: Float
    """[B, L, K, D]: the new keys, before rotary; L may be 0."""
    value: Float
    """[B, L, K, D]"""
    past_key: Float
    """[B, K, P, D]: the numbers, dequantised; P is 0 if no past is connected."""
    past_value: Float
    """[B, K, P, D]"""
    key_format: Format
    """The storage format of past_key and present_key."""
    value_format: Format
    lengths: Int
    """[B]: tokens of each sequence after this call, seqlens_k + 1."""
    query_lengths: Int | None
    """[B]: query_seqlens, the query tokens of each sequence that are not padding; None if not
    connected."""
    total: int
    """T: the length of the longest sequence after this call, the length it is padded to, or with
    query_seqlens any upper bound."""
    cos: Float | None
    """[max_sequence_length, rotary_dim / 2]; None if do_rotary is 0."""
    sin: Float | None
    position_ids: Int | None
    """[B, S]; None if not connected."""
    bias: Float | None
    """[B or 1, N or 1, S, T]"""
    sink: Float | None
    """[N]: the logit of each head's sink (zeros for smooth_softmax); None without a sink. [B, N] in
    calls put together from several (see :mod:`conformance.bundle.replacements`)."""
    scale: float
    softcap: float
    """0 if not used."""
    window: int | None
    """local_window_size, or None if not used."""
    causal: bool
    interleaved: bool
    q_norm: Float | None
    """[D]: weight of the RMS norm of each query head; None without a norm."""
    k_norm: Float | None
    """[D]: weight of the RMS norm of each new key head; None without a norm."""
    q_epsilon: float
    k_epsilon: float
    window_cache: bool
    """Whether past and present hold only the last tokens of a sequence (sliding_window_cache)."""
    qk_output: int
    """The content of output_qk: 1 the input of the softmax, 2 its output, 0 none or anything."""
    reading: ReadingName | None
    """By which other reading of the documentation the call is read; None: by the main one."""

    @property
    def batch_size(self) -> int:
        return int(self.query.shape[0])

    @property
    def sequence_length(self) -> int:
        return int(self.query.shape[1])

    @property
    def kv_sequence_length(self) -> int:
        return int(self.key.shape[1])

    @property
    def past_sequence_length(self) -> int:
        return int(self.past_key.shape[2])

    @property
    def num_heads(self) -> int:
        return int(self.query.shape[2])

    @property
    def head_size(self) -> int:
        return int(self.query.shape[3])

    @property
    def first_prompt(self) -> bool:
        """Whether the queries are the first tokens of the sequences; shorter ones are padded.

        This follows from the total, except with query_seqlens, where it follows for each sequence.
        """
        return self.query_lengths is None and self.sequence_length == self.total

    @property
    def prompts(self) -> Bool:
        """[B]: the sequences whose tokens are all new.

        In these a kernel may attend to the exact keys and values while it stores their codes (see
        docs/oracle.md on quantised caches).
        """
        if self.query_lengths is None:
            return np.full(self.batch_size, self.first_prompt)
        some = (self.query_lengths > 1) | (self.total == 1)
        prompts: Bool = (self.lengths == self.query_lengths) & some
        return prompts

    @property
    def borrowed(self) -> bool:
        """Whether the cache belongs to another layer: key and value have length 0."""
        return self.kv_sequence_length == 0

    @property
    def query_starts(self) -> Int:
        """[B]: the position of each sequence's first query."""
        if self.query_lengths is not None:
            return self.lengths - self.query_lengths
        if self.first_prompt:
            return np.zeros_like(self.lengths)
        return self.lengths - self.sequence_length

    @property
    def past_lengths(self) -> Int:
        """[B]: the number of past tokens of each sequence."""
        if self.query_lengths is not None:
            return self.lengths - self.query_lengths
        if self.borrowed:
            return self.lengths
        if self.first_prompt or self.kv_sequence_length != self.sequence_length:
            return np.zeros_like(self.lengths)  # key and value hold all tokens
        return self.lengths - self.sequence_length

    @property
    def present_sequence_length(self) -> int:
        """Rows of the present buffers: those of the past if they suffice for all tokens."""
        if self.window_cache:
            return self.past_sequence_length
        return max(self.past_sequence_length, self.total)

    @property
    def first_past_places(self) -> Int:
        """[B]: the place in its sequence of the token in row 0 of the past."""
        return self._first_places(self.past_lengths)

    @property
    def first_present_places(self) -> Int:
        """[B]: the place in its sequence of the token in row 0 of the present."""
        return self._first_places(self.lengths)

    def _first_places(self, lengths: Int) -> Int:
        """Return the place in row 0 of a cache after ``lengths`` tokens of each sequence.

        It is 0 except in a sliding-window cache that has been full. With capacity C and window W,
        such a cache evicts G = C - W + 1 tokens at a time, as often as needed for the rest to fit.
        After T tokens, T - G * ceil((T - C) / G) of them remain.
        """
        if not self.window_cache or self.window is None:
            return np.zeros_like(lengths)
        group = self.past_sequence_length - self.window + 1
        excess = np.maximum(lengths - self.past_sequence_length, 0)
        return group * -(-excess // group)


def read_call(
    inputs: Inputs,
    attributes: Attributes,
    outputs: Collection[str],
    reading: ReadingName | None = None,
    dtype: np.dtype[Any] | None = None,
) -> OracleCall:
    """Read a call and check that it has a defined meaning.

    Args:
        inputs: the connected inputs by the operator's names, exactly as the runtime gets them.
        attributes: the attributes set on the node; the others have the schema's defaults.
        outputs: names of the connected outputs.
        reading: another reading of the documentation (:mod:`conformance.base.readings`).
        dtype: the type T, if inputs of that type are float64, as inside a graph: numbers that a
            runtime rounds and the oracle does not.

    Raises:
        OracleError: the call contradicts the operator's documentation or itself.
    """
    _refuse_unknown(inputs, attributes, outputs)

    num_heads = _required_int(attributes, "num_heads")
    kv_num_heads = _required_int(attributes, "kv_num_heads")
    if num_heads < 1 or kv_num_heads < 1 or num_heads % kv_num_heads:
        raise OracleError(
            f"num_heads {num_heads} must be a positive multiple of kv_num_heads {kv_num_heads}."
        )
    dtype = dtype or _storage_dtype(inputs)
    query, key, value = _split_heads(inputs, num_heads, kv_num_heads)
    batch_size, sequence_length, _, head_size = query.shape
    key_format = _format(inputs, attributes, "k", (kv_num_heads, head_size), dtype)
    value_format = _format(inputs, attributes, "v", (kv_num_heads, head_size), dtype)
    sizes = (batch_size, kv_num_heads, head_size)
    past_key, past_value = _past(inputs, sizes, key_format, value_format)
    q_norm, k_norm = _norms(inputs, head_size)
    total = _total_sequence_length(inputs)
    causal = bool(_choice(attributes, "causal", 1, (0, 1)))
    window = _window(attributes, causal)
    window_cache = _window_cache(inputs, attributes, window)
    query_lengths = _query_lengths(inputs, batch_size, causal)
    if reading == "lengths_beyond_the_total":
        total = max(total, _longest(inputs))
    is_prompt = sequence_length == total and query_lengths is None
    if reading == "prompt_without_lengths" and is_prompt:
        lengths = np.full(batch_size, total)
    else:
        lengths = _lengths(inputs, batch_size, total)
    cos, sin = _rotary_caches(inputs, attributes, head_size)
    call = OracleCall(
        dtype=dtype,
        query=query,
        key=key,
        value=value,
        past_key=past_key,
        past_value=past_value,
        key_format=key_format,
        value_format=value_format,
        lengths=lengths,
        query_lengths=query_lengths,
        total=total,
        cos=cos,
        sin=sin,
        position_ids=_position_ids(inputs, batch_size, sequence_length),
        bias=_bias(inputs, (batch_size, num_heads, sequence_length, total)),
        sink=_sink(inputs, attributes, num_heads),
        scale=_scale(attributes, head_size, reading),
        softcap=_softcap(attributes, reading),
        window=window,
        causal=causal,
        interleaved=bool(_choice(attributes, "rotary_interleaved", 0, (0, 1))),
        q_norm=q_norm,
        k_norm=k_norm,
        q_epsilon=_epsilon(attributes, "q" if q_norm is not None else ""),
        k_epsilon=_epsilon(attributes, "k" if k_norm is not None else ""),
        window_cache=window_cache,
        qk_output=_choice(attributes, "qk_output", 0, (0, 1, 2)),
        reading=reading,
    )
    _check_lengths(call)
    return call


def _check_lengths(call: OracleCall) -> None:
    """Check that the lengths of queries, new keys, past and sequences are consistent.

    Consistent are: a first prompt; new tokens appended to a concatenated past (T = P + L) or to a
    static past (T <= P); a borrowed past with L = 0; all keys and values without a past, with fewer
    queries (requested only, see docs/oracle.md).
    """
    new, past, total = call.kv_sequence_length, call.past_sequence_length, call.total
    queries = call.sequence_length
    if call.query_lengths is not None:
        _check_chunks(call, call.query_lengths)
        return
    if new == 0 and past == 0:
        raise OracleError("Key and value have length 0, and there is no past to attend to.")
    if queries > total:
        raise OracleError(
            f"total_sequence_length {total} is less than the {queries} tokens of query, which it "
            "includes."
        )
    if past and new not in (0, queries):
        raise OracleError(
            f"With a past, the length of key and value must be that of query, {queries}, or 0, "
            f"not {new}."
        )
    if not past and new < queries:
        raise OracleError(
            f"Without a past, the length of key and value must be at least that of query, "
            f"{queries}, not {new}."
        )
    if total != past + new and total > past and not call.window_cache:
        raise OracleError(
            f"total_sequence_length {total} is neither past + new = {past} + {new} (concatenated "
            f"cache) nor at most {past} (static cache)."
        )
    if not call.first_prompt and np.any(call.lengths < queries):
        short = int(np.argmin(call.lengths))
        raise OracleError(
            f"seqlens_k[{short}] = {call.lengths[short] - 1} makes sequence {short} shorter than "
            f"its {queries} query tokens."
        )


def _check_chunks(call: OracleCall, queries: Int) -> None:
    """Check what the documentation requires of right-padded query chunks."""
    padded = call.sequence_length
    if call.kv_sequence_length != padded:
        raise OracleError(
            f"With query_seqlens, the length of key and value must be that of query, {padded}, "
            f"not {call.kv_sequence_length}."
        )
    for index, (count, length) in enumerate(zip(queries, call.lengths, strict=True)):
        if not 0 <= count <= min(padded, length):
            raise OracleError(
                f"query_seqlens[{index}] = {count} is not between 0 and the smaller of the "
                f"{padded} tokens of query and the {length} tokens of the sequence."
            )
    if call.window_cache:
        return
    if padded > call.total:
        raise OracleError(
            f"total_sequence_length {call.total} is less than the {padded} tokens of query."
        )
    past, rows = call.past_sequence_length, call.present_sequence_length
    for index, old in enumerate(call.past_lengths):
        if old > past or old + padded > rows:
            raise OracleError(
                f"query_seqlens[{index}] = {queries[index]} leaves {old} tokens of the past, but "
                f"the past has {past} rows, and the present {rows} for them and {padded} more."
            )


#: Python types of an attribute's value, by the kind that the schema gives it.
_KINDS: Final[dict[str, tuple[type, ...]]] = {
    "int": (int, np.integer),
    "float": (int, float, np.integer, np.floating),
    "string": (str,),
}


def _refuse_unknown(inputs: Inputs, attributes: Attributes, outputs: Collection[str]) -> None:
    for kind, given, known in (
        ("input", inputs, INPUT_NAMES),
        ("attribute", attributes, ATTRIBUTE_BY_NAME),
        ("output", outputs, OUTPUT_NAMES),
    ):
        for name in given:
            if name not in known:
                raise OracleError(f"GroupQueryAttention has no {kind} {name!r}.")
    for name, value in attributes.items():
        kinds = _KINDS[ATTRIBUTE_BY_NAME[name].kind]
        if not isinstance(value, kinds) or isinstance(value, bool):
            kind = ATTRIBUTE_BY_NAME[name].kind
            raise OracleError(f"Attribute {name} must be of type {kind}, but is {value!r}.")


def _required(inputs: Inputs, name: str, why: str = "the operator requires it") -> NDArray[Any]:
    if name not in inputs:
        raise OracleError(f"Input {name} is missing: {why}.")
    return inputs[name]


def _required_int(attributes: Attributes, name: str) -> int:
    if name not in attributes:
        raise OracleError(f"Attribute {name} is missing: the operator requires it.")
    return int(attributes[name])


def _choice(attributes: Attributes, name: str, default: int, allowed: tuple[int, ...]) -> int:
    value = int(attributes.get(name, default))
    if value not in allowed:
        words = " or ".join(str(word) for word in allowed)
        raise OracleError(f"Attribute {name} must be {words}, not {value}.")
    return value


def _float(attributes: Attributes, name: str) -> float:
    """Return a float attribute as stored in the model (float32), or 0 if it is not set."""
    value = float(np.float32(attributes.get(name, 0.0)))
    if not np.isfinite(value):
        raise OracleError(f"Attribute {name} must be finite, not {value}.")
    return value


def _storage_dtype(inputs: Inputs) -> np.dtype[Any]:
    """Return the type T, which all floating-point inputs except caches and scales must have."""
    dtype = _required(inputs, "query").dtype
    if dtype not in FLOAT_DTYPES:
        raise OracleError(f"Input query is {dtype}, not one of float32, float16, bfloat16.")
    for name in (
        "key", "value", "cos_cache", "sin_cache", "attention_bias", "head_sink", "q_norm_weight",
        "k_norm_weight",
    ):  # fmt: skip
        if name in inputs and inputs[name].dtype != dtype:
            raise OracleError(f"Input {name} is {inputs[name].dtype}, but query is {dtype}.")
    return dtype


def _exact(array: NDArray[Any]) -> Float:
    return array.astype(np.float64)


def _split_heads(inputs: Inputs, num_heads: int, kv_num_heads: int) -> tuple[Float, Float, Float]:
    """Return query [B, S, N, D], key and value [B, L, K, D].

    If key and value are omitted, query is packed: it holds the heads of query, key and value, in
    this order.
    """
    query = _required(inputs, "query")
    if query.ndim != 3:
        raise OracleError(f"Input query must be [B, S, hidden_size], not {query.shape}.")
    if ("key" in inputs) != ("value" in inputs):
        raise OracleError("Inputs key and value must be both connected or both omitted.")
    packed = "key" not in inputs and not _borrows_by_omission(inputs, num_heads)
    heads = num_heads + 2 * kv_num_heads if packed else num_heads
    batch_size, sequence_length, width = query.shape
    if width == 0 or width % heads:
        meaning = "num_heads + 2 kv_num_heads (packed QKV)" if packed else "num_heads"
        raise OracleError(f"The query's width {width} is not a positive multiple of {meaning}.")
    head_size = width // heads
    split = _exact(query).reshape(batch_size, sequence_length, heads, head_size)
    if packed:
        packed_query, packed_key, packed_value = np.split(
            split, [num_heads, num_heads + kv_num_heads], axis=2
        )
        return packed_query, packed_key, packed_value
    nothing = np.zeros((batch_size, 0, kv_num_heads * head_size))
    key, value = inputs.get("key", nothing), inputs.get("value", nothing)
    for name, array in (("key", key), ("value", value)):
        if array.ndim != 3 or array.shape[::2] != (batch_size, kv_num_heads * head_size):
            raise OracleError(
                f"Input {name} must be [{batch_size}, kv_sequence_length, "
                f"{kv_num_heads * head_size}], not {array.shape}."
            )
    if key.shape != value.shape:
        raise OracleError(f"Inputs key {key.shape} and value {value.shape} differ in length.")
    shape = (batch_size, key.shape[1], kv_num_heads, head_size)
    return split, _exact(key).reshape(shape), _exact(value).reshape(shape)


def _borrows_by_omission(inputs: Inputs, num_heads: int) -> bool:
    """Return whether key and value are omitted in order to borrow the past.

    This is requested in microsoft/onnxruntime#28318.

    The operator reads omitted key and value as packed QKV. If that is impossible, because query is
    exactly as wide as num_heads times the head_size of the past, then omitted key and value mean
    the same as those of length zero. This reading was requested and is not specified. A byte of an
    int4 past holds two elements of a head.
    """
    past = inputs.get("past_key")
    if "key" in inputs or past is None or past.ndim != 4:
        return False
    size, rest = divmod(inputs["query"].shape[-1], num_heads)
    return not rest and past.shape[3] == ((size + 1) // 2 if past.dtype == UINT8 else size)


#: Bits of a stored number, by the type of a quantised cache.
_BITS: Final = {INT8: 8, FLOAT8: 8, UINT8: 4}


def _format(
    inputs: Inputs,
    attributes: Attributes,
    side: str,
    sizes: tuple[int, int],
    dtype: np.dtype[Any],
) -> Format:
    """Return the storage format of the key (``side`` k) or value (``side`` v) cache.

    The type of the past determines the format, because the present has the same type. A call
    without a past cannot be quantised. In uint8, two 4-bit values share a byte; int8 and
    float8e4m3fn have 8 bits.
    """
    past_name, scale_name = {"k": "past_key", "v": "past_value"}[side], f"{side}_scale"
    kind = str(attributes.get(f"{side}_quant_type", "NONE"))
    past, query = inputs.get(past_name), _required(inputs, "query")
    if kind == "NONE":
        if past is not None and past.dtype != query.dtype:
            raise OracleError(f"Input {past_name} is {past.dtype}, but query is {query.dtype}.")
        return Format(dtype)  # a connected scale has no effect
    if kind not in ("PER_TENSOR", "PER_CHANNEL"):
        raise OracleError(f"Attribute {side}_quant_type must not be {kind!r}.")
    why = f"{side}_quant_type is {kind}"
    past = _required(inputs, past_name, f"{why}, and it determines the type of the cache")
    if past.dtype not in _BITS:
        raise OracleError(f"Input {past_name} is {past.dtype}, but {why}.")
    bits = int(attributes.get("kv_cache_bit_width", _BITS[past.dtype]))
    if bits != _BITS[past.dtype]:
        raise OracleError(f"Attribute kv_cache_bit_width is {bits}, but {past_name} {past.dtype}.")
    scale = _required(inputs, scale_name, why)
    if scale.dtype != np.float32:
        raise OracleError(f"Input {scale_name} is {scale.dtype}, not float32.")
    if not np.all((scale > 0) & (scale < np.inf)):
        raise OracleError(f"Input {scale_name} must hold positive, finite numbers.")
    return Format(past.dtype, _spread(scale, kind, sizes, scale_name))


def _spread(scale: NDArray[Any], kind: str, sizes: tuple[int, int], name: str) -> Float:
    """Return a scale that broadcasts to [B, K, rows, D]: one number, or one for each channel.

    Exporters also write the scales of the channels as [K * D], which is how kernels read them.
    """
    kv_num_heads, head_size = sizes
    wanted = (1, 1, 1, 1) if kind == "PER_TENSOR" else (1, kv_num_heads, 1, head_size)
    if kind == "PER_CHANNEL" and scale.shape == (kv_num_heads * head_size,):
        scale = scale.reshape(wanted)
    try:
        return np.broadcast_to(_exact(scale), wanted)
    except ValueError:
        raise OracleError(
            f"Input {name} must broadcast to {list(wanted)} ({kind}), not {scale.shape}."
        ) from None


def _past(
    inputs: Inputs, sizes: tuple[int, int, int], key_format: Format, value_format: Format
) -> tuple[Float, Float]:
    """Return the dequantised past buffers [B, K, P, D]; P is 0 if they are omitted."""
    if ("past_key" in inputs) != ("past_value" in inputs):
        raise OracleError("Inputs past_key and past_value must be both connected or both omitted.")
    batch_size, kv_num_heads, head_size = sizes
    if "past_key" not in inputs:
        empty = np.zeros((batch_size, kv_num_heads, 0, head_size))
        return empty, empty
    past_key, past_value = inputs["past_key"], inputs["past_value"]
    for name, array, format in (
        ("past_key", past_key, key_format),
        ("past_value", past_value, value_format),
    ):
        wanted = (batch_size, kv_num_heads, (head_size + 1) // 2 if format.packed else head_size)
        if array.ndim != 4 or (array.shape[0], array.shape[1], array.shape[3]) != wanted:
            raise OracleError(
                f"Input {name} must be [{batch_size}, {kv_num_heads}, past_sequence_length, "
                f"{wanted[2]}], not {array.shape}."
            )
    if past_key.shape[2] != past_value.shape[2]:
        raise OracleError(
            f"Inputs past_key {past_key.shape} and past_value {past_value.shape} differ in length."
        )
    return (
        key_format.decode(key_format.unpack(past_key, head_size)),
        value_format.decode(value_format.unpack(past_value, head_size)),
    )


def _window_cache(inputs: Inputs, attributes: Attributes, window: int | None) -> bool:
    """Return sliding_window_cache; check that its capacity, the past's rows, holds a window."""
    if not _choice(attributes, "sliding_window_cache", 0, (0, 1)):
        return False
    why = "sliding_window_cache is 1, and its rows are the capacity"
    past = _required(inputs, "past_key", why)
    if window is None:
        raise OracleError("Attribute local_window_size must be set if sliding_window_cache is 1.")
    if past.shape[2] < window:
        raise OracleError(
            f"The window cache has {past.shape[2]} rows, fewer than local_window_size {window}."
        )
    return True


def _norms(inputs: Inputs, head_size: int) -> tuple[Float | None, Float | None]:
    """Return the weights [D] of the RMS norm of queries and of new keys, or None."""
    names = ("q_norm_weight", "k_norm_weight")
    found = [_exact(inputs[name]) for name in names if name in inputs]
    if not found:
        return None, None
    if len(found) == 1:
        raise OracleError(f"Inputs {names[0]} and {names[1]} must be both connected or omitted.")
    for name, weight in zip(names, found, strict=True):
        if weight.shape != (head_size,):
            raise OracleError(f"Input {name} must be [{head_size}], not {weight.shape}.")
    return found[0], found[1]


def _epsilon(attributes: Attributes, side: str) -> float:
    """Return the epsilon of a side as stored in the model (float32).

    It is the side's own attribute, which must be finite and positive, or else qk_norm_epsilon.
    ``side`` is empty without a norm: then the attribute changes no number.
    """
    if side and (name := f"{side}_norm_epsilon") in attributes:
        epsilon = _float(attributes, name)
        if epsilon <= 0:
            raise OracleError(f"Attribute {name} must be positive, but is {epsilon}.")
        return epsilon
    if "qk_norm_epsilon" not in attributes:
        return float(np.float32(1e-6))
    epsilon = _float(attributes, "qk_norm_epsilon")
    if epsilon < 0:
        raise OracleError(f"Attribute qk_norm_epsilon must not be negative, but is {epsilon}.")
    return epsilon


def _total_sequence_length(inputs: Inputs) -> int:
    total = _required(inputs, "total_sequence_length")
    if total.dtype != np.int32:
        raise OracleError(f"Input total_sequence_length is {total.dtype}, not int32.")
    if total.ndim > 1 or total.size != 1:
        raise OracleError(
            f"Input total_sequence_length must be a scalar or one element, not {total.shape}."
        )
    return int(total.reshape(()))


def _lengths(inputs: Inputs, batch_size: int, total: int) -> Int:
    """Return the length of each sequence after the call: seqlens_k + 1.

    The documentation gives the shape [B]. Exported models also pass [B, 1] and [1, B], and runtimes
    accept these since microsoft/onnxruntime#28259.
    """
    seqlens = _required(inputs, "seqlens_k")
    if seqlens.dtype != np.int32:
        raise OracleError(f"Input seqlens_k is {seqlens.dtype}, not int32.")
    dims_fit = all(size in (1, batch_size) for size in seqlens.shape)
    if seqlens.ndim == 0 or seqlens.size != batch_size or not dims_fit:
        raise OracleError(f"Input seqlens_k must be [{batch_size}], not {seqlens.shape}.")
    lengths = seqlens.reshape(batch_size).astype(np.int64) + 1
    for index, length in enumerate(lengths):
        if not 1 <= length <= total:
            raise OracleError(
                f"seqlens_k[{index}] = {length - 1} is not the index of a last token within "
                f"total_sequence_length {total}."
            )
    return lengths


def _query_lengths(inputs: Inputs, batch_size: int, causal: bool) -> Int | None:
    """Return query_seqlens, None if it is not connected."""
    if "query_seqlens" not in inputs:
        return None
    counts = inputs["query_seqlens"]
    if counts.dtype != np.int32 or counts.shape != (batch_size,):
        raise OracleError(
            f"Input query_seqlens must be int32 [{batch_size}], not {counts.dtype} {counts.shape}."
        )
    for name in ("past_key", "past_value"):
        _required(inputs, name, "query_seqlens requires it")
    if not causal:
        raise OracleError("Attribute causal must be 1 if query_seqlens is connected.")
    return counts.astype(np.int64)


def _longest(inputs: Inputs) -> int:
    """Return the largest length that seqlens_k gives."""
    seqlens = _required(inputs, "seqlens_k")
    return int(seqlens.max(initial=-1)) + 1


def _rotary_caches(
    inputs: Inputs, attributes: Attributes, head_size: int
) -> tuple[Float | None, Float | None]:
    if not _choice(attributes, "do_rotary", 0, (0, 1)):
        return None, None  # connected caches have no effect
    cos = _required(inputs, "cos_cache", "do_rotary is 1")
    sin = _required(inputs, "sin_cache", "do_rotary is 1")
    if cos.ndim != 2 or cos.shape != sin.shape:
        raise OracleError(
            f"cos_cache {cos.shape} and sin_cache {sin.shape} must have the same shape "
            "[max_sequence_length, rotary_dim / 2]."
        )
    if not 1 <= cos.shape[1] <= head_size // 2:
        raise OracleError(
            f"cos_cache rotates {2 * cos.shape[1]} elements of a head that has {head_size}."
        )
    return _exact(cos), _exact(sin)


def _position_ids(inputs: Inputs, batch_size: int, sequence_length: int) -> Int | None:
    if "position_ids" not in inputs:
        return None
    ids = inputs["position_ids"]
    if ids.dtype != np.int64 or ids.shape != (batch_size, sequence_length):
        raise OracleError(
            f"Input position_ids must be int64 [{batch_size}, {sequence_length}], "
            f"not {ids.dtype} {ids.shape}."
        )
    return ids.astype(np.int64)


def _bias(inputs: Inputs, shape: tuple[int, int, int, int]) -> Float | None:
    if "attention_bias" not in inputs:
        return None
    bias = inputs["attention_bias"]
    batch_size, num_heads, sequence_length, total = shape
    if (
        bias.ndim != 4
        or bias.shape[0] not in (1, batch_size)
        or bias.shape[1] not in (1, num_heads)
        or bias.shape[2:] != (sequence_length, total)
    ):
        raise OracleError(
            f"Input attention_bias must be [{batch_size} or 1, {num_heads} or 1, "
            f"{sequence_length}, {total}], not {bias.shape}."
        )
    return _exact(bias)


def _sink(inputs: Inputs, attributes: Attributes, num_heads: int) -> Float | None:
    """Return the logit of each head's sink; a connected head_sink overrides smooth_softmax."""
    smooth = _choice(attributes, "smooth_softmax", -1, (-1, 0, 1)) == 1
    if "head_sink" in inputs:
        sink = inputs["head_sink"]
        if sink.shape != (num_heads,):
            raise OracleError(f"Input head_sink must be [{num_heads}], not {sink.shape}.")
        return _exact(sink)
    return np.zeros(num_heads) if smooth else None


def _scale(attributes: Attributes, head_size: int, reading: ReadingName | None) -> float:
    """Return the scale of the scores; 0 means the default, except in one reading."""
    scale = _float(attributes, "scale")
    if scale == 0.0 and not (reading == "scale_of_zero" and "scale" in attributes):
        return float(head_size**-0.5)
    return scale


def _softcap(attributes: Attributes, reading: ReadingName | None) -> float:
    """Return softcap, 0 if it is not used; the formula gives the same values for its negative."""
    softcap = _float(attributes, "softcap")
    if softcap < 0 and reading == "negative_softcap_is_none":
        return 0.0
    return abs(softcap)


def _window(attributes: Attributes, causal: bool) -> int | None:
    window = int(attributes.get("local_window_size", -1))
    if window == -1:
        return None
    if window < 1:
        raise OracleError(
            f"Attribute local_window_size must be -1 (unused) or positive, not {window}."
        )
    if not causal:
        raise OracleError("Attribute local_window_size must be -1 if causal is 0.")
    return window
