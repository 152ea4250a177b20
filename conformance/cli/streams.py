"""The standard streams of a command: always open, and without control characters.

Everything that a command prints can quote its input: names in YAML files, paths, arguments,
messages of runtimes. Therefore `printable` escapes every text that is written to `sys.stdout` or
`sys.stderr`. The consoles of rich write to the terminal directly, because their own escape
sequences must remain, and escape only the text (`conformance.cli.console`).
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from typing import Any, TextIO

from conformance.base.text import printable


class PrintableStream:
    """A text stream that writes to ``terminal``, with control characters escaped.

    Everything else, such as its encoding, is the terminal's.
    """

    def __init__(self, terminal: TextIO) -> None:
        self.terminal = terminal
        self.buffer = _Bytes(self)

    def write(self, text: str, /) -> int:
        """Write ``text``; the number of its characters."""
        self.terminal.write(printable(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.terminal, name)


class _Bytes(io.RawIOBase):
    """The stream to which click writes bytes, and texts where the encoding is ASCII."""

    def __init__(self, stream: PrintableStream) -> None:
        self._stream = stream

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        self._stream.write(bytes(data).decode(errors="replace"))
        return len(data)


@contextmanager
def safe_streams() -> Iterator[None]:
    """Within the block, `sys.stdout` and `sys.stderr` are `PrintableStream`.

    A stream that the caller of the command has closed is the null device, so that a file that is
    opened later does not get its number.
    """
    with ExitStack() as stack:
        for descriptor in range(3):
            try:
                os.fstat(descriptor)
            except OSError:
                null = os.open(os.devnull, os.O_RDWR)  # the lowest free number
                os.set_inheritable(null, True)
        for stream, redirect in ((sys.stdout, redirect_stdout), (sys.stderr, redirect_stderr)):
            terminal: TextIO = stream or stack.enter_context(open(os.devnull, "w"))
            if isinstance(terminal, io.TextIOWrapper):
                terminal.reconfigure(errors="replace")  # a terminal without ✓ shows a question mark
            stack.enter_context(redirect(PrintableStream(terminal)))
        yield


def flush_or_discard() -> None:
    """Flush the standard streams; discard their text where that fails or takes long.

    Otherwise the interpreter would flush them as it exits, and print an error if it cannot.
    """
    # The last ones as well: click has put a stream before them that hides a closed pipe.
    streams = (sys.stdout, 1), (sys.stderr, 2), (sys.__stdout__, 1), (sys.__stderr__, 2)
    for stream, descriptor in streams:
        if stream is None:
            continue
        try:
            stream.flush()
        except (OSError, ValueError, KeyboardInterrupt):
            with suppress(OSError, ValueError):
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, descriptor)
                os.close(null)
                stream.flush()
