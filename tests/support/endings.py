"""What every command owes its user, whatever it was given: an exit status and plain sentences."""

from __future__ import annotations

import signal
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from as_user import Done

#: The exit statuses that ``gqa run --help`` documents, and 130 for an interrupted command.
STATUSES: Final = frozenset({0, 1, 2, 3, 130})


def check_ending(done: Done) -> None:
    """Fails for a traceback, a character that terminals obey, and an undocumented status."""
    assert "Traceback (most recent call last)" not in done.both, done.both[-3000:]
    assert done.status in STATUSES, (done.status, done.both[-3000:])
    assert obeyed(done.both) == set(), ascii(done.both[-3000:])


def obeyed(text: str) -> set[str]:
    """The characters that a terminal obeys or hides, beside those of lines."""
    unseen = ("Cc", "Cf", "Cs", "Zl", "Zp")
    return {one for one in set(text) if unicodedata.category(one) in unseen} - {"\n", "\t"}


@contextmanager
def no_hang(what: object, seconds: int = 20) -> Iterator[None]:
    """Fails where its body takes so many ``seconds``."""

    def late(*_: object) -> None:
        raise AssertionError(f"{what} takes more than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
