"""``python -m conformance.maintain.generate``: writes the files that are generated from the code.

Run it after a change of a case, a model, a feature or a relation.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from conformance.base.paths import data_path, file_to_write
from conformance.bundle.effects import RECORD, record_text
from conformance.case.case_file import schema as cases_schema
from conformance.case.load import load
from conformance.case.relations import document as relations_page
from conformance.expectations.known import expectations_schema
from conformance.harness.protocol import schemas as protocol_schemas
from conformance.maintain import run_command
from conformance.results.records import results_schema


def _json(made: Callable[[], Any], indent: int = 2) -> Callable[[], str]:
    return lambda: json.dumps(made(), indent=indent) + "\n"


#: The path of each generated file in a checkout, and the function that returns its content.
FILES: Final[Mapping[str, Callable[[], str | bytes]]] = {
    "cases/schema.json": _json(cases_schema, indent=1),
    "expectations/schema.json": _json(expectations_schema, indent=1),
    "reports/results.schema.json": _json(results_schema),
    "runners/schema/request.json": _json(lambda: protocol_schemas()["request.json"]),
    "runners/schema/answer.json": _json(lambda: protocol_schemas()["answer.json"]),
    "docs/relations.md": relations_page,
    f"cases/{RECORD}": lambda: record_text(load([data_path("cases")])),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the named files, or all; print those that changed.

    With ``--check`` nothing is written, and the exit status is 1 if a file would change.
    """
    parser = argparse.ArgumentParser(
        prog="python -m conformance.maintain.generate",
        description="Writes the files that are generated from the code.",
    )
    parser.add_argument("files", nargs="*", metavar="FILE", help=f"one of: {', '.join(FILES)}")
    parser.add_argument("--check", action="store_true", help="list stale files, write nothing")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.files if name not in FILES]:
        parser.error(f"'{unknown[0]}' is not a generated file; those are {', '.join(FILES)}")
    stale = False
    for name in options.files or FILES:
        path = file_to_write(name)
        made = FILES[name]()
        content = made.encode() if isinstance(made, str) else made
        if path.is_file() and path.read_bytes() == content:
            continue
        stale = True
        print(f"{'stale' if options.check else 'written'}: {name}")
        if not options.check:
            path.write_bytes(content)
    return int(stale and options.check)


if __name__ == "__main__":
    run_command(main)
