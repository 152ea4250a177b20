"""Common parts of answers: the length limit of a message, and the output files of a step.

Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from tensor_file import Tensor, write_tensor

PLAIN_NAME = re.compile(r"[A-Za-z0-9_]{1,100}")  # of an output: usable as a file name
LONGEST_MESSAGE = 100_000  # characters, so that an answer stays far below 1 MiB


def shortened(text: str) -> str:
    """``text``, or its beginning if it is too long for an answer."""
    return text if len(text) <= LONGEST_MESSAGE else f"{text[:LONGEST_MESSAGE]} …"


def write_outputs(out: str, repeat: int, step: int, tensors: Iterable[Tensor]) -> dict[str, str]:
    """Write a step's outputs, each to a new file in the folder ``out``: output name → file."""
    files = {}
    for position, tensor in enumerate(tensors):
        word = tensor.name if PLAIN_NAME.fullmatch(tensor.name) else position
        files[tensor.name] = file = f"{repeat}_{step}_{word}.pb"
        write_tensor(f"{out}/{file}", tensor)
    return files
