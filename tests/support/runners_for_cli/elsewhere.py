"""Computes its case, but on another execution provider than the requested one."""

import miniature


def fault(request):
    miniature.ran(request, placement="SomeOtherExecutionProvider")


miniature.serve(fault)
