"""Commands for maintainers of the corpus: ``python -m conformance.maintain.NAME``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import NoReturn

from conformance.base.text import printable
from conformance.base.yaml_source import InputError
from conformance.case.corpus import NothingMeant
from conformance.case.selection import SelectionError
from conformance.harness.runner import RunnerFailed
from conformance.results.results_error import ResultsError
from conformance.targets.catalogue import TargetError


class BadInput(ValueError):
    """An invalid argument; the message says why."""


def run_command(main: Callable[[], int | None], what: str = "") -> NoReturn:
    """Run a command and exit with its status: 2 for bad input, 3 for results that cannot be read
    and runners that fail, 141 if its reader has gone. ``what`` describes a command without
    arguments."""
    try:
        if what:
            argparse.ArgumentParser(description=what).parse_args()
        status = main()
        sys.stdout.flush()
    except (BadInput, InputError, NothingMeant, SelectionError, TargetError) as error:
        print(printable(str(error)), file=sys.stderr)
        status = 2
    except (ResultsError, RunnerFailed) as error:
        print(printable(str(error)), file=sys.stderr)
        status = 3
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        status = 141
    sys.exit(status)
