"""What is remembered of the last object, and of the process's memory."""

from __future__ import annotations

import subprocess
import sys

import pytest

from conformance.base.remembered import of_the_last

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


def test_what_was_made_of_the_last_object_is_returned_again() -> None:
    asked: list[list[int]] = []

    @of_the_last
    def made(of: list[int]) -> int:
        asked.append(of)
        return sum(of)

    first, equal, other = [1, 2], [1, 2], [3]
    assert [made(first), made(first), made(equal), made(other), made(first)] == [3, 3, 3, 3, 3]
    assert [id(of) for of in asked] == [id(of) for of in (first, equal, other, first)]


def test_nothing_is_remembered_of_an_error() -> None:
    @of_the_last
    def made(of: list[int]) -> int:
        return 1 // len(of)

    numbers: list[int] = []
    with pytest.raises(ZeroDivisionError):
        made(numbers)
    numbers.append(1)
    assert made(numbers) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="glibc returns memory by its own rules")
def test_freed_memory_is_used_for_the_next_array() -> None:
    def pages(how: str) -> int:
        ran = subprocess.run(
            [sys.executable, "-c", ARRAYS, how], capture_output=True, text=True, check=True
        )
        return int(ran.stdout)

    assert pages("reuse") < pages("return") / 10
