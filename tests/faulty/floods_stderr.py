#!/usr/bin/env python3
"""Writes 100 MB to standard error, and answers correctly."""

import sys

import miniature


def fault(request):
    for _ in range(100):
        sys.stderr.write("x" * 1_000_000)
    print("\nthe end", file=sys.stderr, flush=True)
    miniature.ran(request)


miniature.serve(fault)
