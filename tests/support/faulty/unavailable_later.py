#!/usr/bin/env python3
"""Dies, and is unavailable when started again: the file FAULT_MARK remembers the first start."""

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
