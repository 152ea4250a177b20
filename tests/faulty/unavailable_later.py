#!/usr/bin/env python3
"""Dies, and is unavailable when it is started again: FAULT_MARK is a file that remembers."""

import os

import miniature

MARK = os.environ["FAULT_MARK"]


def describe(request):
    if os.path.exists(MARK):
        miniature.answer(request, outcome="unavailable", reason="the device is lost")
    else:
        miniature.describe_itself(request)


def fault(request):
    with open(MARK, "w"):
        os.abort()


miniature.serve(fault, describe)
