"""Computes its case, but the last element of output, or of those in WRONG, is 1000."""

import os
import struct

import miniature

OUTPUTS = os.environ.get("WRONG", "output").split()


def wrong(expected, out):
    """The values are the last field of the file."""
    with open(expected, "rb") as source, open(out, "wb") as target:
        data = source.read()
        if dict(miniature.fields(expected))[8].decode() in OUTPUTS:
            data = data[:-4] + struct.pack("<f", 1000)
        target.write(data)


def fault(request):
    miniature.ran(request, runs=miniature.outputs(request, copy=wrong))


miniature.serve(fault)
