#!/usr/bin/env python3
"""Exits, but only if this process has run another case before, which did the damage."""

import sys

import miniature


def fault(request):
    if miniature.asked.count("run") > 1:
        sys.exit("no more handles")
    miniature.ran(request)


miniature.serve(fault)
