"""Common parts of answers: what became of a case, its messages, and the output files of a step.

Standard library only.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from availability import Unavailable
from tensor_file import Tensor, write_tensor

PLAIN_NAME = re.compile(r"[A-Za-z0-9_]{1,100}")  # of an output: usable as a file name
LONGEST_MESSAGE = 100_000  # characters, so that an answer stays far below 1 MiB


class Rejected(Exception):
    """The runtime rejected the case, at ``stage`` load or run, in ``step`` of a loop."""

    def __init__(self, stage: str, step: int, message: str) -> None:
        super().__init__(message)
        self.stage = stage
        self.step = step
        self.message = message


def answer_of(run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The answer to run: the fields that ``run`` returns, or what it raises."""
    try:
        return {"outcome": "ran", **run()}
    except Rejected as refusal:
        return {
            "outcome": "rejected",
            "stage": refusal.stage,
            "step": refusal.step,
            "code": None,
            "message": refusal.message,
        }
    except Unavailable as missing:
        return {"outcome": "unavailable", "reason": missing.reason}


#: The files that were written in each step of a repeat, by output; or why the step was rejected.
Files = list[dict[str, str] | str]
#: An output of a step, as the runtime has it.
StepOutput = TypeVar("StepOutput")


def steps_in_turn(
    steps: Sequence[Mapping[str, Any]],
    run_step: Callable[[int, dict[str, StepOutput]], tuple[dict[str, StepOutput], float]],
    write: Callable[[int, Iterable[StepOutput]], dict[str, str]],
) -> tuple[Files, float]:
    """The files of each step, which gets the outputs of the one before, and the seconds of all.

    After the rejection of a step that may be rejected, the next one is run.
    """
    files: Files = []
    total = 0.0
    previous: dict[str, StepOutput] = {}
    for number, step in enumerate(steps):
        try:
            previous, seconds = run_step(number, previous)
        except Rejected as refusal:
            if not step.get("may_be_rejected"):
                raise
            files.append(refusal.message)
        else:
            total += seconds
            files.append(write(number, previous.values()))
    return files, total


def repeated(run: Callable[[int], tuple[Files, float]], times: int) -> tuple[list[Files], float]:
    """The files of each repeat, and the fewest seconds that one spent running."""
    runs = []
    fastest = math.inf
    for repeat in range(times):
        files, seconds = run(repeat)
        runs.append(files)
        fastest = min(fastest, seconds)
    return runs, fastest


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
