"""The shipped corpus: it loads, has questions and reasons, and can be judged."""

from __future__ import annotations

import re
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import yaml
from shipped import shipped_cases

from conformance.base.paths import data_path
from conformance.bundle.prepare import prepare
from conformance.case.case import Case
from conformance.case.case_file import schema
from conformance.case.corpus import shipped_files
from conformance.operator.tensors import attributes_of

FOLDER = data_path("cases")
FILES = list(shipped_files().values())

#: Written in C, as the package's own; the one in Python takes a second for the corpus.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
VALIDATOR = jsonschema.Draft202012Validator(schema())


@cache
def content(file: Path) -> dict[str, Any]:
    """A file as any reader of YAML sees it."""
    data: dict[str, Any] = yaml.load(file.read_text(), LOADER)
    return data


each_file = pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)


@pytest.fixture(scope="module")
def corpus() -> list[Case]:
    return list(shipped_cases())


def by_theme(corpus: list[Case]) -> dict[str, list[Case]]:
    themes = defaultdict(list)
    for case in corpus:
        themes[case.theme].append(case)
    return dict(themes)


def test_every_file_of_the_folder_is_loaded(corpus: list[Case]) -> None:
    assert set(by_theme(corpus)) == {file.stem for file in FILES}
    folders = {"blocks", "covering", "exported", "profiles"}
    by_hand = {file.name for file in FILES if file.parent == FOLDER}
    assert {path.name for path in FOLDER.iterdir()} == by_hand | folders | {
        "schema.json",
        "sensitive.json",
    }


@each_file
def test_a_file_names_its_schema_and_opens_with_its_question(file: Path) -> None:
    first, second, third = file.read_text().split("\n")[:3]
    assert first == "# yaml-language-server: $schema=schema.json"
    assert second == "format: gqa-cases/2"
    assert re.fullmatch(r"question: [A-Z].*\?", third)


@each_file
def test_every_file_is_valid_by_the_schema(file: Path) -> None:
    VALIDATOR.validate(content(file))


def test_ids_are_unique_and_of_one_form(corpus: list[Case]) -> None:
    ids = [case.id for case in corpus]
    assert len(set(ids)) == len(ids)
    for case in corpus:
        axes = ",".join(f"{axis}={label}" for axis, label in case.axes.items())
        assert case.id == f"{case.theme}/{case.name}" + (f"[{axes}]" if axes else "")
        assert case.id == f"{case.theme}/{case.label}"
        assert re.fullmatch(r"[\w.+\-/=,\[\]]+", case.id)


def test_no_two_cases_are_the_same_call(corpus: list[Case]) -> None:
    seen: dict[str, str] = {}
    for case in corpus:
        call = repr((case.steps, attributes_of(case.call), case.call.shared_buffer, case.relation))
        assert seen.setdefault(call, case.id) == case.id


def test_every_theme_has_float32_and_float16(corpus: list[Case]) -> None:
    """And so does each entry that has values and no rejections: limits are tested once.

    An entry in bfloat16 alone is for what kernels do in that type, and an exporter's has its own. A
    row for triples has the type that shows the most of them.
    """
    both = {"float32", "float16"}
    for theme, cases in by_theme(corpus).items():
        assert {case.call.dtype for case in cases} >= both, theme
        rejecting = {case.name for case in cases if case.contract.demands == "rejects"}
        entries = defaultdict(list)
        for case in cases:
            if case.name not in rejecting:
                entries[case.name].append(case)
        for name, those in entries.items():
            dtypes = {case.call.dtype for case in those}
            if (
                theme not in ("exports", "triples")
                and dtypes != {"bfloat16"}
                and not dtypes >= both
            ):
                for case in those:
                    assert case.contract.demands == "either", f"{theme}/{name}"
                    assert prepare(case.call).unjudged is not None, f"{theme}/{name}"


def test_a_rejection_names_the_words_that_its_message_must_mention(corpus: list[Case]) -> None:
    for case in corpus:
        if case.contract.demands == "rejects":
            assert case.contract.mentions, case.id


def test_an_entry_has_a_title_of_its_own(corpus: list[Case]) -> None:
    for theme, cases in by_theme(corpus).items():
        titles = {case.name: case.title for case in cases}
        assert len(set(titles.values())) == len(titles), theme


@pytest.mark.night  # creates every bundle; running the cases on a target checks the same
@pytest.mark.parametrize("theme", [file.stem for file in FILES])
def test_values_that_are_demanded_can_be_judged(theme: str, corpus: list[Case]) -> None:
    """A contract that requires values gets at least some of each output from the oracle."""
    for case in by_theme(corpus)[theme]:
        if case.contract.demands != "computes" or theme == "bounds_values":  # NaN hides outputs
            continue
        bundle = prepare(case.call)
        assert bundle.unjudged is None, f"{case.id}: {bundle.unjudged}"
        assert len(bundle.expected) == len(case.steps)
        for step, expected in zip(case.steps, bundle.expected, strict=True):
            assert tuple(expected) == step.connected_outputs
            for name, wanted in expected.items():
                assert np.isfinite(wanted.unit).any(), f"{case.id}: nothing of {name} is defined"
                assert np.isfinite(wanted.value).all(), f"{case.id}: {name}"
