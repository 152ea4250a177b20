#!/usr/bin/env python3
"""Exits during a case, without an answer, with the status in FAULT_STATUS (0)."""

import os
import sys

import miniature


def fault(request):
    print("bye", file=sys.stderr, flush=True)
    os._exit(int(os.environ.get("FAULT_STATUS", "0")))


miniature.serve(fault)
