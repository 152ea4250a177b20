"""What a message of a runtime means: the page ``docs/messages.md``, and the recorded results that
have the message."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Final, NamedTuple

from pydantic_core import from_json

from conformance.base.paths import data_path
from conformance.results.messages import message_words
from conformance.results.packed import unpacking
from conformance.results.records import RECORD_LINE, ResultRecord

_SECTION: Final = re.compile(r"^## (.+?)\n(.+?)(?=^## |\Z)", re.M | re.S)
_BEGINNING: Final = re.compile(r"^- `(.+)`$", re.M)
_SAID: Final = re.compile(rb'"message":("(?:[^"\\]|\\.)*")')


class Meaning(NamedTuple):
    """A section of ``docs/messages.md``: its heading, the words of the messages that it is about,
    and the text on what they mean."""

    heading: str
    beginnings: Sequence[frozenset[str]]
    text: str


@cache
def meanings() -> Sequence[Meaning]:
    """The sections of the page."""
    made = []
    for heading, text in _SECTION.findall((data_path("docs") / "messages.md").read_text("utf-8")):
        words = [message_words(beginning).every for beginning in _BEGINNING.findall(text)]
        made.append(Meaning(heading, words, _BEGINNING.sub("", text).strip()))
    return made


def meanings_of(text: str) -> list[Meaning]:
    """The sections about a message."""
    every = message_words(text).every
    return [one for one in meanings() if any(words <= every for words in one.beginnings)]


def recorded_results(text: str) -> Iterator[ResultRecord]:
    """The results of all recorded releases that have a message. Only these are read as JSON.

    An installed package has no recorded results.
    """
    wanted = message_words(text)
    has = cache(lambda said: message_words(from_json(said)).is_like(wanted))
    for file in sorted((data_path("reports") / "recorded").glob("*/*.jsonl.xz")):
        with unpacking(file) as lines:
            for line in lines:
                said = _SAID.search(line)
                if said and has(said[1]):
                    record = RECORD_LINE.validate_json(line)
                    if isinstance(record, ResultRecord):
                        yield record
