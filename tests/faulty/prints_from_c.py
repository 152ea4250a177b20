#!/usr/bin/env python3
"""Has a library that prints to standard output behind Python's back, as C code does."""

import ctypes

import miniature


def fault(request):
    libc = ctypes.CDLL(None)
    libc.puts(b"kernel: using 4 threads")
    libc.fflush(None)
    miniature.ran(request)


miniature.serve(fault)
