#!/usr/bin/env python3
"""Its last output value is wrong in the last bit, which every error budget allows."""

import miniature


def nudged(expected, out):
    with open(expected, "rb") as source, open(out, "wb") as target:
        data = bytearray(source.read())
        fields = dict(miniature.fields(expected))
        if fields[8] == b"output":
            at = data.index(fields[9]) + len(fields[9]) - 4  # the lowest byte of the last float32
            data[at] ^= 1
        target.write(data)


def fault(request):
    miniature.ran(request, runs=miniature.outputs(request, copy=nudged))


miniature.serve(fault)
