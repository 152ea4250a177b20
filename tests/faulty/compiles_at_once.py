#!/usr/bin/env python3
"""Sends compiling and the answer in one write: FAULT_ORDER has the outcomes, in order."""

import json
import os
import sys

import miniature


def fault(request):
    lines = []
    for outcome in os.environ.get("FAULT_ORDER", "compiling unavailable").split():
        reason = {"reason": "no"} if outcome == "unavailable" else {}
        lines.append(json.dumps({"id": request["id"], "outcome": outcome, **reason}) + "\n")
    sys.stdout.write("".join(lines))
    sys.stdout.flush()


miniature.serve(fault)
