"""Whether the memory of a target's runner grows from call to call, as it does where one leaks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import fmean
from typing import Final

#: A run is cut into this many parts of equal length, and the memory must grow in each of them: a
#: cache that fills up levels off.
PARTS: Final = 4
#: The fewest calls of a part, and the growth that each part must have.
FEWEST: Final = 5
LEAST_MB: Final = 8.0


def growth_texts(megabytes: Iterable[tuple[str, float]]) -> dict[str, str]:
    """A sentence on each target whose memory grows steadily and much.

    ``megabytes`` has the target and the growth of each case, in the order of the run.
    """
    texts, grown = dict[str, str](), dict[str, list[float]]()
    for target, growth in megabytes:
        grown.setdefault(target, []).append(growth if math.isfinite(growth) else 0.0)
    for target, each in grown.items():
        size = max(1, len(each) // PARTS)
        rates = [sum(each[part * size :][:size]) / size for part in range(PARTS)]
        if len(each) >= PARTS * FEWEST and min(rates) >= LEAST_MB:
            rate = f"{fmean(rates[1:]):.0f} MB a call, over {len(each):,} calls."
            texts[target] = f"the memory of its runner grows by {rate}"
    return texts
