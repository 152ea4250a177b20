"""Answers of runners whose target is unavailable, and the description of the machine.

Standard library only.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shlex
import shutil
import sys
from typing import Any


class Unavailable(Exception):
    """The target cannot run: ``reason`` is one sentence, ``fix`` an exact command or None."""

    def __init__(self, reason: str, fix: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.fix = fix

    def answer(self) -> dict[str, Any]:
        """The answer with this reason and fix."""
        return {"outcome": "unavailable", "reason": self.reason, "fix": self.fix}


def pip(*words: str) -> str:
    """The command of pip for this interpreter; where it has none, of uv, or with one for pip."""
    python = shlex.quote(sys.executable)
    command = f"{python} -m pip {shlex.join(words)}"
    if importlib.util.find_spec("pip") is not None:
        return command
    if shutil.which("uv"):
        return f"uv pip {shlex.join(words)} --python {python}"
    return f"{python} -m ensurepip && {command}"


def is_older(version: str, oldest: tuple[int, int]) -> bool:
    """Whether ``version`` is older than ``oldest``; a version without numbers counts as new."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return numbers is not None and (int(numbers[1]), int(numbers[2])) < oldest


def first_line(error: BaseException) -> str:
    """The first line of an error's text, or its class name if it has no text."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def processor_name() -> str:
    """The processor's model, and the number of cores that this process may use."""
    model = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            named = re.search(r"^model name\s*:\s*(.+)$", file.read(), re.MULTILINE)
        model = named[1] if named else model
    except OSError:
        pass  # not Linux
    usable = getattr(os, "sched_getaffinity", None)
    cores = len(usable(0)) if usable else os.cpu_count() or 1
    return f"{' '.join(model.split())}, {cores} core{'s' if cores > 1 else ''}"
