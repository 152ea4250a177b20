#!/usr/bin/env python3
"""Writes 100 kB to standard error, and rejects."""

import sys

import miniature


def fault(request):
    print("x" * 100_000, file=sys.stderr, flush=True)
    miniature.answer(request, outcome="rejected", stage="run", message="No.")


miniature.serve(fault)
