#!/usr/bin/env python3
"""Answers twice, in one go."""

import json
import sys

import miniature


def fault(request):
    line = json.dumps({"id": request["id"], "outcome": "unavailable", "reason": "no"})
    sys.stdout.write(f"{line}\n{line}\n")
    sys.stdout.flush()


miniature.serve(fault)
