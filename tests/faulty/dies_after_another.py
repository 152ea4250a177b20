#!/usr/bin/env python3
"""Dies of an abort, but only if this process had another case before: that one did the damage."""

import os

import miniature

cases = []


def fault(request):
    if cases:
        os.abort()
    miniature.ran(request)


class Counted(dict):
    pass


miniature.serve(fault)
