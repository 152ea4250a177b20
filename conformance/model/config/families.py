"""What is known of families of models besides their config.json, one line each.

Read from the configurations and the code of Transformers 5.24.0; families that it does not have, at
the end, from the code beside the weights on Hugging Face.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final


@dataclass(frozen=True)
class Family:
    """The attention of a family.

    ``style``: its rotary embedding turns the ``halves`` of a head, or ``pairs`` of neighbours; ""
    if it has none. ``rotated``: the layers that rotate, ``all`` or those with a ``sliding`` window.
    ``norm``: queries and keys are normalised ``before`` or ``after`` the rotation; ``either``: the
    norm has no weights, so that the order is the same; "" without a norm. ``norm_if`` is the
    setting that switches the norm on. ``scale`` multiplies the product of query and key: a formula
    of :mod:`conformance.model.config.layers`. ``sink``: ``all`` layers, or those with a ``sliding``
    window, have a score of no token in each head. ``first_is_global``: of each period of layers the
    first one has no window, and not the last one. ``mixer`` is what its layers have instead of this
    operator's attention, and ``linear`` what its layers of ``linear_attention`` have. ``settings``
    are those that its config.json may leave out.
    """

    style: str = "halves"
    rotated: str = "all"
    norm: str = ""
    norm_if: str = ""
    scale: str = "head"
    sink: str = ""
    first_is_global: bool = False
    mixer: str = ""
    linear: str = "linear attention"
    settings: Mapping[str, Any] = field(default_factory=dict)


def _family(
    style: str = "halves", *, rotated: str = "all", norm: str = "", norm_if: str = "",
    scale: str = "head", sink: str = "", first_is_global: bool = False, mixer: str = "",
    linear: str = "linear attention", **settings: Any,
) -> Family:  # fmt: skip
    return Family(
        style, rotated, norm, norm_if, scale, sink, first_is_global, mixer, linear, settings
    )


_GEMMA_3N: Final[Mapping[str, Any]] = {
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256, "rope_theta": 1e6,
    "rope_local_base_freq": 10000.0, "sliding_window_pattern": 5,
}  # fmt: skip
_GEMMA_3: Final[Mapping[str, Any]] = {
    **_GEMMA_3N, "num_key_value_heads": 4, "sliding_window_pattern": 6,
    "query_pre_attn_scalar": 256,
}  # fmt: skip
_GEMMA_4_BASES: Final[Mapping[str, Any]] = {
    "sliding_attention": {"rope_theta": 10000.0},
    "full_attention": {
        "rope_type": "proportional",
        "partial_rotary_factor": 0.25,
        "rope_theta": 1e6,
    },
}

#: By the ``model_type`` of config.json; of a model for images it may be without ``_text``.
FAMILIES: Final[Mapping[str, Family]] = {
    "afmoe": _family(rotated="sliding", norm="before", global_attn_every_n_layers=4),
    "apertus": _family(norm="before", rope_theta=12e6),
    "arcee": _family(),
    "bamba": _family(linear="Mamba", partial_rotary_factor=0.5),
    "bitnet": _family(rope_theta=5e5),
    "bloom": _family(""),
    "codegen": _family("pairs", rotary_dim=64),
    "cohere": _family("pairs", norm="before", norm_if="use_qk_norm", rope_theta=5e5),
    "cohere2": _family("pairs", rotated="sliding", sliding_window_pattern=4),
    "cwm": _family(first_is_global=True, rope_theta=1e6, sliding_window_pattern=4),
    "dbrx": _family(),
    "diffllama": _family(mixer="differential attention"),
    "dots1": _family(norm="before"),
    "ernie4_5": _family("pairs", rope_theta=5e5, head_dim=128),
    "ernie4_5_moe": _family("pairs", rope_theta=5e5),
    "exaone4": _family(rotated="sliding", norm="before", sliding_window_pattern=4),
    "exaone_moe": _family(rotated="sliding", norm="before", sliding_window_pattern=4),
    "falcon": _family(multi_query=True),
    "falcon_h1": _family(),
    "flex_olmo": _family(norm="before", rope_theta=5e5),
    "gemma": _family(head_dim=256),
    "gemma2": _family(
        head_dim=256,
        attn_logit_softcapping=50.0,
        query_pre_attn_scalar=256,
        sliding_window_pattern=2,
    ),
    "gemma3_text": _family(norm="before", **_GEMMA_3),
    "gemma3n_text": _family(norm="before", scale="one", num_kv_shared_layers=15, **_GEMMA_3N),
    "gemma4_text": _family(
        norm="before",
        scale="one",
        global_head_dim=512,
        sliding_window_pattern=6,
        rope_parameters=_GEMMA_4_BASES,
    ),
    "glm": _family("pairs", partial_rotary_factor=0.5),
    "glm4": _family("pairs", partial_rotary_factor=0.5),
    "glm4_moe": _family(norm="before", norm_if="use_qk_norm", partial_rotary_factor=0.5),
    "gpt2": _family(""),
    "gpt_bigcode": _family("", multi_query=True),
    "gpt_neo": _family("", scale="one"),
    "gpt_neox": _family(rotary_pct=0.25),
    "gpt_oss": _family(sink="all", rope_theta=150000.0, sliding_window_pattern=2),
    "gptj": _family("pairs", rotary_dim=64),
    "granite": _family(scale="multiplier"),
    "granite_swa": _family(scale="multiplier", sink="all"),
    "granitemoe": _family(scale="multiplier"),
    "granitemoehybrid": _family(scale="multiplier", linear="Mamba", position_embedding_type="nope"),
    "granitemoeshared": _family(scale="multiplier"),
    "helium": _family("pairs", head_dim=128, rope_theta=1e5),
    "hunyuan_v1_dense": _family(norm="after"),
    "hunyuan_v1_moe": _family(norm="after"),
    "jamba": _family("", linear="Mamba", attn_layer_period=8, attn_layer_offset=4),
    "jetmoe": _family(kv_channels=128),
    "laguna": _family(norm="before"),
    "lfm2": _family(norm="before", linear="short convolution", rope_theta=1e6),
    "lfm2_moe": _family(norm="before", linear="short convolution", rope_theta=1e6),
    "lfm3": _family(norm="before", linear="short convolution"),
    "llama": _family(),
    "llama4_text": _family(
        "pairs",
        norm="either",
        norm_if="use_qk_norm",
        head_dim=128,
        rope_theta=5e5,
        no_rope_layer_interval=4,
    ),
    "mimo_v2_flash": _family(sink="sliding"),
    "minimax": _family(linear="lightning attention", rope_theta=1e6),
    "minimax_m2": _family(norm="before", rope_theta=5e6),
    "ministral": _family(),
    "ministral3": _family(),
    "mistral": _family(),
    "mixtral": _family(rope_theta=1e6),
    "modernbert-decoder": _family(
        first_is_global=True,
        global_attn_every_n_layers=3,
        local_attention=128,
        global_rope_theta=160000.0,
        local_rope_theta=10000.0,
    ),
    "mpt": _family("", alibi=True),
    "nanochat": _family(norm="either"),
    "nemotron": _family(partial_rotary_factor=0.5),
    "nemotron_h": _family("", linear="Mamba"),
    "olmo": _family(),
    "olmo2": _family(norm="before"),
    "olmo3": _family(
        norm="before", rope_local_base_freq=5e5, rope_theta=5e5, sliding_window_pattern=4
    ),
    "olmo_hybrid": _family(norm="before", full_attention_interval=4),
    "olmoe": _family(norm="before"),
    "opt": _family(""),
    "persimmon": _family(norm="before", norm_if="qk_layernorm", partial_rotary_factor=0.5),
    "phi": _family(norm="before", norm_if="qk_layernorm", partial_rotary_factor=0.5),
    "phi3": _family(),
    "phi4_multimodal": _family(),
    "phimoe": _family(rope_theta=1e6),
    "qwen2": _family(use_sliding_window=False),
    "qwen2_5_vl_text": _family(use_sliding_window=False, rope_theta=1e6),
    "qwen2_moe": _family(use_sliding_window=False),
    "qwen2_vl_text": _family(use_sliding_window=False, rope_theta=1e6),
    "qwen3": _family(norm="before", head_dim=128, use_sliding_window=False),
    "qwen3_5_text": _family(
        norm="before", head_dim=256, partial_rotary_factor=0.25, full_attention_interval=4
    ),
    "qwen3_moe": _family(norm="before", use_sliding_window=False),
    "qwen3_next": _family(
        norm="before", head_dim=256, partial_rotary_factor=0.25, full_attention_interval=4
    ),
    "qwen3_vl_text": _family(norm="before", head_dim=128, rope_theta=5e5),
    "recurrent_gemma": _family(
        partial_rotary_factor=0.5,
        block_types=["recurrent", "recurrent", "attention"],
        attention_window_size=2048,
    ),
    "seed_oss": _family(head_dim=128),
    "smollm3": _family(rope_theta=2e6, no_rope_layer_interval=4, use_sliding_window=False),
    "solar_open": _family(head_dim=128, rope_theta=1e6),
    "stablelm": _family(norm="before", norm_if="qk_layernorm", partial_rotary_factor=0.25),
    "starcoder2": _family(),
    "vaultgemma": _family(
        head_dim=256,
        attn_logit_softcapping=50.0,
        query_pre_attn_scalar=256,
        sliding_window_pattern=2,
    ),
    "xglm": _family(""),
    "zamba": _family("", scale="half", linear="Mamba"),
    "zamba2": _family(scale="half", linear="Mamba", use_mem_rope=False),
    # huggingface.co: modeling_chatglm.py of zai-org/chatglm3-6b, modeling_decilm.py of
    # nvidia/Llama-3_3-Nemotron-Super-49B-v1, modeling_openelm.py of apple/OpenELM-3B,
    # modeling_internlm2.py of internlm/internlm2_5-7b-chat, modeling_exaone.py of
    # LGAI-EXAONE/EXAONE-3.5-2.4B-Instruct, modeling_phi3_small.py of
    # microsoft/Phi-3-small-8k-instruct, modeling_minimax_text_01.py of MiniMaxAI/MiniMax-Text-01
    "chatglm": _family("pairs", partial_rotary_factor=0.5),
    "exaone": _family(),
    "internlm2": _family(),
    "nemotron-nas": _family(),
    "openelm": _family(norm="before", norm_if="normalize_qk_projections"),
    "minimax_text_01": _family(linear="lightning attention"),
    "phi3small": _family(scale="phi3small", dense_attention_every_n_layers=2),
}


def family_of(model_type: str) -> Family | None:
    """The family with this ``model_type``; None if it is not known."""
    return FAMILIES.get(model_type) or FAMILIES.get(f"{model_type}_text")
