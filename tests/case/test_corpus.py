"""The cases selected by a path, an id, or a file and a name."""

from __future__ import annotations

from pathlib import Path

import pytest
from case_files import entries, write
from shipped import shipped_cases
from tables import tables

from conformance.base.paths import data_path
from conformance.case.corpus import find, name_on, shipped_files, shipped_tags, split_target

TABLES = tables(__file__)

SHIPPED = data_path("cases")
SOME = "shared_kv/zero_length_kv[dtype=float32,past_sequence_length=8,batch_size=1]"


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of case files, the current one."""
    write(tmp_path, entries("- {name: a, matrix: {seed: [1, 2]}}\n- {name: ab}"), "own.yaml")
    write(tmp_path, entries("- {name: a, tags: [good]}"), "sub/other.yaml")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def named(*arguments: str) -> list[str]:
    return [case.id for case in find(arguments).named]


@pytest.mark.parametrize("argument", ["own.yaml::a[seed=2]", SOME])
def test_the_theme_of_a_case_is_loaded_and_no_other(own: Path, argument: str) -> None:
    corpus = find([argument])
    assert {case.theme for case in corpus.loaded} == {corpus.named[0].theme}
    assert len(corpus.loaded) > len(corpus.named) == 1
    assert not corpus.whole


def test_the_shipped_corpus_is_selected_by_nothing_or_all_of_its_files() -> None:
    corpus = find([])
    assert corpus.whole
    assert corpus.named == corpus.loaded
    assert {case.file.parent for case in corpus.named} == {SHIPPED, SHIPPED / "covering"}
    assert find([str(file) for file in shipped_files().values()]).whole


def test_the_tags_that_are_searched_for_are_those_of_the_cases() -> None:
    tags = shipped_tags()
    assert len(tags) == len(set(tags))
    assert set(tags) == {tag for case in shipped_cases() for tag in case.tags}


# Targets in ids


@pytest.mark.parametrize(("argument", "path", "target"), TABLES["targets"])
def test_a_target_in_an_id(argument: str, path: str, target: str | None) -> None:
    assert split_target(argument) == (path, target)


@pytest.mark.parametrize(
    "target", ["cpu", "exec:./a,b]", "exec:/a::b/[c]", "exec:é %41", "exec:\udcff\n\x1b[1m"]
)
@pytest.mark.parametrize("argument", ["own.yaml::ab", SOME])
def test_the_name_of_a_test_can_be_read_back(own: Path, argument: str, target: str) -> None:
    """The name of a test has one bracket at its end and can be read back."""
    (case,) = find([argument]).named
    name = name_on(case, target)
    assert name.isprintable()
    assert name.startswith(f"{case.name}[")
    assert name.endswith("]")
    assert split_target(f"own.yaml::{name}") == (f"own.yaml::{case.label}", target)
