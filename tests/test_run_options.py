"""Options of ``gqa run`` for work on a kernel: stop early, run failures again, times, bisect."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from pathlib import Path

import pytest
from as_user import TWENTY, Desk, Done, Gqa, in_terminal, wait_for
from case_files import write

from conformance.base.paths import ROOT
from conformance.results.reader import read

ALL = {"FAULT_ON": "/"}


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory, shared_cache: Path) -> Desk:
    made = Desk(tmp_path_factory.mktemp("desk"), shared_cache)
    write(made.folder, TWENTY, "twenty.yaml")
    return made


def closing(done: Done) -> str:
    """The line with the totals."""
    return next(line for line in reversed(done.out.splitlines()) if " unexpected" in line)


# Stop early


def test_a_run_stops_when_its_time_is_over_and_goes_on(gqa: Gqa, desk: Desk) -> None:
    """Files run in the order in which they are given, so that what matters most is there."""
    desk.runner("correct")
    file = "minutes.jsonl"
    here = ("--ep", "exec:programs/correct", "--jobs", "3")
    arguments = ("run", "twenty.yaml", "three.yaml", *here)
    done = gqa(*arguments, "--minutes", "1e-5", "--resume", file)
    assert done.status == 0
    assert "stopped with " in closing(done)
    first = read(desk.folder / file)
    assert 0 < len(first.results) < 20
    assert {result.case.partition("/")[0] for result in first.results} == {"twenty"}
    assert "The run was stopped before its end." in first.problems
    done = gqa(*arguments, "--minutes", "60", "--resume", file)
    assert (done.status, closing(done)) == (0, "23 results, 0 unexpected")
    whole = read(desk.folder / file)
    assert (len(whole.results), whole.problems) == (23, ())
    assert whole.results[: len(first.results)] == first.results


# The last failures


@pytest.mark.slow
def test_an_interrupted_run_notes_what_it_ran(desk: Desk, tmp_path: Path) -> None:
    cache = {"GQA_CACHE": str(tmp_path)}
    arguments = ("run", "twenty.yaml", "--ep", desk.runner("rejects"))
    gqa = (sys.executable, "-m", "conformance")
    desk.run(*gqa, *arguments, "-k", "seed=1 or seed=2", environment={**cache, **ALL})
    slow = ("run", "twenty.yaml", "--ep", desk.runner("waits"), "--results", "cut.jsonl")
    waiting = {**cache, **ALL, "FAULT_SECONDS": "0.2"}
    process = desk.start(*gqa, *slow, environment=waiting)
    file = desk.folder / "cut.jsonl"
    wait_for(lambda: file.is_file() and file.read_text().count('"kind":"result"') >= 2)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    done = desk.run(*gqa, *arguments, "--lf", environment={**cache, **ALL})
    assert "--lf: 4 of 20 failed" in done.out  # seeds 1 and 2


# Exit statuses for git bisect


def _recipe() -> str:
    """The script of the section on git bisect in docs/kernel_work.md."""
    page = (ROOT / "docs" / "kernel_work.md").read_text(encoding="utf-8")
    section = page.partition("## Find the commit that broke a case")[2]
    return section.partition("```sh\n")[2].partition("```")[0]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_the_documented_bisect_finds_the_first_bad_commit(desk: Desk, tmp_path: Path) -> None:
    """Of the runtime's nine commits one cannot be built, and one does not start."""
    repository = tmp_path / "runtime"
    repository.mkdir()
    nobody = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@example.org"}
    nobody |= {"GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@example.org"}
    environment = {**desk.environment, **nobody, **ALL, "GIT_CONFIG_GLOBAL": os.devnull}

    def sh(command: str) -> str:
        done = desk.run("sh", "-c", f"cd {repository}; {command}", environment=environment)
        assert done.status == 0, done.both
        return done.out

    # The documented commands, on this runtime.
    recipe = _recipe()
    for generic, here in (
        ("./build.sh", "sh build.sh"),
        ("--ort-python build/venv/bin/python", "--ep exec:./built"),
        ("'smoke/decode[dtype=float16]'", f"{desk.folder}/three.yaml::faulty"),
        ("v1.30.0", "first"),
    ):
        assert generic in recipe, generic
        recipe = recipe.replace(generic, here)

    sh("git init -q . && echo built > .gitignore")
    good = desk.runner("correct").removeprefix("exec:")
    bad = desk.runner("wrong_values").removeprefix("exec:")
    build = "set -e; cp runner built; chmod +x built\n"
    runner = '#!/bin/sh\nexec {} "$@"\n'
    strange = {
        "not built": ("exit 1\n", runner.format(good)),
        "does not start": (build, "#!/bin/sh\nexit 7\n"),
        "the bad one": (build, runner.format(bad)),
        "bad": (build, runner.format(bad)),
    }
    commits = "good,good,not built,good,does not start,good,the bad one,bad,bad"
    for number, subject in enumerate(commits.split(",")):
        script, program = strange.get(subject, (build, runner.format(good)))
        (repository / "build.sh").write_text(script)
        (repository / "runner").write_text(program)
        (repository / "number").write_text(f"{number}\n")
        sh(f"git add -A && git commit -qm '{subject}'")
        if not number:
            sh("git tag first")
    told = sh(recipe)
    found = sh("git log --all --format='%H %s'")
    (bad_one,) = re.findall(r"([0-9a-f]{40}) the bad one", found)
    assert f"{bad_one} is the first bad commit" in told
    # In the middle of the nine is the one that does not start.
    assert re.search(r"^# skip: \[[0-9a-f]{40}\] does not start$", told, re.M)


# Terminals


@pytest.mark.parametrize(
    ("columns", "no_color"),
    [(20, False), (60, True), pytest.param(200, False, marks=pytest.mark.slow)],
)
def test_no_word_of_the_counts_is_cut_in_a_terminal(
    desk: Desk, columns: int, no_color: bool
) -> None:
    environment = {"COLUMNS": str(columns), **ALL, **({"NO_COLOR": "1"} if no_color else {})}
    targets = ("--ep", desk.runner("rejects"), "--ep", desk.runner("correct"))
    status, text = in_terminal(desk, "run", "three.yaml", *targets, **environment)
    assert status == 1
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\r", "")
    start = re.search(r"\b(theme|three) ", plain)
    assert start
    table = plain[start.start() :].partition("reason")[0]
    assert "…" not in table
    for word in ("three", "unsupported", "pass", "unexpected", "all"):
        assert word in table, word
    assert bool(re.search(r"\x1b\[(?:\d+;)*3\dm", text)) is not no_color
    assert "6 results, 3 unexpected" in plain


def test_a_narrow_table_of_one_target_with_a_long_name_is_not_cut(desk: Desk) -> None:
    name = "a-build-with-a-name-of-39-characters-ab"
    arguments = ("run", "three.yaml", "--ep", desk.runner("rejects"), "--name", name)
    _, text = in_terminal(desk, *arguments, COLUMNS="18", NO_COLOR="1")
    assert "theme three ○ unsupported 1 ✓ pass 2 unexpected" in " ".join(text.split())


def test_in_ci_the_output_is_plain(desk: Desk) -> None:
    arguments = ("run", "three.yaml", "--ep", desk.runner("rejects"))
    done = desk.gqa(*arguments, environment={"CI": "1", "COLUMNS": "40", "TERM": "dumb"})
    assert "\x1b" not in done.both
    assert "theme  ○ unsupported  ✓ pass  unexpected" in done.out
    progress = done.err.splitlines()
    assert len(progress) <= 10
    assert progress[-1] == "3/3  1 unsupported, 2 pass"


# gqa diff


@pytest.mark.slow
def test_diff_is_a_table_in_a_terminal_and_markdown_elsewhere(
    desk: Desk, gqa: Gqa, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, fault in (("old", "nothing"), ("new", "/")):
        monkeypatch.setenv("FAULT_ON", fault)
        gqa("run", "three.yaml", "--ep", desk.runner("rejects"), "--results", f"{name}.jsonl")
    piped = gqa("diff", "old.jsonl", "new.jsonl")
    assert piped.out.startswith("# Worse than the baseline\n")
    assert "three/faulty" in piped.out
    gqa("diff", "old.jsonl", "new.jsonl", "--markdown", "d.md")
    status, text = in_terminal(desk, "diff", "old.jsonl", "new.jsonl", COLUMNS="40")
    plain = re.sub(r"\x1b\[[0-9;?]*m", "", text).replace("\r", "")
    assert status == 1
    assert re.match(r"\s*Worse than the baseline\s+• 3 results are newly broken\.\s", plain)
    assert "3 → 0" in " ".join(plain.split())
    assert not re.search(r"^\||^#|`", plain, re.M)
    assert (desk.folder / "d.md").read_text() == piped.out
