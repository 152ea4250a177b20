#!/usr/bin/env python3
"""Reports that it is compiling, and answers FAULT_SECONDS (0) later."""

import os
import time

import miniature


def fault(request):
    miniature.answer(request, outcome="compiling")
    time.sleep(float(os.environ.get("FAULT_SECONDS", "0")))
    miniature.ran(request)


miniature.serve(fault)
