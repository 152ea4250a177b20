"""The recorded history of releases: whole, expected, and in agreement with what is claimed."""

from __future__ import annotations

import lzma
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest
from known_bugs import KnownBug, known_bugs
from packaging.version import Version
from recorded import FILES, FOLDER, Recorded, recorded
from shipped import shipped_cases
from synthetic_runs import case, result, write
from tables import tables

from conformance.expectations.known import id_pattern
from conformance.maintain.recorded import main
from conformance.results.reader import read
from conformance.targets.releases import is_in_range
from conformance.targets.tools import ONNXRUNTIME_VERSION, TRACT_VERSION

TABLES = tables(__file__)

#: Of each test README's command runs one example, see support/tiers.py.
ONE_EXAMPLE = True

#: Which recorded file shows the bugs of a runtime.
SHOWN_BY: Final = TABLES["shown by"]

#: Claims that the recorded results do not bear out, and why that is no contradiction. Everything
#: else must agree.
NOT_SEEN: Final[Mapping[str, str]] = TABLES["not seen"]


def of(name: str) -> Recorded:
    path = FOLDER / f"{name}.jsonl.xz"
    if not path.exists():
        pytest.skip(f"there is no recorded history of {name}")
    return recorded(path)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_recorded_file_is_whole_and_expected(path: Path) -> None:
    found = recorded(path)
    assert found.footer["complete"]
    assert found.footer["unexpected"] == found.footer["infrastructure"] == 0
    for version, results in found.results.items():
        assert results.keys() == found.cases, version
        unexpected = [id for id, record in results.items() if record["unexpected"]]
        assert unexpected == [], version


@pytest.mark.parametrize(
    ("name", "releases"),
    [
        ("cpu", {f"1.{minor}" for minor in range(20, Version(ONNXRUNTIME_VERSION).minor + 1)}),
        # There is no tract 0.23.4.
        ("tract-wheel", {f"0.23.{n}" for n in range(Version(TRACT_VERSION).micro + 1) if n != 4}),
    ],
)
def test_each_release_is_recorded_with_all_cases(name: str, releases: set[str]) -> None:
    found = of(name)
    shipped = {case.id for case in shipped_cases()}
    assert found.cases <= shipped
    assert len(found.cases) > 0.95 * len(shipped), "add the cases that are newer than the record"
    versions = " ".join(found.results)
    assert [each for each in releases if not re.search(rf"\b{each}\b", versions)] == []


# Results beside the expectations of today

KNOWN = "omitted_present/past_and_new_kv[dtype=float32,sequence_length=1,past_sequence_length=4]"
PASSES = "smoke/decode[dtype=float32]"


def test_results_get_new_expectations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ids = (KNOWN, PASSES, "no_such/case[dtype=float32]")
    old = "It ran. expectations/cpu.yaml:1 has another expectation for >=1.27: the verdict is so."
    results = [
        result(KNOWN, verdict="accepted", values_right=False, unexpected=True, reason=old),
        result(PASSES),
        result(ids[2]),
    ]
    path = write(tmp_path / "results.jsonl", [case(id) for id in ids], results)
    packed = tmp_path / "packed.jsonl.xz"
    packed.write_bytes(lzma.compress(path.read_bytes()))
    assert main([str(path), str(packed)]) == 0
    said = (f"{each}: 3 results, 0 unexpected\n" for each in (path, packed))
    assert capsys.readouterr().out == "".join(said)
    for run in (read(path), read(packed)):
        assert run.problems == ()
        known, *others = run.results
        assert known.expectation.verdict == "accepted"
        assert (known.unexpected, known.reason) == (False, "It ran.")
        assert others == results[1:]


# What is claimed of releases elsewhere


def shows(found: Recorded, version: str, bug: KnownBug) -> tuple[bool, bool]:
    """Whether a case of the bug is not right in a release, and whether one fails silently."""
    pattern = id_pattern(*bug.cases)
    verdicts = {
        record["verdict"] for id, record in found.results[version].items() if pattern.fullmatch(id)
    }
    return bool(verdicts - {"pass", "skip"}), bool(verdicts & {"wrong", "crash", "timeout"})


def disagreements(bug: KnownBug) -> list[str]:
    """The recorded releases that say something else of a bug than its range of versions."""
    found = of(SHOWN_BY[bug.runtime])
    told = []
    for version in found.results:
        some, red = shows(found, version, bug)
        claimed = is_in_range(version, bug.versions)
        if claimed and not some:
            told.append(f"{version} is said to have it, and every case is right")
        if not claimed and red:
            told.append(f"{version} is said not to have it, and a case fails")
    return told


CLAIMS = [bug for bug in known_bugs() if bug.runtime in SHOWN_BY and bug.versions and bug.cases]


@pytest.mark.parametrize("bug", CLAIMS, ids=lambda bug: bug.id)
def test_the_history_agrees_with_known_bugs(bug: KnownBug) -> None:
    told = disagreements(bug)
    if bug.id in NOT_SEEN:
        assert told, f"{bug.id} agrees now; remove it from NOT_SEEN"
    else:
        assert told == []
