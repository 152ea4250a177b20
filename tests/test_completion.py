"""Shell completion: what is offered, and that bash and fish use it as documented."""

from __future__ import annotations

import re
import shutil

import pytest
from as_user import Desk
from shipped import shipped_cases

from conformance.base.paths import ROOT
from conformance.case.corpus import shipped_files
from conformance.case.properties import VOCABULARY
from conformance.cli.completion import case_names, words
from conformance.cli.run import run


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
