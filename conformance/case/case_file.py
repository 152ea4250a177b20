"""The fields of a case file, and the JSON Schema generated from them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Discriminator, Field, Tag
from pydantic.json_schema import JsonSchemaValue
from pydantic_core.core_schema import TaggedUnionSchema

from conformance.base.json_schemas import WithDescriptions
from conformance.base.yaml_source import read_yaml
from conformance.case.case import Fields, Title
from conformance.case.case import Tag as CaseTag
from conformance.case.contract import Contract
from conformance.operator.call import (
    CALL_FIELDS,
    EarlierCall,
    InputOverride,
    Model,
    OutputOverride,
    Values,
    alternative,
)

#: The name of the format in a case file.
FORMAT: Final = "gqa-cases/2"
MAPS: Final = ("inputs", "outputs", "attributes")


MatrixAxis = Annotated[
    Annotated[list[Any], Tag("<list>")] | Annotated[dict[str, Fields], Tag("<mapping>")],
    Discriminator(
        alternative, "alternative", "expected a list of values, or labels and the fields of each"
    ),
]


class Entry(Fields):
    """One entry of a file: a case or, with a matrix, several."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
    """Lower-case words joined by `_`."""
    title: Title | None = None
    """The call in words that need no context; not what goes wrong, nor on which runtime. One line
    of at most 80 characters without a full stop, unique in the file. Without one, the features
    of the call stand for it."""
    matrix: Annotated[dict[str, MatrixAxis] | None, Field(min_length=1)] = None
    """The axes to combine: a field with its values, or an axis with a name of your own whose
    values each set several fields. A value of a field can be a mapping that sets the field and
    others beside it."""
    exclude: tuple[dict[str, Any], ...] = ()
    """Combinations to leave out, each as axes and values that must all match."""


class ThemeFile(Model):
    """A case file: one theme."""

    format: Literal["gqa-cases/2"]
    question: Annotated[str, Field(min_length=1)]
    """The user's question that this theme answers."""
    tags: tuple[CaseTag, ...] = ()
    """Tags of every case here."""
    links: tuple[str, ...] = ()
    """Links of every case here."""
    defaults: Fields = Fields()
    """Field values of every entry; an entry's own value replaces them."""
    cases: Annotated[list[Entry], Field(min_length=1)]


class _AnyOf(WithDescriptions):
    """JSON Schema with anyOf for oneOf, because 1 is valid both as an integer and as a number."""

    def tagged_union_schema(self, schema: TaggedUnionSchema) -> JsonSchemaValue:
        made = super().tagged_union_schema(schema)
        made["anyOf"] = made.pop("oneOf")
        return made


def schema() -> dict[str, Any]:
    """The JSON Schema of a case file, for editors.

    ``cases/schema.json`` holds it.
    """
    made = ThemeFile.model_json_schema(schema_generator=_AnyOf)
    made["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    made["title"] = "GQA conformance cases"
    fields = made["$defs"]["Fields"]["properties"]
    compound = {"type": "object", "additionalProperties": {"$ref": "#/$defs/Fields"}}
    axes: dict[str, Any] = {
        name: {"type": "array", "minItems": 1, "items": {**field, "description": ""}}
        for name, field in fields.items()
        if name in CALL_FIELDS and name not in MAPS
    }
    made["$defs"]["Entry"]["properties"]["matrix"] = {
        "description": made["$defs"]["Entry"]["properties"]["matrix"]["description"],
        "type": "object",
        "minProperties": 1,
        "properties": axes,
        "patternProperties": {rf"^({'|'.join(MAPS)})\.": {"type": "array", "minItems": 1}},
        "additionalProperties": compound,
    }
    for name, axis in axes.items():
        axis["items"].pop("description")
        axis["items"].pop("default", None)
        several = {"$ref": "#/$defs/Fields", "required": [name]}
        axis["items"] = {"anyOf": [axis["items"], several]}
    return made


@cache
def synonyms() -> dict[str, tuple[str, ...]]:
    """Other names of fields, and of their values (``key_value: packed``)."""
    data = read_yaml(Path(__file__).with_name("synonyms.yaml")).data
    return {name: tuple(others.split()) for name, others in data.items()}


def fields_at(location: tuple[int | str, ...]) -> list[str]:
    """The known fields at ``location``, which points to an unknown one."""
    above = location[:-1]
    by_part: list[tuple[str, type[Model]]] = [
        ("contract", Contract),
        ("values", Values),
        ("earlier_calls", EarlierCall),
        ("inputs", InputOverride),
        ("outputs", OutputOverride),
        ("defaults", Fields),
        ("matrix", Fields),
        ("cases", Entry),
    ]
    for part, model in by_part:
        if part in above:
            return list(model.model_fields)
    return list(ThemeFile.model_fields)
