#!/usr/bin/env python3
"""Is ended by someone else, who sends SIGTERM."""

import os
import signal

import miniature


def fault(request):
    os.kill(os.getpid(), signal.SIGTERM)


miniature.serve(fault)
