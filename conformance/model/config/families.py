"""What is known of families of models besides their config.json, one line each.

Read from the configurations and the code of Transformers 5.24.0; families that it does not have, at
the end, from the code beside the weights on Hugging Face.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final


@dataclass(frozen=True)
class Family:
    """The attention of a family.

    ``style``: its rotary embedding turns the ``halves`` of a head, or ``pairs`` of neighbours; ""
    if it has none. ``rotated``: the layers that rotate, ``all`` or those with a ``sliding`` window.
    ``norm``: queries and keys are normalised ``before`` or ``after`` the rotation; ``either``: the
    norm has no weights, so that the order is the same; "" without a norm. ``norm_if`` is the
    setting that switches the norm on. ``scale`` multiplies the product of query and key: ``head``
    is 1 / sqrt(head size), and the other formulas are in :mod:`conformance.model.config.layers`.
    ``sink``: ``all`` layers, or those with a ``sliding`` window, have a score of no token in each
    head. ``first_is_global``: of each period of layers the first one has no window, and not the
    last one. ``mixer`` is what its layers have instead of this operator's attention, and ``linear``
    what its layers of ``linear_attention`` have. ``settings`` are those that its config.json may
    leave out.
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


def _family(style: str = "halves", **facts: Any) -> Family:
    """The family with these facts; those that are no fields of it are settings."""
    own = {each.name for each in fields(Family)} & facts.keys()
    settings = {name: fact for name, fact in facts.items() if name not in own}
    return Family(style, **{name: facts[name] for name in own}, settings=settings)


def _alike(names: str, family: Family) -> dict[str, Family]:
    return dict.fromkeys(names.split(), family)


_HALF: Final[dict[str, Any]] = {"partial_rotary_factor": 0.5}
_GEMMA: Final[dict[str, Any]] = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
}
_GEMMA_2 = _family(**_GEMMA, attn_logit_softcapping=50.0, sliding_window_pattern=2)
_GEMMA_3: Final[dict[str, Any]] = {
    "norm": "before",
    **_GEMMA,
    "rope_theta": 1e6,
    "rope_local_base_freq": 10000.0,
}
_GEMMA_3N: Final[dict[str, Any]] = {**_GEMMA_3, "num_key_value_heads": 2}
_GEMMA_4: Final[dict[str, Any]] = {
    "sliding_attention": {"rope_theta": 10000.0},
    "full_attention": {
        "rope_type": "proportional",
        "rope_theta": 1e6,
        "partial_rotary_factor": 0.25,
    },
}
_EXAONE = _family(rotated="sliding", norm="before", sliding_window_pattern=4)
_QWEN_HYBRID: Final[dict[str, Any]] = {
    "head_dim": 256,
    "partial_rotary_factor": 0.25,
    "full_attention_interval": 4,
}

#: By the ``model_type`` of config.json; of a model for images it may be without ``_text``.
FAMILIES: Final[Mapping[str, Family]] = {
    **_alike("arcee dbrx falcon_h1 llama ministral ministral3 mistral olmo", Family()),
    **_alike("phi3 phi4_multimodal starcoder2", Family()),
    **_alike("bloom gpt2 mpt opt xglm", Family("")),
    **_alike("dots1 laguna olmo2 olmoe", Family(norm="before")),
    **_alike("granite granitemoe granitemoeshared", Family()),
    **_alike("hunyuan_v1_dense hunyuan_v1_moe", Family(norm="after")),
    **_alike("qwen2 qwen2_moe", _family(use_sliding_window=False)),
    **_alike("qwen2_vl_text qwen2_5_vl_text", _family(use_sliding_window=False, rope_theta=1e6)),
    "afmoe": _family(rotated="sliding", norm="before", global_attn_every_n_layers=4),
    "apertus": _family(norm="before", rope_theta=12e6),
    "bamba": _family(linear="Mamba", **_HALF),
    "bitnet": _family(rope_theta=5e5),
    "codegen": _family("pairs", rotary_dim=64),
    "cohere": _family("pairs", norm="before", norm_if="use_qk_norm", rope_theta=5e5),
    "cohere2": _family("pairs", rotated="sliding", sliding_window_pattern=4),
    "cwm": _family(first_is_global=True, rope_theta=1e6, sliding_window_pattern=4),
    "diffllama": _family(mixer="differential attention"),
    "ernie4_5": _family("pairs", rope_theta=5e5, head_dim=128),
    "ernie4_5_moe": _family("pairs", rope_theta=5e5),
    "exaone4": _EXAONE,
    "exaone_moe": _EXAONE,
    "falcon": _family(multi_query=True),
    "flex_olmo": _family(norm="before", rope_theta=5e5),
    "gemma": _family(head_dim=256),
    "gemma2": _GEMMA_2,
    "gemma3_text": _family(**_GEMMA_3, sliding_window_pattern=6),
    "gemma3n_text": _family(**_GEMMA_3N, scale="one", sliding_window_pattern=5),
    "gemma4_text": _family(
        norm="before",
        scale="one",
        global_head_dim=512,
        sliding_window_pattern=6,
        rope_parameters=_GEMMA_4,
    ),
    "glm": _family("pairs", **_HALF),
    "glm4": _family("pairs", **_HALF),
    "glm4_moe": _family(norm="before", norm_if="use_qk_norm", **_HALF),
    "gpt_bigcode": _family("", multi_query=True),
    "gpt_neo": Family("", scale="one"),
    "gpt_neox": _family(rotary_pct=0.25),
    "gpt_oss": _family(sink="all", rope_theta=150000.0, sliding_window_pattern=2),
    "gptj": _family("pairs", rotary_dim=64),
    "granite_swa": Family(sink="all"),
    "granitemoehybrid": _family(linear="Mamba", position_embedding_type="nope"),
    "helium": _family("pairs", head_dim=128, rope_theta=1e5),
    "jamba": _family("", linear="Mamba", attn_layer_period=8, attn_layer_offset=4),
    "jetmoe": _family(kv_channels=128),
    "lfm2": _family(norm="before", linear="short convolution", rope_theta=1e6),
    "lfm2_moe": _family(norm="before", linear="short convolution", rope_theta=1e6),
    "lfm3": _family(norm="before", linear="short convolution"),
    "llama4_text": _family(
        "pairs", norm="either", norm_if="use_qk_norm", rope_theta=5e5, no_rope_layer_interval=4
    ),
    "mimo_v2_flash": Family(sink="sliding"),
    "minimax": _family(linear="lightning attention", rope_theta=1e6),
    "minimax_m2": _family(norm="before", rope_theta=5e6),
    "mixtral": _family(rope_theta=1e6),
    "modernbert-decoder": _family(
        first_is_global=True,
        global_attn_every_n_layers=3,
        global_rope_theta=160000.0,
        local_rope_theta=10000.0,
    ),
    "nanochat": Family(norm="either"),
    "nemotron": _family(**_HALF),
    "nemotron_h": _family("", linear="Mamba"),
    "olmo3": _family(
        norm="before", rope_theta=5e5, rope_local_base_freq=5e5, sliding_window_pattern=4
    ),
    "olmo_hybrid": _family(norm="before", full_attention_interval=4),
    "persimmon": _family(norm="before", norm_if="qk_layernorm", **_HALF),
    "phi": _family(norm="before", norm_if="qk_layernorm", **_HALF),
    "phimoe": _family(rope_theta=1e6),
    "qwen3": _family(norm="before", head_dim=128, use_sliding_window=False),
    "qwen3_5_text": _family(norm="before", **_QWEN_HYBRID),
    "qwen3_moe": _family(norm="before", use_sliding_window=False),
    "qwen3_next": _family(norm="before", **_QWEN_HYBRID),
    "qwen3_vl_text": _family(norm="before", head_dim=128, rope_theta=5e5),
    "recurrent_gemma": _family(block_types=["recurrent", "recurrent", "attention"], **_HALF),
    "seed_oss": _family(head_dim=128),
    "smollm3": _family(rope_theta=2e6, no_rope_layer_interval=4, use_sliding_window=False),
    "solar_open": _family(head_dim=128, rope_theta=1e6),
    "stablelm": _family(norm="before", norm_if="qk_layernorm", partial_rotary_factor=0.25),
    "vaultgemma": _GEMMA_2,
    "zamba": Family("", scale="half", linear="Mamba"),
    "zamba2": _family(scale="half", linear="Mamba", use_mem_rope=False),
    # huggingface.co: modeling_chatglm.py of zai-org/chatglm3-6b, modeling_decilm.py of
    # nvidia/Llama-3_3-Nemotron-Super-49B-v1, modeling_openelm.py of apple/OpenELM-3B,
    # modeling_internlm2.py of internlm/internlm2_5-7b-chat, modeling_exaone.py of
    # LGAI-EXAONE/EXAONE-3.5-2.4B-Instruct, modeling_phi3_small.py of
    # microsoft/Phi-3-small-8k-instruct, modeling_minimax_text_01.py of MiniMaxAI/MiniMax-Text-01
    **_alike("exaone internlm2 nemotron-nas", Family()),
    "chatglm": _family("pairs", **_HALF),
    "minimax_text_01": Family(linear="lightning attention"),
    "openelm": Family(norm="before", norm_if="normalize_qk_projections"),
    "phi3small": _family(scale="phi3small", dense_attention_every_n_layers=2),
}


def family_of(model_type: str) -> Family | None:
    """The family with this ``model_type``; None if it is not known."""
    return FAMILIES.get(model_type) or FAMILIES.get(f"{model_type}_text")
