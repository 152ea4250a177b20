"""The table of the layers that a config.json describes."""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from conformance.model.config import settings as named
from conformance.model.config.families import Family, family_of
from conformance.model.config.frequencies import Rotation, rotation_of
from conformance.model.config.settings import NAMES, Settings, number, section, size

#: The most layers that are read.
MOST_LAYERS: Final = 1 << 12
_FULL, _SLIDING, _CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
#: Settings that say which layers have a window.
_KNOW_KINDS: Final = {*NAMES["kinds"], "sliding_window_pattern", "use_sliding_window"}
_LINEAR: Final = "linear_attention"
#: The words of configurations for a layer, in the words of layer_types.
_SAME: Final[Mapping[object, str]] = {
    **dict.fromkeys(("attention", "global", "hybrid", "*", "A", "0"), _FULL),
    **dict.fromkeys(("local", "L", "1"), _SLIDING),
    **dict.fromkeys(("mamba", "mamba2", "M"), "Mamba"),
    **dict.fromkeys(("-", "mlp", "moe", "E"), "no attention"),
    "G": _FULL, "conv": "short convolution", "recurrent": "RG-LRU",
}  # fmt: skip


@dataclass(frozen=True)
class ExpectedLayer:
    """A layer as the configuration has it; None: not known.

    ``mixer``: what it has in place of this operator's attention, "" for attention. ``window`` is
    the number of tokens of its local window, 0 for none; with ``maybe_window`` only some of the
    layers have it. ``source`` is the layer whose cache it reads. ``scale`` multiplies the products
    of query and key, if it is another than that of the head size. ``softcap`` is 0 for none.
    ``norm`` is that of :class:`Family`. ``rotates`` is about queries and keys; ``rotation`` has
    their angles, ``base`` those of the unscaled ones, and ``share`` is the part of the head that
    rotates. ``rotation_set`` is the setting that says that the layer does not rotate.
    """

    mixer: str = ""
    num_heads: int | None = None
    kv_num_heads: int | None = None
    head_size: int | None = None
    window: int | None = None
    maybe_window: bool = False
    source: int | None = None
    scale: float | None = None
    scale_is_known: bool = True
    softcap: float | None = None
    sink: bool | None = None
    norm: str | None = None
    rotates: bool | None = None
    rotation_set: str = ""
    style: str = ""
    base: float | None = None
    share: float | None = None
    rotation: Rotation | None = None


def layers_of_config(config: Settings) -> tuple[ExpectedLayer, ...]:
    """The layers of a flat ``config.json``, empty if it does not say how many there are."""
    family = family_of(str(config.get("model_type", "")))
    config = {**family.settings, **config}
    count = count_of(config)
    if count is None or count > MOST_LAYERS:
        return ()
    kinds = _kinds(config, family, count)
    rotations: dict[object, Rotation | None] = {}
    first_shared = count - min(size(config, "num_kv_shared_layers") or 0, count)
    single = named.overrides(config)
    made = []
    for layer, kind in enumerate(kinds):
        own = ChainMap(single.get(layer, {}), named.of_layer(config, kind, layer, count))
        if mixer := _mixer(own, family, kind, layer):
            made.append(ExpectedLayer(mixer))
            continue
        source = None
        if (every := size(config, "cla_share_factor")) and config.get("use_cla") is True:
            source = layer - layer % every if layer % every else None
        if layer >= first_shared:
            source = next((n for n in reversed(range(first_shared)) if kinds[n] == kind), None)
        made.append(_Attention(own, family, kind, layer, count).layer(source, rotations))
    return tuple(made)


def count_of(config: Settings) -> int | None:
    """The number of layers; without a setting, that of a list with an entry for each layer."""
    lists = (config.get(name) for name in (*NAMES["kinds"], *NAMES["blocks"]))
    lengths = (len(each) for each in lists if isinstance(each, list | str) and each)
    return named.integer(config, "layers") or next(lengths, None)


def _kinds(config: Settings, family: Family, count: int) -> list[str]:
    """The kind of each layer: ``full_attention``, ``sliding_attention``, or what it has instead."""
    same = {**_SAME, _LINEAR: family.linear}
    kinds = [same.get(kind, kind) for kind in _listed_kinds(config, count)]
    if _SLIDING in kinds or (isinstance(config.get("layer_types"), list) and _FULL in kinds):
        return kinds
    has_window = _windowed(config, family, count)
    return [_SLIDING if k == _FULL and has_window[n] else k for n, k in enumerate(kinds)]


def _listed_kinds(config: Settings, count: int) -> list[str]:
    """The kinds of the layers in the words of the configuration."""
    for name in (*NAMES["kinds"], "block_types"):  # the last one is repeated
        listed = config.get(name)
        least = 1 if name == "block_types" else count
        if isinstance(listed, list | str) and len(listed) >= least:
            return [str(listed[layer % len(listed)])[:60] for layer in range(count)]
    with_attention = _layers_with_attention(config, count)
    return [_FULL if layer in with_attention else _LINEAR for layer in range(count)]


def _layers_with_attention(config: Settings, count: int) -> set[int]:
    """The numbers of the layers with attention, in a model that has other layers as well."""
    every = set(range(count))
    for name in ("attn_layer_indices", "full_attn_idxs", "hybrid_layer_ids"):
        if (found := named.indices(config, name, count)) is not None:
            return found
    from_1 = named.indices(section(config, "linear_attn_config"), "full_attn_layers", count)
    if from_1 is not None:
        return {layer - 1 for layer in from_1}
    types = config.get("attn_type_list")
    if isinstance(types, list) and types:
        return {layer for layer in every if types[layer % len(types)] == 1}
    if period := size(config, "attn_layer_period"):
        offset = size(config, "attn_layer_offset") or 0
        return {layer for layer in every if layer % period == offset}
    if period := size(config, "full_attention_interval"):
        return {layer for layer in every if (layer + 1) % period == 0}
    return every


def _windowed(config: Settings, family: Family, count: int) -> list[bool]:
    """For each layer, whether it has a window, if the configuration has no list of that."""
    if not _window(config) or config.get("use_sliding_window") is False:
        return [False] * count
    for name in ("sliding_window_pattern", "_sliding_window_pattern", "global_attn_every_n_layers"):
        pattern = config.get(name)
        if isinstance(pattern, str) and pattern:
            return [pattern[layer % len(pattern)] == "L" for layer in range(count)]
        if period := size(config, name):
            last = 0 if family.first_is_global else period - 1
            return [layer % period != last for layer in range(count)]
    first = size(config, "max_window_layers") if config.get("use_sliding_window") else 0
    return [layer >= (first or 0) for layer in range(count)]


def _window(config: Settings) -> int:
    """The length of the local windows, 0 without one or if it is no shorter than the context."""
    both = size(config, "local_attention")  # to both sides
    found = size(config, "window") or (both or 0) // 2
    context = number(config, "context")
    return 0 if context and found >= context else found


def _mixer(config: Settings, family: Family, kind: str, layer: int) -> str:
    """What a layer has instead of this operator's attention, in words; "" if it has attention."""
    block = section(section(config, "block_configs"), "attention")
    if block.get("no_op") or block.get("replace_with_linear"):
        return "no attention"
    if kind not in (_FULL, _SLIDING, _CHUNKED):
        return kind.replace("_", " ")
    if size(config, "kv_lora_rank"):
        return "multi-head latent attention"
    every = size(config, "dense_attention_every_n_layers")
    if every and (layer + 1) % every:
        return "block-sparse attention"
    values, keys = size(config, "v_head_dim"), size(config, "head size")
    if values and keys and values != keys:
        return "attention with values of another size"
    return family.mixer


@dataclass(frozen=True)
class _Attention:
    """The settings of a layer with attention, by which its features are found."""

    config: Settings
    family: Family
    kind: str
    number: int
    count: int

    def layer(self, source: int | None, rotations: dict[object, Rotation | None]) -> ExpectedLayer:
        """The expected layer; ``rotations`` has the ones of the layers before."""
        config, family = self.config, self.family
        heads = size(config, "heads")
        width = size(config, "width") or 0
        head_size = size(config, "head size") or (width // heads if heads else 0) or None
        unrotated = self._unrotated()
        settings, base, key_of_settings = self._rotary_settings()
        share = self._share(settings, head_size)
        key = (head_size, base, share, key_of_settings)
        if head_size and base and key not in rotations:
            rotations[key] = rotation_of(settings, base, int(head_size * share + 1e-9), head_size)
        has_norm = not family.norm_if or config.get(family.norm_if)
        expected = ExpectedLayer(
            num_heads=heads,
            kv_num_heads=self._kv_heads(heads),
            head_size=head_size,
            window={_SLIDING: _window(config), _FULL: 0}.get(self.kind),
            maybe_window=not family.is_known and not _KNOW_KINDS & config.keys(),
            source=source,
            scale=self._scale(head_size),
            scale_is_known=self._scale_is_known(),
            softcap=number(config, "attn_logit_softcapping") or (0.0 if family.is_known else None),
            sink=self._sink(),
            norm=family.norm if has_norm else "",
            rotates=None if unrotated is None else not unrotated,
            rotation_set=unrotated or "",
            style=family.style,
        )
        if not expected.rotates:
            return expected
        share = 1.0 if settings.get("rope_type") == "proportional" else share
        return replace(expected, base=base, share=share, rotation=rotations.get(key))

    def _kv_heads(self, heads: int | None) -> int | None:
        config = self.config
        block = section(section(config, "block_configs"), "attention")
        if heads and (shared := size(block, "n_heads_in_group")):
            return heads // shared
        one = config.get("multi_query") is True and not config.get("new_decoder_architecture")
        if one or config.get("attn_type") == "multiquery_attention":
            return 1
        if config.get("multi_query_attention") is False:
            return heads
        return size(config, "kv heads") or (heads if self.family.is_known else None)

    def _scale(self, head_size: int | None) -> float | None:
        config, formula = self.config, self.family.scale
        scalar = number(config, "query_pre_attn_scalar")
        if formula == "one" or config.get("scale_attn_weights") is False:
            return 1.0
        if formula == "half" and head_size:
            return float((head_size / 2) ** -0.5)
        if formula == "phi3small" and head_size and config.get("mup_use_scaling") is not False:
            return (number(config, "mup_attn_multiplier") or 1.0) / head_size
        return scalar**-0.5 if scalar else number(config, "multiplier")

    def _scale_is_known(self) -> bool:
        config = self.config
        is_set = number(config, "query_pre_attn_scalar") or number(config, "multiplier")
        if not is_set and config.get("scale_attn_by_inverse_layer_idx"):
            return False
        return bool(is_set or self.family.is_known or not config.get("model_type"))

    def _sink(self) -> bool | None:
        local, sink = self.kind == _SLIDING, self.family.sink
        told = self.config.get(f"add_{'swa' if local else 'full'}_attention_sink_bias")
        by_family = sink and (sink == "all" or local)
        return told if isinstance(told, bool) else None if sink is None else bool(by_family)

    def _unrotated(self) -> str | None:
        """The setting by which the layer does not rotate; "" if it does, None if unknown."""
        config, family = self.config, self.family
        kind = config.get("position_embedding_type")
        parameters = section(config, "rope_parameters")
        if isinstance(kind, str) and kind not in ("rope", "rotary"):
            return "position_embedding_type"
        if config.get("alibi") is True:
            return "alibi"
        if config.get("no_rope_layers"):
            rotated = named.flags(config, "no_rope_layers", self.count)
            return None if rotated is None else "" if rotated[self.number] else "no_rope_layers"
        if period := size(config, "no_rope_layer_interval"):
            return "" if (self.number + 1) % period else "no_rope_layer_interval"
        if config.get("layer_rope_theta") == 0:
            return "layer_rope_theta"
        if parameters.get(self.kind, ...) is None:
            return "rope_parameters"
        if not family.is_known:
            every = [config, parameters, *map(partial(section, parameters), parameters)]
            return "" if any(number(each, "base") for each in every) else None
        only_local = family.rotated == "sliding" and _window(config) and self.kind != _SLIDING
        unused = config.get("use_mem_rope") is False or not family.style
        return "model_type" if unused or only_local else ""

    def _rotary_settings(self) -> tuple[Settings, float | None, int]:
        """The settings of the rotary embedding of the layer, its base, and what tells them apart
        from those of other layers.
        """
        config, parameters = self.config, section(self.config, "rope_parameters")
        by_kind = section(parameters, self.kind) or section(parameters, "main")
        own = by_kind or parameters or section(config, "rope_scaling")
        original = None if by_kind else named.integer(config, "original")
        first = {NAMES["original"][0]: original} if original else {}
        context = {NAMES["context"][0]: number(config, "context")}
        base = number(own, "base") or number(config, "base")
        base = base or (10000.0 if self.family.is_known else None)
        base = base and base * (number(config, "rope_ratio") or 1.0)
        return ChainMap(first, own, context), base, id(own) if own else 0

    def _share(self, settings: Settings, head_size: int | None) -> float:
        """The part of a head that rotates, at most 1."""
        config = self.config
        share = number(settings, "share") or number(config, "share") or 1.0
        if not head_size:
            return min(share, 1.0)
        width = size(config, "rotary_dim") or int(head_size * share + 1e-9)
        return min(width / head_size, 1.0)


def others_in_words(layers: Sequence[ExpectedLayer]) -> list[str]:
    """``24 of linear attention``: the layers without attention of this operator."""
    counts = Counter(layer.mixer for layer in layers if layer.mixer)
    none = "no attention"
    return [f"{n} without attention" if m == none else f"{n} of {m}" for m, n in counts.items()]
