#!/usr/bin/env python3
"""Writes 100 MB to standard output, without a line end."""

import sys

import miniature


def fault(request):
    for _ in range(100):
        sys.stdout.write("x" * 1_000_000)


miniature.serve(fault)
