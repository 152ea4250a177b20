"""Reads the logs of NVIDIA's compute-sanitizer: its reports, and whether it checked at all.

A log consists of lines that begin with ``=========``. A report is a line that says what happened,
then indented lines with the place in the kernel, the thread and the address, and then the frames of
the caller. The form of the place differs between releases, so it is passed on unchanged. The last
line counts the reports::

    ========= COMPUTE-SANITIZER
    ========= Invalid __global__ read of size 2 bytes
    =========     at flash_fwd_kernel(Params)+0x1f0 in flash_fwd.cu:53
    =========     by thread (64,0,0) in block (2,0,0)
    =========     Address 0x7f1c0a0006f4 is out of bounds
    =========     and is 5 bytes after the nearest allocation at 0x7f1c0a000400 of size 752 bytes
    =========     Saved host backtrace up to driver entry point at kernel launch time
    =========         Host Frame: [0x2efadf] in libcuda.so.1
    =========
    ========= ERROR SUMMARY: 1 error

Standard library only.
"""

from __future__ import annotations

import re
from typing import NamedTuple

#: Characters of a report in one line: the name of a kernel from a template can be very long.
LONGEST_REPORT = 2000

_LINE = re.compile(r"^={8,} ?(.*)$", re.MULTILINE)
_SUMMARY = re.compile(r"ERROR SUMMARY: ([\d,]+) errors?")
#: The tool itself has failed, and may have missed errors.
_TROUBLE = re.compile(
    r"Internal Sanitizer \w+|Error: (?!process didn't)|Unable to |Target application terminated"
)
#: Errors that the tool counts but that no kernel caused: errors of CUDA that the runtime reports
#: itself, and copies by the host, such as the runner's copies of outputs that a kernel has not
#: filled.
_OF_HOST = re.compile(r"Program hit |Host API uninitialized")
#: The other lines of the tool that are not a report.
_NO_REPORT = re.compile(
    r"COMPUTE-SANITIZER|Target application|Tracking kernels|LEAK SUMMARY|ERROR SUMMARY|Warning: "
    r"|Wait for |Error: process didn't"
)
#: Where the description of an access ends and that of its callers begins.
_CALLERS = re.compile(r"\s*(Saved host backtrace|Host Frame|Device Frame)")


class Log(NamedTuple):
    """``reports``: each in one line, in their order; ``total``: their number.

    ``complete``: the tool has checked until the end of the program. ``trouble`` is its message
    about itself.
    """

    reports: list[str]
    total: int
    complete: bool
    trouble: str | None


def read_log(text: str) -> Log:
    """The content of a log."""
    lines = [match[1] for match in _LINE.finditer(text)]
    trouble = next((line.strip() for line in lines if _TROUBLE.match(line)), None)
    summary = _SUMMARY.search(text)
    reports = []
    for at, line in enumerate(lines):
        begins = line.strip() and not line[:1].isspace()
        if not begins or any(p.match(line) for p in (_NO_REPORT, _OF_HOST, _TROUBLE)):
            continue
        if details := _details(lines[at + 1 :]):
            reports.append(" ".join([line.strip(), *details])[:LONGEST_REPORT])
    counted = int(summary[1].replace(",", "")) if summary else 0
    counted -= sum(_OF_HOST.match(line) is not None for line in lines)
    total = max(counted, len(reports)) if reports else 0
    return Log(reports, total, summary is not None, trouble)


def _details(lines: list[str]) -> list[str]:
    """The indented lines after a report's first one, to its callers."""
    found = []
    for line in lines:
        if not line[:1].isspace() or not line.strip() or _CALLERS.match(line):
            break
        found.append(line.strip())
    return found
