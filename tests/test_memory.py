"""Freed memory is used again, since a run makes and frees many arrays."""

from __future__ import annotations

import subprocess
import sys

import pytest

#: Makes eight arrays of 1 MB at a time, and prints how many pages the system cleared for them.
ARRAYS = """
import resource, sys
import numpy as np
from conformance.base.tuning import reuse_memory
if sys.argv[1] == "reuse":
    reuse_memory()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    arrays = [np.ones(1 << 17) for _ in range(8)]
    del arrays
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc returns memory by its own rules")
def test_freed_memory_is_used_for_the_next_array() -> None:
    def pages(how: str) -> int:
        ran = subprocess.run(
            [sys.executable, "-c", ARRAYS, how], capture_output=True, text=True, check=True
        )
        return int(ran.stdout)

    assert pages("reuse") < pages("return") / 10
