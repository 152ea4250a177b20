"""Faults of the process: crashes, hangs, and a node placed on another execution provider."""

import os
import signal
import time

from kernel import Kernel
from registry import mutant


@mutant(Kernel.check_presents, kind="behaviour")
def crashes_where_borrowed_presents_are_omitted(kernel, call):
    """A borrowed cache without present outputs is written to through a null pointer."""
    if call.borrowed and call.has("key") and "present_key" not in call.outputs:
        os.kill(os.getpid(), signal.SIGSEGV)
    Kernel.check_presents(kernel, call)


@mutant(Kernel.check_seqlens, kind="behaviour")
def aborts_on_lengths_out_of_range(kernel, call):
    """A length out of range fails an assertion, which ends the process."""
    if (call.lengths < 1).any() or (call.lengths > call.total).any():
        os.abort()


@mutant(Kernel.check_extras, kind="behaviour")
def hangs_on_a_full_cache(kernel, call):
    """A token for the last row of a static cache makes the process hang."""
    if call.past and call.total == call.past and not call.borrowed and not call.sliding:
        time.sleep(3600)


@mutant(Kernel.check_extras, kind="behaviour")
def falls_back_for_softcap(kernel, call):
    """Calls with softcap silently run on another execution provider."""
    if call.get("softcap", 0.0):
        kernel.memory["placement"] = "CPUExecutionProvider"
