#!/usr/bin/env python3
"""Says that it is compiling when it is to describe itself, for which there is time anyway."""

import time

import miniature


def describe(request):
    miniature.answer(request, outcome="compiling")
    time.sleep(600)


miniature.serve(describe=describe)
