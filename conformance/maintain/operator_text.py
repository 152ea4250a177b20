"""``docs/operator.md``: the operator's own description, word for word, for contracts to quote."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any, Final

from conformance.base.paths import data_path
from conformance.base.signature import DOMAIN, OP_TYPE

FILE: Final = data_path("docs") / "operator.md"

_HEAD = """\
# {name} in ONNX Runtime {version}

This is the description of the operator that the release returns (`get_all_operator_schema`), word
for word, under the licence of ONNX Runtime (MIT). Contracts quote it; a test compares their
quotations with it, and it with the installed release. Do not edit it:
`python -m conformance.maintain.generate docs/operator.md` writes it.
"""


def text() -> str:
    """The page for the installed ONNX Runtime. Raises :class:`SystemExit` where there is none."""
    try:
        runtime = importlib.import_module("onnxruntime")
        state = importlib.import_module("onnxruntime.capi.onnxruntime_pybind11_state")
    except ImportError:
        raise SystemExit("docs/operator.md needs ONNX Runtime: pip install onnxruntime") from None
    (schema,) = (
        schema
        for schema in state.get_all_operator_schema()
        if (schema.domain, schema.name) == (DOMAIN, OP_TYPE)
    )
    return "\n".join((_HEAD.format(name=OP_TYPE, version=runtime.__version__), *_sections(schema)))


def release(file: Path = FILE) -> str:
    """The release of ONNX Runtime whose text ``docs/operator.md`` has."""
    match = re.search(r"in ONNX Runtime (\S+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
    assert match, file
    return match[1]


def words(file: Path = FILE) -> str:
    """What can be quoted of the page: all but its head."""
    return file.read_text(encoding="utf-8").partition("\n## ")[2]


def _sections(schema: Any) -> list[str]:
    lists = {
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
    }
    pages = [f"## Description\n\n{_trimmed(schema.doc)}\n"]
    for title, entries in lists.items():
        lines = [f"- `{name}` ({kind}): {description}" for name, kind, description in entries]
        pages.append(f"## {title}\n\n{_trimmed(chr(10).join(lines))}\n")
    return pages


def _trimmed(written: str) -> str:
    """Without blank lines around it and without blanks at the ends of lines."""
    return "\n".join(line.rstrip() for line in written.strip().splitlines())
