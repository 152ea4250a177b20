"""Cited threads: each is in ``docs/citations.yaml``, which says what it is, and each is cited."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from known_bugs import known_bugs

from conformance.base.paths import ROOT
from conformance.base.yaml_source import InputError
from conformance.maintain.citations import (
    Citations,
    Thread,
    citing_files,
    load_citations,
    problems,
)
from conformance.targets.releases import is_in_range

PULL: dict[str, Any] = {
    "kind": "pull",
    "title": "It adds something",
    "state": "merged",
    "in_release": "1.2.0",
    "cited_for": "what it adds",
}
THREADS = {
    "owner/repository#11": Thread(**PULL),
    "owner/repository#12": Thread(kind="issue", title="It fails", state="open", cited_for="how"),
}


@pytest.fixture(scope="module")
def shipped() -> Citations:
    return load_citations()


@pytest.mark.skipif(not (ROOT / "tests").is_dir(), reason="not a checkout")
def test_every_citation_is_looked_up_and_has_the_right_kind(shipped: Citations) -> None:
    examples = ("test_citations.py", "test_quotations.py")
    files = [file for file in citing_files() if file.name not in examples]
    assert len(files) > 200
    assert [str(problem) for problem in problems(files, shipped.threads)] == []


def test_threads_are_sorted(shipped: Citations) -> None:
    parts = [name.lower().partition("#") for name in shipped.threads]
    keys = [(repository, int(number)) for repository, _, number in parts]
    assert keys == sorted(keys)


def test_a_known_bug_affects_no_release_that_has_its_correction(shipped: Citations) -> None:
    for bug in known_bugs():
        owner, repository, _, number = bug.link.split("/")[3:7]
        thread = shipped.threads.get(f"{owner}/{repository}#{number}")
        if thread is None or thread.in_release is None or "<" not in bug.versions:
            continue
        assert not is_in_range(thread.in_release, bug.versions), bug.id
        assert not is_in_range("9999", bug.versions), bug.id


# ── What is wrong is reported ────────────────────────────────────────────────────────────────────


def complaints(folder: Path, text: str) -> list[str]:
    file = folder / "page.md"
    file.write_text(text)
    return [problem.sentence for problem in problems([file], THREADS)]


CITED = "owner/repository#11 and https://github.com/owner/repository/issues/12\n"


def test_right_citations_have_no_problem(tmp_path: Path) -> None:
    assert complaints(tmp_path, CITED) == []
    examples = "`a/b#1`, https://github.com/a/b/issues/2, #944 and cpu#2"
    assert complaints(tmp_path, CITED + examples) == []


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("owner/other#11", "owner/other#11 is not in docs/citations.yaml; look it up"),
        ("https://github.com/owner/repository/pull/13", "owner/repository#13 is not in docs/"),
        ("https://github.com/owner/repository/issues/11#c-1", "of the kind pull: write https://"),
        ("https://github.com/owner/repository/pull/12", "of the kind issue: write https://"),
        ("as #29216 says", "write '#29216' with its repository: owner/repository#number"),
        ("(repository#29216)", "write 'repository#29216' with its repository"),
    ],
)
def test_a_wrong_citation_is_reported(tmp_path: Path, text: str, sentence: str) -> None:
    (found,) = complaints(tmp_path, CITED + text)
    assert sentence in found


def test_a_thread_that_nothing_cites_is_reported(tmp_path: Path) -> None:
    assert complaints(tmp_path, "owner/repository#11") == [
        "nothing cites owner/repository#12; remove it"
    ]


def test_what_is_not_the_projects_own_is_not_read(tmp_path: Path) -> None:
    for name in ("docs/a.md", "docs/.b/c.md", "runners/node_modules/d/e.md", "docs/f.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert list(citing_files(tmp_path)) == [tmp_path / "docs/a.md"]


def test_a_problem_has_its_line(tmp_path: Path) -> None:
    file = tmp_path / "page.md"
    file.write_text(f"{CITED}\nowner/other#11\n")
    (problem,) = problems([file], THREADS)
    assert (problem.file, problem.line) == (file, 3)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"kind": "commit"}, "kind"),
        ({"state": "broken"}, "state"),
        ({"title": ""}, "expected a title and a state"),
        ({"found": False}, "expected a title and a state"),
        ({"tried": "searched"}, "expected a title and a state"),
        ({"state": "open"}, "only what is merged is in a release"),
        ({"kind": "issue"}, "only a pull request can be merged"),
        ({"cited_for": ""}, "must not be empty"),
        ({"quotes": [""]}, "must not be empty"),
        ({"wrong": 1}, "unknown field 'wrong'"),
    ],
)
def test_an_invalid_thread_is_reported(
    tmp_path: Path, change: dict[str, Any], sentence: str
) -> None:
    file = tmp_path / "citations.yaml"
    threads = {"owner/repository#11": PULL | change}
    file.write_text(yaml.safe_dump({"format": "gqa-citations/1", "threads": threads}))
    with pytest.raises(InputError) as caught:
        load_citations(file)
    assert sentence in str(caught.value)


def test_a_thread_that_was_not_found_says_what_was_tried(tmp_path: Path) -> None:
    file = tmp_path / "citations.yaml"
    thread = {"kind": "issue", "found": False, "tried": "searched", "cited_for": "something"}
    threads = {"owner/repository#11": thread}
    file.write_text(yaml.safe_dump({"format": "gqa-citations/1", "threads": threads}))
    assert not load_citations(file).threads["owner/repository#11"].found
