#!/usr/bin/env python3
"""Its faulty case is an illegal access on the device, after which every call of it fails.

FAULT_STICKY is the word for the answer: ``crashed`` (the default), or ``rejected``.
"""

import os
import sys

import miniature

poisoned = False
correct = miniature.ran
MESSAGE = "CUDA failure 700: an illegal memory access was encountered"


def ran(request, **more):
    if poisoned:
        print("used after its failure", file=sys.stderr, flush=True)
        rejected(request)
    else:
        correct(request, **more)


def rejected(request):
    miniature.answer(
        request, outcome="rejected", stage="run", message=MESSAGE, replace_process=True
    )


def fault(request):
    global poisoned
    if poisoned or os.environ.get("FAULT_STICKY") == "rejected":
        rejected(request)
    else:
        miniature.answer(
            request,
            outcome="crashed",
            step=0,
            ended="cudaErrorIllegalAddress",
            message=MESSAGE,
            replace_process=True,
        )
    poisoned = True


miniature.ran = ran
miniature.serve(fault)
