"""README's test command stays short."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from conformance.base.paths import ROOT

#: CPU seconds of all processes; on two idle cores that is 150 s.
MAX_SECONDS = 290


@pytest.mark.night
def test_the_test_command_takes_few_cpu_seconds() -> None:
    command = [sys.executable, "-m", "pytest", "-n", "auto", "-q", "--cpu-seconds"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    table = done.stdout.partition(" CPU seconds ")[2]
    assert float(re.findall(r"(?m)^ *([\d.]+)  in all$", table)[0]) <= MAX_SECONDS, table
