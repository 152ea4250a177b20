#!/usr/bin/env python3
"""Names an output file outside its folder, though one that exists."""

import miniature


def fault(request):
    runs = miniature.outputs(request)
    runs[0][0]["output"] = "../../../../../../../../etc/passwd"
    miniature.ran(request, runs=runs)


miniature.serve(fault)
