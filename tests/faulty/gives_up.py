#!/usr/bin/env python3
"""Ends like a runtime that aborts inside a live process: prints the reason and kills itself."""

import os
import sys

import miniature


def fault(request):
    print("warming up", file=sys.stderr)
    print("Aborted(memory access out of bounds).", file=sys.stderr, flush=True)
    os.abort()


miniature.serve(fault)
