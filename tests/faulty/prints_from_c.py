#!/usr/bin/env python3
"""Uses a library that prints to standard output from C code, past Python's own stream."""

import ctypes

import miniature


def fault(request):
    libc = ctypes.CDLL(None)
    libc.puts(b"kernel: using 4 threads")
    libc.fflush(None)
    miniature.ran(request)


miniature.serve(fault)
