"""The cases of large files as they were read before: reading YAML takes four times as long.

They are in the cache, in a file for each path, and are used only if neither the case file, nor the
graphs and values that it names, nor the code that reads them has changed since.
"""

from __future__ import annotations

import hashlib
import pickle
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Final

from conformance.base.code_digest import digest_of_code
from conformance.base.files import read_plain, replacing
from conformance.base.paths import KEPT_CASES, cache_root
from conformance.case.call import GivenCall, GraphCall
from conformance.case.case import Case

#: Smaller files are read as fast.
LARGE: Final = 1 << 12
#: More than any case file has, and the cases of any.
_MOST_BYTES: Final = 1 << 28


def kept_cases(file: Path, read: Callable[[Path], list[Case]]) -> list[Case]:
    """What ``read`` returns for the file: from the cache, if it is there. Raises as it does."""
    before = _digest(file)
    if before is None:
        return read(file)
    path = str(file.absolute())
    place = cache_root() / KEPT_CASES / f"{hashlib.sha256(path.encode()).hexdigest()[:32]}.pickle"
    with suppress(OSError):
        content = read_plain(place, _MOST_BYTES)
        size = len(before)
        seal, pickled = content[size : 2 * size], content[2 * size :]
        if content[:size] == before and hashlib.sha256(pickled).digest() == seal:
            found: list[Case] = pickle.loads(pickled)
            if _has_same_graphs(file, found) and _has_same_values(found):
                return found
    cases = read(file)
    if _digest(file) == before:
        pickled = pickle.dumps(cases, pickle.HIGHEST_PROTOCOL)
        with suppress(OSError):
            place.parent.mkdir(parents=True, exist_ok=True)
            with replacing(place) as written:
                written.write(before + hashlib.sha256(pickled).digest() + pickled)
    return cases


def _has_same_graphs(file: Path, cases: list[Case]) -> bool:
    calls = (case.call for case in cases)
    graphs = {call.graph: call.content for call in calls if isinstance(call, GraphCall)}
    with suppress(OSError):
        return all(
            read_plain(file.parent / str(name), _MOST_BYTES) == content
            for name, content in graphs.items()
        )
    return False


def _has_same_values(cases: list[Case]) -> bool:
    calls = [case.call for case in cases if isinstance(case.call, GivenCall)]
    if not calls:
        return True
    from conformance.case.given import unchanged  # imports NumPy

    return all(map(unchanged, calls))


def _digest(file: Path) -> bytes | None:
    """The digest of a large file, its path and the code; None if it is small or unreadable."""
    with suppress(OSError, ValueError):
        content = read_plain(file, _MOST_BYTES)
        if len(content) >= LARGE:
            digest = hashlib.sha256(f"{_code()}\n{file}\n".encode("utf-8", "surrogateescape"))
            digest.update(content)
            return digest.digest()
    return None


@cache
def _code() -> str:
    return f"{digest_of_code('base', 'case')} pydantic {version('pydantic')} {sys.version}"
