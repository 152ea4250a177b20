#!/usr/bin/env python3
"""Correct, but after its faulty case the process dies in the next one, as of a broken heap."""

import os
import sys

import miniature

broken = False
correct = miniature.ran


def ran(request, **more):
    if broken:
        print("corrupted size vs. prev_size", file=sys.stderr, flush=True)
        os.abort()
    correct(request, **more)


def fault(request):
    global broken
    ran(request)
    broken = True


miniature.ran = ran
miniature.serve(fault)
