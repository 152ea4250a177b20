#!/usr/bin/env python3
"""Runs the case once, whatever the request says."""

import miniature


def fault(request):
    miniature.ran(request, runs=miniature.outputs({**request, "repeat": 1}))


miniature.serve(fault)
