"""Shell completion: what is offered, and that bash and fish use it as documented."""

from __future__ import annotations

import re
import shutil
import time

import pytest
from as_user import Desk
from click.shell_completion import BashComplete
from shipped import shipped_cases

from conformance.base.paths import ROOT
from conformance.case.corpus import shipped_files
from conformance.case.properties import VOCABULARY
from conformance.cli.commands import gqa
from conformance.cli.completion import case_names, words
from conformance.cli.run import run
from conformance.targets.catalogue import ADAPTERS, TARGETS


def offered(line: str) -> list[str]:
    """What is offered for the last word of a command line, without the note on files."""
    *words, last = line.split(" ")
    shell = BashComplete(gqa, {}, "gqa", "_GQA_COMPLETE")
    return [item.value for item in shell.get_completions(words[1:], last) if item.type == "plain"]


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("gqa di", ["diff"]),
        ("gqa setup tr", ["tract", "tract-plain", "tract-wheel"]),
        ("gqa run --ep ", [*(entry.name for entry in TARGETS), "exec:", "ort-plugin:"]),
        ("gqa doctor --compute-sanitizer ", ["auto"]),
        ("gqa run --tract ", []),
        ("gqa export smoke/prompt x --ep webg", ["webgpu", "webgpu-jsep"]),
        ("gqa run --adapter ", list(ADAPTERS)),
        ("gqa run --maxf", ["--maxfail"]),
        ("gqa run -k smo", ["smoke", "smooth_softmax"]),
        ("gqa list borr", ["borrowed"]),
        ("gqa list softcap bounds_l", ["bounds_lengths"]),
        ("gqa run bounds_l", ["bounds_lengths"]),
        ("gqa show smoke/pr", ["smoke/prompt"]),
        ("gqa list decoding smoke/pr", ["smoke/prompt"]),
        ("gqa run no_such_theme/", []),
        ("gqa run ../../etc/", []),
    ],
)
def test_what_is_offered(line: str, names: list[str]) -> None:
    assert offered(line) == names


def test_all_names_and_tags_of_the_corpus_are_offered() -> None:
    """They are taken from the lines of the files; here they are compared with the loaded cases."""
    context, parameter = run.make_context("run", []), run.params[0]

    def texts(items: list[object]) -> set[str]:
        return {str(item.value) for item in items if item.type == "plain"}  # type: ignore[attr-defined]

    files = list(shipped_files().values())
    assert texts([*case_names(context, parameter, "")]) == {file.stem for file in files}
    loaded = shipped_cases()
    for file in files:
        entries = {f"{c.theme}/{c.name}" for c in loaded if c.theme == file.stem}
        assert texts([*case_names(context, parameter, f"{file.stem}/")]) == entries
    tags = {tag for case in loaded for tag in case.tags}
    assert texts([*words(context, parameter, "")]) == {*tags, *VOCABULARY}


def test_names_and_tags_are_found_without_loading_the_corpus() -> None:
    """Loading it takes more than a second of CPU time."""
    context, parameter = run.make_context("run", []), run.params[0]
    since = time.process_time()
    assert words(context, parameter, "smo")
    assert case_names(context, parameter, "smoke/")
    assert time.process_time() - since < 0.2


# In the shells themselves


def _documented(shell: str) -> str:
    """The line for a shell in docs/kernel_work.md."""
    page = (ROOT / "docs" / "kernel_work.md").read_text(encoding="utf-8")
    (line,) = re.findall(rf"^\| {shell}.*\| `([^`]+)` \|$", page, re.M)
    return str(line).replace("\\|", "|")


BASH = "compopt() { :; }; COMP_WORDS=(gqa list smoke/pro) COMP_CWORD=2; _gqa_completion gqa"


@pytest.mark.parametrize(
    ("shell", "option", "asks"),
    [
        ("fish", "--no-config", "complete -C 'gqa list smoke/pro'"),
        ("bash", "--norc", f"{BASH}; echo ${{COMPREPLY[@]}}"),
    ],
)
def test_a_shell_completes_a_name(desk: Desk, shell: str, option: str, asks: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    done = desk.run(shell, option, "-c", f"{_documented(shell)}; {asks}")
    assert (done.status, done.err) == (0, "")
    assert done.out.split()[:1] == ["smoke/prompt"]
