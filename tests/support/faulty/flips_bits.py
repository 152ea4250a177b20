#!/usr/bin/env python3
"""Correct, but flips a bit at random: in one of the repeats, or in all of them alike.

FAULT_SHARE and FAULT_MARK are as those of ``dies_at_random``.
"""

import os

import miniature

correct = miniature.ran


def ran(request, **more):
    chance = miniature.chance()
    flips = chance.random() < float(os.environ.get("FAULT_SHARE", "0.05"))
    only = chance.choice(["0_", ""])

    def copy(expected, out):
        hit = flips and os.path.basename(out).startswith(only)
        miniature.flipped(expected, out, 64 if hit else 0)

    correct(request, runs=miniature.outputs(request, copy=copy))


miniature.ran = ran
miniature.serve()
