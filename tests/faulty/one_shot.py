#!/usr/bin/env python3
"""Answers one case and exits with status 0, as if the input had ended."""

import sys

import miniature


def fault(request):
    miniature.ran(request)
    sys.exit(0)


miniature.serve(fault)
