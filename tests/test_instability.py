"""Instability in the results file and in every view of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from reported import Parsed
from synthetic_runs import expected, of_results, result

from conformance.base.yaml_source import InputError
from conformance.cli.terminal import RunSummary
from conformance.judge.expectations import instability_for, load_expectations
from conformance.report.cells import json_text
from conformance.report.html import render
from conformance.report.junit import junit
from conformance.report.markdown import summary_markdown
from conformance.results.compare import changes
from conformance.results.reader import Run, read
from conformance.results.records import InstabilityRecord
from conformance.results.table import Table, tabulate
from conformance.results.verdicts import Verdict

CPU = "cpu@1.31.1"
TOLD = "Unstable: 5 results (3 crash, 2 wrong) did not repeat when the case was run alone."


def met(case: str, verdict: Verdict = "crash", **fields: Any) -> InstabilityRecord:
    died = "The runner died of SIGSEGV; the last it wrote: free()."
    about: dict[str, Any] = {"target": CPU, "before": "t/before", "message": died}
    return InstabilityRecord(case=case, verdict=verdict, **about, **fields)


KNOWN_ONE = met("t/c", unexpected=False, expectation=expected("crash"))
CRASHES, WRONG = [met(f"t/{n}") for n in range(3)], [met(f"t/{n}", "wrong") for n in (3, 4)]
FIVE = [*CRASHES, *WRONG]


def unstable(folder: Path, records: list[InstabilityRecord] = FIVE) -> Run:
    found = of_results(folder / "r.jsonl", [result("t/c", CPU)], instability=records)
    assert found.problems == ()
    return found


def joined(folder: Path, records: list[InstabilityRecord] = FIVE) -> Table:
    return tabulate([unstable(folder, records)])


def test_a_file_keeps_and_counts_what_did_not_repeat(tmp_path: Path) -> None:
    run = unstable(tmp_path)
    assert list(run.instability) == FIVE
    assert run.footer is not None
    assert run.footer.instability == 5
    lines = run.path.read_text().splitlines()
    run.path.write_text("\n".join(line for line in lines if '"t/3"' not in line))
    told = read(run.path).problems
    assert told == ("The footer counts 5 results that did not repeat; there are 4.",)


def test_a_file_from_before_there_was_instability(tmp_path: Path) -> None:
    path = unstable(tmp_path, []).path
    path.write_text(path.read_text().replace(',"instability":0', ""))
    assert "instability" not in path.read_text()
    run = read(path)
    assert (run.problems, run.instability) == ((), [])


def test_the_page_says_that_a_target_is_unstable(tmp_path: Path) -> None:
    words = Parsed(render([unstable(tmp_path)])).words
    assert "Unstable: some results did not repeat" in words
    assert f"{CPU} : {TOLD}" in words
    assert "crash in t/0, after t/before: The runner died of SIGSEGV" in words
    assert "and 2 more; the results file has all" in words
    assert f"{CPU} unstable" in words
    assert "Nothing unexpected in the results that there are" in words


def test_the_markdown_and_the_json_say_it(tmp_path: Path) -> None:
    text = summary_markdown(joined(tmp_path))
    assert f"- `{CPU}`: `{TOLD}`" in text
    assert "  - `crash in t/0, after t/before: The runner died of SIGSEGV" in text
    found = json.loads(json_text(joined(tmp_path)))["instability"]
    assert [(one["case"], one["label"]) for one in found] == [(one.case, CPU) for one in FIVE]


def test_junit_has_a_test_of_the_target_that_fails_unless_it_is_known(tmp_path: Path) -> None:
    root = ElementTree.fromstring(junit(joined(tmp_path)))
    assert root.get("failures") == "1"
    (test,) = root.iterfind(".//testcase[@classname='instability']")
    failure = test.find("failure")
    assert failure is not None
    assert failure.get("message") == TOLD
    (number,) = root.iterfind(".//property[@name='instability']")
    assert number.get("value") == "5"
    root = ElementTree.fromstring(junit(joined(tmp_path, [KNOWN_ONE])))
    assert root.get("failures") == "0"
    (test,) = root.iterfind(".//testcase[@classname='instability']")
    assert "Known: Reads past the end of the cache." in (test.findtext("system-out") or "")


def test_a_run_is_worse_when_a_target_becomes_unstable(tmp_path: Path) -> None:
    old, new = joined(tmp_path, []), joined(tmp_path)
    assert changes(new, old).reasons == (f"{CPU}: {TOLD}",)
    assert changes(new, new).reasons == ()
    assert changes(old, new).reasons == ()


@pytest.mark.parametrize(("one", "status"), [(FIVE[0], 1), (KNOWN_ONE, 0)])
def test_the_exit_status(one: InstabilityRecord, status: int) -> None:
    summary = RunSummary()
    summary.instability.append(one)
    assert summary.status() == status
    assert summary.enough(1) is bool(status)


# Expectations

KNOWN = """\
target: cpu
instability:
  - versions: ">=1.31"
    verdict: crash
    link: https://example.org/1
    why: A thread uses what is freed.
"""


def test_an_expectation_covers_instability_of_its_verdict_and_versions(tmp_path: Path) -> None:
    file = tmp_path / "cpu.yaml"
    file.write_text(KNOWN)
    found = instability_for("crash", "1.31.1", None, [tmp_path / "none.yaml", file])
    assert found is not None
    assert (found.link, found.file, found.line) == ("https://example.org/1", str(file), 3)
    assert instability_for("wrong", "1.31.1", None, [file]) is None
    assert instability_for("crash", "1.30.0", None, [file]) is None
    file.write_text(KNOWN.replace("verdict", "adapters: [lava*]\n    verdict"))
    assert instability_for("crash", "1.31.1", None, [file]) is None
    assert instability_for("crash", "1.31.1", "lavapipe", [file]) is not None


def test_an_error_in_known_instability_names_its_place(tmp_path: Path) -> None:
    file = tmp_path / "cpu.yaml"
    file.write_text(KNOWN.replace("versions", "version"))
    with pytest.raises(InputError, match=r"cpu\.yaml:3:5: .*unknown field 'version'"):
        load_expectations([file])
