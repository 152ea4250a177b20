"""The cases of files as they were read before (:mod:`conformance.base.kept`)."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from conformance.base.files import read_plain
from conformance.base.kept import MOST_BYTES, is_kept, kept
from conformance.base.paths import KEPT, cache_root
from conformance.base.side_by_side import side_by_side
from conformance.case.call import GivenCall, GraphCall
from conformance.case.case import Case

#: The packages whose code makes cases of a file.
_CODE: Final = ("base", "case")
#: As many bytes of YAML take a third of a second.
_MUCH: Final = 1 << 18
#: As many bytes may have more cases or errors than are accepted, so they are read one by one.
_TOO_MUCH: Final = 1 << 24


def kept_cases(file: Path, read: Callable[[Path], list[Case]]) -> list[Case]:
    """What ``read`` returns for the file: from the cache, if it is there. Raises as it does.

    They are used only if the graphs and values that the file names have not changed either.
    """
    return kept(file, read, _CODE, partial(_is_current, file))


def keep_cases(files: Sequence[Path], read: Callable[[Path], list[Case]]) -> None:
    """Read those ``files`` on all cores that are not kept, if they are large. Raises nothing."""
    with suppress(OSError):
        sizes = {file: file.stat().st_size for file in files}
        if not _MUCH < sum(sizes.values()) <= _TOO_MUCH:
            return
        missing = [file for file in files if not is_kept(file, read, _CODE)]
        if sum(sizes[file] for file in missing) <= _MUCH:
            return
        folder = cache_root() / KEPT
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK | os.X_OK):
            work = partial(kept_cases, read=read)
            side_by_side(work, sorted(missing, key=lambda file: -sizes[file]))


def _is_current(file: Path, cases: list[Case]) -> bool:
    return _has_same_graphs(file, cases) and _has_same_values(cases)


def _has_same_graphs(file: Path, cases: list[Case]) -> bool:
    calls = (case.call for case in cases)
    graphs = {call.graph: call.content for call in calls if isinstance(call, GraphCall)}
    with suppress(OSError):
        return all(
            read_plain(file.parent / str(name), MOST_BYTES) == content
            for name, content in graphs.items()
        )
    return False


def _has_same_values(cases: list[Case]) -> bool:
    calls = [case.call for case in cases if isinstance(case.call, GivenCall)]
    if not calls:
        return True
    from conformance.case.given import unchanged  # imports NumPy

    return all(map(unchanged, calls))
