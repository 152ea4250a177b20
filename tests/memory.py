"""What the system says of memory."""

import sys
from typing import Final

#: So many of what ``ru_maxrss`` counts are a KiB: it counts KiB, and on macOS bytes.
MAXRSS_PER_KIB: Final = 1024 if sys.platform == "darwin" else 1
