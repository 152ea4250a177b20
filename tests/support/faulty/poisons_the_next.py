#!/usr/bin/env python3
"""Its faulty case writes beyond its memory, and the error of the device comes with the next case.

The answer for that one is ``crashed``, or what FAULT_STICKY says (``rejected``).
"""

import os

import miniature

spoilt = False
correct = miniature.ran


def ran(request, **more):
    if not spoilt:
        correct(request, **more)
    elif os.environ.get("FAULT_STICKY") == "rejected":
        miniature.answer(
            request,
            outcome="rejected",
            stage="run",
            message="CUBLAS failure 13: CUBLAS_STATUS_EXECUTION_FAILED",
            replace_process=True,
        )
    else:
        miniature.answer(
            request, outcome="crashed", ended="cudaErrorLaunchFailure", replace_process=True
        )


def fault(request):
    global spoilt
    ran(request)
    spoilt = True


miniature.ran = ran
miniature.serve(fault)
