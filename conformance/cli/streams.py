"""The standard streams of a command: always there, and without control characters.

Everything that a command prints can quote its input: names in YAML files, paths, arguments,
messages of runtimes. So what is written to `sys.stdout` and `sys.stderr` passes through
`printable`. The consoles of rich write to the terminal directly, since their own escape sequences
must remain, and escape the text in between (`conformance.cli.console`).
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from typing import Any, TextIO

from conformance.base.text import printable


class PrintableStream(io.TextIOBase):
    """Writes to ``terminal``, a text stream, what `printable` makes of a text."""

    def __init__(self, terminal: TextIO) -> None:
        self.terminal = terminal
        self.buffer = _Bytes(self)

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """That of the stream."""
        return self.terminal.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        """Those of the stream."""
        return self.terminal.errors

    def write(self, text: str, /) -> int:
        """Write ``text``."""
        self.terminal.write(printable(text))
        return len(text)

    def writable(self) -> bool:
        """It is."""
        return True

    def flush(self) -> None:
        """Flush the stream."""
        self.terminal.flush()

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return self.terminal.isatty()

    def fileno(self) -> int:
        """The stream's descriptor."""
        return self.terminal.fileno()


class _Bytes(io.RawIOBase):
    """What click writes to instead, for bytes and where the encoding is ASCII."""

    def __init__(self, stream: PrintableStream) -> None:
        self._stream = stream

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        self._stream.write(bytes(data).decode(errors="replace"))
        return len(data)

    def flush(self) -> None:
        if not self._stream.closed:
            self._stream.flush()


@contextmanager
def safe_streams() -> Iterator[None]:
    """Within the block, `sys.stdout` and `sys.stderr` are `PrintableStream`.

    Streams that the command's caller has closed are the null device, so that no file that is opened
    later takes their place.
    """
    with ExitStack() as stack:
        _open_closed_descriptors()
        for stream, redirect in ((sys.stdout, redirect_stdout), (sys.stderr, redirect_stderr)):
            there: TextIO = stream or stack.enter_context(open(os.devnull, "w"))
            if isinstance(there, io.TextIOWrapper):
                there.reconfigure(errors="replace")  # a terminal without ✓ shows a question mark
            stack.enter_context(redirect(PrintableStream(there)))
        yield


def _open_closed_descriptors() -> None:
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)  # the lowest free number
            os.set_inheritable(null, True)


def flush_or_discard() -> None:
    """Write what the standard streams still hold, or discard it where that fails or takes long.

    Otherwise the interpreter would try it as it exits, and print an error of its own.
    """
    for stream, descriptor in ((sys.stdout, 1), (sys.stderr, 2)):
        try:
            stream.flush()
        except (OSError, ValueError, KeyboardInterrupt):
            with suppress(OSError, ValueError):
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, descriptor)
                os.close(null)
                stream.flush()
