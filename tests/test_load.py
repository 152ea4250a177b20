"""From YAML to cases: what a file may contain, and each mistake with location and message."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from case_files import cases_of, complaints, entries, write
from hypothesis import given, settings
from hypothesis import strategies as st
from mistakes import mistakes

from conformance.base import yaml_source
from conformance.base.paths import is_case_file
from conformance.base.yaml_source import InputError, Problem
from conformance.case.case_file import schema
from conformance.case.load import case_files, load, load_file
from conformance.case.tensors import steps_of

# What a file may contain


def test_a_case_has_all_fields_of_its_entry(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        """\
format: gqa-cases/2
question: "  Does it?  "
tags: [one, two]
links: ["https://example.org/a"]
defaults:
  head_size: 32
  contract: {source: the documentation, why: because}
cases:
  - name: first
  - name: second
    why: " spaces go "
    head_size: 8
    tags: [two, three]
    links: ["https://example.org/b", "https://example.org/a"]
    time_limit_seconds: 90
    contract: {demands: rejects, basis: requested, source: elsewhere, mentions: [word]}
""",
    )
    first, second = load_file(file)
    assert first.id == "theme/first"
    assert (first.theme, first.name, first.label, first.axes) == ("theme", "first", "first", {})
    assert (first.file, first.line, first.question) == (file, 9, "Does it?")
    assert first.call.head_size == 32
    assert (first.tags, first.links) == (("one", "two"), ("https://example.org/a",))
    assert first.contract.model_dump() == {
        "demands": "computes",
        "basis": "specified",
        "source": "the documentation",
        "why": "because",
        "mentions": (),
        "readings": (),
        "disputed": "",
        "providers": {},
    }
    assert first.time_limit_seconds == 30.0
    assert first.steps == steps_of(first.call)
    assert (second.why, second.line, second.call.head_size) == ("spaces go", 10, 8)
    assert second.tags == ("one", "two", "three")
    assert second.links == ("https://example.org/a", "https://example.org/b")
    assert second.time_limit_seconds == 90
    assert second.contract.demands == "rejects"
    assert second.contract.why == ""  # a contract is replaced, not merged


def test_comments_anchors_and_any_quotes_are_allowed(tmp_path: Path) -> None:
    made = cases_of(
        tmp_path,
        """
        # above
        - name: 'a' # beside
          head_size: &size 8
          # between
          rotary_dim: *size
          rotary: "half_split"
        """,
    )
    assert (made[0].call.head_size, made[0].call.rotary_dim) == (8, 8)


def test_a_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    file = write(tmp_path, b"\xef\xbb\xbf" + entries("- name: a").encode())
    assert is_case_file(file)
    assert [case.id for case in load_file(file)] == ["theme/a"]


def test_a_matrix_is_expanded_in_order(tmp_path: Path) -> None:
    made = cases_of(
        tmp_path,
        """
        - name: a
          matrix:
            dtype: [float32, float16]
            heads:
              few: {num_heads: 2, kv_num_heads: 1}
              many: {num_heads: 8}
            inputs.position_ids: [connected, trailing]
          exclude:
            - {dtype: float16, heads: many}
        """,
    )
    assert [case.id for case in made] == [
        "theme/a[dtype=float32,heads=few,inputs.position_ids=connected]",
        "theme/a[dtype=float32,heads=few,inputs.position_ids=trailing]",
        "theme/a[dtype=float32,heads=many,inputs.position_ids=connected]",
        "theme/a[dtype=float32,heads=many,inputs.position_ids=trailing]",
        "theme/a[dtype=float16,heads=few,inputs.position_ids=connected]",
        "theme/a[dtype=float16,heads=few,inputs.position_ids=trailing]",
    ]
    assert made[0].axes == {
        "dtype": "float32",
        "heads": "few",
        "inputs.position_ids": "connected",
    }
    assert [case.call.num_heads for case in made] == [2, 2, 8, 8, 2, 2]
    assert {case.line for case in made} == {6}


@pytest.mark.parametrize(
    ("axis", "labels"),
    [
        ("softcap: [null, 0.5, 2.0, 1.0e-05]", ["none", "0.5", "2.0", "1e-05"]),
        ("head_sink: [false, true]", ["false", "true"]),
        ("total_sequence_lengths: [[1, 2], [2, 1]]", ["1+2", "2+1"]),
        ("causal: [null, 1]", ["none", "1"]),
        ("attributes.scale: [null, .inf, 1]", ["none", "inf", "1"]),
    ],
)
def test_values_are_written_in_ids(tmp_path: Path, axis: str, labels: list[str]) -> None:
    made = cases_of(
        tmp_path, f"- {{name: a, sequence_length: 2, batch_size: 2, matrix: {{{axis}}}}}"
    )
    assert [label for case in made for label in case.axes.values()] == labels


def test_a_value_of_a_field_can_bring_other_fields_with_it(tmp_path: Path) -> None:
    body = """\
- name: a
  matrix:
    scale: [0.5, {scale: 0.0, why: It is special., contract: {demands: either, source: y}}]
  exclude: [{scale: 0.5}]
- name: b
  matrix:
    scale: [0.5, {scale: 0.0, contract: {demands: either, source: y}}]
"""
    made = cases_of(tmp_path, body)
    assert [case.id for case in made] == [
        "theme/a[scale=0.0]",
        "theme/b[scale=0.5]",
        "theme/b[scale=0.0]",
    ]
    assert [case.contract.demands for case in made] == ["either", "computes", "either"]
    assert [case.call.scale for case in made] == [0.0, 0.5, 0.0]
    assert made[0].why == "It is special."
    jsonschema.validate(yaml.safe_load(entries(body)), schema())


def test_an_entry_overrides_the_defaults_input_by_input(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        """\
format: gqa-cases/2
question: Q?
defaults:
  contract: {source: x}
  inputs: {position_ids: omitted, head_sink: {values: {low: 0.0}}}
  attributes: {scale: 0.5, softcap: 1.0}
cases:
  - name: a
    inputs: {head_sink: trailing}
    attributes: {softcap: null}
    matrix:
      sink:
        with: {inputs: {attention_bias: connected}, attributes: {causal: 0}}
        without: {}
""",
    )
    both, plain = load_file(file)
    assert set(both.call.inputs) == {"position_ids", "head_sink", "attention_bias"}
    assert both.call.inputs["head_sink"] == "trailing"
    assert both.call.attributes == {"scale": 0.5, "softcap": None, "causal": 0}
    assert set(plain.call.inputs) == {"position_ids", "head_sink"}


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


def test_excluded_combinations_need_not_be_valid(tmp_path: Path) -> None:
    made = cases_of(
        tmp_path,
        """
        - name: a
          matrix: {num_heads: [3, 4], kv_num_heads: [2, 3]}
          exclude: [{num_heads: 3, kv_num_heads: 2}, {num_heads: 4, kv_num_heads: 3}]
        """,
    )
    assert [case.label for case in made] == [
        "a[num_heads=3,kv_num_heads=3]",
        "a[num_heads=4,kv_num_heads=2]",
    ]


@pytest.mark.parametrize("demands", ["rejects", "either"])
@pytest.mark.parametrize(
    "fields",
    [
        "num_heads: 3",
        "rotary: half_split, rotary_dim: 3",
        "rotary: half_split, rotary_dim: 99",
        "causal: 0, local_window_size: 3",
        "local_window_size: -7",
    ],
)
def test_a_case_may_be_invalid_on_purpose(tmp_path: Path, fields: str, demands: str) -> None:
    contract = f"{{demands: {demands}, source: x}}"
    (case,) = cases_of(tmp_path, f"- {{name: a, {fields}, contract: {contract}}}")
    assert case.contract.demands == demands


# Several files


def test_a_file_is_loaded_once_however_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path, entries("- name: a"))
    (tmp_path / "link").symlink_to(tmp_path)
    monkeypatch.chdir(tmp_path)
    spellings = [Path("theme.yaml"), file, tmp_path, tmp_path / "link" / "theme.yaml"]
    assert case_files(spellings) == [Path("theme.yaml")]
    assert [case.id for case in load(spellings)] == ["theme/a"]


def test_folders_are_searched_for_case_files_only(tmp_path: Path) -> None:
    own = write(tmp_path, entries("- name: a"), "b/own.yml")
    flow = write(tmp_path, "# note\n\nformat:   'gqa-cases/9'\n", "a/later.yaml")
    write(tmp_path, "version: 2\nservices: {}\n", "docker-compose.yaml")
    write(tmp_path, entries("- name: a"), "notes.txt")
    write(tmp_path, entries("- name: a"), ".venv/lib/own.yaml")
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "broken.yaml").symlink_to(tmp_path / "nowhere")
    assert case_files([tmp_path]) == [flow, own]
    hidden = tmp_path / ".venv" / "lib"
    assert case_files([hidden]) == [hidden / "own.yaml"]


def test_a_file_named_explicitly_needs_no_header(tmp_path: Path) -> None:
    file = write(tmp_path, "a: 1\n")
    assert case_files([file]) == [file]
    assert not is_case_file(file)
    assert not is_case_file(tmp_path / "no.yaml")


def test_a_sentence_is_one_printable_line() -> None:
    problem = Problem(Path("a"), 1, 2, "x\ny\x1b[31m\u202e" + "z" * 10_000)
    said = str(problem)
    assert said.startswith("a:1:2: x y⟨U+202E⟩zz")
    assert said.isprintable()
    assert len(said) < 2_100


# Hostile files


def test_pyyaml_without_libyaml_gives_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same cases, locations and, for our messages, texts."""
    texts = entries("- name: a\n  seed: 1\n  seed: 2"), "é: 1\nq: é \a?\n"
    usual = [complaints(tmp_path, text) for text in texts]
    monkeypatch.setattr(yaml_source, "_LOADER", yaml.SafeLoader)
    assert [complaints(tmp_path, text) for text in texts] == usual
    assert cases_of(tmp_path, "- {name: a, matrix: {seed: [1, 2]}}")


@settings(max_examples=100)
@given(
    content=st.binary(max_size=200) | st.text().map(lambda text: text.encode("utf-8", "replace"))
)
def test_the_loader_handles_any_bytes(
    content: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
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


def test_a_contract_follows_from_the_features_of_a_call(tmp_path: Path) -> None:
    fields = "sequence_length: 4, num_heads: 2, kv_num_heads: 2, head_size: 16"
    text = f"format: gqa-cases/2\nquestion: Q?\ncases:\n  - {{name: a, {fields}, softcap: 2.0}}\n"
    (case,) = load_file(write(tmp_path, text))
    assert (case.contract.demands, case.contract.basis) == ("computes", "established")
    assert "softcap" in case.contract.why


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
