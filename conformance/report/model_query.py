"""What a search for models means: rows of the table, and its columns.

``models.js`` does the same with the words of `RULES`; both are tested with the same examples.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Final, NamedTuple

from conformance.report.model_pages import Models, RecordedModel

_TYPES: Final = {
    "bfloat16": ("bf16",),
    "float16": ("f16", "fp16", "half"),
    "float32": ("f32", "fp32", "float", "single"),
    "int4": ("i4", "q4", "w4", "4bit"),
    "int8": ("i8", "q8", "w8", "8bit"),
}
#: Parts of names on Hugging Face that change no call, and of names of runtimes.
_IGNORED: Final = ("base", "bnb", "chat", "hf", "instruct", "it", "meta", "onnx", "pt", "wheel")
#: The words with a meaning of their own. ``types``: each word for a data type of values or weights,
#: with its name. ``runtimes``: words for columns and for what a model was exported for, with the
#: name of the column. ``ignored``: those that mean nothing.
RULES: Final[Mapping[str, Mapping[str, str]]] = {
    "types": {word: name for name, words in _TYPES.items() for word in (name, *words)},
    "runtimes": {name: name for name in ("cpu", "cuda", "dml", "node", "wasm", "webgpu")}
    | {"directml": "dml", "openvino": "openvino", "tract": "tract-wheel"},
    "ignored": dict.fromkeys(_IGNORED, ""),
}
#: A text of more words is a message, whose words have no meaning of their own.
_MOST: Final = 8
#: The owner in an id of Hugging Face: `Qwen/` in Qwen/Qwen3-0.6B.
_OWNER: Final = re.compile(r"(?<!\S)[\w.-]+/(?=[\w.-]+(?!\S))")


class Found(NamedTuple):
    """The rows that a search means, with the releases that it names, or all, and its columns.

    ``named`` are the rows of the models that it names, whether or not its other words fit.
    """

    rows: Sequence[RecordedModel]
    runtimes: Sequence[str]
    named: Sequence[RecordedModel]


def matching(models: Models, wanted: str) -> Found:
    """The rows that the words ``wanted`` mean; case, spaces and points do not count.

    As many of the first words as possible must be in the name of the family. Of the others, a data
    type must be that of the row, and a runtime selects its column, and the rows that were exported
    for it if there are any. A release must be one that was tried. Other words can be anywhere in
    the row.
    """
    text = re.sub(r"\b([48])[ -]bits?\b", r"\1bit", _OWNER.sub("", wanted.lower()))
    words = [word for word in re.split(r"[\s/@+_,-]+", text) if _plain(word)]
    words = [word for word in words if word not in _IGNORED]
    rows = [*chain(*models.families.values())]
    for number in range(len(words), -1, -1):
        start, rest = _plain("".join(words[:number])), words[number:]
        named = [row for row in rows if start in _plain(row.family)]
        if named:
            break
    own = rest if len(words) <= _MOST else []
    types = {RULES["types"][word] for word in own if word in RULES["types"]}
    runtimes = [RULES["runtimes"][word] for word in own if word in RULES["runtimes"]]
    known = {*chain(*models.runtimes.values())}
    releases = [word for word in own if any(_is_of(each, word) for each in known)]
    meant = {*releases, *(word for of in RULES.values() for word in of if word in own)}
    others = [_plain(word) for word in rest if word not in meant]
    rows = [
        row
        for row in named
        if types <= {row.dtype, row.weights} and all(each in _plain(row.words) for each in others)
    ]
    rows = [row for row in rows if row.made_for in runtimes] or rows
    rows = [
        replace(row, runtimes={name: on.at(releases) for name, on in row.runtimes.items()})
        for row in rows
    ]
    columns = [name for name in runtimes if name != "dml"]
    return Found(rows, columns, named if number else ())


def _is_of(release: str, word: str) -> bool:
    """Whether ``word`` is a release, or its minor version: ``1.27`` for 1.27.0."""
    return "." in word and f"{release}.".startswith(f"{word}.")


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())
