#!/usr/bin/env python3
"""Says of its case that it cannot be tried here."""

import miniature


def fault(request):
    miniature.answer(request, outcome="unavailable", reason="this adapter has no float16")


miniature.serve(fault)
