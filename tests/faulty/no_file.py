#!/usr/bin/env python3
"""Names output files that it did not write."""

import miniature


def fault(request):
    miniature.ran(request, runs=miniature.outputs(request, copy=lambda expected, out: None))


miniature.serve(fault)
