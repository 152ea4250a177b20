#!/usr/bin/env python3
"""Reports that it is compiling, FAULT_TIMES times (1), and answers FAULT_SECONDS (0) later."""

import os
import time

import miniature


def fault(request):
    for number in range(int(os.environ.get("FAULT_TIMES", "1"))):
        time.sleep(0.2 if number else 0)  # so that the harness has read the previous one
        miniature.answer(request, outcome="compiling")
    time.sleep(float(os.environ.get("FAULT_SECONDS", "0")))
    miniature.ran(request)


miniature.serve(fault)
