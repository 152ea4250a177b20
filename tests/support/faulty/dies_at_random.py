#!/usr/bin/env python3
"""Correct, but dies at random: where a random number of its own seed is below FAULT_SHARE.

FAULT_MARK names a file that counts the cases of all its processes, so that a run of one process at
a time is the same each time.
"""

import os
import sys

import miniature

correct = miniature.ran


def ran(request, **more):
    if miniature.chance().random() < float(os.environ.get("FAULT_SHARE", "0.05")):
        print("a cosmic ray", file=sys.stderr, flush=True)
        os.abort()
    correct(request, **more)


miniature.ran = ran
miniature.serve()
