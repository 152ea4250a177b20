"""Read one GroupQueryAttention call as a runtime would: from its tensors and attributes alone.

Nothing here knows of cases. What is connected is in the mapping of inputs, what is omitted is
not; everything else follows from shapes, from the two length inputs and from the attributes.
Names, shapes and defaults are those of the operator's documentation in ONNX Runtime 1.31.
Shapes are written with B batch_size, S sequence_length (of query), L kv_sequence_length (of key
and value), P past_sequence_length (rows of the past buffer), T total_sequence_length,
N num_heads, K kv_num_heads, D head_size.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from conformance.oracle.errors import NotComputed, OracleError
from conformance.oracle.numbers import FLOAT_DTYPES, Float, Int
from conformance.signature import ATTRIBUTE_BY_NAME, INPUT_NAMES, OUTPUT_NAMES

Inputs = Mapping[str, NDArray[Any]]
Attributes = Mapping[str, int | float | str]


@dataclass(frozen=True, eq=False)
class Call:
    """One call, its heads taken apart, its numbers exact in float64.

    Token tensors are BSNH, caches BNSH, as the operator has them.
    """

    dtype: np.dtype[Any]
    """The type T of query, key, value, caches and output."""
    query: Float
    """[B, S, N, D]"""
    key: Float
    """[B, L, K, D]: the new keys, before rotary; L may be 0."""
    value: Float
    """[B, L, K, D]"""
    past_key: Float
    """[B, K, P, D]; P is 0 where no past is connected."""
    past_value: Float
    """[B, K, P, D]"""
    lengths: Int
    """[B]: tokens of each sequence after this call, seqlens_k + 1."""
    total: int
    """T: the longest sequence of the batch after this call, or what it is padded to."""
    cos: Float | None
    """[max_sequence_length, rotary_dim / 2]; None when do_rotary is 0."""
    sin: Float | None
    position_ids: Int | None
    """[B, S]; None when not connected."""
    bias: Float | None
    """[B or 1, N or 1, S, T]"""
    sink: Float | None
    """[N]: logit of the sink of each head (zeros for smooth_softmax); None without a sink."""
    scale: float
    softcap: float
    """0 when unused."""
    window: int | None
    """local_window_size, or None when unused."""
    causal: bool
    interleaved: bool

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
        """Whether these queries are the sequences' first tokens, right-padded where shorter."""
        return self.sequence_length == self.total

    @property
    def borrowed(self) -> bool:
        """Whether the whole cache comes from elsewhere: key and value of length zero."""
        return self.kv_sequence_length == 0

    @property
    def query_starts(self) -> Int:
        """[B]: position in its sequence of each sequence's first query."""
        if self.first_prompt:
            return np.zeros_like(self.lengths)
        return self.lengths - self.sequence_length

    @property
    def past_lengths(self) -> Int:
        """[B]: rows of the past buffer that each sequence uses."""
        if self.borrowed:
            return self.lengths
        if self.first_prompt or self.kv_sequence_length != self.sequence_length:
            return np.zeros_like(self.lengths)  # key and value hold everything there is
        return self.lengths - self.sequence_length

    @property
    def present_sequence_length(self) -> int:
        """Rows of the present buffers: a buffer that is long enough keeps its length."""
        return max(self.past_sequence_length, self.total)


def read_call(inputs: Inputs, attributes: Attributes, outputs: Collection[str]) -> Call:
    """Read a call and check that it has a meaning.

    Args:
        inputs: the connected inputs by the operator's names, with the bytes the runtime gets.
        attributes: the attributes set on the node; the others have the schema's defaults.
        outputs: names of the connected outputs.

    Raises:
        OracleError: the call contradicts the operator's documentation or itself.
        NotComputed: the call uses a feature that the oracle does not compute yet.
    """
    _refuse_unknown(inputs, attributes, outputs)
    _refuse_not_computed(inputs, attributes, outputs)

    num_heads = _required_int(attributes, "num_heads")
    kv_num_heads = _required_int(attributes, "kv_num_heads")
    if num_heads < 1 or kv_num_heads < 1 or num_heads % kv_num_heads:
        raise OracleError(
            f"num_heads {num_heads} must be a positive multiple of kv_num_heads {kv_num_heads}."
        )
    dtype = _storage_dtype(inputs)
    query, key, value = _split_heads(inputs, num_heads, kv_num_heads)
    batch_size, sequence_length, _, head_size = query.shape
    past_key, past_value = _past(inputs, (batch_size, kv_num_heads, head_size))
    total = _total_sequence_length(inputs)
    causal = bool(_choice(attributes, "causal", 1, (0, 1)))
    cos, sin = _rotary_caches(inputs, attributes, head_size)
    call = Call(
        dtype=dtype,
        query=query,
        key=key,
        value=value,
        past_key=past_key,
        past_value=past_value,
        lengths=_lengths(inputs, batch_size, total),
        total=total,
        cos=cos,
        sin=sin,
        position_ids=_position_ids(inputs, batch_size, sequence_length),
        bias=_bias(inputs, (batch_size, num_heads, sequence_length, total)),
        sink=_sink(inputs, attributes, num_heads),
        scale=_float(attributes, "scale") or head_size**-0.5,
        softcap=_softcap(attributes),
        window=_window(attributes, causal),
        causal=causal,
        interleaved=bool(_choice(attributes, "rotary_interleaved", 0, (0, 1))),
    )
    _check_lengths(call)
    return call


def _check_lengths(call: Call) -> None:
    """Check that queries, new keys, past and totals fit each other.

    The ways to fit: a first prompt; new tokens appended to a past that is concatenated
    (T = P + L) or static (T <= P); a borrowed past with L = 0; all keys and values at once with
    no past and fewer queries (requested only, see docs/oracle.md).
    """
    new, past, total = call.kv_sequence_length, call.past_sequence_length, call.total
    queries = call.sequence_length
    if new == 0 and past == 0:
        raise OracleError("Key and value have length 0 and there is no past to attend to.")
    if queries > total:
        raise OracleError(
            f"total_sequence_length {total} counts the query's {queries} tokens too and cannot "
            "be less."
        )
    if past and new not in (0, queries):
        raise OracleError(
            f"With a past, key and value must have the query's sequence length {queries} or 0, "
            f"not {new}."
        )
    if not past and new < queries:
        raise OracleError(
            f"Without a past, key and value must have at least the query's sequence length "
            f"{queries}, not {new}."
        )
    if total != past + new and total > past:
        raise OracleError(
            f"total_sequence_length {total} is neither past + new = {past} + {new} (concatenated "
            f"cache) nor at most {past} (static cache)."
        )
    if not call.first_prompt and np.any(call.lengths < queries):
        short = int(np.argmin(call.lengths))
        raise OracleError(
            f"seqlens_k[{short}] = {call.lengths[short] - 1} leaves sequence {short} shorter than "
            f"the {queries} query tokens that end it."
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
            raise OracleError(f"Attribute {name} is no {ATTRIBUTE_BY_NAME[name].kind}: {value!r}.")


def _refuse_not_computed(inputs: Inputs, attributes: Attributes, outputs: Collection[str]) -> None:
    """Name the first feature of the call whose computation is still to be written.

    Their places: a quantised cache is dequantised in ``_past`` and quantised in
    ``cache.build_cache``; query and key norm stand in ``reference`` before ``turn``; a sliding
    window cache changes the rows in ``cache.build_cache`` and the places of keys in
    ``attention.visible_keys``; the QK output is one more maker in ``reference``, from the
    ``logits`` or ``probabilities`` of ``Attention``.
    """
    for side in ("k", "v"):
        if attributes.get(f"{side}_quant_type", "NONE") != "NONE":
            raise NotComputed("quantised cache", f"{side}_quant_type is set")
        if f"{side}_scale" in inputs:
            raise NotComputed("quantised cache", f"{side}_scale is connected")
    for name in ("past_key", "past_value"):
        if name in inputs and inputs[name].dtype not in FLOAT_DTYPES:
            raise NotComputed("quantised cache", f"{name} is {inputs[name].dtype}")
    for name in ("q_norm_weight", "k_norm_weight"):
        if name in inputs:
            raise NotComputed("query and key norm", f"{name} is connected")
    if attributes.get("sliding_window_cache", 0) != 0:
        raise NotComputed("sliding window cache", "sliding_window_cache is set")
    if "output_qk" in outputs:
        raise NotComputed("QK output", "output_qk is connected")


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
    """Return a float attribute as the model holds it (float32), 0 when it is not set."""
    value = float(np.float32(attributes.get(name, 0.0)))
    if not np.isfinite(value):
        raise OracleError(f"Attribute {name} must be finite, not {value}.")
    return value


def _storage_dtype(inputs: Inputs) -> np.dtype[Any]:
    """Return the type T, which every floating input must have."""
    dtype = _required(inputs, "query").dtype
    if dtype not in FLOAT_DTYPES:
        raise OracleError(f"Input query is {dtype}, not one of float32, float16, bfloat16.")
    for name in (
        "key", "value", "past_key", "past_value", "cos_cache", "sin_cache", "attention_bias",
        "head_sink",
    ):  # fmt: skip
        if name in inputs and inputs[name].dtype != dtype:
            raise OracleError(f"Input {name} is {inputs[name].dtype}, but query is {dtype}.")
    return dtype


def _exact(array: NDArray[Any]) -> Float:
    return array.astype(np.float64)


def _split_heads(inputs: Inputs, num_heads: int, kv_num_heads: int) -> tuple[Float, Float, Float]:
    """Return query [B, S, N, D], key and value [B, L, K, D].

    Without key and value, query is packed: the heads of query, then of key, then of value.
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
        raise OracleError(f"The query's width {width} is no positive multiple of {meaning}.")
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
    """Return whether key and value are omitted to borrow the past (onnxruntime#28318).

    The operator reads omitted key and value as packed QKV. Only where that cannot be, because by
    the past's head_size query holds no more than the query, is this other reading taken, which was
    asked for and never promised; it means what key and value of length zero mean.
    """
    past = inputs.get("past_key")
    if "key" in inputs or past is None or past.ndim != 4:
        return False
    return bool(inputs["query"].shape[-1] == num_heads * past.shape[3])


def _past(inputs: Inputs, sizes: tuple[int, int, int]) -> tuple[Float, Float]:
    """Return the past buffers [B, K, P, D]; P is 0 when they are omitted."""
    if ("past_key" in inputs) != ("past_value" in inputs):
        raise OracleError("Inputs past_key and past_value must be both connected or both omitted.")
    batch_size, kv_num_heads, head_size = sizes
    if "past_key" not in inputs:
        empty = np.zeros((batch_size, kv_num_heads, 0, head_size))
        return empty, empty
    past_key, past_value = inputs["past_key"], inputs["past_value"]
    for name, array in (("past_key", past_key), ("past_value", past_value)):
        if array.ndim != 4 or (array.shape[0], array.shape[1], array.shape[3]) != sizes:
            raise OracleError(
                f"Input {name} must be [{batch_size}, {kv_num_heads}, past_sequence_length, "
                f"{head_size}], not {array.shape}."
            )
    if past_key.shape != past_value.shape:
        raise OracleError(
            f"Inputs past_key {past_key.shape} and past_value {past_value.shape} differ in length."
        )
    return _exact(past_key), _exact(past_value)


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
    """Return each sequence's length after the call: seqlens_k + 1, whatever its shape.

    The documentation says [B]; exported models also pass [B, 1] and [1, B], and runtimes
    accept them since microsoft/onnxruntime#28259.
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


def _rotary_caches(
    inputs: Inputs, attributes: Attributes, head_size: int
) -> tuple[Float | None, Float | None]:
    if not _choice(attributes, "do_rotary", 0, (0, 1)):
        return None, None  # connected caches have no effect then
    cos = _required(inputs, "cos_cache", "do_rotary is 1")
    sin = _required(inputs, "sin_cache", "do_rotary is 1")
    if cos.ndim != 2 or cos.shape != sin.shape:
        raise OracleError(
            f"cos_cache {cos.shape} and sin_cache {sin.shape} must be one shape "
            "[max_sequence_length, rotary_dim / 2]."
        )
    if not 1 <= cos.shape[1] <= head_size // 2:
        raise OracleError(
            f"cos_cache turns {2 * cos.shape[1]} dimensions of a head that has {head_size}."
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
    """Return the sink's logit for each head; a connected head_sink overrides smooth_softmax."""
    smooth = _choice(attributes, "smooth_softmax", -1, (-1, 0, 1)) == 1
    if "head_sink" in inputs:
        sink = inputs["head_sink"]
        if sink.shape != (num_heads,):
            raise OracleError(f"Input head_sink must be [{num_heads}], not {sink.shape}.")
        return _exact(sink)
    return np.zeros(num_heads) if smooth else None


def _softcap(attributes: Attributes) -> float:
    softcap = _float(attributes, "softcap")
    if softcap < 0:
        raise OracleError(f"Attribute softcap must be 0 (unused) or positive, not {softcap}.")
    return softcap


def _window(attributes: Attributes, causal: bool) -> int | None:
    window = int(attributes.get("local_window_size", -1))
    if window == -1:
        return None
    if window < 1:
        raise OracleError(
            f"Attribute local_window_size must be -1 (unused) or positive, not {window}."
        )
    if not causal:
        raise OracleError("Attribute local_window_size must be -1 when causal is 0.")
    return window
