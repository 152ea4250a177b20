"""The values of the options of ``gqa check``."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Final

import click
import numpy as np

from conformance.base.array_types import Array
from conformance.base.files import read_plain
from conformance.base.paths import shown
from conformance.cli.common import BadArgument
from conformance.model.calls.feeds import MEANINGS

#: A number as people write it: ``600``, ``4_096``, ``4k`` for 4096.
_NUMBER: Final = re.compile(r"\s*([0-9][0-9_]{0,12})(k?)\s*", re.IGNORECASE | re.ASCII)
#: The most numbers of an option.
_MOST_NUMBERS: Final = 200


class NumberList(click.ParamType[tuple[int, ...]]):
    """Numbers, and ranges of them, with commas between them: ``1,17,4k`` or ``0-3,7``."""

    name = "N,…"

    def __init__(self, least: int, most: int) -> None:
        self.least, self.most = least, most

    def convert(self, value: object, param: object, ctx: object) -> tuple[int, ...]:
        """The numbers in the order of the argument, each once."""
        if isinstance(value, tuple):
            return value
        numbers: dict[int, None] = {}
        for part in str(value).split(","):
            first, dash, last = part.strip().partition("-")
            found = [_NUMBER.fullmatch(end) for end in (first, last if dash else first)]
            ends = [int(end[1]) << 10 * bool(end[2]) for end in found if end]
            if len(ends) != 2 or not self.least <= ends[0] <= ends[1] <= self.most:
                limits = f"from {self.least:,} to {self.most:,}"
                self.fail(f"'{value}' is not a list of numbers {limits}, as in 1,2")
            if ends[1] - ends[0] >= _MOST_NUMBERS - len(numbers):
                self.fail(f"'{value}' has more than {_MOST_NUMBERS} numbers")
            numbers |= dict.fromkeys(range(ends[0], ends[1] + 1))
        return tuple(numbers)


class NameList(click.ParamType[tuple[str, ...]]):
    """Some of these names, with commas between them."""

    name = "NAME,…"

    def __init__(self, names: Collection[str]) -> None:
        self.names = names

    def convert(self, value: object, param: object, ctx: object) -> tuple[str, ...]:
        """The names in the order of the argument, each once."""
        if isinstance(value, tuple):
            return value
        given = [each.strip() for each in str(value).split(",")]
        for each in given:
            if each not in self.names:
                self.fail(f"'{each}' is none of {', '.join(self.names)}")
        return tuple(dict.fromkeys(given))


class TokenIds(click.ParamType[tuple[int, ...]]):
    """A file with token ids: numbers with spaces or commas between them, or a list in JSON."""

    name = "FILE"

    def convert(self, value: object, param: object, ctx: object) -> tuple[int, ...]:
        """The token ids."""
        if isinstance(value, tuple):
            return value
        file = Path(str(value))
        try:
            text = read_plain(file, _MOST_BYTES).decode()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not text"
            raise BadArgument(f"{shown(file)}: cannot be read: {reason}.") from None
        words = re.sub(r"[\[\],]", " ", text).split()
        wrong = [word for word in words if not re.fullmatch(r"[0-9]{1,9}", word)]
        if wrong or not words:
            what = f"{wrong[0][:40]!r} is no token id" if words else "there is no token id"
            raise BadArgument(
                f"{shown(file)}: {what}; write the numbers of tokens, as in 2, 17, 4."
            )
        return tuple(map(int, words))


#: The largest file with token ids.
_MOST_BYTES: Final = 1 << 20


def meaning_of(given: str) -> tuple[str, str | Array]:
    """The input's name and its meaning of an argument ``NAME=zeros``, or its values in a file.

    Raises `BadArgument`.
    """
    name, equals, word = given.partition("=")
    if not equals or not name:
        raise BadArgument(f"--input: '{given}' is not NAME=MEANING, as in past_len=past_length.")
    if word in MEANINGS:
        return name, MEANINGS[word]
    file = Path(word)
    if file.suffix != ".npy":
        raise BadArgument(f"--input: '{word}' is none of {', '.join(MEANINGS)}, and no .npy file.")
    try:
        with file.open("rb") as stream:
            values: Array = np.load(stream, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise BadArgument(f"--input: {shown(file)} cannot be read: {error}.") from None
    return name, values
