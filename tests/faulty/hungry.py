#!/usr/bin/env python3
"""Allocates FAULT_BYTES of memory (64 GiB), and reports whether that succeeded."""

import os

import miniature


def fault(request):
    try:
        bytearray(int(os.environ.get("FAULT_BYTES", 64 << 30)))
    except MemoryError:
        message = "not enough memory"
    else:
        message = "there was enough memory"
    miniature.answer(request, outcome="rejected", stage="run", step=0, message=message)


miniature.serve(fault)
