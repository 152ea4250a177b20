"""The messages of runtimes, in one line."""

from __future__ import annotations

import re
from typing import Final

from conformance.base.text import clean

_MOST_MESSAGE: Final = 200
#: Prefixes that runtimes write before the reason of an error.
_PREFIX: Final = re.compile(
    r"^(?:\[ONNXRuntimeError\] : \d+ : \w+ : |Can't create a session\. ERROR_CODE: \d+, "
    r"|failed to call OrtRun\(\)\. ERROR_CODE: \d+, |ERROR_MESSAGE: "
    r"|Non-zero status code returned while running .*?Status Message: )+"
)
#: A location in a runtime's source, with its function.
_SOURCE: Final = re.compile(r"\S*\.(?:cc|h|cpp|rs|cu):\d+ .*?\) (?=\S)")
#: A cause in the chain that tract writes, each the cause of the one before.
_CAUSE: Final = re.compile(r"^\s+(?:\d+: )?(?=\S)")


def short(message: str) -> str:
    """The message of a runtime on one line, without the runtime's own prefixes.

    Only the beginning and the end of a long message are kept.
    """
    lines = [line for line in clean(message, 4_000).splitlines() if line.strip()]
    chain = "Caused by" in message and _CAUSE.match(lines[-1])
    last = lines[-1] if chain else " ".join(map(str.strip, lines))
    text = _SOURCE.sub("", _PREFIX.sub("", _CAUSE.sub("", last))).strip()
    half = _MOST_MESSAGE // 2
    return text if len(text) <= _MOST_MESSAGE else f"{text[: half - 1]} … {text[2 - half :]}"
