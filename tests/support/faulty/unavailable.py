#!/usr/bin/env python3
"""Answers that it is unavailable."""

import miniature


def describe(request):
    fix = "pip install miniature"
    miniature.answer(request, outcome="unavailable", reason="there is no device", fix=fix)


miniature.serve(describe=describe)
