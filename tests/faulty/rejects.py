#!/usr/bin/env python3
"""Rejects its case, like a runtime: with an error."""

import sys

import miniature


def fault(request):
    print("E: bad shape", file=sys.stderr, flush=True)
    message = "query has rank 2"
    miniature.answer(
        request,
        outcome="rejected",
        stage="load",
        step=0,
        code="INVALID",
        message=message,
        changed=["past_key"],
    )


miniature.serve(fault)
