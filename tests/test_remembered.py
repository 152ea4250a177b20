"""What is remembered of the last object, and of the process's memory."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from conformance.base.remembered import LastArrays

#: Makes eight arrays of 1 MB at a time, and prints how many pages the system cleared for them.
ARRAYS = """
import resource, sys
import numpy as np
from conformance.base.memory import reuse_memory
if sys.argv[1] == "reuse":
    reuse_memory()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    arrays = [np.ones(1 << 17) for _ in range(8)]
    del arrays
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_arrays_are_remembered_as_far_as_they_fit() -> None:
    last, made = LastArrays(3 * 8), list[str]()

    def of(key: str, size: int = 1) -> np.ndarray:
        return last.of(key, lambda: (made.append(key), np.zeros(size))[1])

    assert of("a") is of("a")
    of("b"), of("c"), of("a"), of("d")  # b is the one that was asked for first
    assert made == ["a", "b", "c", "d"]
    of("a"), of("c"), of("d"), of("b")
    assert made == ["a", "b", "c", "d", "b"]
    assert of("large", 4).size == 4  # more than there is room for
    of("large", 4), of("a")
    assert made[5:] == ["large", "large", "a"]
    with pytest.raises(ValueError, match="read-only"):
        of("a")[0] = 1.0


@pytest.mark.skipif(sys.platform != "linux", reason="glibc returns memory by its own rules")
def test_freed_memory_is_used_for_the_next_array() -> None:
    def pages(how: str) -> int:
        ran = subprocess.run(
            [sys.executable, "-c", ARRAYS, how], capture_output=True, text=True, check=True
        )
        return int(ran.stdout)

    assert pages("reuse") < pages("return") / 10
