#!/usr/bin/env python3
"""Closes its standard output, and stays alive."""

import os
import time

import miniature


def fault(request):
    os.close(1)
    time.sleep(600)


miniature.serve(fault)
