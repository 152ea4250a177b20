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
from conformance.model.config.layers import ExpectedLayer, layers_of_config
from conformance.model.config.settings import NAMES, flat, integer, section, unread

#: Written by transformers, and by ONNX Runtime GenAI.
FILES: Final = ("config.json", "genai_config.json")
_MOST_BYTES: Final = 1 << 24
_MOST_DIGITS: Final = 20


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
    ``cache_slack``: rows of a window cache beyond the window. ``padding_side`` is the tokenizer's,
    and ``padding`` the token that prompts are padded with. ``provider_options`` are those that
    GenAI sets, and ``context`` is the largest number of tokens. ``rotates``: every layer with
    attention has a rotary embedding. ``layers`` are those of config.json, and ``unread`` its
    settings that sound like attention and are not read. ``names`` maps GenAI's words for inputs and
    outputs (``input_ids``, ``past_key_names``) to the names in the graph, with ``%d`` for the
    number of a layer. ``slides``: GenAI keeps the caches of some layers in buffers of a window's
    length. ``pipeline``: the files that a model has.
    """

    head_size: int | None = None
    dtype: str | None = None
    shared_buffer: bool = False
    cache_slack: int = 0
    padding_side: str = ""
    padding: int | None = None
    provider_options: tuple[str, ...] = ()
    context: int | None = None
    rotates: bool = False
    model_type: str = ""
    layers: tuple[ExpectedLayer, ...] = ()
    unread: tuple[str, ...] = ()
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
    transformers = flat(transformers)
    whole = section(genai, "model")
    decoder = section(whole, "decoder")
    layers = layers_of_config(transformers)
    # Without a number of layers, the first one still tells its size and whether it rotates.
    every = layers or layers_of_config({**transformers, NAMES["layers"][0]: 1})
    some = [layer for layer in every if not layer.mixer]
    sizes = [integer(decoder, "head_size"), *(layer.head_size for layer in some)]
    dtype = transformers.get("dtype") or transformers.get("torch_dtype")
    return Configuration(
        head_size=next(filter(None, sizes), None),
        dtype=dtype if dtype in ("float32", "float16", "bfloat16") else None,
        shared_buffer=section(genai, "search").get("past_present_share_buffer") is True,
        cache_slack=integer(section(decoder, "sliding_window"), "cache_slack") or 0,
        padding_side=str(
            read_object(model.parent / "tokenizer_config.json").get("padding_side", "")
        ),
        padding=integer(whole, "pad_token_id") or integer(transformers, "pad_token_id"),
        context=integer(whole, "context_length") or integer(transformers, "context"),
        rotates=bool(some) and all(layer.rotates for layer in some),
        model_type=str(transformers.get("model_type", "")),
        layers=layers,
        unread=tuple(unread(transformers)),
        provider_options=tuple(_provider_options(decoder)),
        vocabulary=integer(whole, "vocab_size") or integer(transformers, "vocab_size"),
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


def _provider_options(decoder: dict[str, Any]) -> Iterator[str]:
    """The options of execution providers that GenAI sets."""
    providers = section(decoder, "session_options").get("provider_options")
    for each in providers if isinstance(providers, list) else []:
        for name, options in each.items() if isinstance(each, dict) else ():
            for option in options if isinstance(options, dict) else ():
                yield f"{option} ({name})"


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
