#!/usr/bin/env python3
"""Writes output files that end too early."""

import miniature


def half(expected, out):
    with open(expected, "rb") as source, open(out, "wb") as target:
        data = source.read()
        target.write(data[: len(data) // 2])


def fault(request):
    miniature.ran(request, runs=miniature.outputs(request, copy=half))


miniature.serve(fault)
