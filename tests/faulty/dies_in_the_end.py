#!/usr/bin/env python3
"""Answers its faulty case, and dies as soon as it is sent the next one, which it does not read."""

import os
import select
import signal
import sys

import miniature


def fault(request):
    miniature.ran(request)
    select.select([sys.stdin], [], [], 5)
    os.kill(os.getpid(), signal.SIGSEGV)


miniature.serve(fault)
