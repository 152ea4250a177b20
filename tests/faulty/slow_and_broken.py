#!/usr/bin/env python3
"""Is slow with ``good`` bundles, and exits at once on ``faulty`` ones."""

import os
import time

import miniature

os.environ["FAULT_ON"] = "/"  # all


def fault(request):
    if "faulty" in request["bundle"]:
        os._exit(1)
    time.sleep(0.3)
    miniature.ran(request)


miniature.serve(fault)
