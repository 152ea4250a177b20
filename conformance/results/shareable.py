"""Takes this machine's folders and name out of what a results file says: pages are made from it."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeVar

from pydantic import BaseModel

from conformance.base.paths import ROOT, cache_root

_R = TypeVar("_R", bound=BaseModel)


def without_folders() -> Callable[[str], str]:
    """Replaces, in plain text, the paths of this machine's own folders as they are now.

    Those in the current folder become relative to it; of others a word says where they begin, so
    that two names never become one. Paths of the system stay: they are the same everywhere.
    """
    words = dict(reversed([*_folders()]))
    inside = sorted(words, key=len, reverse=True)
    if not inside:
        return lambda text: text
    alternatives = "|".join(map(re.escape, inside))
    pattern = re.compile(rf"{_BEFORE}({alternatives})(/|(?![\w-]|\.\w))")

    def shorter(match: re.Match[str]) -> str:
        before, folder, slash = match.groups(default="")
        word = words[folder]
        if word == "." and slash:
            return before
        return before + word + (slash or ("/" if word in (".", "..") else ""))

    return lambda text: pattern.sub(shorter, text)


#: A code of a terminal (``ESC[0m``, ``ESC(B``), and an escaped character, as in a Python string.
_CODE: Final = r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[()][0-9A-Z])"
_ESCAPED: Final = r"\\(?:[abfnrtv0]|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4})"
#: What may be before a path, if that is not the beginning of the same path: those, and an option
#: (``-I``, ``-isystem``). Only they are part of the match.
_BEFORE: Final = (
    rf"(?:(?<![\w.-])|({_CODE}|{_ESCAPED}|(?:{_CODE}|{_ESCAPED}|(?<![\w./-]))--?[A-Za-z]+))"
)


def without_folders_in_json() -> Callable[[str], str]:
    """Does to the strings of a JSON text what `without_folders` does to plain text.

    The machine's name goes, too.
    """
    shorter = without_folders()
    spelled = {json.dumps(folder, ensure_ascii=False)[1:-1] for folder, _ in _folders()}

    def replaced(match: re.Match[str]) -> str:
        text = json.loads(match[0])
        short = shorter(text)
        return match[0] if short == text else json.dumps(short, ensure_ascii=False)

    def in_json(text: str) -> str:
        if "hostname=" in text:
            text = _HOST.sub("hostname=…", text)
        # Most records name no folder, and reading all their strings takes three times as long.
        return _STRING.sub(replaced, text) if any(each in text for each in spelled) else text

    return in_json


_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*"')
#: The machine's name, as ONNX Runtime logs it with each error of CUDA (``cuda_call.cc``).
_HOST: Final = re.compile(r'hostname=[^\s;"\\]+')


def shareable(record: _R) -> _R:
    """The record as `without_folders` has it."""
    return type(record).model_validate_json(without_folders_in_json()(record.model_dump_json()))


def _folders() -> Iterator[tuple[str, str]]:
    """Folders as records have them, and the words for them; the first word for a folder counts."""
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
                yield spelled.encode("utf-8", "backslashreplace").decode(), word


def shared_command(command: str) -> str:
    """A command line for others: of an absolute path, the last part alone."""
    if not _MAYBE_ABSOLUTE.search(command):
        return command
    try:
        words = shlex.split(command)
    except ValueError:  # not written by this suite
        return command
    short = [_ABSOLUTE.sub(r"\1…/", word) for word in words]
    return command if short == words else shlex.join(short)


_ABSOLUTE = re.compile(r"(^|[:=])/(?:[^/]*/)*(?=[^/])")
#: Finds them in the command line, and more: to split it takes a hundred times as long.
_MAYBE_ABSOLUTE = re.compile(r"(?:^|[^\w./\]-])/")
