"""Removes this machine's name and the paths of its folders from results, which may be published."""

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
    """A function that shortens paths in plain text: those in this user's folders.

    Paths in the current folder become relative to it. In others, a word replaces the folder (``~``,
    ``$GQA_CACHE``), so that two paths never become the same. Paths of the system stay, because they
    are the same everywhere.
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


#: A control code of a terminal (``ESC[0m``, ``ESC(B``), and an escape sequence of a Python string.
_CODE: Final = r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[()][0-9A-Z])"
_ESCAPED: Final = r"\\(?:[abfnrtv0]|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4})"
#: What may stand directly before a path: one of these or an option (``-I``, ``-isystem``), which is
#: then in the match, or any character that cannot be part of a path.
_BEFORE: Final = (
    rf"(?:(?<![\w.-])|({_CODE}|{_ESCAPED}|(?:{_CODE}|{_ESCAPED}|(?<![\w./-]))--?[A-Za-z]+))"
)


def without_folders_in_json() -> Callable[[str], str]:
    """A function that applies `without_folders` to the strings of a JSON text.

    It also removes the machine's name.
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
    """The record after `without_folders_in_json`."""
    return type(record).model_validate_json(without_folders_in_json()(record.model_dump_json()))


def _folders() -> Iterator[tuple[str, str]]:
    """Pairs of a folder, spelled as in records, and its word; the first word of a folder counts."""
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
    """A command line in which absolute paths are reduced to their last part."""
    if not _MAYBE_ABSOLUTE.search(command):
        return command
    try:
        words = shlex.split(command)
    except ValueError:  # not written by this suite
        return command
    short = [_ABSOLUTE.sub(r"\1…/", word) for word in words]
    return command if short == words else shlex.join(short)


_ABSOLUTE = re.compile(r"(^|[:=])/(?:[^/]*/)*(?=[^/])")
#: Finds all absolute paths, and some other text, a hundred times faster than splitting the command.
_MAYBE_ABSOLUTE = re.compile(r"(?:^|[^\w./\]-])/")
