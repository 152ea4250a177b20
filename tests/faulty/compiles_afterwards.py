#!/usr/bin/env python3
"""Answers correctly, and reports a little later that it is compiling."""

import time

import miniature


def fault(request):
    miniature.ran(request)
    time.sleep(0.02)
    miniature.answer(request, outcome="compiling")


miniature.serve(fault)
