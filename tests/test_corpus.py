"""The cases selected by a path, an id, or a file and a name."""

from __future__ import annotations

from pathlib import Path

import pytest
from case_files import entries, write

from conformance.base.paths import data_path
from conformance.base.yaml_source import InputError
from conformance.case.corpus import Corpus, NothingMeant, find, names_of, split_target

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
    assert {case.file.parent for case in corpus.named} == {SHIPPED}


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
    assert find([str(file) for file in SHIPPED.glob("*.yaml")]).whole


def test_an_existing_path_is_not_an_id(own: Path) -> None:
    """Even if it looks like one."""
    (own / "rotary").mkdir()
    write(own, entries("- name: mine"), "rotary/prompt/mine.yaml")
    assert named("rotary/prompt") == ["mine/mine"]


# Arguments that match nothing


def test_an_unknown_id_names_the_nearest() -> None:
    wrong = SOME.replace("zero_length_kv", "zero_lenght_kv")
    assert refused(wrong) == f"No case is called '{wrong}'; did you mean '{SOME}'?"
    assert refused("rotary/zzz") == "No case is called 'rotary/zzz'."


def test_an_unknown_theme_names_the_nearest() -> None:
    assert refused("rotray/prompt") == (
        "No case file and no shipped theme is called 'rotray'; did you mean 'rotary'?"
        " To name a case in a file of your own, write FILE.yaml::name."
    )
    assert refused("zzz/prompt") == (
        "No case file and no shipped theme is called 'zzz'."
        " To name a case in a file of your own, write FILE.yaml::name."
    )


def test_an_unknown_name_in_a_file_names_the_nearest(own: Path) -> None:
    assert refused("own.yaml::b") == "No case is called 'own/b'; did you mean 'own/ab'?"
    assert refused("own.yaml::a[seed=3]") == (
        "No case is called 'own/a[seed=3]'; did you mean 'own/a[seed=2]'?"
    )


@pytest.mark.parametrize(
    "path", ["no.yaml", "no.yaml::a", "./no/such", "../no/such", "/no/such", "no/such.yml", "no"]
)
def test_a_missing_path(own: Path, path: str) -> None:
    with pytest.raises(InputError) as caught:
        find([path])
    file = Path(path.partition("::")[0])
    assert str(caught.value) == f"{file}: no such file or folder"


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
    assert names_of(case, "cuda") == ("sub", "other.yaml", "a@cuda", "good")
    (case,) = find([SOME]).named
    folder, file, test, *tags = names_of(case, "cpu")
    assert (folder, file, test) == ("cases", "shared_kv.yaml", f"{case.label}@cpu")
    assert "shared_kv" in tags


@pytest.mark.parametrize(
    ("argument", "path", "target"),
    [
        ("cases/a.yaml::b[c=1]@cpu", "cases/a.yaml::b[c=1]", "cpu"),
        ("a/b[c=1]@exec:./x@y", "a/b[c=1]", "exec:./x@y"),
        ("a/b@cuda", "a/b", "cuda"),
        ("a/b[c=1]", "a/b[c=1]", None),
        ("some@where/a.yaml", "some@where/a.yaml", None),
        ("some@where/a.yaml::b", "some@where/a.yaml::b", None),
    ],
)
def test_a_pytest_id_names_its_target(argument: str, path: str, target: str | None) -> None:
    assert split_target(argument) == (path, target)


def test_a_theme_selects_its_file() -> None:
    assert {case.theme for case in find(["window"]).named} == {"window"}
