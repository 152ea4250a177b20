#!/usr/bin/env python3
"""Reports that the runtime's process has died, but only the first time; FAULT_MARK notes that."""

import os

import miniature


def fault(request):
    if os.path.exists(os.environ["FAULT_MARK"]):
        miniature.ran(request)
        return
    open(os.environ["FAULT_MARK"], "wb").close()
    miniature.answer(request, outcome="crashed", step=0, ended="SIGSEGV", message="")


miniature.serve(fault)
