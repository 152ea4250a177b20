#!/usr/bin/env python3
"""Correct, but flips a bit at random: in one of the repeats, or in all of them alike.

FAULT_SHARE and FAULT_MARK are as those of ``dies_at_random``.
"""

import os
import random

import miniature

correct = miniature.ran


def number():
    """How many cases were run before, in any process."""
    with open(os.environ["FAULT_MARK"], "ab") as mark:
        mark.write(b".")
        return mark.tell()


def ran(request, **more):
    chance = random.Random(1109 + number())
    flips = chance.random() < float(os.environ.get("FAULT_SHARE", "0.05"))
    only = chance.choice(["0_", ""])

    def flipped(expected, out):
        with open(expected, "rb") as source, open(out, "wb") as target:
            data = bytearray(source.read())
            if flips and os.path.basename(out).startswith(only):
                fields = dict(miniature.fields(expected))
                data[data.index(fields[9]) + 3] ^= 64  # in the exponent of the first number
            target.write(data)

    correct(request, runs=miniature.outputs(request, copy=flipped))


miniature.ran = ran
miniature.serve()
