#!/usr/bin/env python3
"""Correct, but after its faulty case all other results of the process are wrong."""

import miniature

spoilt = False
correct = miniature.ran


def inverted(expected, out):
    """The sign of the first number is wrong."""
    with open(expected, "rb") as source, open(out, "wb") as target:
        data = bytearray(source.read())
        fields = dict(miniature.fields(expected))
        data[data.index(fields[9]) + 3] ^= 128
        target.write(data)


def ran(request, **more):
    correct(request, runs=miniature.outputs(request, copy=inverted) if spoilt else None)


def fault(request):
    global spoilt
    ran(request)
    spoilt = True


miniature.ran = ran
miniature.serve(fault)
