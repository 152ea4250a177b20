#!/usr/bin/env python3
"""Is ended by another process, which sends SIGTERM."""

import os
import signal

import miniature


def fault(request):
    os.kill(os.getpid(), signal.SIGTERM)


miniature.serve(fault)
