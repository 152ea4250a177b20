"""Says everything in terminal escapes and markup: HOSTILE has the text. Rejects its case."""

import os
import sys

import miniature

TEXT = os.environ["HOSTILE"]


def describe(request):
    miniature.describe_itself(request, runtime=TEXT[:100], device=TEXT[:500], versions={TEXT: TEXT})


def fault(request):
    print(TEXT, file=sys.stderr, flush=True)
    miniature.answer(
        request, outcome="rejected", stage="load", step=0, code=TEXT[:60], message=TEXT
    )


miniature.serve(fault, describe)
