#!/usr/bin/env python3
"""Has an execution provider, and does not report where the node ran."""

import miniature


def fault(request):
    miniature.ran(request, placement=None)


miniature.serve(fault)
