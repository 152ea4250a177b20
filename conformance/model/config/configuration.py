"""What the user, and the files beside a model, say about it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from conformance.base.files import read_plain
from conformance.base.paths import shown
from conformance.base.text import deep_clean, safe_name
from conformance.graph.reading import ModelError

#: Written by transformers, and by ONNX Runtime GenAI.
FILES: Final = ("config.json", "genai_config.json")
_MOST_BYTES: Final = 1 << 24
_MOST_DIGITS: Final = 20


@dataclass(frozen=True)
class Family:
    """What is known of a family of models without its configuration.

    ``period``: unless layer_types says otherwise, the last layer of each group of this many does
    not have the window. ``softcap`` and ``sink``, an attention score of no token in each head:
    its layers have one. ``halves``: its rotary embedding rotates the halves of a head.
    """

    period: int | None = None
    softcap: bool = False
    sink: bool = False
    halves: bool = False


#: By the ``model_type`` of config.json.
FAMILIES: Final[Mapping[str, Family]] = {
    "cohere2": Family(period=4),
    "gemma": Family(halves=True),
    "gemma2": Family(period=2, softcap=True, halves=True),
    "gemma3": Family(period=6, halves=True),
    "gemma3_text": Family(period=6, halves=True),
    "gemma3n_text": Family(period=5),
    "gemma4_text": Family(period=5),
    "gpt_oss": Family(period=2, sink=True),
    "llama": Family(halves=True),
    "mistral": Family(halves=True),
    "phi3": Family(halves=True),
    "qwen2": Family(halves=True),
    "qwen3": Family(halves=True),
}


@dataclass(frozen=True)
class SlidingCaches:
    """The layers whose caches a program keeps in buffers of a window's length, and their rows."""

    rows: int
    layers: frozenset[int]


@dataclass(frozen=True)
class PipelineStage:
    """A file of a pipeline, and whether it runs for prompts and for single tokens."""

    file: str
    on_prompt: bool
    on_tokens: bool


@dataclass(frozen=True)
class Configuration:
    """Facts that the graph may leave out; None: unknown.

    ``shared_buffer``: ONNX Runtime GenAI runs the model with past and present in one buffer.
    ``sliding_window`` is the window of some of its layers. ``expected`` has the values that a
    layer may have for a setting of attention, such as num_heads. ``cache_slack``: rows of a window
    cache beyond the window. ``layer_types``: whether each layer has a window. ``padding_side`` is
    the tokenizer's, and ``padding`` the token that prompts are padded with.
    ``provider_options`` are those that GenAI sets, and ``context`` is the largest number of tokens.
    ``names`` maps GenAI's words for inputs and outputs (``input_ids``, ``past_key_names``) to the
    names in the graph, with ``%d`` for the number of a layer. ``slides``: GenAI keeps the caches
    of some layers in buffers of a window's length. ``pipeline``: the files that a model has.
    """

    head_size: int | None = None
    dtype: str | None = None
    shared_buffer: bool = False
    sliding_window: int | None = None
    cache_slack: int = 0
    layer_types: tuple[str, ...] = ()
    expected: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    padding_side: str = ""
    padding: int | None = None
    provider_options: tuple[str, ...] = ()
    context: int | None = None
    rotates: bool = False
    model_type: str = ""
    layers: int | None = None
    vocabulary: int | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    slides: SlidingCaches | None = None
    pipeline: tuple[PipelineStage, ...] = ()

    def overridden(self, head_size: int | None, dtype: str | None) -> Configuration:
        """This configuration with the user's values in place of its own."""
        return replace(self, head_size=head_size or self.head_size, dtype=dtype or self.dtype)


def configuration_beside(model: Path) -> Configuration:
    """The configuration from ``config.json`` and ``genai_config.json`` in the model's folder.

    Raises :class:`ModelError` for a file that is not a JSON object.
    """
    transformers, genai = (read_object(model.parent / name) for name in FILES)
    transformers = of_decoder(transformers)
    decoder = section(section(genai, "model"), "decoder")
    size = integer(decoder, "head_size") or integer(transformers, "head_dim")
    hidden, heads = (integer(transformers, name) for name in ("hidden_size", "num_attention_heads"))
    if size is None and hidden and heads:
        size = hidden // heads
    dtype = dtype_of(transformers)
    return Configuration(
        head_size=size,
        dtype=dtype if dtype in ("float32", "float16", "bfloat16") else None,
        shared_buffer=section(genai, "search").get("past_present_share_buffer") is True,
        sliding_window=_sliding_window(transformers),
        cache_slack=integer(section(decoder, "sliding_window"), "cache_slack") or 0,
        layer_types=_layer_types(transformers),
        expected={name: found for name, found in _expected(transformers, size).items() if found},
        padding_side=str(
            read_object(model.parent / "tokenizer_config.json").get("padding_side", "")
        ),
        padding=integer(section(genai, "model"), "pad_token_id")
        or integer(transformers, "pad_token_id"),
        context=integer(section(genai, "model"), "context_length")
        or integer(transformers, "max_position_embeddings"),
        rotates=_rotates(transformers),
        model_type=str(transformers.get("model_type", "")),
        layers=integer(transformers, "num_hidden_layers"),
        provider_options=tuple(_provider_options(decoder)),
        vocabulary=integer(section(genai, "model"), "vocab_size")
        or integer(transformers, "vocab_size"),
        names={
            word: name
            for side in ("inputs", "outputs")
            for word, name in section(decoder, side).items()
            if isinstance(name, str)
        },
        pipeline=tuple(_pipeline(decoder.get("pipeline"))),
        slides=_slides(section(decoder, "sliding_window"), integer(decoder, "num_hidden_layers")),
    )


def _pipeline(stages: object) -> Iterator[PipelineStage]:
    """The files of a model in the order in which they run."""
    for each in stages if isinstance(stages, list) else []:
        for stage in each.values() if isinstance(each, dict) else ():
            if isinstance(stage, dict) and isinstance(file := stage.get("filename"), str):
                yield PipelineStage(
                    file,
                    stage.get("run_on_prompt") is not False,
                    stage.get("run_on_token_gen") is not False,
                )


def _slides(window: Mapping[str, Any], number: int | None) -> SlidingCaches | None:
    """The caches of a window's length that a ``genai_config.json`` asks for."""
    rows, layers = integer(window, "window_size"), window.get("layers")
    if rows is None or window.get("slide_key_value_cache") is not True:
        return None
    known = layers if isinstance(layers, list) else range(min(number or 0, 1 << 12))
    return SlidingCaches(rows, frozenset(each for each in known if isinstance(each, int)))


def of_decoder(transformers: dict[str, Any]) -> dict[str, Any]:
    """The settings of a ``config.json``, with those of the decoder of a model for images, too."""
    return {**transformers, **section(transformers, "text_config")}


def dtype_of(transformers: Mapping[str, Any]) -> str:
    """The dtype of a ``config.json``, in its words; empty if it has none."""
    return str(transformers.get("dtype") or transformers.get("torch_dtype") or "")


def _layer_types(transformers: dict[str, Any]) -> tuple[str, ...]:
    kinds = transformers.get("layer_types")
    return tuple(map(str, kinds)) if isinstance(kinds, list) else ()


def _expected(transformers: dict[str, Any], head_size: int | None) -> dict[str, tuple[float, ...]]:
    """For each setting of attention, such as num_heads, the values that a layer may have.

    A setting has no values if the configuration does not give them, or if tables are scaled for
    long contexts.
    """

    def of(*names: str) -> tuple[float, ...]:
        found = [_positive(transformers, name) for name in names]
        return tuple(number for number in found if number is not None)

    parameters = section(transformers, "rope_parameters")
    rotary = [
        transformers,
        parameters,
        *(section(parameters, kind) for kind in ("sliding_attention", "full_attention")),
    ]
    scaled = any(
        section(each, "rope_scaling") or each.get("rope_type", "default") != "default"
        for each in rotary
    )
    bases = [
        _positive(each, name) for each in rotary for name in ("rope_theta", "rope_local_base_freq")
    ]
    shares = [_positive(each, "partial_rotary_factor") for each in rotary]
    scalar = of("query_pre_attn_scalar")
    return {
        "num_heads": of("num_attention_heads"),
        "kv_num_heads": of("num_key_value_heads", "num_global_key_value_heads"),
        "head_size": (*of("global_head_dim"), *([head_size] if head_size else [])),
        "scale": (scalar[0] ** -0.5,) if scalar else of("attention_multiplier"),
        "softcap": of("attn_logit_softcapping"),
        "rotated share of a head": tuple(filter(None, shares)),
        "base of the rotary tables": () if scaled else tuple(filter(None, bases)),
    }


def _rotates(transformers: dict[str, Any]) -> bool:
    named = {"position_embedding_type", "no_rope_layers", "alibi"} & transformers.keys()
    parameters = section(transformers, "rope_parameters")
    return not named and bool({"rope_theta"} & {*transformers, *parameters})


def _positive(data: dict[str, Any], name: str) -> float | None:
    found = data.get(name)
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 < found < 1e9:
        return None
    return float(found)


def _provider_options(decoder: dict[str, Any]) -> Iterator[str]:
    """The options of execution providers that GenAI sets."""
    providers = section(decoder, "session_options").get("provider_options")
    for each in providers if isinstance(providers, list) else []:
        for name, options in each.items() if isinstance(each, dict) else ():
            for option in options if isinstance(options, dict) else ():
                yield f"{option} ({name})"


def _sliding_window(transformers: dict[str, Any]) -> int | None:
    """The window of the layers that have one; None if the model uses none."""
    kinds = transformers.get("layer_types")
    unused = isinstance(kinds, list) and "sliding_attention" not in kinds
    if unused or transformers.get("use_sliding_window") is False:
        return None
    return integer(transformers, "sliding_window")


def read_object(file: Path) -> dict[str, Any]:
    """The JSON object in a file, empty if the file does not exist. Raises :class:`ModelError`."""
    with suppress(FileNotFoundError, NotADirectoryError):
        try:
            data = json.loads(read_plain(file, _MOST_BYTES), parse_int=_whole)
            data = deep_clean(data, safe_name)
        except (ValueError, RecursionError) as error:
            raise ModelError(f"{shown(file)}: not JSON: {error}.") from None
        except FileNotFoundError:
            raise
        except OSError as error:
            raise ModelError(f"{shown(file)}: cannot be read: {error.strerror}.") from None
        if not isinstance(data, dict):
            raise ModelError(f"{shown(file)}: not a JSON object.")
        return data
    return {}


def _whole(digits: str) -> int:
    """A whole number. Raises ValueError for a number that no setting can have."""
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"it has a number of {len(digits)} digits")
    return int(digits)


def section(data: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The object called ``name`` in another one; empty if there is none."""
    found = data.get(name)
    return found if isinstance(found, dict) else {}


def integer(data: Mapping[str, Any], name: str) -> int | None:
    """The positive whole number called ``name``; None if there is none."""
    found = data.get(name)
    return found if isinstance(found, int) and not isinstance(found, bool) and found > 0 else None
