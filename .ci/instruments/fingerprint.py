"""What is made of each case before it runs: bytes and arrays as SHA-256, the rest as it is."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from adapter import effort, prepared, shipped_cases
from common import JOBS, write

CASES: list[Any] = []


def digested(value: Any) -> Any:
    """A value with the SHA-256 of bytes, and of an array's dtype, shape and bytes."""
    if isinstance(value, bytes):
        return hashlib.sha256(value).hexdigest()
    if isinstance(value, np.ndarray):
        about = f"{value.dtype} {value.shape} ".encode()
        return hashlib.sha256(about + np.ascontiguousarray(value).tobytes()).hexdigest()
    if isinstance(value, Mapping):
        return {str(key): digested(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [digested(each) for each in value]
    return value


def of_case(number: int) -> dict[str, Any]:
    case = CASES[number]
    try:
        return {"id": case.id, **digested(prepared(case))}
    except Exception as error:
        return {"id": case.id, "error": f"{type(error).__name__}: {error}"}


def take(root: Path, out: Path) -> None:
    CASES[:] = shipped_cases()
    order = hashlib.sha256("\n".join(case.id for case in CASES).encode()).hexdigest()
    # The longest first, one by one, so that the two processes end together.
    numbers = sorted(range(len(CASES)), key=lambda number: -effort(CASES[number]))
    with get_context("fork").Pool(JOBS) as pool:
        lines = [*pool.imap_unordered(of_case, numbers[:400])]
        lines += pool.imap_unordered(of_case, numbers[400:], 40)
    write(out, "fingerprint", [{"id": "(the order of all cases)", "order": order}, *lines])
