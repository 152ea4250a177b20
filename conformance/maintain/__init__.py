"""Commands for maintainers of the corpus: ``python -m conformance.maintain.NAME``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import NoReturn

from conformance.results.results_error import ResultsError


def run_command(main: Callable[[], int | None], what: str = "") -> NoReturn:
    """Run a command and exit with its status: 3 for results that cannot be read, 141 if its reader
    has gone. ``what`` describes a command without arguments."""
    try:
        if what:
            argparse.ArgumentParser(description=what).parse_args()
        status = main()
        sys.stdout.flush()
    except ResultsError as error:
        print(error, file=sys.stderr)
        status = 3
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        status = 141
    sys.exit(status)
