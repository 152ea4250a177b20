"""Settings of a configuration under the names that families of models use for them."""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Mapping
from typing import Any, Final

#: The largest size, and the most heads, that a configuration can have.
MOST: Final = 1 << 17

Settings = Mapping[str, Any]

LAYERS: Final = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_transformer_layers")
HEADS: Final = (
    *("num_attention_heads_per_layer", "num_attention_heads", "n_head", "n_heads", "num_heads"),
    *("attention_heads", "num_query_heads"),
)
KV_HEADS: Final = (
    *("num_key_value_heads", "num_kv_heads", "n_head_kv", "kv_n_heads", "multi_query_group_num"),
    "num_query_groups",
)
HEAD_SIZE: Final = ("head_dim", "attention_head_dim", "kv_channels", "head_size", "d_head")
HIDDEN: Final = ("attention_hidden_size", "hidden_size", "n_embd", "d_model", "model_dim")
CONTEXT: Final = (
    *("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_context_length"),
    "model_max_length",
)
WINDOW: Final = ("sliding_window", "sliding_window_size", "attention_window_size", "window_size")
BASE: Final = (
    "layer_rope_theta",
    "rope_theta",
    "rotary_emb_base",
    "rope_freq_constant",
    "global_rope_theta",
    "rope_embedding_base",
)
SHARE: Final = ("partial_rotary_factor", "rotary_pct", "rope_pct", "rotary_percentage")
ORIGINAL: Final = "original_max_position_embeddings"
#: Names of lists with the kind of each layer.
KINDS: Final = ("layer_types", "layers_block_type", "attention_layers", "hybrid_override_pattern")
#: Names of objects with more settings of attention, and of the decoder of a model for images.
SECTIONS: Final = ("attn_config", "attention_config")
DECODERS: Final = ("text_config", "llm_config", "language_config")

#: By the kind of a layer, the names of its own settings, and of those that they replace.
OF_KIND: Final[Mapping[str, Mapping[str, str]]] = {
    "sliding_attention": {
        "swa_num_attention_heads": "num_attention_heads",
        "num_sliding_attention_heads": "num_attention_heads",
        "swa_num_key_value_heads": "num_key_value_heads",
        "swa_head_dim": "head_dim",
        "rope_local_base_freq": "rope_theta",
        "local_rope_theta": "rope_theta",
        "swa_rope_theta": "rope_theta",
    },
    "full_attention": {
        "global_head_dim": "head_dim",
        "num_global_key_value_heads": "num_key_value_heads",
    },
}
#: Names that the table of layers reads besides those above.
_OTHERS: Final = frozenset(
    (
        "_sliding_window_pattern", "add_full_attention_sink_bias", "add_swa_attention_sink_bias",
        "alibi", "attention_chunk_size", "attention_k_eq_v", "attention_multiplier",
        "attention_types", "attn_layer_indices", "attn_layer_offset", "attn_layer_period",
        "attn_logit_softcapping", "attn_type", "attn_type_list", "block_configs", "block_types",
        "cla_share_factor", "dense_attention_every_n_layers", "full_attention_interval",
        "full_attn_idxs", "global_attn_every_n_layers", "hybrid_layer_ids",
        "hybrid_layer_pattern", "hybrid_override_pattern", "kv_lora_rank", 
        "linear_attn_config", "local_attention", "max_window_layers", "multi_query",
        "multi_query_attention", "mup_attn_multiplier", "mup_use_scaling",
        "new_decoder_architecture", "no_rope_layer_interval", "no_rope_layers",
        "num_kv_shared_layers", 
        "per_layer_config", "position_embedding_type", "qk_layernorm", "query_pre_attn_scalar",
        "rope_parameters", "rope_ratio", "rope_scaling", "rotary_dim", "scale_attn_weights",
        "sliding_window_pattern", 
        "use_cla", "use_mem_rope", "use_qk_norm", "use_sliding_window",
        "v_head_dim",
    )
)  # fmt: skip
_LIKE_ATTENTION: Final = re.compile(
    r"attn|attention|rope|rotary|window|head|kv|sliding|nope|mixer|layer_type|pattern|alibi|sink"
    r"|position_embedding|softcap|^mup_|^use_cla|^cla_"
)
#: Names of other parts of a model, of training, and of how attention is computed.
_IRRELEVANT: Final = re.compile(
    r"dropout|pdrop|bias|^_attn|_implementation$|attn_impl|initializer|^(lm|num_lm)_head|word_embed"
    r"|mamba|linear_(num|key|value|conv)|ssm|^index|lora|nope_head_dim|rope_head_dim|rope_interleave"
    r"|qk_head_dim|mlp|mtp|nextn|sparsity_pattern|final_logit|router|max_position_emb|flash|fp32"
    r"|vision|audio|image|pretrain|output_attentions|in_multiplier|out_multiplier|_eps$|chunk_size"
    r"|attn_scale|^rotary$|^mla_|clip_qkv|first_k_|share|cross_attention|^parallel_attn$|pad_head|headdim|cross_attn"
)


def unread(config: Settings) -> list[str]:
    """The names of settings that sound like attention and that the table of layers does not read.

    Settings that are off (null, false, 0 or empty) are left out.
    """
    spelled = {*LAYERS, *HEADS, *KV_HEADS, *HEAD_SIZE, *HIDDEN, *CONTEXT, *WINDOW, *BASE}
    known = spelled | {*SHARE, ORIGINAL, *KINDS, *SECTIONS, *DECODERS} | _OTHERS
    known |= {name for names in OF_KIND.values() for name in names}
    return sorted(
        name
        for name, value in config.items()
        if value and name not in known and _LIKE_ATTENTION.search(name)
        if not _IRRELEVANT.search(name)
    )


def section(data: Settings, name: str) -> dict[str, Any]:
    """The object called ``name`` in another one; empty if there is none."""
    found = data.get(name)
    return found if isinstance(found, dict) else {}


def integer(data: Settings, name: str) -> int | None:
    """The positive whole number called ``name``; None if there is none."""
    found = data.get(name)
    return found if isinstance(found, int) and not isinstance(found, bool) and found > 0 else None


def number(data: Settings, *names: str) -> float | None:
    """The first positive number below a billion with one of the names; None if there is none."""
    for name in names:
        found = data.get(name)
        if isinstance(found, int | float) and not isinstance(found, bool) and 0 < found < 1e9:
            return float(found)
    return None


def numbers(data: Settings, name: str, count: int) -> list[float] | None:
    """The list of ``count`` positive finite numbers called ``name``; None if it is none."""
    found = data.get(name)
    if not isinstance(found, list) or len(found) != count:
        return None
    real = [each for each in found if isinstance(each, int | float) and 0 < each < 1e9]
    return [*map(float, real)] if len(real) == count else None


def size(data: Settings, *names: str) -> int | None:
    """The first positive whole number with one of the names, at most :data:`MOST`."""
    for name in names:
        found = integer(data, name)
        if found is not None:
            return found if found <= MOST else None
    return None


def flags(data: Settings, name: str, count: int) -> list[bool] | None:
    """The list of ``count`` values 0 and 1 called ``name``; None if it is none."""
    found = data.get(name)
    if not isinstance(found, list) or len(found) != count:
        return None
    return [bool(each) for each in found] if all(each in (0, 1) for each in found) else None


def of_layer(config: dict[str, Any], kind: str, layer: int, layers: int) -> ChainMap[str, Any]:
    """The settings of one layer, as if they were those of all layers.

    A list with a value for each layer stands for that value, and settings of the kind of the layer
    come before the others.
    """
    own: dict[str, Any] = {}
    for name in (*HEADS, *KV_HEADS, *HEAD_SIZE, *BASE, *SHARE, "block_configs"):
        value = config.get(name)
        if isinstance(value, list) and len(value) == layers:
            own[name] = value[layer]
    for name, replaced in OF_KIND.get(kind, {}).items():
        is_used = (
            name != "num_global_key_value_heads" or config.get("attention_k_eq_v") is not False
        )
        if config.get(name) and is_used:
            own[replaced] = config[name]
            if replaced == "rope_theta":  # a base of its own is not scaled
                own["rope_scaling"] = None
    return ChainMap(own, config)


def overrides(config: Settings) -> dict[int, dict[str, Any]]:
    """The settings of single layers in ``per_layer_config``, whose names are numbers as texts."""
    return {
        int(name): value
        for name, value in section(config, "per_layer_config").items()
        if name.isdecimal() and len(name) < 8 and isinstance(value, dict)
    }


def flat(config: Settings) -> dict[str, Any]:
    """The settings of a ``config.json``, with those of its decoder and of its attention."""
    made = dict(config)
    for names in (DECODERS, SECTIONS):
        for name in names:
            made |= section(made, name)
    return made


def indices(data: Settings, name: str, layers: int) -> set[int] | None:
    """The numbers of layers in a list; None if there is none."""
    found = data.get(name)
    if not isinstance(found, list) or not found or len(found) > layers:
        return None
    return {each for each in found if isinstance(each, int)}
