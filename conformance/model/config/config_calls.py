"""Makes the calls of a model's layers from its configuration, as exporters write them.

Hugging Face's ``config.json`` and ONNX Runtime GenAI's ``genai_config.json`` say how many heads
each layer has, which layers have a local window, and which layers borrow the KV cache of another
one.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from conformance.base.paths import shown
from conformance.graph.reading import ModelError
from conformance.model.config.configuration import (
    FAMILIES,
    FILES,
    Family,
    dtype_of,
    integer,
    of_decoder,
    read_object,
    section,
)

#: The largest size, and the most heads and layers, that a configuration can have.
_MOST: Final = 1 << 17


@dataclass(frozen=True)
class ConfiguredCall:
    """A call of some layers: the number of these layers, and its features as in recorded calls."""

    layers: int
    features: Mapping[str, Any]

    @property
    def what(self) -> str:
        """``window of 512, 8:1 heads of 256, borrowing``."""
        of = self.features
        words = [
            f"window of {of['window']}" if of["window"] else "global",
            f"{of['num_heads']}:{of['kv_num_heads']} heads of {of['head_size']}",
            "borrowing the cache of another layer" if of["borrows"] else "",
            "softcap" if of["softcap"] else "",
            "sink" if of["sink"] else "",
        ]
        return ", ".join(filter(None, words))


@dataclass(frozen=True)
class ConfiguredModel:
    """The content of a configuration: the model's type, its dtype if it has one, and its calls."""

    model_type: str
    dtype: str
    calls: Sequence[ConfiguredCall]


def read_configuration(path: Path) -> ConfiguredModel:
    """The calls of the configuration at ``path``, a file or a folder with one.

    Raises :class:`ModelError` for a file that is not the configuration of a decoder.
    """
    if os.path.isdir(path):
        there = [path / name for name in FILES]
        path = next((file for file in there if file.is_file()), there[0])
    if not os.path.isfile(path):
        raise ModelError(f"{shown(path)}: there is no such file.")
    data = read_object(path)
    genai = section(data, "model")
    decoder = section(genai, "decoder")
    config = _in_words_of_transformers(decoder, path) if decoder else of_decoder(data)
    layers = Counter(tuple(layer.items()) for layer in _layers(config, path))
    return ConfiguredModel(
        str(genai.get("type", "") if decoder else config.get("model_type", "")),
        dtype_of(config),
        tuple(ConfiguredCall(number, dict(items)) for items, number in layers.items()),
    )


def _in_words_of_transformers(decoder: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The decoder of a ``genai_config.json`` as ``config.json`` would describe it."""
    names = ("num_attention_heads", "num_hidden_layers", "head_size")
    heads, number, size = (_required(decoder, name, path) for name in names)
    window = section(decoder, "sliding_window")
    local = window.get("layers")
    if not isinstance(local, list):  # all have the window, if there is one
        local = [*range(number)]
    return {
        "num_attention_heads": heads,
        "num_key_value_heads": decoder.get("num_key_value_heads"),
        "num_hidden_layers": number,
        "head_dim": size,
        "sliding_window": window.get("window_size"),
        "layer_types": ["sliding_attention" if n in local else "" for n in range(number)],
    }


def _layers(config: Mapping[str, Any], path: Path) -> Iterator[dict[str, Any]]:
    """The features of each layer."""
    heads = _required(config, "num_attention_heads", path)
    kv_heads = integer(config, "num_key_value_heads") or heads
    size = integer(config, "head_dim") or _required(config, "hidden_size", path) // heads
    number = _required(config, "num_hidden_layers", path)
    family = _family(config)
    borrowing = integer(config, "num_kv_shared_layers") or 0
    for layer, local in enumerate(_kinds(config, number)):
        kv_heads_of_global = integer(config, "num_global_key_value_heads") or kv_heads
        yield {
            "num_heads": heads,
            "kv_num_heads": kv_heads if local else kv_heads_of_global,
            "head_size": size if local else integer(config, "global_head_dim") or size,
            "window": integer(config, "sliding_window") if local else None,
            "borrows": layer >= number - borrowing,
            "softcap": bool(config.get("attn_logit_softcapping", family.softcap)),
            "sink": family.sink,
        }


def _family(config: Mapping[str, Any]) -> Family:
    return FAMILIES.get(str(config.get("model_type", "")), Family())


def _kinds(config: Mapping[str, Any], number: int) -> list[bool]:
    """For each layer, whether it has the window."""
    types = config.get("layer_types")
    if isinstance(types, list) and len(types) == number:
        return [kind == "sliding_attention" for kind in types]
    window, context = (integer(config, n) for n in ("sliding_window", "max_position_embeddings"))
    unused = config.get("use_sliding_window") is False or not window
    if unused or (window and context and window >= context):
        return [False] * number
    every = integer(config, "sliding_window_pattern") or _family(config).period
    first = integer(config, "max_window_layers") if config.get("use_sliding_window") else 0
    return [(layer + 1) % every != 0 if every else layer >= (first or 0) for layer in range(number)]


def _required(data: Mapping[str, Any], name: str, path: Path) -> int:
    found = integer(data, name)
    if found is None:
        raise ModelError(f"{shown(path)}: it has no {name}, so it does not describe a decoder.")
    if found > _MOST:
        raise ModelError(f"{shown(path)}: its {name} is {found:,}, and at most {_MOST:,} is read.")
    return found


def differences(call: ConfiguredCall, features: Mapping[str, Any]) -> list[str]:
    """How a recorded call differs, in words: ``heads of 256, not 128``; empty if it does not.

    Whether queries and keys are normalised inside the call is the exporter's choice and is not
    compared.
    """
    mine = call.features
    told = []
    if mine["head_size"] != features["head_size"]:
        told.append(f"heads of {features['head_size']}, not {mine['head_size']}")
    pairs = ((f["num_heads"], f["kv_num_heads"]) for f in (features, mine))
    its, own = (f"{heads}:{kv_heads} heads" for heads, kv_heads in pairs)
    if its != own:
        told.append(f"{its}, not {own}")
    if mine["window"] != features["window"]:
        its, own = (
            f"a window of {w}" if w else "no window" for w in (features["window"], mine["window"])
        )
        told.append(f"{its}, not {own}")
    for name, words in (
        ("borrows", "a borrowed cache"),
        ("softcap", "a softcap"),
        ("sink", "a sink"),
    ):
        if mine[name] != features[name]:
            told.append(words if features[name] else f"no {words.removeprefix('a ')}")
    return told


def is_like(call: ConfiguredCall, features: Mapping[str, Any]) -> bool:
    """Whether a recorded call has the same features as this one; sizes may differ."""
    mine = call.features
    return bool(mine["window"]) == bool(features["window"]) and all(
        mine[name] == features[name] for name in ("borrows", "softcap", "sink")
    )
