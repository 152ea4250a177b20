"""Says everything in terminal escapes and markup: HOSTILE has the text. Rejects its case."""

import os
import sys

import miniature

TEXT = os.environ["HOSTILE"]


def describe(request):
    name = TEXT[:100]
    parts = {"inputs": {name: [name]}, "outputs": {}, "attributes": {name: name}}
    miniature.describe_itself(
        request,
        runtime=name,
        device=TEXT[:500],
        versions={TEXT: TEXT},
        operator={"declared_by": TEXT[:200], **parts},
    )


def fault(request):
    print(TEXT, file=sys.stderr, flush=True)
    miniature.answer(
        request, outcome="rejected", stage="load", step=0, code=TEXT[:60], message=TEXT
    )


miniature.serve(fault, describe)
