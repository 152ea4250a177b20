"""A runtime of which each release, named by RELEASE, does something else with the faulty case.

1.0 rejects it, 2.0 and 4.0 are correct, in 3.0 the process dies, and 5.0 does not start.
"""

import os
import sys

import miniature

RELEASE = os.environ["RELEASE"]


def describe(request):
    miniature.describe_itself(request, name="released", version=RELEASE)


def fault(request):
    if RELEASE == "1.0":
        miniature.answer(request, outcome="rejected", stage="load", message="Not yet.")
    elif RELEASE == "3.0":
        os.abort()
    else:
        miniature.ran(request)


if RELEASE == "5.0":
    sys.exit("A library is missing.")
miniature.serve(fault, describe)
