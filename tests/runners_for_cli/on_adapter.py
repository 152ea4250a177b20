"""Correct, on an adapter by which results may differ."""

import miniature


def describe(request):
    miniature.describe_itself(request, adapter="lavapipe")


miniature.serve(describe=describe)
