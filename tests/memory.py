"""What the system says of memory."""

import re
import resource
import sys
from pathlib import Path
from typing import Final

#: So many of what ``ru_maxrss`` counts are a KiB: it counts KiB, and on macOS bytes.
MAXRSS_PER_KIB: Final = 1024 if sys.platform == "darwin" else 1


def peak_kib() -> int:
    """The most memory that this process has had, in KiB.

    Not ``ru_maxrss`` on Linux: a process inherits that from the one that started it.
    """
    if sys.platform == "linux":
        found = re.search(r"^VmHWM:\s*(\d+) kB$", Path("/proc/self/status").read_text(), re.M)
        assert found is not None
        return int(found[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // MAXRSS_PER_KIB
