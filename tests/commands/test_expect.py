"""``gqa expect``: expectations that are written from results."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import synthetic_runs as runs
from case_files import cases_of, write
from goldens import check_golden

from conformance.base.paths import data_path
from conformance.case.case import Case
from conformance.expectations.expect import ExpectationsText, expect
from conformance.expectations.known import TODO
from conformance.expectations.match import Expectation, known_result
from conformance.expectations.observed import observed
from conformance.expectations.read import load_expectations, load_pinned
from conformance.expectations.update import unexpected_in
from conformance.results.descriptions import case_record
from conformance.results.records import RunsDiffer

#: Of each test README's command runs one example, see support/tiers.py.
ONE_EXAMPLE = True

#: Features, axes, entries without axes, and calls that must be rejected.
CASES = """
- {name: plain, matrix: {seed: [1, 2, 3], dtype: [float32, float16]}}
- {name: capped, softcap: 2.0, matrix: {seed: [1, 2], dtype: [float32, float16]}}
- {name: turned, rotary: interleaved, matrix: {seed: [1, 2], softcap: [0.0, 2.0]}}
- {name: alone}
- {name: refused, contract: {demands: rejects, source: a document}, matrix: {seed: [1, 2]}}
"""
TARGET = "mine"
RELEASES = ("1.0.0", "1.1.0", "1.2.3", "1.3.0")
#: What a run may say of a case: the verdict and fields of its result.
Said = tuple[str, Mapping[str, Any]]
PASS: Said = ("pass", {})
KEY = runs.beyond("present_key")


def rejected(message: str = "Unrecognized attribute: softcap for operator 7", **more: Any) -> Said:
    fields = {"stage": "load", "message": message, "reason": "It refused.", "unexpected": True}
    return "unsupported", fields | more


def wrong(*faults: Any) -> Said:
    return "wrong", {"faults": faults or (KEY,), "errors": ()}


def crashed(signal: str = "SIGSEGV") -> Said:
    return "crash", {"message": f"The runner died of {signal}, and again when it was tried alone."}


class Lab:
    """A user's case file, results of made-up releases, and an expectations file."""

    def __init__(self, folder: Path, body: str = CASES) -> None:
        self.folder = folder
        self.cases = cases_of(folder, body)
        self.file = folder / "known.yaml"
        self.results: list[Path] = []

    def release(
        self, version: str, said: Mapping[str, Said], *, adapter: str = "", only: str = ""
    ) -> Path:
        """Results of a release: what is ``said`` of each case whose id begins so, else `pass`.

        Of an ``adapter``; ``only`` of cases whose id contains this.
        """
        name = f"{TARGET}@{version}" + (f"+{adapter}" if adapter else "")
        chosen = [case for case in self.cases if only in case.id]
        results = []
        for case in chosen:
            start = max((s for s in said if case.id.startswith(f"theme/{s}")), key=len, default="")
            verdict, fields = said.get(start, PASS)
            if case.contract.demands == "rejects" and verdict not in ("crash", "accepted"):
                verdict, fields = "pass", {}
            results.append(runs.result(case.id, name, verdict, **fields))
        file = self.folder / f"{len(self.results)}.jsonl"
        targets = [runs.target(name)]
        runs.write(file, [case_record(case) for case in chosen], results, targets=targets)
        self.results.append(file)
        return file

    def expect(self, *, save: bool = True) -> ExpectationsText:
        made = expect(TARGET, self.results, self.file, ())
        if save:
            self.file.write_text(made.text, encoding="utf-8")
        return made

    def lines(self) -> list[Expectation]:
        return load_pinned([self.file])

    def unexpected(self) -> int:
        return len(unexpected_in(observed(TARGET, self.results, ()), self.lines()))


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


# Whatever the results are


def _covers_nothing_else(lab: Lab, lines: Sequence[Expectation]) -> None:
    """No line is for a case and a release on which the result is another one, unless an earlier
    line decides."""
    found = observed(TARGET, lab.results, ())
    for at, results in found.at.items():
        case, on = found.cases[at.case], at[1:]
        for one in results:
            decided = known_result(case, one, on, lines)
            for line in lines:
                if line.known.holds_for(*on) and line.covers(case):
                    other = decided is not None and decided[0] is not line
                    failing = other and one.verdict != "pass"
                    assert line.differs(one) is None or failing


@pytest.mark.parametrize("seed", range(12))
def test_after_it_nothing_is_unexpected_and_a_second_time_changes_nothing(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    lab = Lab(tmp_path)
    kinds = [
        PASS,
        PASS,
        rejected(),
        rejected("Node has input size 12 not in range [min=7, max=9]."),
        rejected("head size 7 is not implemented", stage="run"),
        wrong(),
        wrong(RunsDiffer(output="output")),
        crashed(),
        crashed("SIGABRT"),
    ]
    names = ["plain", "capped", "turned", "alone", "refused"]
    names += [case.label for case in chance.sample(lab.cases, 5)]
    for round in range(2):
        for version in RELEASES:
            said = {name: chance.choice(kinds) for name in names if chance.random() < 0.5}
            if seed % 3 == 0 and round:
                version = f"1.{chance.randint(4, 6)}.0"
            only = chance.choice(["", "", "plain"])
            adapter = chance.choice(["swiftshader", "lavapipe", "h100"]) if seed % 2 else ""
            lab.release(version, said, only=only, adapter=adapter)
        made = lab.expect()
        assert lab.unexpected() == 0
        if round == 0:
            _covers_nothing_else(lab, lab.lines())
        again = lab.expect(save=False)
        assert (again.text, again.update.unexpected) == (made.text, 0)


def test_the_order_of_the_files_does_not_matter(lab: Lab) -> None:
    for version, said in zip(RELEASES, (rejected(), wrong(), crashed(), PASS), strict=True):
        lab.release(version, {"capped": said, "plain[seed=1": said, "turned": PASS})
    text = lab.expect(save=False).text
    lab.results.reverse()
    assert lab.expect(save=False).text == text


# What is written

OLD = f"""\
# Known of mine.
expectations:
  # The reason is long.
  - cases: theme/capped[*   # all
    versions: '>=1.0'
    verdict: wrong
    link: https://example.org/1
    why: >
      The cap is
      ignored.

  # Another one.
  - {{cases: theme/plain*, versions: ">=1.1", verdict: wrong, link: "https://a", why: So.}}
# The end.
target: {TARGET}
"""
SOFTCAP = {"capped": rejected(), **{f"turned[seed={n},softcap=2.0": rejected() for n in (1, 2)}}
BUILDS = ("1.2.0", "1.3.0-dev.20260901-0a1b2c3", "1.3.0.dev20261001", "1.3.0")

#: The file before, and the releases with what they say.
WRITTEN: dict[str, tuple[str, list[tuple[str, Mapping[str, Said]]]]] = {
    "a feature that came with a release is one line": (
        "",
        [("1.0.0", SOFTCAP), ("1.1.0", SOFTCAP), ("1.2.3", {}), ("1.3.0", {})],
    ),
    **{  # a range is exact for the pre-releases that were tried
        f"defects of {', '.join(builds)}": (
            "",
            [(build, {"capped": wrong()} if build in builds else {}) for build in BUILDS],
        )
        for builds in (BUILDS[:1], BUILDS[:2], BUILDS[:3], BUILDS[1:3], BUILDS[2:], BUILDS[3:])
    },
    "cases are named by their axes or by their ids": (
        "",
        [("1.0.0", {"plain[seed=1": wrong(), "plain[seed=3,dtype=float16]": wrong()})],
    ),
    "a defect of one adapter names it": (
        "",
        [("1.0.0+lavapipe", {"capped": wrong()}), ("1.0.0+h100", {})],
    ),
    "a mended defect ends with the first release that does not show it": (
        OLD,
        [
            ("1.0.0", {"capped": wrong()}),
            ("1.2.3", {"capped": wrong(), "plain": wrong()}),
            ("1.3.0", {"plain": wrong()}),
        ],
    ),
    "a range is extended over releases that show the same": (
        OLD.replace("'>=1.0'", "'>=1.1,<1.2'"),
        [("1.0.0", {}), *((each, {"capped": wrong()}) for each in ("1.0.1", "1.1.0", "1.2.3"))],
    ),
    "a line that no release shows any more is told": (OLD, [("1.1.0", {"capped": wrong()})]),
    "new lines come before the line that says something else": (
        OLD,
        [
            (
                "1.1.0",
                {"capped": wrong(), "plain": wrong(), "plain[seed=2": PASS, "alone": wrong()},
            )
        ],
    ),
    "a file without lines": ("target: mine  # mine\n", [("1.0.0", {"alone": wrong()})]),
    "a file with an empty list": (
        "target: mine  # mine\nexpectations: []\n",
        [("1.0.0", {"alone": wrong()})],
    ),
    "a version that cannot be ordered is told": (
        "",
        [("1.0.0", {}), ("my build", {"plain": wrong()})],
    ),
    "results of one release that disagree are flaky": (
        "",
        [
            ("1.0.0", {"alone": crashed(), **({} if n % 5 else {"capped": wrong()})})
            for n in range(10)
        ],
    ),
}


def test_what_is_written(tmp_path: Path) -> None:
    told = []
    for name, (before, releases) in WRITTEN.items():
        (tmp_path / name).mkdir()
        lab = Lab(tmp_path / name)
        if before:
            lab.file.write_text(before)
        for version, said in releases:
            lab.release(version, said)
        made = lab.expect()
        assert lab.unexpected() == 0
        assert not lab.expect(save=False).changed
        lines = (f"- {line.replace(str(lab.file), 'known.yaml')}\n" for line in made.told)
        told.append(f"=== {name}\n{made.text}{''.join(lines)}")
    check_golden("expectations.txt", "\n".join(told))


def test_a_case_that_was_not_run_is_not_covered(lab: Lab) -> None:
    lab.release("1.0.0", {"plain": wrong()}, only="dtype=float16")
    lab.expect()
    case = next(case for case in lab.cases if case.label == "plain[seed=1,dtype=float32]")
    assert not any(line.covers(case) for line in lab.lines())


# The shipped files


def test_no_shipped_expectation_has_a_reason_to_be_written() -> None:
    files = sorted(data_path("expectations").glob("*.yaml"))
    todo = [
        f"{line.file.name}:{line.line}"
        for line in load_expectations(files)
        if line.known.why.startswith(TODO) or line.known.link == TODO
    ]
    assert todo == [], "write the reason and the link of these lines"


def test_a_shipped_line_that_names_a_theme_is_not_for_a_users_case(tmp_path: Path) -> None:
    case: Case = cases_of(tmp_path, "- name: a")[0]
    item = "{cases: [theme/a], versions: '', verdict: wrong, link: 'https://a', why: So.}"
    text = f"target: cpu\nexpectations:\n  - {item}\n"
    (line,) = load_pinned([write(tmp_path, text, "cpu.yaml")])
    shipped = replace(line, file=data_path("expectations") / "cpu.yaml")
    assert line.covers(case)
    assert not shipped.covers(case)
    wide = replace(shipped, known=line.known.model_copy(update={"cases": ("*",)}))
    assert wide.covers(case)
