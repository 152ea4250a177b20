#!/usr/bin/env python3
"""Aborts, but only if this process has run another case before: the damage was done there."""

import os

import miniature


def fault(request):
    if miniature.asked.count("run") > 1:
        os.abort()
    miniature.ran(request)


miniature.serve(fault)
