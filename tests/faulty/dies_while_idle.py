#!/usr/bin/env python3
"""Answers, and dies of a segmentation fault immediately afterwards."""

import os
import signal

import miniature


def fault(request):
    miniature.ran(request)
    os.kill(os.getpid(), signal.SIGSEGV)


miniature.serve(fault)
