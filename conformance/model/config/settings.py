"""Settings of a configuration under the names that families of models use for them.

``setting_names.yaml`` has the names that a setting may have, and a word for each.
"""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from conformance.base.yaml_source import read_yaml

#: The largest size, and the most heads, that a configuration can have.
MOST: Final = 1 << 17

Settings = Mapping[str, Any]

_KNOWN: Final = read_yaml(Path(__file__).with_name("setting_names.yaml")).data
NAMES: Final[Mapping[str, list[str]]] = _KNOWN["names"]
_OF_KIND: Final[Mapping[str, Mapping[str, str]]] = _KNOWN["of_kind"]
_ALL: Final = frozenset(
    [each for names in (*NAMES.values(), *_OF_KIND.values()) for each in names] + _KNOWN["others"]
)
_LIKE_ATTENTION: Final = re.compile("|".join(_KNOWN["like_attention"]))
_IRRELEVANT: Final = re.compile("|".join(_KNOWN["irrelevant"]))


def unread(config: Settings) -> list[str]:
    """The names of settings that sound like attention and that the table of layers does not read.

    Settings that are off (null, false, 0 or empty) are left out.
    """
    names = [name for name, value in config.items() if value and name not in _ALL]
    return sorted(n for n in names if _LIKE_ATTENTION.search(n) and not _IRRELEVANT.search(n))


def section(data: Settings, name: str) -> dict[str, Any]:
    """The object called ``name`` in another one; empty if there is none."""
    found = data.get(name)
    return found if isinstance(found, dict) else {}


def integer(data: Settings, word: str) -> int | None:
    """The first positive whole number among the names for ``word``; None if there is none."""
    found = (data.get(name) for name in NAMES.get(word, [word]))
    whole = (each for each in found if isinstance(each, int) and not isinstance(each, bool))
    return next((each for each in whole if each > 0), None)


def size(data: Settings, word: str) -> int | None:
    """The whole number for ``word``, if it is at most :data:`MOST`."""
    found = integer(data, word)
    return found if found and found <= MOST else None


def number(data: Settings, word: str) -> float | None:
    """The first positive number below a billion among the names for ``word``; None without one."""
    found = (data.get(name) for name in NAMES.get(word, [word]))
    return next((float(each) for each in found if each is not None and _is_positive(each)), None)


def numbers(data: Settings, name: str, count: int) -> list[float] | None:
    """The list of ``count`` positive numbers called ``name``; None if it is none."""
    found = data.get(name)
    is_one = isinstance(found, list) and len(found) == count and all(map(_is_positive, found))
    return [*map(float, found)] if found and is_one else None


def _is_positive(found: object) -> bool:
    return isinstance(found, int | float) and not isinstance(found, bool) and 0 < found < 1e9


def flags(data: Settings, name: str, count: int) -> list[bool] | None:
    """The list of ``count`` values 0 and 1 called ``name``; None if it is none."""
    found = data.get(name)
    is_one = isinstance(found, list) and len(found) == count and all(v in (0, 1) for v in found)
    return [*map(bool, found)] if found and is_one else None


def indices(data: Settings, name: str, layers: int) -> set[int] | None:
    """The numbers of layers in a list; None if there is none."""
    found = data.get(name)
    is_one = isinstance(found, list) and 0 < len(found) <= layers
    return {each for each in found if isinstance(each, int)} if found and is_one else None


def of_layer(config: dict[str, Any], kind: str, layer: int, layers: int) -> ChainMap[str, Any]:
    """The settings of one layer, as if they were those of all layers.

    A list with a value for each layer stands for that value, and settings of the kind of the layer
    come before the others.
    """
    own: dict[str, Any] = {}
    for word in ("heads", "kv heads", "head size", "base", "share", "blocks"):
        for name in NAMES[word]:
            value = config.get(name)
            if isinstance(value, list) and len(value) == layers:
                own[name] = value[layer]
    for name, replaced in _OF_KIND.get(kind, {}).items():
        unused = name == "num_global_key_value_heads" and config.get("attention_k_eq_v") is False
        if config.get(name) and not unused:
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
    for name in (*NAMES["decoders"], *NAMES["sections"]):
        made |= section(made, name)
    return made
