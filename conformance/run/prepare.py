"""Makes the bundles of cases and measures their effects side by side, before the run needs them.

The oracle of a long call takes seconds, and one process makes one bundle at a time.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from typing import Final

from conformance.base import interrupts
from conformance.bundle.sensitive_cases import why_insensitive
from conformance.case.case import Case
from conformance.run.assessment import jobs_for
from conformance.run.times import scores

#: So few cases are made as fast by the run itself.
_FEW: Final = 4


def prepare(cases: Sequence[Case]) -> None:
    """Make those bundles that are missing, on all cores. What fails here is left to the run.

    Call it before the first runner starts: from then on a process trusts only the bundles that
    were there, and its own (:func:`conformance.bundle.cache.guard`).
    """
    processes = min(os.cpu_count() or 1, len(cases))
    if len(cases) <= _FEW or processes < 2 or sys.platform != "linux":
        return
    if len(os.listdir("/proc/self/task")) > 1:  # a child could wait for another thread's lock
        return
    context = multiprocessing.get_context("fork")  # a new interpreter would take half a second
    longest_first = sorted(cases, key=scores, reverse=True)
    with ProcessPoolExecutor(processes, context, initializer=interrupts.ignore) as pool:
        try:
            for _ in pool.map(_make, longest_first):
                pass
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _make(case: Case) -> None:
    with suppress(Exception):  # the run meets it again, and tells it
        for _ in jobs_for(case):
            pass
        why_insensitive(case)  # the cache has it then
