#!/usr/bin/env python3
"""Dies of a segmentation fault, after a last line on standard error."""

import os
import signal
import sys

import miniature


def fault(request):
    print("reading past the end", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)


miniature.serve(fault)
