#!/usr/bin/env python3
"""Answers with text that is not JSON: Python's own notation, and a terminal's control code."""

import miniature


def fault(request):
    print({"id": request["id"], "outcome": "ran"}, "\x1b[31m", flush=True)


miniature.serve(fault)
