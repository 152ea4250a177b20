"""What the system says of memory."""

import re
import resource
import sys
from pathlib import Path


def peak_kib() -> int:
    """The most memory that this process has had, in KiB.

    Not ``ru_maxrss`` on Linux: a process inherits that from the one that started it.
    """
    if sys.platform == "linux":
        found = re.search(r"^VmHWM:\s*(\d+) kB$", Path("/proc/self/status").read_text(), re.M)
        return int(found[1])
    counted = 1024 if sys.platform == "darwin" else 1  # bytes, or KiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // counted
