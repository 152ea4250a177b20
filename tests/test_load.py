"""From YAML to cases: what a file may contain, and each mistake with location and message."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from case_files import HEAD, cases_of, complaints, entries, write
from hypothesis import given, settings
from hypothesis import strategies as st
from mistakes import mistakes

from conformance.base import yaml_source
from conformance.base.paths import is_case_file
from conformance.base.yaml_source import (
    MAX_BYTES,
    MAX_PROBLEMS,
    InputError,
    Problem,
    read_yaml,
)
from conformance.case import load as loading
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


@settings(max_examples=40)
@given(
    axes=st.dictionaries(
        st.sampled_from(["dtype", "batch_size", "head_size", "softcap", "seed", "of_my_own"]),
        st.integers(1, 4),
        min_size=1,
        max_size=4,
    ),
    data=st.data(),
)
def test_a_matrix_is_the_product_minus_what_is_excluded(
    axes: dict[str, int], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    values: dict[str, list[Any]] = {
        "dtype": ["float32", "float16", "bfloat16"],
        "batch_size": [1, 2, 3, 4],
        "head_size": [8, 16, 24, 32],
        "softcap": [None, 0.5, 1.0, 50.0],
        "seed": [0, 1, 2, 3],
        "of_my_own": ["w", "x", "y", "z"],
    }
    labels = {axis: values[axis][:count] for axis, count in axes.items()}
    matrix: dict[str, Any] = {
        axis: {label: {"sequence_length": 5 + ord(label)} for label in chosen}
        if axis == "of_my_own"
        else chosen
        for axis, chosen in labels.items()
    }
    product = [dict(zip(labels, each, strict=True)) for each in itertools.product(*labels.values())]
    exclude = data.draw(
        st.lists(
            st.fixed_dictionaries({}, optional={a: st.sampled_from(v) for a, v in labels.items()})
            .filter(bool),
            max_size=2,
        )
    )  # fmt: skip
    left = product
    futile = False
    for one in exclude:
        kept = [each for each in left if not set(one.items()) <= set(each.items())]
        futile |= len(kept) == len(left)
        left = kept
    folder = tmp_path_factory.mktemp("matrix")
    entry = {"name": "a", "matrix": matrix, "exclude": exclude}
    file = write(folder, HEAD + yaml.safe_dump([entry], sort_keys=False))
    if futile or not left:
        with pytest.raises(
            InputError, match="excludes no combination" if futile else "no combination is left"
        ):
            load_file(file)
        return
    made = load_file(file)
    shown = [{a: {None: "none"}.get(v, str(v)) for a, v in each.items()} for each in left]
    assert [case.axes for case in made] == shown
    assert len({case.id for case in made}) == len(made)


# Mistakes: location and message

HEADS = "num_heads 3 is not a multiple of kv_num_heads 2"
ON_PURPOSE = "; a call that is invalid on purpose needs the contract 'rejects' or 'either'"
OWN_AXIS = "an axis of your own maps the label of each value to the fields it sets"
MISTAKES = mistakes()


@pytest.mark.parametrize(("body", "complaint"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_reported_with_its_location(tmp_path: Path, body: str, complaint: str) -> None:
    """One mistake gives one message; those of YAML's own parser are compared as far as written."""
    said = complaints(tmp_path, entries(body))
    assert len(said) == 1, said
    assert said[0].startswith(complaint) if "bad YAML" in complaint else said[0] == complaint


@pytest.mark.parametrize(
    "fields",
    [
        "local_window_size: 1",
        "local_window_size: -1, causal: 0",
        "rotary: half_split, rotary_dim: 16",
        "rotary: half_split, rotary_dim: 2",
        "sequence_length: 0",
        "loop: [1, 1], key_value: zero_length, past_sequence_length: 3",
        "loop: [2, 2], max_sequence_length: 4, dims: static",
        "loop: [1, 1], sequence_length: 1",
        "max_sequence_length: 3, shared_buffer: true",
        "cache: none, past_sequence_length: 0",
        "num_heads: 3, kv_num_heads: 3",
        "time_limit_seconds: 0.25",
        "time_limit_seconds: 3600",
        "local_window_size: 9223372036854775807",
    ],
)
def test_limits_that_are_just_allowed(tmp_path: Path, fields: str) -> None:
    assert len(cases_of(tmp_path, f"- {{name: a, {fields}}}")) == 1


def test_the_size_of_a_matrix_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "MAX_CASES", 4)
    assert len(cases_of(tmp_path, "- {name: a, matrix: {seed: [1, 2], causal: [0, 1]}}")) == 4
    body = "- {name: a, matrix: {seed: [1, 2, 3], causal: [0, 1]}}"
    assert complaints(tmp_path, entries(body)) == [
        "6:15: expands to 6 cases; at most 4 are allowed"
    ]


def test_any_file_name_gives_valid_ids(tmp_path: Path) -> None:
    for name in ("my theme.yaml", "a[1].yaml", "a::b.yaml", "é.yaml"):
        file = write(tmp_path, entries("- name: a"), name)
        with pytest.raises(InputError) as caught:
            load_file(file)
        assert str(caught.value) == (
            f"{file}: the file name is part of every case id; use letters, digits, '_', '.', '+',"
            " '-'"
        )
    assert (
        load_file(write(tmp_path, entries("- name: a"), "a.b-c_1+2.yaml"))[0].theme == "a.b-c_1+2"
    )


WHOLE_FILES = {
    "empty": ("", ["is empty"]),
    "comments only": ("# nothing\n", ["is empty"]),
    "number": ("5\n", ["1:1: a case file must be a mapping of fields"]),
    "list": ("# x\n- 1\n", ["2:1: a case file must be a mapping of fields"]),
    "two documents": (
        "a: 1\n---\nb: 2\n",
        ["2:1: bad YAML: expected a single document in the stream but found another document"],
    ),
    "not UTF-8": (b"format: gqa-cases/2\nquestion: \xff?\n", ["2:1: is not UTF-8 text"]),
    "UTF-16": ("format: gqa-cases/2".encode("utf-16"), ["1:1: is not UTF-8 text"]),
    "control character": (
        "é: 1\nquestion: é \a?\n",
        ["2:13: bad YAML: the character U+0007 is not allowed"],
    ),
    "NUL": ("a: \0", ["1:4: bad YAML: the character U+0000 is not allowed"]),
    "another format": (
        "format: gqa-cases/3\nquestion: Q?\ncases: [{name: a, contract: {source: x}}]\n",
        ["1:9: format: found 'gqa-cases/3', allowed: gqa-cases/2; did you mean 'gqa-cases/2'?"],
    ),
    "nothing that should be there": (
        "fromat: gqa-cases/2\n",
        [
            "1:1: the field 'cases' is missing",
            "1:1: the field 'format' is missing",
            "1:1: the field 'question' is missing",
            "1:1: unknown field 'fromat'; did you mean 'format'?",
        ],
    ),
    "no question": (
        "format: gqa-cases/2\nquestion: ''\ncases: [{name: a, contract: {source: x}}]\n",
        ["2:11: question: must not be empty, found ''"],
    ),
    "no case": (
        "format: gqa-cases/2\nquestion: Q?\ncases: []\n",
        ["3:8: cases: expected 1 or more items, found an empty list"],
    ),
    "cases that are a mapping": (
        "format: gqa-cases/2\nquestion: Q?\ncases: {name: a}\n",
        ["3:8: cases: expected a list, found a mapping"],
    ),
    "mistake in defaults": (
        "format: gqa-cases/2\nquestion: Q?\n"
        "defaults: {num_heads: 3, contract: {source: x}}\n"
        "cases: [{name: a}, {name: b}, {name: c, num_heads: 4}]\n",
        [f"3:23: {HEADS}{ON_PURPOSE}"],
    ),
    "too deep": (f"a: {'[' * 900}{']' * 900}\n", ["is nested too deep"]),
    "too large": (b"# " + b"x" * MAX_BYTES, ["larger than 1 MiB"]),
}


@pytest.mark.parametrize(("text", "said"), WHOLE_FILES.values(), ids=WHOLE_FILES)
def test_a_file_without_any_valid_part(tmp_path: Path, text: str | bytes, said: list[str]) -> None:
    assert complaints(tmp_path, text) == said


def test_a_file_that_cannot_be_read_is_an_input_error(tmp_path: Path) -> None:
    file = tmp_path / "gone.yaml"
    with pytest.raises(InputError, match=f"^{file}: cannot be read: No such file or directory$"):
        load_file(file)
    with pytest.raises(InputError, match=f"^{tmp_path}: cannot be read: Is a directory$"):
        read_yaml(tmp_path)


def test_all_mistakes_of_a_file_are_reported_at_once_in_order(tmp_path: Path) -> None:
    assert complaints(
        tmp_path,
        entries(
            """
            - {name: a, num_heads: 3}
            - {name: a}
            - name: b
              matrix: {seed: [1, 1], dtpe: [x]}
            - name: c
              matrix: {seed: [1, 2]}
              exclude: [{seed: 3}]
            - {name: d, cache: static}
            """
        ),
    ) == [
        f"6:26: {HEADS}{ON_PURPOSE}",
        "7:12: the name 'a' is already used on line 6",
        "9:24: the value 1 is twice in this axis; ids would collide",
        f"9:28: 'dtpe' is not a field of a call; did you mean 'dtype'?; {OWN_AXIS}",
        "12:22: 'seed' has no value 3: 1, 2",
        "13:22: a static cache needs max_sequence_length",
    ]


def test_a_mistake_shared_by_many_combinations_is_reported_once(tmp_path: Path) -> None:
    body = "- {name: a, num_heads: 3, matrix: {seed: [1, 2, 3], dtype: [float32, float16]}}"
    assert complaints(tmp_path, entries(body)) == [f"6:26: {HEADS}{ON_PURPOSE}"]


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
def test_a_case_may_be_invalid_on_purpose(tmp_path: Path, demands: str) -> None:
    wrong = (
        "num_heads: 3",
        "{rotary: half_split, rotary_dim: 3}",
        "{rotary: half_split, rotary_dim: 99}",
        "{causal: 0, local_window_size: 3}",
        "local_window_size: -7",
    )
    for number, fields in enumerate(wrong):
        contract = f"contract: {{demands: {demands}, source: x}}"
        (case,) = cases_of(tmp_path, f"- {{name: a{number}, {fields.strip('{}')}, {contract}}}")
        assert case.contract.demands == demands


# Several files


def test_mistakes_of_all_files_are_reported_at_once(tmp_path: Path) -> None:
    one = write(tmp_path, entries("- {name: a, sed: 1}"), "one.yaml")
    write(tmp_path, entries("- name: a"), "right.yaml")
    two = write(tmp_path, "format: gqa-cases/2\na: *b\n", "two.yml")
    with pytest.raises(InputError) as caught:
        load([tmp_path])
    assert str(caught.value).split("\n") == [
        f"{one}:6:15: unknown field 'sed'; did you mean 'seed'?",
        f"{two}:2:4: bad YAML: found undefined alias",
    ]


def test_two_files_with_the_same_stem_collide(tmp_path: Path) -> None:
    one = write(tmp_path, entries("- name: a"), "x/same.yaml")
    two = write(tmp_path, entries("- name: b"), "y/same.yml")
    with pytest.raises(InputError) as caught:
        load([tmp_path])
    assert str(caught.value) == (
        f"{two}: the theme 'same' is also used by {one}; ids would collide"
    )


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


def test_all_paths_without_cases_are_reported_at_once(tmp_path: Path) -> None:
    write(tmp_path, "a: 1", "x/other.yaml")
    with pytest.raises(InputError) as caught:
        case_files([tmp_path / "no.yaml", tmp_path / "x"])
    assert str(caught.value).split("\n") == [
        f"{tmp_path}/no.yaml: no such file or folder",
        f"{tmp_path}/x: no case file (format: gqa-cases/2) in this folder",
    ]


def test_a_file_named_explicitly_needs_no_header(tmp_path: Path) -> None:
    file = write(tmp_path, "a: 1\n")
    assert case_files([file]) == [file]
    assert not is_case_file(file)
    assert not is_case_file(tmp_path / "no.yaml")


def test_paths_below_the_current_folder_are_shown_as_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path, "a: *b", "x/theme.yaml")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"^x/theme\.yaml:1:4: bad YAML"):
        load([file])


def test_problems_are_sorted_and_unique() -> None:
    late, early = Problem(Path("a"), 12, 1, "x"), Problem(Path("a"), 3, 20, "y")
    assert InputError([late, early, late]).problems == [early, late]
    assert str(Problem(Path("/a"), 0, 0, "of the file")) == "/a: of the file"


def test_of_very_many_problems_the_first_are_listed(tmp_path: Path) -> None:
    file = write(tmp_path, entries("\n".join("- {}" for _ in range(3_000))))
    with pytest.raises(InputError) as caught:
        load([file])
    said = str(caught.value).split("\n")
    assert len(said) == MAX_PROBLEMS + 1
    assert said[0] == f"{file}:6:5: the field 'name' is missing"
    assert said[-1] == "… and more; these are the first"
    problems = [Problem(Path("a"), line, 1, "x") for line in range(MAX_PROBLEMS)]
    assert str(InputError(problems)).count("\n") == MAX_PROBLEMS - 1


def test_a_sentence_is_one_printable_line() -> None:
    problem = Problem(Path("a"), 1, 2, "x\ny\x1b[31m\u202e" + "z" * 10_000)
    said = str(problem)
    assert said.startswith("a:1:2: x⟨U+000A⟩y⟨U+001B⟩[31m⟨U+202E⟩zz")
    assert said.isprintable()
    assert len(said) < 2_100


# Hostile files


def bomb(levels: int, width: int) -> str:
    """Aliases of aliases: ``width ** levels`` values when written out."""
    lines = [f"a0: &a0 [{', '.join(['x'] * width)}]"]
    for level in range(1, levels):
        lines.append(f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * width)}]")
    return "\n".join(lines) + "\n"


def test_an_alias_bomb_is_rejected_with_little_time_and_memory(tmp_path: Path) -> None:
    """10^15 values; measured in a separate process with limited memory."""
    file = write(tmp_path, entries("- name: a") + bomb(15, 10))
    code = (
        "import sys, time; from pathlib import Path; import conformance.case.load as l\n"
        "sys.path.append(sys.argv[2]); from memory import peak_kib\n"
        "before = peak_kib(); start = time.monotonic()\n"
        "try: l.load([Path(sys.argv[1])])\n"
        "except l.InputError as error: print(error)\n"
        "print(peak_kib() - before)\n"
        "print(time.monotonic() - start)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, file, Path(__file__).parent],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    sentence, growth, seconds = done.stdout.splitlines()
    assert sentence.endswith(": expands to more than 60000 values")
    assert int(growth) < 200_000
    assert float(seconds) < 10


def test_values_at_the_limits_are_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    largest = b"a: 1\n#" + b"x" * (MAX_BYTES - 7) + b"\n"
    assert read_yaml(write(tmp_path, largest)).data == {"a": 1}
    monkeypatch.setattr(yaml_source, "MAX_NODES", 50)
    assert len(read_yaml(write(tmp_path, f"a: [{'1,' * 48}]")).data["a"]) == 48
    assert complaints(tmp_path, f"a: [{'1,' * 49}]") == ["1:101: expands to more than 50 values"]


def test_small_aliases_are_allowed(tmp_path: Path) -> None:
    made = cases_of(
        tmp_path,
        """
        - name: a
          contract: &contract {source: x, mentions: &words [one, two]}
        - name: b
          contract: *contract
          tags: *words
        """,
    )
    assert made[1].contract.mentions == ("one", "two")
    assert made[1].tags == ("one", "two")


def test_both_yaml_parsers_give_the_same_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyYAML without libyaml gives the same cases, locations and, for our messages, texts."""
    monkeypatch.setattr(yaml_source, "_LOADER", yaml.SafeLoader)
    assert cases_of(tmp_path, "- {name: a, matrix: {seed: [1, 2]}}")
    for text in (entries("- name: a\n  seed: 1\n  seed: 2"), "é: 1\nq: é \a?\n"):
        slow = complaints(tmp_path, text)
        monkeypatch.setattr(yaml_source, "_LOADER", getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        assert complaints(tmp_path, text) == slow
        monkeypatch.setattr(yaml_source, "_LOADER", yaml.SafeLoader)


FRAGMENTS = st.sampled_from(
    [
        *"[]{}:,-&*!|>?#%@`'\"~\n\t\\ ",
        "\n  ",
        "\n- ",
        "- name: a",
        ": ",
        "<<",
        "&a ",
        "*a",
        "!!python/object:os.X ",
        "!!binary ",
        "!!timestamp ",
        "---\n",
        "...",
        "format: gqa-cases/2\n",
        "question: Q?\n",
        "defaults:\n",
        "cases:\n",
        "matrix: ",
        "exclude: ",
        "contract: {source: x}",
        "inputs: ",
        "key",
        "null",
        "true",
        "0x1F",
        "1_000",
        "1e999",
        ".nan",
        "-.inf",
        "2001-01-01",
        "12:30:45",
        "\ufeff",
        "\u2028",
        "é",
        "𝄞",
    ]
)


@settings(max_examples=200)
@given(text=st.one_of(st.text(), st.lists(FRAGMENTS, max_size=40).map("".join)))
def test_the_loader_handles_any_text(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    survive(tmp_path_factory, text.encode("utf-8", "surrogatepass"))


@settings(max_examples=100)
@given(content=st.binary(max_size=200))
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


@pytest.mark.parametrize(
    "body",
    [
        "- {name: a}",
        "- {name: a, matrix: {inputs.key: [connected, omitted], attributes.scale: [1, 2.5, x]}}",
        "- {name: a, matrix: {own: {x: {seed: 1}, y: {}}, softcap: [null, 1]}}",
        "- {name: a, inputs: {key: omitted, value: {shape: [1, num_heads], dtype: int8}}}",
        "- {name: a, attributes: {scale: null, causal: 1, k_quant_type: NONE, softcap: 0.5}}",
        "- {name: a, inputs: {query: {data: [[1, 2.5], [.inf, 0]]}, key: {data: 1}}}",
        "- {name: a, outputs: {present_key: {shape: [1, 2]}, output_qk: connected}}",
        "- {name: a, title: local_window_size of 1}",
    ],
)
def test_the_schema_accepts_what_the_loader_accepts(tmp_path: Path, body: str) -> None:
    assert cases_of(tmp_path, body)
    SCHEMA.validate(yaml.safe_load(entries(body)))


@pytest.mark.parametrize(
    "body",
    [
        "- {seed: 1}",
        "- {name: a b}",
        "- {name: a, sed: 1}",
        "- {name: a, title: a prompt}",
        "- {name: a, title: A prompt.}",
        f"- {{name: a, title: A{80 * 'a'}}}",
        "- {name: a, dtype: flaot16}",
        "- {name: a, inputs: {kye: omitted}}",
        "- {name: a, inputs: {key: ommitted}}",
        "- {name: a, contract: {demands: computes}}",
        "- {name: a, matrix: {}}",
        "- {name: a, matrix: {seed: []}}",
        "- {name: a, matrix: {dtype: [x]}}",
        "- {name: a, matrix: {dtype: {x: {seed: 1}}}}",
        "- {name: a, matrix: {own: [1]}}",
        "- {name: a, matrix: {own: {x: {sed: 1}}}}",
    ],
)
def test_the_schema_rejects_what_the_loader_rejects(tmp_path: Path, body: str) -> None:
    assert complaints(tmp_path, entries(body))
    assert not SCHEMA.is_valid(yaml.safe_load(entries(body)))


def test_a_tag_must_not_be_a_pytest_marker(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(
        "format: gqa-cases/2\nquestion: Q?\ntags: [skip]\n"
        "defaults: {contract: {source: https://example.org}}\ncases: [{name: a}]\n"
    )
    with pytest.raises(InputError, match=r"3:8: .*is one of pytest's own marks"):
        load_file(file)


def test_an_invalid_entry_does_not_hide_mistakes_in_others(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(
        "format: gqa-cases/2\nquestion: Q?\n"
        "defaults: {contract: {source: https://example.org}}\n"
        "cases:\n"
        "  - {name: a, sed: 1}\n"
        "  - {name: b, num_heads: 5}\n"
        "  - {name: b, matrix: {seed: [1, 1]}}\n"
    )
    with pytest.raises(InputError) as caught:
        load_file(file)
    lines = [(problem.line, problem.sentence[:30]) for problem in caught.value.problems]
    assert lines == [
        (5, "unknown field 'sed'; did you m"),
        (6, "num_heads 5 is not a multiple "),
        (7, "the name 'b' is already used o"),
        (7, "the value 1 is twice in this a"),
    ]


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
