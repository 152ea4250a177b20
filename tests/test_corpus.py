"""The cases selected by a path, an id, or a file and a name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from case_files import entries, write
from shipped import shipped_cases

from conformance.base.paths import data_path
from conformance.base.yaml_source import InputError
from conformance.case.corpus import (
    Corpus,
    NothingMeant,
    find,
    name_on,
    names_of,
    shipped_files,
    shipped_tags,
    split_target,
)

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


def refused(*arguments: str) -> str:
    with pytest.raises(NothingMeant) as caught:
        find(arguments)
    return str(caught.value)


def test_without_arguments_the_shipped_corpus_is_selected() -> None:
    corpus = find([])
    assert isinstance(corpus, Corpus)
    assert corpus.whole
    assert corpus.named == corpus.loaded
    assert {case.file.parent for case in corpus.named} == {SHIPPED, SHIPPED / "covering"}


def test_a_folder_selects_all_files_below_it(own: Path) -> None:
    assert named(".") == ["own/a[seed=1]", "own/a[seed=2]", "own/ab", "other/a"]
    assert named("sub") == named("sub/") == named(str(own / "sub")) == ["other/a"]


def test_a_file_selects_all_its_cases(own: Path) -> None:
    assert named("own.yaml") == ["own/a[seed=1]", "own/a[seed=2]", "own/ab"]
    assert named("sub/other.yaml", "own.yaml")[0] == "other/a"
    assert named("own.yaml::ab", "sub/other.yaml") == ["own/ab", "other/a"]


def test_a_name_in_a_file(own: Path) -> None:
    """``a`` selects the entry of that name, not those that begin with it."""
    assert named("own.yaml::a") == ["own/a[seed=1]", "own/a[seed=2]"]
    assert named("own.yaml::a[seed=2]") == ["own/a[seed=2]"]
    assert named("./sub/other.yaml::a") == ["other/a"]
    corpus = find(["own.yaml::a[seed=2]"])
    assert len(corpus.loaded) == 3
    assert not corpus.whole


def test_an_id_selects_a_shipped_case(own: Path) -> None:
    assert named(SOME) == [SOME]
    whole_entry = named("shared_kv/zero_length_kv")
    assert SOME in whole_entry
    assert all(one.startswith("shared_kv/zero_length_kv[") for one in whole_entry)
    corpus = find([SOME])
    assert {case.theme for case in corpus.loaded} == {"shared_kv"}
    assert not corpus.whole


def test_a_case_named_twice_is_selected_once(own: Path) -> None:
    assert named("own.yaml", "own.yaml::a", str(own / "own.yaml")) == named("own.yaml")
    assert named(".", "own.yaml::ab") == named(".")


def test_a_shipped_file_and_the_id_of_a_case_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two paths name the same file."""
    monkeypatch.chdir(SHIPPED.parent)
    assert named("cases/shared_kv.yaml", SOME) == named("cases/shared_kv.yaml")
    assert named(SOME, "cases/rotary.yaml::prompt")[0] == SOME


def test_ids_and_paths_can_be_mixed(own: Path) -> None:
    assert named("own.yaml::ab", SOME) == ["own/ab", SOME]


def test_all_shipped_files_together_are_the_corpus() -> None:
    assert find([str(file) for file in shipped_files().values()]).whole


def test_an_existing_path_is_not_an_id(own: Path) -> None:
    """Even if it looks like one."""
    (own / "rotary").mkdir()
    write(own, entries("- name: mine"), "rotary/prompt/mine.yaml")
    assert named("rotary/prompt") == ["mine/mine"]


# Arguments that match nothing


TO_NAME_ONE = "To name a case in a file of your own, write FILE.yaml::name."
MISSPELLED = SOME.replace("zero_length_kv", "zero_lenght_kv")


@pytest.mark.parametrize(
    ("argument", "sentence"),
    [
        (MISSPELLED, f"No case is called '{MISSPELLED}'; did you mean '{SOME}'?"),
        ("rotary/zzz", "No case is called 'rotary/zzz'."),
        (
            "rotray/prompt",
            "No case file and no shipped theme is called 'rotray'; did you mean 'rotary'?"
            f" {TO_NAME_ONE}",
        ),
        ("zzz/prompt", f"No case file and no shipped theme is called 'zzz'. {TO_NAME_ONE}"),
        ("own.yaml::b", "No case is called 'own/b'; did you mean 'own/ab'?"),
        ("own.yaml::bb[seed=1]", "No case is called 'own/bb[seed=1]'."),
        (
            "shared_vk",
            "'shared_vk' is not a file, a folder or a theme of the corpus;"
            " did you mean 'shared_kv'?",
        ),
        ("", "An argument is empty; name a case file, a folder or a case."),
        ("own.yaml::a[sed=1]", "own/a has no axis 'sed'; did you mean 'seed'?"),
        ("own.yaml::a[dtype=1]", "own/a has no axis 'dtype'; it has seed."),
        ("own.yaml::ab[seed=1]", "own/ab has no axis 'seed'; it has none."),
        ("own.yaml::a[seed=3]", "The axis 'seed' of own/a has no value '3'; it has 1, 2."),
        ("own.yaml::a[seed]", "'own/a[seed]' is not an id; write own/a[axis=value,…]."),
        ("own.yaml::a[]", "'own/a[]' is not an id; write own/a[axis=value,…]."),
        ("own.yaml::a[seed=1", "'own/a[seed=1' is not an id; write own/a[axis=value,…]."),
        ("own.yaml::a[seed=1,seed=2]", "'own/a[seed=1,seed=2]' names an axis twice."),
        (
            "shared_kv/zero_length_kv[dtype=float61]",
            "The axis 'dtype' of shared_kv/zero_length_kv has no value 'float61';"
            " did you mean 'float16'?",
        ),
    ],
)
def test_an_argument_that_means_nothing_names_the_nearest(
    own: Path, argument: str, sentence: str
) -> None:
    assert refused(argument) == sentence


@pytest.mark.parametrize(
    "path", ["no.yaml", "no.yaml::a", "./no/such", "../no/such", "/no/such", "no/such.yml"]
)
def test_a_missing_path(own: Path, path: str) -> None:
    with pytest.raises(InputError) as caught:
        find([path])
    file = Path(path.partition("::")[0])
    assert str(caught.value) == f"{file}: no such file or folder"


def test_the_tags_that_are_searched_for_are_those_of_the_cases() -> None:
    tags = shipped_tags()
    assert len(tags) == len(set(tags))
    assert set(tags) == {tag for case in shipped_cases() for tag in case.tags}


def test_a_folder_without_cases(own: Path) -> None:
    (own / "empty").mkdir()
    with pytest.raises(InputError, match=r"^empty: no case file \(format: gqa-cases/2\)"):
        find(["empty"])


def test_one_invalid_argument_among_valid_ones(own: Path) -> None:
    assert refused("own.yaml", "own.yaml::zzz").startswith("No case is called 'own/zzz'")


def test_mistakes_in_a_file_are_reported_by_the_loader(own: Path) -> None:
    write(own, entries("- {name: a, sed: 1}"), "wrong.yaml")
    with pytest.raises(InputError, match=r"^wrong\.yaml:6:15: unknown field 'sed'"):
        find(["wrong.yaml", "own.yaml"])


# Names that -k matches


def test_names_are_folder_file_test_and_tags(own: Path) -> None:
    (case,) = find(["sub/other.yaml"]).named
    assert names_of(case, "cuda") == ("sub", "other.yaml", "a[ep=cuda]", "good")
    assert names_of(case, None) == ("sub", "other.yaml", "a", "good")
    (case,) = find([SOME]).named
    folder, file, test, *tags = names_of(case, "cpu")
    assert (folder, file, test) == ("cases", "shared_kv.yaml", f"{case.label[:-1]},ep=cpu]")
    assert "shared_kv" in tags


# Targets in ids


@pytest.mark.parametrize(
    ("argument", "path", "target"),
    [
        ("cases/a.yaml::b[c=1,ep=cpu]", "cases/a.yaml::b[c=1]", "cpu"),
        ("cases/a.yaml::b[ep=cpu,c=1]", "cases/a.yaml::b[c=1]", "cpu"),
        ("a/b[c=1,ep=cpu,d=2]", "a/b[c=1,d=2]", "cpu"),
        ("a/b[ep=cuda]", "a/b", "cuda"),
        ("a/b[step=1,c.ep=2]", "a/b[step=1,c.ep=2]", None),
        ("a/b[c=1]", "a/b[c=1]", None),
        ("a/b", "a/b", None),
        ("a/b[ep=exec:./x::y]", "a/b", "exec:./x::y"),
        ("a.yaml::b[c=1,ep=exec:./p,ep=q/[r]]", "a.yaml::b[c=1]", "exec:./p,ep=q/[r]"),
        ("a/b[ep=exec:./my runner.yaml]", "a/b", "exec:./my runner.yaml"),
        ("a/b[ep=exec:./100%25%0A]", "a/b", "exec:./100%\n"),
        ("some[1]/a.yaml::b[ep=cpu]", "some[1]/a.yaml::b", "cpu"),
        ("some@where/a.yaml", "some@where/a.yaml", None),
        ("some@where/a.yaml::b", "some@where/a.yaml::b", None),
        ("some[ep=cpu]/a.yaml", "some[ep=cpu]/a.yaml", None),
        # as earlier versions wrote it
        ("cases/a.yaml::b[c=1]@cpu", "cases/a.yaml::b[c=1]", "cpu"),
        ("a/b[c=1]@exec:./x@y", "a/b[c=1]", "exec:./x@y"),
        ("a/b@cuda", "a/b", "cuda"),
    ],
)
def test_a_target_in_an_id(argument: str, path: str, target: str | None) -> None:
    assert split_target(argument) == (path, target)


@pytest.mark.parametrize(
    "target", ["cpu", "exec:./a,b]", "exec:/a::b/[c]", "exec:é %41", "exec:\udcff\n\x1b[1m"]
)
def test_the_name_of_a_test_has_one_bracket_at_its_end_and_can_be_read_back(target: str) -> None:
    for label in ("own/a", SOME):
        (case,) = (case for case in find(["shared_kv"]).named[:1])
        case = replace(case, id=label, name=label.partition("/")[2].partition("[")[0])
        case = replace(case, axes=case.axes if "[" in label else {})
        name = name_on(case, target)
        assert name.isprintable()
        assert name.startswith(f"{case.name}[")
        assert name.endswith("]")
        bare, found = split_target(f"own.yaml::{name}")
        assert found == target
        assert ("[" in bare) == bool(case.axes)


def test_an_id_with_a_target_selects_the_case_on_that_target(own: Path) -> None:
    corpus = find(["own.yaml::a[seed=1,ep=cpu]", "own.yaml::a[seed=2]", "own.yaml::ab[ep=cuda]"])
    assert corpus.targets == ["cpu", "cuda"]
    first, second, third = corpus.named
    chosen = [
        (case.label, t)
        for case in corpus.named
        for t in ("cpu", "cuda", "x")
        if corpus.selects(case, t)
    ]
    assert chosen == [
        (first.label, "cpu"),
        *((second.label, target) for target in ("cpu", "cuda", "x")),
        (third.label, "cuda"),
    ]


# Some of the axes


def test_an_id_with_some_axes_selects_all_cases_that_agree(own: Path) -> None:
    every = [case for case in find(["shared_kv"]).named if case.name == "zero_length_kv"]
    some = [case.id for case in every if case.axes["dtype"] == "float16"]
    assert 1 < len(some) < len(every)
    assert named("shared_kv/zero_length_kv[dtype=float16]") == some
    both = named("shared_kv/zero_length_kv[batch_size=1,dtype=float16]")
    assert both == named("shared_kv/zero_length_kv[dtype=float16,batch_size=1]")
    assert 1 <= len(both) < len(some)
    file = SHIPPED / "shared_kv.yaml"
    assert named(f"{file}::zero_length_kv[dtype=float16,ep=cpu]") == some


def test_values_that_no_case_combines(own: Path) -> None:
    matrix = "{seed: [1, 2], batch_size: [1, 2]}, exclude: [{seed: 1, batch_size: 2}]"
    write(own, entries(f"- {{name: a, matrix: {matrix}}}"), "holes.yaml")
    sentence = "No case of holes/a has all of batch_size=2,seed=1."
    assert refused("holes.yaml::a[batch_size=2,seed=1]") == sentence


def test_a_theme_selects_its_file() -> None:
    assert {case.theme for case in find(["window"]).named} == {"window"}
