"""Computes its case, but the last element of output is 1000."""

import struct

import miniature


def wrong(expected, out):
    """The values are the last field of the file."""
    with open(expected, "rb") as source, open(out, "wb") as target:
        data = source.read()
        if dict(miniature.fields(expected))[8] == b"output":
            data = data[:-4] + struct.pack("<f", 1000)
        target.write(data)


def fault(request):
    miniature.ran(request, runs=miniature.outputs(request, copy=wrong))


miniature.serve(fault)
