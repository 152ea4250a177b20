#!/usr/bin/env python3
"""Answers with a time that is a string."""

import miniature


def fault(request):
    miniature.ran(request, load_ms="0.25")


miniature.serve(fault)
