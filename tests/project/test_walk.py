"""The way from a loaded case to its record stays short enough to be read in one go."""

from __future__ import annotations

import sys
from collections import Counter

import pytest
from walked import walk_of_a_case

#: The goal is 60 functions and 20 types.
MAX_FUNCTIONS = 142
MAX_TYPES = 33


@pytest.mark.skipif(sys.platform != "linux", reason="there, processes are waited for otherwise")
def test_a_case_is_walked_in_few_functions_and_types() -> None:
    functions, types = walk_of_a_case()
    packages = Counter(name.split(".")[1] for name in functions)
    assert len(functions) <= MAX_FUNCTIONS, f"{len(functions)}: {dict(packages)}"
    assert len(types) <= MAX_TYPES, f"{len(types)}: {sorted(types)}"
