"""Correct, and says what it is called."""

import miniature


def describe(request):
    miniature.describe_itself(request, name="nxrt", version="2026.4.1", threads="default")


miniature.serve(describe=describe)
