#!/usr/bin/env python3
"""Reports with another case's id that it is compiling."""

import time

import miniature


def fault(request):
    miniature.answer({"id": request["id"] + 1}, outcome="compiling")
    time.sleep(600)


miniature.serve(fault)
