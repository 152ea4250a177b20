"""Correct, on an adapter without float16."""

import miniature


def describe(request):
    lacks = {"float16": "gqa setup lavapipe", "subgroups": None}
    dtypes = ("float32", "int32", "int64")
    miniature.describe_itself(request, dtypes, adapter="swiftshader", lacks=lacks)


miniature.serve(describe=describe)
