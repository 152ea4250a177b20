#!/usr/bin/env python3
"""Aborts, but only if this process has run another case before, which did the damage."""

import os
import sys

import miniature


def fault(request):
    if miniature.asked.count("run") > 1:
        print("heap is broken.", file=sys.stderr, flush=True)
        os.abort()
    miniature.ran(request)


miniature.serve(fault)
