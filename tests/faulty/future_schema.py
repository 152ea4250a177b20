#!/usr/bin/env python3
"""A correct runner of a runtime whose operator has parts that the suite does not know."""

import miniature

OPERATOR = {
    "declared_by": "miniature 2.0",
    "inputs": {"query": ["float32", "float64"], "query_future": ["int32"]},
    "outputs": {"output": ["float32"], "output_future": ["float32"]},
    "attributes": {"num_heads": "int", "one_future": "int", "two_future": "float"},
}


def describe(request):
    miniature.describe_itself(request, operator=OPERATOR)


miniature.serve(describe=describe)
