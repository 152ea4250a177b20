#!/usr/bin/env python3
"""Writes all outputs as one int64: neither the expected dtype nor the expected shape."""

import miniature

ONE_INT64 = bytes([1 << 3, 1, 2 << 3, 7, 9 << 3 | 2, 8, 42, 0, 0, 0, 0, 0, 0, 0])


def write(expected, out):
    name = dict(miniature.fields(expected))[8]
    with open(out, "wb") as file:
        file.write(ONE_INT64 + bytes([8 << 3 | 2, len(name)]) + name)


def fault(request):
    miniature.ran(request, runs=miniature.outputs(request, copy=write))


miniature.serve(fault)
