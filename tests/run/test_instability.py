"""Instability in the results file and in every view of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from synthetic_runs import of_results, result

from conformance.results.compare import changes
from conformance.results.reader import Run, read
from conformance.results.records import InstabilityRecord
from conformance.results.table import Table, tabulate
from conformance.results.verdicts import Verdict

CPU = "cpu@1.31.1"
TOLD = "3 crashes and 2 wrong results did not recur when run alone."


def met(case: str, verdict: Verdict = "crash", **fields: Any) -> InstabilityRecord:
    died = "The runner died of SIGSEGV; the last it wrote: free()."
    about: dict[str, Any] = {"target": CPU, "before": "t/before", "message": died}
    return InstabilityRecord(case=case, verdict=verdict, **about, **fields)


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


def test_a_run_is_worse_when_a_target_becomes_unstable(tmp_path: Path) -> None:
    old, new = joined(tmp_path, []), joined(tmp_path)
    assert changes(new, old).reasons == (f"{CPU}: {TOLD}",)
    assert changes(new, new).reasons == ()
    assert changes(old, new).reasons == ()
