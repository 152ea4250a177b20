#!/usr/bin/env python3
"""Answers that its case is unavailable."""

import miniature


def fault(request):
    miniature.answer(request, outcome="unavailable", reason="this adapter has no float16")


miniature.serve(fault)
