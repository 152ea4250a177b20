#!/usr/bin/env python3
"""Refuses its case with a message of 300 kB, several times what a pipe holds."""

import miniature


def fault(request):
    message = "no " * 100_000
    miniature.answer(request, outcome="rejected", stage="run", step=0, message=message)


miniature.serve(fault)
