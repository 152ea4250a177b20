#!/usr/bin/env python3
"""Ends with the exit status in FAULT_STATUS, in the midst of a case and without an answer."""

import os

import miniature


def fault(request):
    os._exit(int(os.environ["FAULT_STATUS"]))


miniature.serve(fault)
