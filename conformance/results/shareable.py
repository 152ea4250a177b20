"""Takes the folders of this machine out of what a results file says: pages are made from it."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from conformance.base.paths import ROOT, cache_root

_R = TypeVar("_R", bound=BaseModel)


def without_folders() -> Callable[[str], str]:
    """Replaces, in JSON, the paths of this machine's own folders as they are now.

    Those in the current folder become relative to it; of others a word says where they begin, so
    that two names never become one. Paths of the system stay: they are the same everywhere.
    """
    words = dict(reversed([*_folders()]))
    inside = sorted(words, key=len, reverse=True)
    if not inside:
        return lambda text: text
    alternatives = "|".join(map(re.escape, inside))
    pattern = re.compile(rf"(?<![\w.-])({alternatives})(/|(?![\w-]|\.\w))")

    def shorter(match: re.Match[str]) -> str:
        word = words[match[1]]
        if word == "." and match[2]:
            return ""
        return word + (match[2] or ("/" if word in (".", "..") else ""))

    return lambda text: pattern.sub(shorter, text)


def shareable(record: _R) -> _R:
    """The record as `without_folders` has it."""
    return type(record).model_validate_json(without_folders()(record.model_dump_json()))


def _folders() -> Iterator[tuple[str, str]]:
    """Folders as JSON has them, and the words for them; the first word for a folder counts."""
    try:
        here = Path.cwd()
    except OSError:  # it was removed
        here = ROOT
    for folder, word, fewest in (
        (here, ".", 2),
        (ROOT, "gqa-conformance", 2),
        (Path.home(), "~", 2),
        (here.parent, "..", 3),
        (cache_root(), "$GQA_CACHE", 3),
        (Path(sys.prefix), "$VIRTUAL_ENV", 3),
        (Path(tempfile.gettempdir()), "$TMPDIR", 3),
    ):
        for spelled in (str(folder), os.path.realpath(folder)):
            if len(Path(spelled).parts) >= fewest:
                text = spelled.encode("utf-8", "backslashreplace").decode()
                yield json.dumps(text, ensure_ascii=False)[1:-1], word


def shared_command(command: str) -> str:
    """A command line for others: of an absolute path, the last part alone."""
    try:
        words = shlex.split(command)
    except ValueError:  # not written by this suite
        return command
    short = [_ABSOLUTE.sub(r"\1…/", word) for word in words]
    return command if short == words else shlex.join(short)


_ABSOLUTE = re.compile(r"(^|[:=])/(?:[^/]*/)*(?=[^/])")
