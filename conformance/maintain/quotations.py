"""``python -m conformance.maintain.quotations``: prints the operator's documentation."""

from __future__ import annotations

import sys
from typing import Final

from conformance.base.processes import ask
from conformance.maintain import run_command
from conformance.operator.signature import DOMAIN, OP_TYPE

#: A program that prints the documentation of the operator and of each of its parts.
_PRINT_SCHEMA: Final = f"""
from onnxruntime.capi import onnxruntime_pybind11_state as state
(schema,) = (
    schema
    for schema in state.get_all_operator_schema()
    if (schema.domain, schema.name) == ({DOMAIN!r}, {OP_TYPE!r})
)
print(schema.doc)
for part in (*schema.inputs, *schema.outputs):
    print(f"- `{{part.name}}` ({{part.typeStr}}): {{part.description}}")
for name, attribute in sorted(schema.attributes.items()):
    print(f"- `{{name}}` ({{attribute.type.name.lower()}}): {{attribute.description}}")
for types in schema.type_constraints:
    print(f"- `{{types.type_param_str}}`: {{types.description}}")
"""

#: The time limit for that program in seconds; it takes less than one.
_TO_ANSWER: Final = 60.0


def operator_text() -> str:
    """The operator's documentation in the ONNX Runtime of this interpreter.

    Raises :class:`SystemExit` if it has no ONNX Runtime.
    """
    done = ask((sys.executable, "-c", _PRINT_SCHEMA), _TO_ANSWER)
    if done.returncode:
        raise SystemExit(f"This needs ONNX Runtime: {sys.executable} -m pip install onnxruntime")
    return done.stdout.decode()


if __name__ == "__main__":
    run_command(
        lambda: print(operator_text(), end=""),
        "Prints the installed operator's text.",
    )
