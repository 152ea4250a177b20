"""The signature of com.microsoft.GroupQueryAttention, and the version that introduced each part.

Source: the operator's schema in the ONNX Runtime wheels 1.20.0 to 1.32.0, read from each of them
(``onnxruntime.capi.onnxruntime_pybind11_state.get_all_operator_schema()``). ``since`` is the
first release, from 1.20 on, whose schema has the entry. CONTRIBUTING.md lists what else changes
with a new attribute.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

DOMAIN: Final = "com.microsoft"
OP_TYPE: Final = "GroupQueryAttention"
OPSET_VERSION: Final = 1

#: The schema's type variables, each with the dtypes that it allows.
TYPES: Final[dict[str, tuple[str, ...]]] = {
    "T": ("float32", "float16", "bfloat16"),
    "T_CACHE": ("float32", "float16", "bfloat16", "uint8", "int8", "float8e4m3fn"),
    "T_KV_SCALE": ("float32",),
    "M": ("int32",),
    "int64": ("int64",),
}


#: A dim of a tensor: its size, or the name of its size. The names are those of a call's fields,
#: where there is one; ``hidden_size`` is all query heads side by side, ``kv_hidden_size`` all
#: key/value heads.
Axis = str | int
#: The axes that a graph names; the sizes of the others are fixed in a model.
NAMED_AXES: Final = frozenset(
    {
        "batch_size", "sequence_length", "kv_sequence_length", "past_sequence_length",
        "max_sequence_length", "total_sequence_length", "rotary_cache_length",
    }
)  # fmt: skip


@dataclass(frozen=True)
class Parameter:
    """An input or output.

    ``type`` names an entry of :data:`TYPES`, ``axes`` are its usual dims. ``is_weight``: it is a
    weight of a model, the same in all its calls, so a model can have it as a constant.
    """

    name: str
    type: str
    axes: tuple[Axis, ...]
    required: bool = False
    since: str = "1.20"
    is_weight: bool = False

    @property
    def rank(self) -> int:
        """Its usual number of dims."""
        return len(self.axes)


@dataclass(frozen=True)
class Attribute:
    """An attribute; ``default`` None means that the schema gives no default."""

    name: str
    kind: Literal["int", "float", "string"]
    default: int | float | str | None = None
    required: bool = False
    since: str = "1.20"


_CACHE: Final = ("batch_size", "kv_num_heads", "past_sequence_length", "head_size")
_PRESENT: Final = ("batch_size", "kv_num_heads", "present_sequence_length", "head_size")
_TABLE: Final = ("rotary_cache_length", "rotary_pairs")
_SCORES: Final = ("batch_size", "num_heads", "sequence_length", "total_sequence_length")

INPUTS: Final = (
    Parameter("query", "T", ("batch_size", "sequence_length", "hidden_size"), required=True),
    Parameter("key", "T", ("batch_size", "kv_sequence_length", "kv_hidden_size")),
    Parameter("value", "T", ("batch_size", "kv_sequence_length", "kv_hidden_size")),
    Parameter("past_key", "T_CACHE", _CACHE),
    Parameter("past_value", "T_CACHE", _CACHE),
    Parameter("seqlens_k", "M", ("batch_size",), required=True),
    Parameter("total_sequence_length", "M", (), required=True),
    Parameter("cos_cache", "T", _TABLE, is_weight=True),
    Parameter("sin_cache", "T", _TABLE, is_weight=True),
    Parameter("position_ids", "int64", ("batch_size", "sequence_length"), since="1.22"),
    Parameter("attention_bias", "T", _SCORES, since="1.22"),
    Parameter("head_sink", "T", ("num_heads",), since="1.23", is_weight=True),
    Parameter("k_scale", "T_KV_SCALE", (1,), since="1.25", is_weight=True),
    Parameter("v_scale", "T_KV_SCALE", (1,), since="1.25", is_weight=True),
    Parameter("q_norm_weight", "T", ("head_size",), since="1.28", is_weight=True),
    Parameter("k_norm_weight", "T", ("head_size",), since="1.28", is_weight=True),
    Parameter("query_seqlens", "M", ("batch_size",), since="1.32"),
)

#: present_key and present_value are required by the schema before 1.27.
OUTPUTS: Final = (
    Parameter("output", "T", ("batch_size", "sequence_length", "hidden_size"), required=True),
    Parameter("present_key", "T_CACHE", _PRESENT),
    Parameter("present_value", "T_CACHE", _PRESENT),
    Parameter("output_qk", "T", _SCORES, since="1.23"),
)

ATTRIBUTES: Final = (
    Attribute("num_heads", "int", required=True),
    Attribute("kv_num_heads", "int", required=True),
    Attribute("scale", "float"),
    Attribute("softcap", "float"),
    Attribute("local_window_size", "int", -1),
    Attribute("do_rotary", "int"),
    Attribute("rotary_interleaved", "int"),
    Attribute("smooth_softmax", "int", -1),
    Attribute("qk_output", "int", 0, since="1.23"),
    Attribute("k_quant_type", "string", "NONE", since="1.25"),
    Attribute("v_quant_type", "string", "NONE", since="1.25"),
    Attribute("kv_cache_bit_width", "int", since="1.25"),
    Attribute("qk_norm_epsilon", "float", 1e-6, since="1.28"),
    Attribute("sliding_window_cache", "int", 0, since="1.29"),
    Attribute("causal", "int", 1, since="1.30"),
    Attribute("q_norm_epsilon", "float", since="1.32"),
    Attribute("k_norm_epsilon", "float", since="1.32"),
)

INPUT_NAMES: Final = tuple(parameter.name for parameter in INPUTS)
OUTPUT_NAMES: Final = tuple(parameter.name for parameter in OUTPUTS)
ATTRIBUTE_BY_NAME: Final = {attribute.name: attribute for attribute in ATTRIBUTES}

#: Names of a graph's inputs and outputs: they become names of files.
PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_.\-]+")
#: A text in the name of each of a graph's outputs that is a present, and of no other output.
PRESENT: Final = re.compile(r"(?<![a-z])presents?(?![a-z])", re.IGNORECASE)
