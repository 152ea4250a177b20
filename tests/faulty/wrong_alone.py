#!/usr/bin/env python3
"""Its faulty case is wrong, in any company."""

import miniature


def fault(request):
    miniature.ran(request, runs=miniature.outputs(request, copy=miniature.inverted))


miniature.serve(fault)
