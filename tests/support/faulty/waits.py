#!/usr/bin/env python3
"""Waits, then answers correctly.

For FAULT_SECONDS, by default 0.2. With FAULT_GATE, a file, until it has a byte for each answer.
"""

import os
import sys
import time

import miniature

parent = os.getppid()


def fault(request):
    if gate := os.environ.get("FAULT_GATE"):
        while os.path.getsize(gate) < miniature.asked.count("run"):
            time.sleep(0.01)
            if os.getppid() != parent:
                sys.exit()
    else:
        time.sleep(float(os.environ.get("FAULT_SECONDS", "0.2")))
    miniature.ran(request)


miniature.serve(fault)
