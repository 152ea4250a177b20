"""The options of ``gqa check`` that run a model: ``--prompt-ids``, ``--capture`` and others."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from conformance.base.files import read_plain
from conformance.base.paths import shown
from conformance.cli.common import BadArgument
from conformance.cli.options import FILE
from conformance.targets.catalogue import ORT_PYTHON, Programs, entry_of
from conformance.targets.tools import as_typed

if TYPE_CHECKING:
    from conformance.model.captured import Wanted

#: Decode steps behind a prompt, if the user does not say how many.
STEPS: Final = 8
#: More than any prompt that can be judged.
_MOST_BYTES: Final = 1 << 24


class LayerNumbers(click.ParamType[tuple[int, ...]]):
    """Numbers of layers, and ranges of them: ``0-3,7``."""

    name = "N,…"

    def convert(self, value: object, param: object, ctx: object) -> tuple[int, ...]:
        """The numbers in order."""
        if isinstance(value, tuple):
            return value
        found: set[int] = set()
        for part in str(value).split(","):
            first, dash, last = part.strip().partition("-")
            last = last if dash else first
            if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last) < 10_000):
                self.fail(f"'{value}' is not numbers of layers, as in 0-3,7")
            found.update(range(int(first), int(last) + 1))
        return tuple(sorted(found))


@dataclass(frozen=True)
class Asked:
    """What the options ask for: a file with inputs, one with a prompt's tokens, or neither."""

    inputs: Path | None
    prompt: Path | None
    steps: int | None
    layers: tuple[int, ...]

    @property
    def files(self) -> list[Path]:
        """The files that are read; the model is run only if there is one."""
        return [path for path in (self.inputs, self.prompt) if path is not None]

    def wanted(self, programs: Programs) -> Wanted | None:
        """What to capture; None if the model is not to be run. Raises :class:`BadArgument`."""
        if self.inputs is not None and self.prompt is not None:
            raise BadArgument("Give --prompt-ids or --capture, not both.")
        if self.steps is not None and self.prompt is None:
            raise BadArgument(
                "--steps says how many tokens follow a prompt; give --prompt-ids, too."
            )
        if not self.files:
            return None
        from conformance.model.capture import Tokens
        from conformance.model.captured import Wanted

        tokens = None
        if self.prompt is not None:
            tokens = Tokens(_ids(self.prompt), STEPS if self.steps is None else self.steps)
        typed = next(iter(programs.values_of(ORT_PYTHON)), None)
        python = None if typed is None else str(as_typed(typed))
        return Wanted(tokens, self.inputs, self.layers, python)

    def programs_for(self, eps: Sequence[str], programs: Programs) -> Programs:
        """The programs of the targets: --ort-python can be for running the model alone."""
        entries = [entry_of(ep) for ep in eps]
        taken = any(entry is not None and ORT_PYTHON in entry.options for entry in entries)
        return programs if taken or not self.files else programs.without(ORT_PYTHON)


def capture_options(command: Callable[..., int]) -> Callable[..., int]:
    """Gives ``command`` the options; it gets them as ``asked``."""

    @click.option(
        "--prompt-ids",
        "prompt",
        type=FILE,
        help="Run the model on the token ids in this file, and check each layer with the values"
        " that it gets there.",
    )
    @click.option(
        "--steps",
        type=click.IntRange(0, 4096),
        help=f"Tokens that the model adds to --prompt-ids; default: {STEPS}.",
    )
    @click.option(
        "--capture",
        "inputs",
        type=FILE,
        help="As --prompt-ids, with the model's inputs of one call in this .npz file.",
    )
    @click.option(
        "--only-layer", "layers", type=LayerNumbers(), default=(), help="Layers, as in 0-3,7."
    )
    @functools.wraps(command)
    def wrapped(**values: Any) -> int:
        asked = Asked(*(values.pop(name) for name in ("inputs", "prompt", "steps", "layers")))
        return command(asked=asked, **values)

    return wrapped


def _ids(file: Path) -> tuple[int, ...]:
    """The token ids in a file: a list in JSON, or numbers with spaces or commas between them."""
    try:
        text = read_plain(file, _MOST_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise BadArgument(f"{shown(file)}: cannot be read: {reason}.") from None
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        data = text.replace(",", " ").split()
    if isinstance(data, list) and len(data) == 1 and isinstance(data[0], list):
        data = data[0]  # a batch of one
    words = data if isinstance(data, list) else [data]
    wrong = [word for word in words if not _is_id(word)]
    if wrong or not words:
        what = f"{str(wrong[0])[:40]!r} is no token id" if words else "there is no token id"
        raise BadArgument(f"{shown(file)}: {what}; write the numbers of tokens, as in 2, 17, 4.")
    return tuple(int(word) for word in words)


def _is_id(word: object) -> bool:
    if isinstance(word, str):
        return word.isascii() and word.isdecimal() and len(word) < 11 and int(word) < 1 << 31
    return isinstance(word, int) and not isinstance(word, bool) and 0 <= word < 1 << 31
