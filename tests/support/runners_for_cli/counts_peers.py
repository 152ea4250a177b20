"""Correct; writes to the folder PEERS how many of its kind are alive when it has a case."""

import os
from pathlib import Path

import miniature

PLACE, RELEASE = Path(os.environ["PEERS"]), os.environ["RELEASE"]


def describe(request):
    miniature.describe_itself(request, name="peer", version=RELEASE)


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def fault(request):
    alive = sum(is_alive(int(file.stem)) for file in PLACE.glob("*.pid"))
    (PLACE / f"{RELEASE}.alive").write_text(str(alive))
    miniature.ran(request)


(PLACE / f"{os.getpid()}.pid").touch()
miniature.serve(fault, describe)
