#!/usr/bin/env python3
"""Writes half an answer, then hangs, or exits with FAULT_STATUS if that is set."""

import os
import sys
import time

import miniature


def fault(request):
    sys.stdout.write('{"id": ')
    sys.stdout.flush()
    if "FAULT_STATUS" in os.environ:
        os._exit(int(os.environ["FAULT_STATUS"]))
    time.sleep(600)


miniature.serve(fault)
