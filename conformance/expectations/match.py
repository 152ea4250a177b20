"""Which line is for a result, and how the result differs from it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from conformance.base.paths import data_path, shown
from conformance.base.words import listed
from conformance.base.yaml_source import InputError, Problem
from conformance.case.case import Case
from conformance.case.corpus import is_shipped
from conformance.expectations.known import Known, id_pattern
from conformance.results.records import ExpectationRecord, FlakyRecord, ResultRecord
from conformance.results.verdicts import TABLE, Verdict


@dataclass(frozen=True)
class Expectation:
    """A line of an expectations file, with its file and line number."""

    known: Known
    file: Path
    line: int
    execution_provider: str | None = None
    """That of the target, on which a contract can depend; None if it has none."""
    target: str = ""
    """The target of the file."""

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return id_pattern(*self.known.cases)

    @cached_property
    def shipped(self) -> bool:
        """Whether the line belongs to the suite, and not to a user's file."""
        return self.file.parent == data_path("expectations")

    @property
    def place(self) -> str:
        """The path of its file for readers without this machine: that in the project."""
        return f"expectations/{self.file.name}" if self.shipped else shown(self.file)

    @property
    def record(self) -> ExpectationRecord:
        """The record of the line in a result that it covers."""
        known, rate = self.known, self.known.rate
        flaky = rate and FlakyRecord(verdicts=known.verdicts, failed=rate.failed, runs=rate.runs)
        return ExpectationRecord(
            file=self.place,
            line=self.line,
            verdict=known.verdict,
            link=known.link,
            why=known.why,
            flaky=flaky,
        )

    def covers(self, case: Case) -> bool:
        """Whether the line decides about results of this case that recur when it is run alone."""
        return "alone" not in self.known.varies and self.names(case)

    def explains(self, case: Case, verdict: Verdict) -> bool:
        """Whether the line explains that this case had the verdict, and not again alone."""
        known = self.known
        return bool(known.varies) and verdict in known.verdicts and self.names(case)

    def names(self, case: Case) -> bool:
        """Whether the line applies to this case.

        A line for several features or themes can match cases that cannot have its verdict: a case
        that must be rejected is never `unsupported`. The line does not apply to those. Nor does a
        shipped line that names a theme apply to a user's case, which may have the id of a shipped
        one.
        """
        if not self._pattern.fullmatch(case.id):
            return False
        if self.shipped and not is_shipped(case):
            of_any_theme = (each for each in self.known.cases if each.startswith("*"))
            if not id_pattern(*of_any_theme).fullmatch(case.id):
                return False
        contract = case.contract.on(self.execution_provider)
        if contract.demands not in TABLE[self.known.verdict].demands:
            return False
        wanted = self.known.features.items()
        return all(case.features[name] in values for name, values in wanted)

    def is_certain_for(self, case: Case) -> bool:
        """Whether a case that the line covers must have the result in the line.

        The features of a graph are those of one node, and other nodes influence its result, too. A
        shipped line says nothing about a user's case.
        """
        of_one_node = case.is_graph and bool(self.known.features)
        return not of_one_node and (is_shipped(case) or not self.shipped)

    def differs(self, judged: ResultRecord) -> str | None:
        """How a result differs from this line, as half a sentence; None if it does not."""
        known = self.known
        if judged.verdict not in known.verdicts:
            return f"the verdict is {judged.verdict}, not {' or '.join(known.verdicts)}"
        if judged.verdict != known.verdict:
            return None
        if known.stage is not None and judged.stage != known.stage:
            return f"the stage is {judged.stage}, not {known.stage}"
        if known.placement is not None and judged.placement != known.placement:
            return f"it ran on {judged.placement}, not on {known.placement}"
        # A result that varies is not known, unless the line says that it varies.
        first = known.fault.kind if known.fault else None
        may_vary = "values" in known.varies or first == "runs_differ"
        if not may_vary and any(fault.kind == "runs_differ" for fault in judged.faults):
            return "two runs differ, which the line does not mention"
        if known.fault is not None and not any(map(known.fault.matches, judged.faults[:1])):
            return f"the first fault is not one with {known.fault}"
        others = [each for each in judged.wrong_outputs if each not in known.wrong]
        if known.wrong and others:
            return f"it is wrong in {listed(others)}, which the line does not name"
        if known.message not in (judged.message or ""):
            return f"the message does not contain '{known.message}'"
        return None


def known_result(
    case: Case,
    judged: ResultRecord,
    on: tuple[str, str | None],
    expectations: Iterable[Expectation],
) -> tuple[Expectation, str | None] | None:
    """The line that decides about a result, and how the result differs from it; None: no line does.

    ``on`` has version and adapter. The first line that applies to the case, version and adapter
    decides. A line that is not certain for the case (`Expectation.is_certain_for`) decides only if
    the result agrees with it. V, W and X are verdicts:

    ==================  ============================  ==========================================
    expected            seen                          what is said
    ==================  ============================  ==========================================
    no line             pass                          as expected
    no line             V, which is red               unexpected
    V                   V, as the line describes it   known
    V                   V in another way              unexpected: how it differs from the line
    V                   V, and two runs differ        unexpected: the line does not mention it
    V                   W, better or worse            unexpected: the verdict is W, not V
    V, varies: values   V, and two runs differ        known
    V, varies: W        W                             known
    V, varies: W        X                             unexpected: the verdict is X, not V or W
    the same and rate   V or W                        known; flaky, 3 of 10 runs
    V, varies: alone    V                             as the next line or no line says
    pass                pass                          as expected
    ==================  ============================  ==========================================

    Of a verdict that does not recur when the case is run alone, `known_instability` decides:

    ==================  ============================  ==========================================
    V, varies: any      V, and not when run alone     known
    V, varies: W        W, and not when run alone     known
    V, or no line       V, and not when run alone     unexpected
    ==================  ============================  ==========================================
    """
    for line in expectations:
        if line.known.holds_for(*on) and line.covers(case):
            differs = line.differs(judged)
            if differs is None or line.is_certain_for(case):
                return line, differs
    return None


def known_instability(
    case: Case, verdict: Verdict, expectations: Iterable[Expectation]
) -> ExpectationRecord | None:
    """The first line that explains that a case had this verdict, and another one when run alone.

    ``expectations`` are those for the version and adapter.
    """
    return next((line.record for line in expectations if line.explains(case, verdict)), None)


def check_stale(
    expectations: Sequence[Expectation],
    cases: Sequence[Case],
    *,
    whole: bool,
    later: Sequence[Expectation] = (),
) -> None:
    """Raises :class:`InputError` for lines with a pattern that matches none of ``cases``.

    A pattern is checked if its theme is among the cases; with ``whole``, if all themes are among
    them, every pattern is checked. A pattern of a line with the verdict ``pass`` must match a case
    that a later line matches; ``later`` are lines of files that come after these.
    """
    of_theme: dict[str, list[Case]] = {}
    for case in cases:
        of_theme.setdefault(case.theme, []).append(case)
    problems = []
    for at, line in enumerate(expectations):
        what, after = "no case matches", (*expectations[at + 1 :], *later)
        for pattern in line.known.cases:
            theme = pattern.partition("/")[0]
            if not (whole or theme in of_theme):
                continue
            one = replace(line, known=line.known.model_copy(update={"cases": (pattern,)}))
            there = filter(one.names, cases if "*" in theme else of_theme.get(theme, ()))
            if line.known.verdict == "pass":
                what = "no later line matches"
                there = filter(lambda case: any(each.covers(case) for each in after), there)
            if next(there, None) is None:
                sentence = f"{what} '{pattern}'; remove or correct this line"
                problems.append(Problem(line.file, line.line, 1, sentence))
    if problems:
        raise InputError(problems)
