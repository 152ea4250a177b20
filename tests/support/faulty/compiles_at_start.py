#!/usr/bin/env python3
"""Reports that it is compiling in answer to describe, which has enough time anyway."""

import time

import miniature


def describe(request):
    miniature.answer(request, outcome="compiling")
    time.sleep(600)


miniature.serve(describe=describe)
