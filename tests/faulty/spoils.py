#!/usr/bin/env python3
"""Correct, but after its faulty case all other results of the process are wrong."""

import miniature

spoilt = False
correct = miniature.ran


def ran(request, **more):
    correct(request, runs=miniature.outputs(request, copy=miniature.inverted) if spoilt else None)


def fault(request):
    global spoilt
    ran(request)
    spoilt = True


miniature.ran = ran
miniature.serve(fault)
