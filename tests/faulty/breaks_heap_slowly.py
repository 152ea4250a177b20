#!/usr/bin/env python3
"""As ``breaks_heap``, but each process that runs its faulty case first says so and waits a second.

It adds a character to the file that FAULT_MARK names.
"""

import os
import time

import miniature

broken = False
correct = miniature.ran


def ran(request, **more):
    if broken:
        os.abort()
    correct(request, **more)


def fault(request):
    global broken
    with open(os.environ["FAULT_MARK"], "ab") as mark:
        mark.write(b".")
    time.sleep(1)
    ran(request)
    broken = True


miniature.ran = ran
miniature.serve(fault)
