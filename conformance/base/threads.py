"""How many threads NumPy computes with."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def one_thread() -> Iterator[None]:
    """NumPy, if it is first imported now, uses one thread: processes fill the cores.

    With several, each of them waits busily for the others. What is started later has the
    environment as it was.
    """
    if "OPENBLAS_NUM_THREADS" in os.environ:
        yield
        return
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        del os.environ["OPENBLAS_NUM_THREADS"]
