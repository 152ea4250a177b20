"""``docs/operator.md``: the operator's own description, word for word, for contracts to quote."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any, Final

from conformance.base.paths import data_path
from conformance.base.processes import ask
from conformance.base.signature import DOMAIN, OP_TYPE

FILE: Final = data_path("docs") / "operator.md"

_HEAD = """\
# {name} in ONNX Runtime {version}

This is the description of the operator that the release returns (`get_all_operator_schema`), word
for word, under the licence of ONNX Runtime (MIT). Contracts quote it; a test compares their
quotations with it, and it with the installed release. Do not edit it:
`python -m conformance.maintain.generate docs/operator.md` writes it.
"""

#: Prints the schema as JSON: each part with its name, its type and its description.
_SCHEMA: Final = f"""
import json, onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as state
(schema,) = (
    schema
    for schema in state.get_all_operator_schema()
    if (schema.domain, schema.name) == ({DOMAIN!r}, {OP_TYPE!r})
)
print(json.dumps({{
    "Version": onnxruntime.__version__,
    "Description": schema.doc,
    "Inputs": [(p.name, p.typeStr, p.description) for p in schema.inputs],
    "Outputs": [(p.name, p.typeStr, p.description) for p in schema.outputs],
    "Attributes": [
        (name, attribute.type.name.lower(), attribute.description)
        for name, attribute in sorted(schema.attributes.items())
    ],
    "Types": [
        (c.type_param_str, ", ".join(c.allowed_type_strs), c.description)
        for c in schema.type_constraints
    ],
}}))
"""

#: Time limit for an interpreter to say what it has, in seconds; it takes less than one.
_TO_ANSWER: Final = 60.0


def schema(python: str = sys.executable) -> dict[str, Any]:
    """The operator's schema in the ONNX Runtime of an interpreter, by the sections of the page.

    Raises :class:`SystemExit` where it has none.
    """
    done = ask((python, "-c", _SCHEMA), _TO_ANSWER)
    if done.returncode:
        raise SystemExit(
            f"docs/operator.md needs ONNX Runtime: {python} -m pip install onnxruntime"
        )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def text(python: str = sys.executable) -> str:
    """The page for the ONNX Runtime of an interpreter. Raises :class:`SystemExit`."""
    found = schema(python)
    return "\n".join((_HEAD.format(name=OP_TYPE, version=found["Version"]), *_sections(found)))


def release(file: Path = FILE) -> str:
    """The release of ONNX Runtime whose text ``docs/operator.md`` has."""
    match = re.search(r"in ONNX Runtime (\S+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
    assert match, file
    return match[1]


def words(page: str | None = None) -> str:
    """What can be quoted of the page, by default ``docs/operator.md``: all but its head."""
    page = FILE.read_text(encoding="utf-8") if page is None else page
    return page.partition("\n## ")[2]


def _sections(schema: dict[str, Any]) -> list[str]:
    pages = [f"## Description\n\n{_trimmed(schema['Description'])}\n"]
    for title in ("Inputs", "Outputs", "Attributes", "Types"):
        lines = [f"- `{name}` ({kind}): {description}" for name, kind, description in schema[title]]
        pages.append(f"## {title}\n\n{_trimmed(chr(10).join(lines))}\n")
    return pages


def _trimmed(written: str) -> str:
    """Without blank lines around it and without blanks at the ends of lines."""
    return "\n".join(line.rstrip() for line in written.strip().splitlines())
