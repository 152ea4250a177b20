"""The features of a call, each with one of a few values, and values that exclude each other.

Coverage, the pairs of ``cases/pairs.yaml`` and expectations use these names. Features are derived
from the call's tensors and attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from conformance.case.call import Call
from conformance.case.tensors import Step, Tensor, attributes_of

DOCUMENTATION: Final = (
    "https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md"
    "#com.microsoft.GroupQueryAttention"
)
BORROWING: Final = "https://github.com/microsoft/onnxruntime/pull/28242"
OMITTING: Final = "https://github.com/microsoft/onnxruntime/issues/28318"
BIDIRECTIONAL: Final = "https://github.com/microsoft/onnxruntime/pull/31704"
SLIDING: Final = "https://github.com/microsoft/onnxruntime/pull/29904"
SUITE: Final = "docs/cases.md"


class Reader:
    """Derives the value of each feature from a call, its attributes and its tensors.

    In a loop the last step counts: its lengths decide whether a window is short or long. In a graph
    the main node counts. ``derive_steps`` is called if a feature needs the tensors.
    """

    def __init__(self, call: Call, derive_steps: Callable[[], tuple[Step, ...]]) -> None:
        self.call = call
        self._derive_steps = derive_steps

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        return tuple(step.node or step for step in self._derive_steps())

    @property
    def step(self) -> Step:
        return self.steps[-1]

    @cached_property
    def attributes(self) -> dict[str, int | float | str]:
        return attributes_of(self.call)

    def tensor(self, name: str) -> Tensor | None:
        """The input ``name`` if it is connected."""
        tensor = self.step.input(name)
        return tensor if tensor.connected else None

    def rotary(self) -> str | None:
        table = self.tensor("cos_cache")
        if self.attributes.get("do_rotary", 0) != 1:
            return "none"
        if table is None or table.shape is None or len(table.shape) != 2:
            return None
        layout = "interleaved" if self.attributes.get("rotary_interleaved") else "half_split"
        return layout if 2 * table.shape[1] >= self.call.head_size else f"partial_{layout}"

    def position_ids(self) -> str:
        if not self.tensor("position_ids"):
            return "none"
        return IMPLIED if self.call.position_ids == IMPLIED else "given"

    def window(self) -> str | None:
        window = self.attributes.get("local_window_size", -1)
        if not isinstance(window, int) or window == 0 or window < -1:
            return None
        keys = max(self.step.total_lengths, default=0)
        if window == -1:
            return "none"
        return "shorter" if window < keys else "whole" if window == keys else "longer"

    def softcap(self) -> str:
        return "given" if self.attributes.get("softcap") else "none"

    def attention_bias(self) -> str | None:
        bias = self.tensor("attention_bias")
        if bias is None:
            return "none"
        if bias.shape is None or len(bias.shape) != 4:
            return None
        one_batch = bias.shape[0] < self.call.batch_size
        one_head = bias.shape[1] < self.call.num_heads
        return {
            (False, False): "full",
            (True, False): "one_batch",
            (False, True): "one_head",
            (True, True): "one_batch_one_head",
        }[one_batch, one_head]

    def sink(self) -> str:
        if self.tensor("head_sink"):
            return "head_sink"
        return "smooth_softmax" if self.attributes.get("smooth_softmax") == 1 else "none"

    def key_value(self) -> str | None:
        natural = self.call.kv_sequence_length in (None, self.step.sequence_length)
        return self.call.key_value if natural else None

    def cache(self) -> str:
        if self.attributes.get("sliding_window_cache"):
            return "sliding_window"
        return "shared_buffer" if self.call.shared_buffer else self.call.cache_kind

    def phase(self) -> str | None:
        length = self.step.sequence_length
        if self.call.loop:
            return "loop"
        if self.key_value() is None or not length:
            return None
        if queries := self.step.query_lengths:
            if queries == self.step.total_lengths:
                return "prefill"
        elif length == self.step.total_sequence_length:
            return "prefill"
        return "decode" if length == 1 else "chunked_prefill"

    def lengths(self) -> str:
        return "ragged" if len(set(self.step.total_lengths)) > 1 else "equal"

    def causal(self) -> str:
        return "bidirectional" if self.attributes.get("causal", 1) == 0 else "causal"

    def output_qk(self) -> str | None:
        if "output_qk" not in self.step.connected_outputs:
            return "none"
        mode = self.attributes.get("qk_output", 0)
        return {1: "before_softmax", 2: "after_softmax"}.get(mode if isinstance(mode, int) else 0)

    def presents(self) -> str:
        outputs = self.step.connected_outputs
        return ("none", "one", "both")[("present_key" in outputs) + ("present_value" in outputs)]

    def heads(self) -> str:
        if self.call.num_heads == self.call.kv_num_heads:
            return "mha"
        return "mqa" if self.call.kv_num_heads == 1 else "gqa"

    def head_size(self) -> str:
        size = str(self.call.head_size)
        return size if size in BY_NAME["head_size"].values else REST

    def scale(self) -> str:
        return "given" if self.attributes.get("scale") else "default"

    def quantised(self) -> str | None:
        kinds = [self.attributes.get(f"{side}_quant_type", "NONE") for side in ("k", "v")]
        if kinds == ["NONE", "NONE"]:
            return "none"
        cache = self.call.cache_dtype
        number = {"int8": "int8", "uint8": "int4", "float8e4m3fn": "float8"}.get(cache or "")
        if kinds[0] != kinds[1] or number is None:
            return None
        return f"{number}_{'channel' if kinds[0] == 'PER_CHANNEL' else 'tensor'}"

    def qk_norm(self) -> str:
        return "given" if self.tensor("q_norm_weight") else "none"

    def query_seqlens(self) -> str:
        """In a loop, all calls count: one chunk of a prompt is padded."""
        if not self.tensor("query_seqlens"):
            return "none"
        chunks = [(step.sequence_length, step.query_lengths or ()) for step in self.steps]
        if any(0 in queries for _, queries in chunks):
            return "idle"
        return "padded" if any(min(q, default=s) < s for s, q in chunks) else "unpadded"


#: The value that stands for all values not listed; pairs with it are not required.
REST: Final = "other"
#: The value for position_ids that equal the implied positions; they show no more than none.
IMPLIED: Final = "implied"


@dataclass(frozen=True)
class Feature:
    """A property in which calls differ; the first of ``values`` is the plain one.

    ``read`` returns a call's value, or None if the value is not listed (calls that are invalid on
    purpose, and requested readings of the operator that nothing specifies).
    """

    name: str
    values: tuple[str, ...]
    read: Callable[[Reader], str | None]

    @property
    def paired(self) -> tuple[str, ...]:
        """The values for which pairs are required."""
        return tuple(value for value in self.values if value not in (REST, IMPLIED))


FEATURES: Final = (
    Feature("phase", ("prefill", "decode", "chunked_prefill", "loop"), Reader.phase),
    Feature(
        "cache",
        ("none", "concatenated", "static", "shared_buffer", "sliding_window"),
        Reader.cache,
    ),
    Feature(
        "key_value",
        ("new", "packed", "zero_length", "zero_valued", "omitted"),
        Reader.key_value,
    ),
    Feature("presents", ("both", "none", "one"), Reader.presents),
    Feature("batch", ("one", "more"), lambda r: "one" if r.call.batch_size == 1 else "more"),
    Feature("lengths", ("equal", "ragged"), Reader.lengths),
    Feature("heads", ("gqa", "mha", "mqa"), Reader.heads),
    Feature(
        "head_size",
        ("16", "8", "40", "64", "80", "128", "256", "512", REST),
        Reader.head_size,
    ),
    Feature(
        "rotary",
        ("none", "half_split", "interleaved", "partial_half_split", "partial_interleaved"),
        Reader.rotary,
    ),
    Feature("position_ids", ("none", "given", IMPLIED), Reader.position_ids),
    Feature("qk_norm", ("none", "given"), Reader.qk_norm),
    Feature("causal", ("causal", "bidirectional"), Reader.causal),
    Feature("window", ("none", "shorter", "whole", "longer"), Reader.window),
    Feature("scale", ("default", "given"), Reader.scale),
    Feature("softcap", ("none", "given"), Reader.softcap),
    Feature(
        "attention_bias",
        ("none", "full", "one_batch", "one_head", "one_batch_one_head"),
        Reader.attention_bias,
    ),
    Feature("sink", ("none", "head_sink", "smooth_softmax"), Reader.sink),
    Feature("output_qk", ("none", "before_softmax", "after_softmax"), Reader.output_qk),
    Feature(
        "quantised",
        (
            "none",
            "int8_tensor",
            "int8_channel",
            "int4_tensor",
            "int4_channel",
            "float8_tensor",
            "float8_channel",
        ),
        Reader.quantised,
    ),
    Feature("dtype", ("float32", "float16", "bfloat16"), lambda r: r.call.dtype),
    Feature("dims", ("symbolic", "static"), lambda r: r.call.dims),
    Feature("query_seqlens", ("none", "unpadded", "padded", "idle"), Reader.query_seqlens),
)

BY_NAME: Final = {feature.name: feature for feature in FEATURES}


def features_of(call: Call, steps: tuple[Step, ...]) -> dict[str, str | None]:
    """The value of each feature of a call; None for a feature without a listed value."""
    reader = Reader(call, lambda: steps)
    return {feature.name: feature.read(reader) for feature in FEATURES}


@dataclass(frozen=True)
class Rule:
    """Values of two features that exclude each other, or of three that cannot occur together."""

    values: Mapping[str, tuple[str, ...]]
    reason: str
    source: str

    def forbids(self, row: Mapping[str, str | None]) -> bool:
        """Whether ``row`` has one of the excluded values for each feature of the rule."""
        return all(row.get(name) in values for name, values in self.values.items())


_BORROWED: Final = ("zero_length", "omitted")
_OWN: Final = ("new", "packed", "zero_valued")
_CHUNKS: Final = BY_NAME["query_seqlens"].values[1:]

RULES: Final = (
    Rule(
        {"phase": ("decode", "chunked_prefill", "loop"), "cache": ("none",)},
        "Without a cache there are no tokens other than those of the prefill.",
        DOCUMENTATION,
    ),
    Rule(
        {"phase": ("loop",), "presents": ("none", "one")},
        "In a loop the presents of each call are the past of the next.",
        SUITE,
    ),
    Rule(
        {"cache": ("shared_buffer",), "presents": ("none", "one")},
        "A shared buffer is both past and present.",
        DOCUMENTATION,
    ),
    Rule(
        {"cache": ("none",), "key_value": _BORROWED},
        "A call without new keys and without a cache has nothing to attend to.",
        BORROWING,
    ),
    Rule(
        {"key_value": ("omitted",), "phase": ("loop",)},
        "Borrowing by omitting key and value was requested for single calls only; the released way"
        " is zero_length.",
        OMITTING,
    ),
    Rule(
        {"batch": ("one",), "lengths": ("ragged",)},
        "One sequence has one length.",
        DOCUMENTATION,
    ),
    Rule(
        {"batch": ("one",), "attention_bias": ("one_batch", "one_batch_one_head")},
        "In a batch of one these shapes are the same as full and one_head.",
        DOCUMENTATION,
    ),
    Rule(
        {"rotary": ("none",), "position_ids": ("given",)},
        "Positions are the rotation angles of rotary; without rotary their meaning is not"
        " specified.",
        DOCUMENTATION,
    ),
    Rule(
        {"causal": ("bidirectional",), "window": ("shorter", "whole", "longer")},
        "local_window_size must be -1 if causal is 0.",
        BIDIRECTIONAL,
    ),
    Rule(
        {"cache": ("sliding_window",), "window": ("none",)},
        "sliding_window_cache requires a local_window_size.",
        SLIDING,
    ),
    Rule(
        {"cache": ("sliding_window",), "causal": ("bidirectional",)},
        "sliding_window_cache requires a window, and a window requires causal.",
        SLIDING,
    ),
    Rule(
        {"cache": ("none",), "quantised": BY_NAME["quantised"].values[1:]},
        "Presents have the format of the past; without a past they have the query's.",
        DOCUMENTATION,
    ),
    Rule(
        {"key_value": ("omitted",), "quantised": BY_NAME["quantised"].values[1:]},
        "The past's head size shows that omitted means borrowed, and this was requested only for"
        " caches of the query's type.",
        OMITTING,
    ),
    Rule(
        {"key_value": ("zero_length", "omitted"), "cache": ("sliding_window",)},
        "Runtimes reject it: a sliding-window cache holds the tokens of its own calls.",
        SLIDING,
    ),
    Rule(
        {
            "presents": ("none", "one"),
            "phase": ("decode", "chunked_prefill"),
            "key_value": _OWN,
        },
        "Past and new tokens are joined in the present; without it the call must be rejected.",
        BORROWING,
    ),
    Rule(
        {"dims": ("static",), "phase": ("loop",), "cache": ("concatenated",), "key_value": _OWN},
        "Static dims require the same shapes in all calls of a loop, and a concatenated cache"
        " grows.",
        SUITE,
    ),
    Rule(
        {
            "dims": ("static",),
            "phase": ("loop",),
            "attention_bias": ("full", "one_batch", "one_head", "one_batch_one_head"),
            "key_value": _OWN,
        },
        "Static dims require the same shapes in all calls of a loop, and the bias has a column for"
        " each token.",
        SUITE,
    ),
    Rule(
        {"query_seqlens": _CHUNKS, "cache": ("none",)},
        "query_seqlens requires past_key and past_value.",
        DOCUMENTATION,
    ),
    Rule(
        {"query_seqlens": _CHUNKS, "key_value": _BORROWED},
        "query_seqlens requires new key and value, as long as query.",
        DOCUMENTATION,
    ),
    Rule(
        {"query_seqlens": _CHUNKS, "causal": ("bidirectional",)},
        "query_seqlens requires causal.",
        DOCUMENTATION,
    ),
    Rule(
        {"query_seqlens": ("idle",), "presents": ("none", "one")},
        "The cache of an idle entry is kept in the present.",
        DOCUMENTATION,
    ),
    Rule(
        {"query_seqlens": ("padded",), "phase": ("decode",)},
        "A single token is padding or not: the entry is idle or unpadded.",
        DOCUMENTATION,
    ),
    Rule(
        {"query_seqlens": ("unpadded",), "phase": ("prefill",), "lengths": ("ragged",)},
        "Prompts without padding are as long as query.",
        DOCUMENTATION,
    ),
    Rule(
        {"query_seqlens": ("idle",), "phase": ("prefill",)},
        "An idle entry has an already-populated cache.",
        DOCUMENTATION,
    ),
)


def why_excluded(features: Mapping[str, str | None]) -> tuple[list[str], str] | None:
    """The features of the first rule that a call breaks, and the reason; None if it breaks none."""
    found = (([*rule.values], rule.reason) for rule in RULES if rule.forbids(features))
    return next(found, None)
