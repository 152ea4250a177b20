#!/usr/bin/env python3
"""Writes 100 MB of log lines to standard output."""

import miniature


def fault(request):
    for number in range(2_000_000):
        print(f"step {number}: everything is going very well indeed")


miniature.serve(fault)
