"""What a pool is given to run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from conformance.harness.protocol import StepFiles

#: Enough for the outputs of small tensors.
OUTPUT_BYTES: Final = 16 << 20


@dataclass(frozen=True)
class Job:
    """One case to run. Subclass it to attach more data.

    ``key`` names the case in messages; ``bundle`` is the absolute path of its directory;
    ``seconds`` is its own time limit, None for `Limits.case_seconds`. Its output files have at most
    ``most_output_bytes`` together.
    """

    key: str
    bundle: str | Path
    steps: tuple[StepFiles, ...]
    repeat: int = 2
    seconds: float | None = None
    most_output_bytes: int = OUTPUT_BYTES
