#!/usr/bin/env python3
"""Rejects its case with a message of 300 kB, several times the size of a pipe's buffer."""

import miniature


def fault(request):
    message = "no " * 100_000
    miniature.answer(request, outcome="rejected", stage="run", step=0, message=message)


miniature.serve(fault)
