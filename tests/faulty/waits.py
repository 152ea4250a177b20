#!/usr/bin/env python3
"""Waits, then answers correctly: FAULT_SECONDS, by default 0.2."""

import os
import time

import miniature


def fault(request):
    time.sleep(float(os.environ.get("FAULT_SECONDS", "0.2")))
    miniature.ran(request)


miniature.serve(fault)
