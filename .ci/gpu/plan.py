"""What a day on a GPU runs: targets and cases, as JSON. day.py starts it with the suite's packages.

Usage: ``plan.py TARGET [-k EXPR] [--device N]``. Prints ``targets``, the target and its kernel
variants, and ``whole`` and ``boundary``, the cases of the two results files: each with ``ids``, in
the order in which they are run, and ``corpus``, the digest for the header. Exits with 2 and the
suite's own sentence for arguments that ``gqa run`` does not take.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from themes import at_the_boundary, in_order

from conformance.base.yaml_source import InputError
from conformance.case.selection import SelectionError
from conformance.cli.options import selected_cases
from conformance.run.records import corpus_digest
from conformance.targets.catalogue import TARGETS, Programs, TargetError, entry_of
from conformance.targets.registry import targets_for


def plan(ep: str, expression: str, device: str | None) -> dict[str, Any]:
    """What is printed. Raises `TargetError`, `SelectionError` and `InputError`."""
    entry = entry_of(ep)
    variants = [
        other.name
        for other in TARGETS
        if entry and other.kernel_variant_of == ep and other.runner == entry.runner
    ]
    targets_for([ep], Programs(device=device))  # whether there is such a target
    cases = {case.id: case for case in selected_cases([], expression)[1]}
    ids = in_order(list(cases))

    def part(ids: list[str]) -> dict[str, Any]:
        return {"ids": ids, "corpus": corpus_digest(cases[id] for id in ids)}

    return {"targets": [ep, *variants], "whole": part(ids), "boundary": part(at_the_boundary(ids))}


def main() -> int:
    """Print it; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("target", metavar="TARGET")
    parser.add_argument("-k", dest="expression", default="")
    parser.add_argument("--device")
    options = parser.parse_args()
    try:
        found = plan(options.target, options.expression, options.device)
    except (InputError, SelectionError, TargetError) as error:
        print(error)
        return 2
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
