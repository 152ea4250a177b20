"""The jobs that runners are given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from conformance.harness.protocol import StepFiles

#: Enough for the outputs of small tensors.
OUTPUT_BYTES: Final = 16 << 20


@dataclass(frozen=True)
class Job:
    """One case to run, or its variant.

    ``case`` names it in messages and records. Each try gets a separate folder with the content of
    ``files`` by name; its path ends with ``folder``. ``seconds`` is the case's time limit, None for
    `Limits.case_seconds`. The output files together have at most ``most_output_bytes``.
    """

    case: str
    files: Mapping[str, bytes]
    steps: tuple[StepFiles, ...]
    repeat: int = 2
    seconds: float | None = None
    most_output_bytes: int = OUTPUT_BYTES
    folder: str = "case"
    variant: bool = False

    @property
    def title(self) -> str:
        """The job's name in a sentence."""
        return f"the variant of {self.case}" if self.variant else self.case
