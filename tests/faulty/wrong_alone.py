#!/usr/bin/env python3
"""Its faulty case is wrong, in any company."""

import miniature


def inverted(expected, out):
    """The sign of the first number is wrong."""
    with open(expected, "rb") as source, open(out, "wb") as target:
        data = bytearray(source.read())
        fields = dict(miniature.fields(expected))
        data[data.index(fields[9]) + 3] ^= 128
        target.write(data)


def fault(request):
    miniature.ran(request, runs=miniature.outputs(request, copy=inverted))


miniature.serve(fault)
