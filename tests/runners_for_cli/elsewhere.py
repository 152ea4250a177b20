"""Computes its case, but on another execution provider than it was asked for."""

import miniature


def fault(request):
    miniature.ran(request, placement="SomeOtherExecutionProvider")


miniature.serve(fault)
