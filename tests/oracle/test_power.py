"""The suite's power: the mutants, the correct kernel, and the command that runs them."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest
from shipped import shipped_cases
from tables import tables

from conformance.base.paths import ROOT
from conformance.case.corpus import find
from conformance.maintain.power import (
    KILLERS,
    MUTANTS,
    Mutant,
    Power,
    can_run,
    kills,
    known_mutants,
    main,
)
from conformance.results.records import ResultRecord
from conformance.results.verdicts import Verdict

TABLES = tables(__file__)

#: A number in prose, and the word that says what is counted.
COUNTED = re.compile(r"\b(\d[\d,]*) (?:known faults|faults|mutants|with one fault)\b")

WINDOW = "window/prompt[dtype=float32,local_window_size=4]"
REFUSED = "refusals/heads_not_a_multiple[dtype=float32]"


@pytest.fixture(scope="module")
def mutants() -> dict[str, Mutant]:
    return {mutant.name: mutant for mutant in known_mutants()}


@pytest.mark.parametrize("page", ["README.md", "docs/right.md"])
def test_the_numbers_on_a_page_are_right(mutants: dict[str, Mutant], page: str) -> None:
    """Numbers below 100 in such sentences are examples."""
    for match in COUNTED.finditer((ROOT / page).read_text(encoding="utf-8")):
        number = int(match[1].replace(",", ""))
        right = number in range(100) or number == len(mutants)
        assert right, f"Edit {page}: for '{match[0]}' write {len(mutants):,}"


def power(mutants: dict[str, Mutant], names: list[str], *cases: str) -> Power:
    made = Power([mutants[name] for name in names], list(find(cases).named))
    made.run()
    return made


@pytest.mark.parametrize("file", sorted(MUTANTS.rglob("*.py")), ids=lambda file: file.name)
def test_the_mutants_share_no_code_with_the_suite(file: Path) -> None:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    nodes = list(ast.walk(tree))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    assert not [name for name in names if name.split(".")[0] == "conformance"]


def test_a_mutant_is_killed_by_the_cases_that_detect_it(mutants: dict[str, Mutant]) -> None:
    made = power(mutants, ["window_one_longer", "says_error", "sink_ignored"], WINDOW, REFUSED)
    window, says_error, sink = made.scores
    assert [kill.case.id for kill in window.kills] == [WINDOW]
    assert window.kills[0].verdict == "wrong"
    assert window.largest["float32"] > 1000
    assert window.of_one_theme()
    assert [kill.case.id for kill in says_error.kills] == [REFUSED]
    assert made.faults() == [f"sink_ignored survives: {sink.mutant.what}"]
    assert made.of_one_theme()[0] == "window_one_longer is detected by only one theme: window"
    record = window.record()
    assert record["first"] == WINDOW
    assert record["killers"] == [WINDOW]
    assert record["smallest_kill"] == window.largest["float32"]
    assert made.correct.tried == 2
    assert made.correct.kills == []
    assert made.correct.largest["float32"] < 0.5


def test_a_mutant_that_ends_its_process_is_not_retried_forever(mutants: dict[str, Mutant]) -> None:
    name = "crashes_where_borrowed_presents_are_omitted"
    made = power(mutants, [name], "shared_kv/zero_length_kv_present_omitted")
    (score,) = made.scores
    assert {kill.verdict for kill in score.kills} == {"crash"}
    assert score.given_up
    assert score.tried < made.correct.tried == 8
    assert len(score.kills) <= 4


@pytest.mark.parametrize(("verdict", "kind", "basis", "vague", "kill"), TABLES["kills"])
def test_killing_verdicts(verdict: Verdict, kind: str, basis: str, vague: bool, kill: bool) -> None:
    names = {
        "specified": "window/decode_within",
        "established": "window/rotary",
        "requested": "omitted_kv/omitted_kv_window",
    }
    case = find([names[basis]]).named[0]
    assert case.contract.basis == basis
    hazard = "output[0] is nan." if verdict == "pass" and not vague else None
    mutant = Mutant("m", "a", "w", kind)  # type: ignore[arg-type]
    record = ResultRecord.model_construct(verdict=verdict, vague=vague, hazard=hazard)
    assert kills(mutant, case, record) is kill


@pytest.mark.night
def test_killers_kill(mutants: dict[str, Mutant], capsys: pytest.CaptureFixture[str]) -> None:
    """The reduced form, which is what CI runs: all are killed, none is dead."""
    assert sorted(json.loads(KILLERS.read_text())) == sorted(mutants)
    status, out = main(["--reduced", "--jobs", "2"]), capsys.readouterr().out
    assert status == 0, out[-3000:]
    assert f"{len(mutants)} of {len(mutants)} mutants killed" in out
    assert "The correct kernel passes all" in out


def test_a_survivor_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mutants.json"
    assert main(["--mutant", "sink_ignored", "--json", str(file), WINDOW]) == 1
    out = capsys.readouterr().out
    assert "sink_ignored survives: head_sink is not read." in out
    assert "\nsink: 0 of 1 killed; least visible: sink_ignored (not in numbers)\n" in out
    right, record = json.loads(file.read_text())
    assert (right["mutant"], right["kills"]) == ("correct", 0)
    assert (record["mutant"], record["kills"], record["first"]) == ("sink_ignored", 0, None)


@pytest.mark.night
def test_the_correct_kernel_passes_the_whole_corpus() -> None:
    made = Power([], [case for case in shipped_cases() if can_run(case)], jobs=2)
    made.run()
    assert made.troubles == []
    assert [f"{kill.case.id}: {kill.reason}" for kill in made.correct.kills] == []
