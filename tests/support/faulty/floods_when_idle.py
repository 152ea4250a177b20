#!/usr/bin/env python3
"""Answers ``faulty`` bundles and then writes 100 MB without a request; is slow with others."""

import os
import sys
import time

import miniature

os.environ["FAULT_ON"] = "/"  # all


def fault(request):
    if "faulty" not in request["bundle"]:
        time.sleep(0.5)
    miniature.ran(request)
    if "faulty" in request["bundle"]:
        for _ in range(100):
            sys.stdout.write("x" * 1_000_000)


miniature.serve(fault)
