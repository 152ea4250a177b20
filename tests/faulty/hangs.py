#!/usr/bin/env python3
"""Never answers, and ignores SIGTERM."""

import signal
import time

import miniature


def fault(request):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)


miniature.serve(fault)
