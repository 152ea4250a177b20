"""Makes the calls of a model's layers from its configuration, as exporters write them.

Hugging Face's ``config.json`` and ONNX Runtime GenAI's ``genai_config.json`` say how many heads
each layer has, which layers have a local window, and which layers borrow the KV cache of another
one.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.base.paths import shown
from conformance.graph.reading import ModelError
from conformance.model.config.configuration import FILES, read_object
from conformance.model.config.layers import (
    MOST_LAYERS,
    ExpectedLayer,
    count_of,
    layers_of_config,
    others_in_words,
)
from conformance.model.config.settings import MOST, NAMES, Settings, flat, integer, section, unread


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
    """The content of a configuration.

    ``calls`` are those of the layers with this operator's attention; ``others`` names the rest, and
    ``unread`` the settings that sound like attention and are not read.
    """

    model_type: str
    calls: Sequence[ConfiguredCall]
    others: Sequence[str] = ()
    unread: Sequence[str] = ()


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
    config = _in_words_of_transformers(decoder, genai) if decoder else flat(data)
    count = _checked(count_of(config), NAMES["layers"][0], MOST_LAYERS, path)
    layers = layers_of_config({**config, NAMES["layers"][0]: count})
    features = Counter(tuple(_features(layer, path).items()) for layer in layers if not layer.mixer)
    return ConfiguredModel(
        str(config.get("model_type", "")),
        tuple(ConfiguredCall(number, dict(items)) for items, number in features.items()),
        others_in_words(layers),
        [] if decoder else unread(config),
    )


def _in_words_of_transformers(decoder: Settings, genai: Settings) -> dict[str, Any]:
    """The decoder of a ``genai_config.json`` as ``config.json`` would describe it."""
    window = section(decoder, "sliding_window")
    every = range(min(integer(decoder, "num_hidden_layers") or 0, MOST_LAYERS))
    local = {*every} if window else set()  # all have the window, unless it names some
    if isinstance(window.get("layers"), list):
        local = {layer for layer in window["layers"] if isinstance(layer, int)}
    return {
        **decoder,
        "model_type": genai.get("type", ""),
        "sliding_window": window.get("window_size"),
        "layer_types": [f"{'sliding' if n in local else 'full'}_attention" for n in every],
    }


def _features(layer: ExpectedLayer, path: Path) -> dict[str, Any]:
    """The features of a layer with attention, as in recorded calls."""
    heads = _checked(layer.num_heads, "num_attention_heads", MOST, path)
    return {
        "num_heads": heads,
        "kv_num_heads": layer.kv_num_heads or heads,
        "head_size": _checked(layer.head_size, "head_dim", MOST, path),
        "window": layer.window or None,
        "borrows": layer.source is not None,
        "softcap": bool(layer.softcap),
        "sink": bool(layer.sink),
    }


def _checked(found: int | None, name: str, most: int, path: Path) -> int:
    """The number. Raises :class:`ModelError` if the configuration has none, or too large a one."""
    if found is None:
        raise ModelError(f"{shown(path)}: it has no {name}, so it does not describe a decoder.")
    if found > most:
        raise ModelError(f"{shown(path)}: its {name} is {found:,}, and at most {most:,} is read.")
    return found
