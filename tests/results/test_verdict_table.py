"""The table of verdicts, and everything that shows verdicts: adding one is a row and a drawing.

Each test walks one consumer for every verdict, and says which file to edit where it falls short.
"""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import get_args
from xml.etree.ElementTree import fromstring

import pytest
from case_files import cases_of
from reported import Parsed
from rich.color import ColorSystem
from rich.console import Console
from rich.style import Style
from synthetic_runs import case, expected, result, write

from conformance.base.paths import ROOT, data_path
from conformance.case.contract import Contract
from conformance.cli.terminal import RunSummary, Terminal
from conformance.harness.outcomes import Ran
from conformance.judge.verdict import Judgement
from conformance.maintain.power import Mutant, kills
from conformance.report.html import render
from conformance.report.junit import junit
from conformance.report.markdown import summary_markdown
from conformance.report.repro.issue import issue
from conformance.report.repro.reproduction import ReproductionProgram
from conformance.report.terminal import tell
from conformance.results.reader import read
from conformance.results.records import ResultRecord
from conformance.results.table import Table, tabulate
from conformance.results.verdicts import (
    ACCEPTANCES,
    PRESENTS,
    SOFTWARE,
    TABLE,
    VERDICTS,
    ExpectedVerdict,
    Verdict,
    VerdictRow,
    is_red,
    is_silent_failure,
    ranks_as,
    severity,
    verdict_word,
    worst,
)
from conformance.run.recording import result_record
from conformance.run.target import DescribedTarget
from conformance.targets.registry import target_for

DRAWINGS = data_path("reports") / "sprite.html"
STYLE = data_path("reports") / "report.css"
EXPECTED_VERDICTS: tuple[ExpectedVerdict, ...] = get_args(ExpectedVerdict)
BASES: tuple[str, ...] = get_args(Contract.model_fields["basis"].annotation)
DEMANDS: tuple[str, ...] = get_args(Contract.model_fields["demands"].annotation)
ROWS = pytest.mark.parametrize("row", TABLE.values(), ids=lambda row: row.name)


@pytest.fixture(scope="module")
def joined(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """A result of every verdict, and of both kinds of `accepted`."""
    results = [_result(verdict) for verdict in VERDICTS]
    results += [_result("accepted", right) for right in ACCEPTANCES]
    path = tmp_path_factory.mktemp("table") / "r.jsonl"
    return tabulate([read(write(path, [case(one.case) for one in results], results))])


def _result(verdict: Verdict, right: bool | None = None) -> ResultRecord:
    """A result that says nothing that a test would take for the verdict's name."""
    return result(
        f"t/{verdict}_{right}",
        verdict=verdict,
        values_right=right,
        unexpected=False,
        reason="So it is.",
        stderr="",
        **({} if verdict == "pass" else {"message": "So it is."}),
    )


def must(condition: object, file: str, what: str) -> None:
    """Fails with the file to edit."""
    assert condition, f"Edit {file}: {what}"


# ── The table itself ────────────────────────────────────────────────────────────────────────────


@ROWS
def test_a_row_is_complete(row: VerdictRow) -> None:
    file = "conformance/results/verdicts.py"
    must(row.sentence and not row.sentence.endswith("."), file, f"half a sentence for {row.name}")
    must(row.deed and not row.deed.endswith("."), file, f"a verb and its object for {row.name}")
    must(len(row.sign) == 1, file, f"one character as the sign of {row.name}")
    must(Style.parse(row.style), file, f"a style for {row.name}")
    must(set(row.demands) <= set(DEMANDS) and row.demands, file, f"demands of {row.name}")
    must(row.red in ("always", "never", *BASES), file, f"where {row.name} is red")


# ── `accepted` is of two kinds ──────────────────────────────────────────────────────────────────


HARMLESS, SILENT, OPEN = (_result("accepted", right) for right in (True, False, None))


@pytest.mark.parametrize(
    ("one", "like", "red"),
    [
        (SILENT, "wrong", True),
        (HARMLESS, "unsupported", False),
        (OPEN, "accepted", True),  # nobody can compare its values
        *(
            (_result(v, right), v, None)
            for v in VERDICTS
            if v != "accepted"
            for right in ACCEPTANCES
        ),
    ],
)
def test_accepted_ranks(tmp_path: Path, one: ResultRecord, like: Verdict, red: bool | None) -> None:
    """Accepted and nothing else ranks by its values."""
    assert ranks_as(one) == like
    assert severity(one) == severity(_result(like))
    assert is_silent_failure(one) == (like == "wrong")
    if red is None:
        return
    assert {is_red(one, basis) for basis in BASES} == {red}
    (about,) = cases_of(tmp_path, "- name: a\n  contract: {demands: rejects, source: a text}")
    ready = DescribedTarget(target_for("cpu"), None, None, None)
    judged = Judgement("accepted", "It ran.", values_right=one.values_right)
    outcome = Ran(runs=(), placement=None, load_ms=0.0, run_ms=0.0)
    assert result_record(about, ready, judged, outcome, ()).unexpected is red
    assert kills(Mutant("m", "a", "w"), about, one)


def test_the_worst_is_the_first_of_the_most_severe() -> None:
    fallback, wrong = _result("fallback"), _result("wrong")
    assert worst([HARMLESS, fallback]) is fallback
    assert worst([OPEN, SILENT, wrong]) is SILENT
    with pytest.raises(ValueError, match="empty"):
        worst([])


# ── Who shows verdicts ──────────────────────────────────────────────────────────────────────────


def test_the_page_has_a_drawing_of_each_and_of_nothing_else() -> None:
    drawings = re.findall(r'<symbol id="([\w-]+)"', DRAWINGS.read_text(encoding="utf-8"))
    wanted = sorted((*VERDICTS, PRESENTS, SOFTWARE))
    must(sorted(drawings) == wanted, "reports/sprite.html", f"draw a <symbol id=…> of {wanted}")


def test_the_page_has_colours_of_each_and_of_nothing_else() -> None:
    """Each in light and dark."""
    style = STYLE.read_text(encoding="utf-8")
    for strength in ("ink", "tint", "loud"):
        coloured = re.findall(rf"--(\w+)-{strength}: #[0-9a-f]{{6}};", style)
        wanted = sorted(2 * (*VERDICTS, PRESENTS, SOFTWARE))
        must(sorted(coloured) == wanted, "reports/report.css", f"set --…-{strength} of {wanted}")


def test_the_page_shows_each_with_its_group_and_sentence(joined: Table) -> None:
    parsed = Parsed(render(joined))
    file = "reports/report.html.j2"
    for row in TABLE.values():
        must(row.sentence in parsed.words, file, f"the page does not explain {row.name}")
        must(row.group in parsed.words, file, f"the counts lack the group '{row.group}'")
        rule = f".{row.name} {{ --ink: var(--{row.name}-ink);"
        must(rule in parsed.style, "conformance/report/html.py", f"no style rule for {row.name}")
    chips = [one["data-value"] for one in parsed.attributes("button") if "data-value" in one]
    must(tuple(chips) == VERDICTS, file, f"the filter has the verdicts {chips}")
    must(tuple(parsed.cells["verdicts"]) == VERDICTS, "conformance/report/view.py", "its cells")


def test_the_page_tells_the_two_kinds_of_accepted_apart(joined: Table) -> None:
    data = Parsed(render(joined)).cells
    looks = {one["id"]: one["results"][0]["look"] for one in data["cases"]}
    for right, acceptance in ACCEPTANCES.items():
        look = looks[f"t/accepted_{right}"]
        assert (look["colour"], look["note"]) == (acceptance.ranks_as, acceptance.note)


@pytest.mark.parametrize("script", sorted((data_path("reports") / "page").glob("*.js")))
def test_a_script_of_the_page_lists_no_verdicts(script: Path) -> None:
    """`skip` and the like are named where they mean something; more of them would be a list."""
    for line in script.read_text(encoding="utf-8").splitlines():
        named = [v for v in VERDICTS if re.search(rf"""["']{v}["']|\b{v}:""", line)]
        must(len(named) < 2, f"reports/page/{script.name}", f"it lists verdicts: {line.strip()}")


def _shown(tmp_path: Path, *results: ResultRecord) -> str:
    """What ``gqa run`` ends with on a terminal of many colours."""
    (one,) = cases_of(tmp_path, "- name: a")
    summary = RunSummary()
    summary.results = [(one, each) for each in results]
    written = io.StringIO()
    out = Console(width=200, force_terminal=True, color_system="truecolor", file=written)
    Terminal(out, out).summary(summary)
    return written.getvalue()


def test_the_terminal_has_a_column_for_each(tmp_path: Path) -> None:
    text = _shown(tmp_path, *map(_result, VERDICTS))
    for row in TABLE.values():
        head = f"{row.sign} {verdict_word(row.name)}"
        must(head in text, "conformance/cli/terminal.py", f"the table has no column '{head}'")
    assert "only in presents" not in text
    presents = _result("wrong").model_copy(update={"wrong_outputs": ("presents",)})
    assert "□ only in presents" in _shown(tmp_path, presents, _result("wrong"))


@pytest.mark.parametrize(("one", "like"), [(SILENT, "wrong"), (OPEN, "accepted")])
def test_accepted_has_its_ranks_colours(tmp_path: Path, one: ResultRecord, like: Verdict) -> None:
    """Accepted has the colours of what it ranks as."""
    for verdict in ("wrong", "accepted"):
        style = Style.parse(TABLE[verdict].style)
        number = style.render("1", color_system=ColorSystem.TRUECOLOR)
        assert (number in _shown(tmp_path, one)) == (verdict == like)
        assert number not in _shown(tmp_path, HARMLESS)


def test_a_result_s_lines_tell_the_two_kinds_of_accepted_apart() -> None:
    for one in (HARMLESS, SILENT):
        (first, *_) = tell(case(), one)
        assert first.endswith(f": accepted ({ACCEPTANCES[one.values_right].note})")


def test_junit_counts_each(joined: Table) -> None:
    names = {one.get("name") for one in fromstring(junit(joined)).iter("property")}
    for verdict in VERDICTS:
        must(f"verdict.{verdict}" in names, "conformance/report/junit.py", f"no count of {verdict}")


def test_the_markdown_counts_each_and_all_silent_failures(joined: Table) -> None:
    text = summary_markdown(joined)
    results = text.partition("## Results\n")[2]
    head = next(line for line in results.splitlines() if "| target" in line)
    for verdict in VERDICTS:
        must(
            f" {verdict_word(verdict)} |" in head,
            "conformance/report/markdown.py",
            f"no column of {verdict}",
        )
    assert "## Silently wrong results: 2" in text


@ROWS
def test_a_mutant_is_killed_by_what_is_red(row: VerdictRow, tmp_path: Path) -> None:
    """And by a rejection of an established call: the correct kernel computes it."""
    mutant = Mutant("m", "a", "w")
    for basis in BASES:
        body = f"- name: a\n  contract: {{basis: {basis}, source: a text}}"
        (one,) = cases_of(tmp_path, body)
        told = kills(mutant, one, _result(row.name))
        rejected = (row.name, basis) == ("unsupported", "established")
        must(told is (rejected or row.red_under(basis)), "conformance/maintain/power.py", row.name)


@ROWS
def test_a_bug_report_has_words_for_it(row: VerdictRow, joined: Table) -> None:
    one = _result(row.name).model_copy(update={"expectation": expected()})
    title = issue(
        case(), one, joined.columns[0].target, ReproductionProgram("onnxruntime.py", ())
    ).splitlines()[0]
    file = "conformance/report/repro/issue.py"
    must(f" {row.deed}: " in title, file, f"the title does not say that it {row.deed}")


# ── Pages ───────────────────────────────────────────────────────────────────────────


@pytest.mark.skipif(not (ROOT / "README.md").is_file(), reason="not a checkout")
def test_the_page_on_verdicts_has_the_same_table() -> None:
    """But for links and emphasis."""
    page = (ROOT / "docs" / "verdicts.md").read_text(encoding="utf-8")
    section = page.split("\n## ")[0]
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)|[*`]", r"\1", section)
    _, *shown = re.findall(r"^\| (\w+) \| (.*) \|$", plain, re.M)
    wanted = [(row.name, row.sentence) for row in TABLE.values()]
    must(shown == wanted, "docs/verdicts.md", f"the rows of the table are {wanted}")


@pytest.mark.skipif(not (ROOT / "README.md").is_file(), reason="not a checkout")
def test_the_glossary_lists_them() -> None:
    listed = ", ".join(f"`{verdict}`" for verdict in VERDICTS)
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    must(f": {listed}. |" in text, "docs/glossary.md", f"the row 'verdict' ends in {listed}")
