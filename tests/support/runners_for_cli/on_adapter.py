"""Correct, on an adapter by which results may differ."""

import miniature


def describe(request):
    versions = {"driver": "7.0", "limits": "maxBindGroups=4 maxBufferSize=4294967295"}
    miniature.describe_itself(request, adapter="lavapipe", versions=versions)


miniature.serve(describe=describe)
