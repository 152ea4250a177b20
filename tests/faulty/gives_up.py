#!/usr/bin/env python3
"""Ends as a runtime that aborts without a process of its own: says why, and kills itself."""

import os
import sys

import miniature


def fault(request):
    print("warming up", file=sys.stderr)
    print("Aborted(memory access out of bounds).", file=sys.stderr, flush=True)
    os.abort()


miniature.serve(fault)
