#!/usr/bin/env python3
"""Does not answer its faulty case, but only if this process has run another one before."""

import time

import miniature


def fault(request):
    if miniature.asked.count("run") > 1:
        time.sleep(60)
    miniature.ran(request)


miniature.serve(fault)
