"""Which attention kernels ran, as ONNX Runtime's CUDA provider reports it.

With the environment variable `SWITCH` the provider writes a line to C++'s standard output for each
call of an attention operator, in cyan::

    Operator=GroupQueryAttention Node=gqa DataType=fp16 SdpaKernel=FLASH_ATTENTION

Standard library only.
"""

from __future__ import annotations

import os
import re
import sys

#: Set to 1, it makes the provider report. It is read when a session is created.
SWITCH = "ORT_ENABLE_ATTENTION_KERNEL_DEBUG_INFO"

#: The most bytes that are read of the text written during a case: each call writes a line of some
#: 100 bytes.
MOST_BYTES = 1 << 24

#: The kernels whose names are not ONNX Runtime's in lower case without `_ATTENTION`.
NAMES = {"CUDNN_FLASH_ATTENTION": "cudnn"}

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_REPORT = re.compile(r"Operator=(\w+) .*?\bSdpaKernel=([A-Z]\w*)", re.ASCII)
#: Said once for each session: the settings, which say nothing about what ran.
_SETTINGS = ("AttentionKernelOptions: ", "Warning: Unfused kernel cannot be disabled right now.")


def wanted() -> bool:
    """Whether this process asks the provider for reports."""
    return os.environ.get(SWITCH) == "1"


def name_of(reported: str) -> str:
    """The kernel's name in answers: ``flash`` for FLASH_ATTENTION, ``xqa`` for XQA."""
    return NAMES.get(reported) or reported.lower().removesuffix("_attention")


class KernelReport:
    """Reads the text written to descriptor 1, which must not be the stream of the answers.

    From its creation on, descriptor 1 is a file of this process. Text that is not a report of a
    kernel is passed on to standard error. Raises OSError if no such file can be made.
    """

    def __init__(self, operator: str = "GroupQueryAttention") -> None:
        import tempfile  # slow, and of no use to targets without reports

        self.operator = operator
        file = tempfile.TemporaryFile()  # noqa: SIM115  it is open as long as the process
        self.written = os.dup(file.fileno())
        file.close()
        sys.stdout.flush()
        os.dup2(self.written, 1)

    def start(self) -> None:
        """Begin a case: reports written before belong to no case."""
        self.kernels()

    def kernels(self) -> list[str] | None:
        """The different kernels reported since `start`, in order; None if none was reported."""
        found: dict[str, None] = {}
        for line in self._lines():
            plain = _COLOUR.sub("", line)
            report = _REPORT.search(plain)
            if report is not None:
                if report[1] == self.operator:
                    found[name_of(report[2])] = None
            elif plain.strip() and not plain.startswith(_SETTINGS):
                print(line, file=sys.stderr, flush=True)
        return list(found) or None

    def _lines(self) -> list[str]:
        """The lines in the file, which is then emptied."""
        size = os.fstat(self.written).st_size
        text = os.pread(self.written, min(size, MOST_BYTES), 0) if size else b""
        if size > MOST_BYTES:
            text += b"\n[what followed on standard output is left out]"
        os.ftruncate(self.written, 0)
        os.lseek(self.written, 0, os.SEEK_SET)  # descriptor 1 has the same position
        return text.decode(errors="backslashreplace").splitlines()
