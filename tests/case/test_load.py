"""From YAML to cases: what a file may contain, and each mistake with location and message."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from case_files import cases_of, complaints, entries, write
from generated import given, settings, st
from mistakes import mistakes
from tables import tables

from conformance.base.paths import is_case_file
from conformance.base.yaml_source import InputError
from conformance.case.case_file import schema
from conformance.case.load import load_file
from conformance.operator.tensors import attributes_of

TABLES = tables(__file__)

# What a file may contain


def test_a_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    file = write(tmp_path, b"\xef\xbb\xbf" + entries("- name: a").encode())
    assert is_case_file(file)
    assert [case.id for case in load_file(file)] == ["theme/a"]


# Mistakes: location and message

MISTAKES = mistakes()


@pytest.mark.parametrize(("body", "complaint"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_reported_with_its_location(tmp_path: Path, body: str, complaint: str) -> None:
    """One mistake gives one message; those of YAML's own parser are compared as far as written."""
    if not complaint:
        assert cases_of(tmp_path, body)
        SCHEMA.validate(yaml.safe_load(entries(body)))
        return
    said = complaints(tmp_path, entries(body))
    assert len(said) == 1, said
    assert said[0].startswith(complaint) if "bad YAML" in complaint else said[0] == complaint


# Hostile files


@settings(max_examples=100)
@given(
    content=st.binary(max_size=200) | st.text().map(lambda text: text.encode("utf-8", "replace"))
)
def test_any_bytes_are_handled(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    survive(tmp_path_factory, content)


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(0, 9)
    | st.floats()
    | st.sampled_from(["a", "float16", "key", "omitted", "sequence_length-9", "", "é"])
    | st.dates(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "key", "shape", "data", "values", "x"]), inner)
    ),
    max_leaves=6,
)
SCHEMA = jsonschema.Draft202012Validator(schema())
FIELDS = st.sampled_from(sorted(SCHEMA.schema["$defs"]["Entry"]["properties"]))


@settings(max_examples=100)
@given(
    defaults=st.dictionaries(FIELDS, JUNK, max_size=2),
    entry=st.dictionaries(FIELDS, JUNK, max_size=4),
    matrix=st.dictionaries(FIELDS | st.sampled_from(["inputs.key", "own"]), JUNK, max_size=2),
)
def test_the_loader_handles_any_values(
    defaults: dict[str, Any],
    entry: dict[str, Any],
    matrix: dict[str, Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Every field with every kind of value gives cases, or messages with a location."""
    data = {
        "format": "gqa-cases/2",
        "question": "Q?",
        "defaults": {"contract": {"source": "x"}, **defaults},
        "cases": [{"name": "a", **entry, **({"matrix": matrix} if matrix else {})}],
    }
    survive(tmp_path_factory, yaml.safe_dump(data, allow_unicode=True).encode())


def survive(factory: pytest.TempPathFactory, content: bytes) -> None:
    """Loads ``content``; every error in it must be an InputError with one-line messages."""
    file = factory.getbasetemp() / "any.yaml"
    file.write_bytes(content)
    try:
        load_file(file)
        return
    except InputError as error:
        said = [str(problem).removeprefix(f"{file.parent}/") for problem in error.problems]
    assert said
    assert all(re.fullmatch(r"any\.yaml(:\d+:\d+)?: .+", sentence) for sentence in said)


# The schema for editors


@pytest.mark.parametrize("mistake", [name for name in MISTAKES if name.startswith("*")])
def test_the_schema_rejects_what_the_loader_rejects(mistake: str) -> None:
    body, _ = MISTAKES[mistake]
    assert not SCHEMA.is_valid(yaml.safe_load(entries(body)))


def test_rows_are_read_as_json_with_their_lines(tmp_path: Path) -> None:
    head = "format: gqa-cases/2\nquestion: Q?\ncases:\n"
    fields = '"sequence_length": 4, "num_heads": 2, "kv_num_heads": 2, "head_size": 16'
    rows = f'  - {{"name": "a", {fields}}}\n  - {{"name": "b", {fields}, "scale": 0.5}}\n'
    assert [case.line for case in load_file(write(tmp_path, head + rows))] == [4, 5]
    with pytest.raises(InputError) as error:
        load_file(write(tmp_path, head + rows.replace('"scale"', '"scael"')))
    assert ":5:5: unknown field 'scael'; did you mean 'scale'?" in str(error.value)
    with pytest.raises(InputError) as error:  # the reader of YAML tells of a key that is twice
        load_file(write(tmp_path, head + rows.replace('"scale"', '"num_heads"')))
    assert "duplicate key 'num_heads'; the first is on line 5" in str(error.value)


@pytest.mark.parametrize(("fields", "width"), TABLES["widths"])
def test_8_bit_caches_say_so_unless_told(tmp_path: Path, fields: str, width: int | None) -> None:
    """A quantised cache of 8 bits says so unless the file does not want it."""
    kinds = "k_quant_type: PER_TENSOR, v_quant_type: PER_TENSOR, past_sequence_length: 3"
    no = "- {name: a, contract: &no {demands: rejects, source: a document}}\n"
    case = cases_of(tmp_path, f"{no}- {{name: b, {kinds}, {fields}}}")[-1]
    assert attributes_of(case.call).get("kv_cache_bit_width") == width
