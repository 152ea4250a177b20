#!/usr/bin/env python3
"""Answers correctly, and writes another line a little later, without a request."""

import time

import miniature


def fault(request):
    miniature.ran(request)
    time.sleep(0.02)
    print("by the way", flush=True)


miniature.serve(fault)
