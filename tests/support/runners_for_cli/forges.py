#!/usr/bin/env python3
"""Rejects, with a message that would print a line of its own."""

import miniature


def fault(request):
    message = "no\n  fix: EVIL\r\nEVIL\x1b[2K\x1b[1AEVIL"
    miniature.answer(request, outcome="rejected", stage="run", message=message)


miniature.serve(fault)
