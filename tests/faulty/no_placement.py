#!/usr/bin/env python3
"""Was asked for an execution provider, and does not say where the node ran."""

import miniature


def fault(request):
    miniature.ran(request, placement=None)


miniature.serve(fault)
