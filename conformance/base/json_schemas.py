"""JSON Schemas of models, with the text below each field as its description.

pydantic can do that, too, but then it reads the source of each model whenever it is imported, which
takes a tenth of the time of a short command.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from itertools import pairwise

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core.core_schema import ModelSchema


class WithDescriptions(GenerateJsonSchema):
    """Describes the fields of each model by their docstrings."""

    def model_schema(self, schema: ModelSchema) -> JsonSchemaValue:
        made = super().model_schema(schema)
        for kind in schema["cls"].__mro__:
            for name, text in _descriptions(kind).items():
                if name in made.get("properties", {}):
                    made["properties"][name].setdefault("description", text)
        return made


def _descriptions(kind: type) -> dict[str, str]:
    """The text below each annotated field of a class of this package.

    A model that is made of another class is described by that one.
    """
    kind = kind.__dict__.get("__described_by__", kind)
    if not kind.__module__.startswith(__name__.partition(".")[0]):
        return {}
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(definition, ast.ClassDef)
    return {
        field.target.id: inspect.cleandoc(below.value.value)
        for field, below in pairwise(definition.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(below, ast.Expr)
        and isinstance(below.value, ast.Constant)
        and isinstance(below.value.value, str)
    }
