"""The options of ``gqa check`` that run a model: ``--prompt-ids``, ``--capture`` and others."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from conformance.base.files import read_plain
from conformance.base.paths import shown
from conformance.cli.common import BadArgument
from conformance.targets.catalogue import ORT_PYTHON, OptionValues, entry_of
from conformance.targets.tools import as_typed

if TYPE_CHECKING:
    from conformance.cli.check import ModelOptions
    from conformance.model.captured import CaptureRequest

#: The default number of decode steps after a prompt.
STEPS: Final = 8
#: The largest size of a file with a prompt; no longer prompt can be judged.
_MOST_BYTES: Final = 1 << 24


def values_to_capture(model: ModelOptions, programs: OptionValues) -> CaptureRequest | None:
    """The calls of the model whose values are captured; None if the model is not run.

    Raises `BadArgument`.
    """
    prompt, steps, inputs = model.prompt, model.steps, model.inputs
    if inputs is not None and prompt is not None:
        raise BadArgument("Give --prompt-ids or --capture, not both.")
    if steps is not None and prompt is None:
        raise BadArgument("--steps says how many tokens follow a prompt; give --prompt-ids, too.")
    if inputs is prompt is None:
        return None
    from conformance.model.capture import PromptTokens
    from conformance.model.captured import CaptureRequest

    tokens = None
    if prompt is not None:
        tokens = PromptTokens(_ids(prompt), STEPS if steps is None else steps)
    typed = next(iter(programs.values_of(ORT_PYTHON)), None)
    return CaptureRequest(
        tokens, inputs, model.layers, None if typed is None else str(as_typed(typed))
    )


def programs_of_targets(eps: Sequence[str], programs: OptionValues) -> OptionValues:
    """The programs for the targets: without ``--ort-python`` if no target takes that option."""
    entries = [entry_of(ep) for ep in eps]
    taken = any(entry is not None and ORT_PYTHON in entry.options for entry in entries)
    return programs if taken else programs.without(ORT_PYTHON)


def _ids(file: Path) -> tuple[int, ...]:
    """The token ids in a file: numbers with spaces or commas between them, or a list in JSON."""
    try:
        text = read_plain(file, _MOST_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise BadArgument(f"{shown(file)}: cannot be read: {reason}.") from None
    words = re.sub(r"[\[\],]", " ", text).split()
    wrong = [word for word in words if not _is_id(word)]
    if text.count("[") > 2:
        wrong.append("a batch of several prompts")
    if wrong or not words:
        what = f"{wrong[0][:40]!r} is no token id" if words else "there is no token id"
        raise BadArgument(f"{shown(file)}: {what}; write the numbers of tokens, as in 2, 17, 4.")
    return tuple(map(int, words))


def _is_id(word: str) -> bool:
    return word.isascii() and word.isdecimal() and len(word) < 11 and int(word) < 1 << 31
