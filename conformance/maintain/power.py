"""Measures which known faults the cases detect.

mutants/ has a correct kernel in NumPy, and mutants of it, each with a small fault such as real
kernels have had. They run with the same harness and judge as a runtime, and do not need one. A
fault that no case detects is a gap in the corpus.

kills   the number of cases whose verdict shows the fault: wrong, accepted, crash, timeout,
        fallback, or unsupported unless the call is only requested; a vague rejection or a hazard if
        that is the fault. A + marks a mutant that ended its process twice in a theme, and was not
        run on the rest of the theme.
themes  the number of case files of these cases. If it is 1, the mutant gives a reason (only).
margin  the smallest and the largest error in these cases, as shares of the error budget.

A mutant is run only on cases in which it could differ from the correct kernel. To find these, its
faulty step is called beside the correct one (mutants/weak_mutation.py). One process runs all
mutants, so that none waits for a process to start: the path of the bundle names the mutant.

status  0 every mutant is killed; by cases of two themes if the whole corpus is run
        1 a mutant is not, or the correct kernel fails
        2 bad input   3 infrastructure
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import groupby, islice
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, Literal

from conformance.base.paths import INSTALLED, data_path
from conformance.case.case import Case
from conformance.case.excluded import selected_cases
from conformance.diagnosis.faulty_kernels import PROBE, RUNNER, known_faults
from conformance.diagnosis.shared import effort
from conformance.fuzz.drawing import Donors, Drawing
from conformance.harness.jobs import Job
from conformance.harness.outcomes import Outcome, Ran, Rejected
from conformance.harness.protocol import DescribedAnswer
from conformance.harness.runner import Command
from conformance.harness.session import Session
from conformance.maintain import BadInput, run_command
from conformance.oracle.reference import MAX_AT_ONCE
from conformance.results.records import InfrastructureRecord, ResultRecord
from conformance.results.verdicts import TABLE, Verdict
from conformance.run.assessment import (
    Assessed,
    Assessment,
    CaseResult,
    PreparedCase,
    prepared_case,
)
from conformance.run.target import DescribedTarget
from conformance.run.worker import usual_jobs
from conformance.targets.catalogue import TargetEntry
from conformance.targets.registry import Target

MUTANTS: Final = data_path("mutants")
KILLERS: Final = MUTANTS / "killers.json"

COMMAND: Final = "python -m conformance.maintain.power"
#: The largest number of problems of runs that are listed.
MOST: Final = 10

#: The name of the kernel without a fault.
CORRECT: Final = "correct"
#: After this many crashes or timeouts in a theme, a mutant is not run on the rest of the theme;
#: after this many such themes, it is not run any more. Crashes and timeouts take long.
ENOUGH_ENDS: Final = 2
#: The time limit of a mutant in seconds; it computes in milliseconds, or hangs. The correct kernel
#: has the limit of the case, because the probe calls the steps of all mutants.
SECONDS: Final = 5.0
#: In a quick run, a mutant is run until cases of this many themes have killed it.
THEMES: Final = 3
#: The number of recorded killers of a mutant, each from a different theme.
RECORDED: Final = 2

#: Called with the name of the current work, the number of finished runs, and the number of all.
ProgressWatch = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Mutant:
    """A kernel with a fault.

    ``kind`` says what shows the fault: numbers, behaviour (accepting, rejecting, ending the
    process), the message of a rejection, or a hazard. ``only`` is the reason why a single theme
    detects it.
    """

    name: str
    area: str
    what: str
    kind: Literal["numbers", "behaviour", "message", "hazard"] = "numbers"
    only: str = ""


@dataclass(frozen=True)
class Kill:
    """A case that detects the fault, with its verdict and its largest share of the budget."""

    case: Case
    verdict: str
    share: float | None
    reason: str


@dataclass
class MutantScore:
    """The results of one mutant, or of the correct kernel."""

    mutant: Mutant
    tried: int = 0
    kills: list[Kill] = field(default_factory=list)
    ends: Counter[str] = field(default_factory=Counter)
    """The number of its crashes and timeouts, by theme."""
    largest: dict[str, float] = field(default_factory=dict)
    """The largest share of the budget, by dtype."""

    @property
    def given_up(self) -> bool:
        """Whether it was not run on all cases because it crashed or hung too often."""
        return any(ends >= ENOUGH_ENDS for ends in self.ends.values())

    @property
    def themes(self) -> list[str]:
        """The themes of the cases that detect the fault, in the order of the corpus."""
        return list(dict.fromkeys(kill.case.theme for kill in self.kills))

    @property
    def shares(self) -> list[float]:
        """The shares of the budget above 1, of all killers."""
        return [kill.share for kill in self.kills if kill.share is not None and kill.share > 1]

    def killers(self) -> list[str]:
        """The first killer in each of the first `THEMES` themes."""
        first = {kill.case.theme: kill.case.id for kill in reversed(self.kills)}
        return [first[theme] for theme in self.themes][:THEMES]

    def of_one_theme(self) -> bool:
        """Whether only one theme detects it, without a reason."""
        return len(self.themes) == 1 and not self.mutant.only

    def record(self) -> dict[str, Any]:
        """The record written by ``--json``."""
        return {
            "mutant": self.mutant.name,
            "area": self.mutant.area,
            "what": self.mutant.what,
            "numerical": self.mutant.kind == "numbers" and bool(self.shares),
            "kills": len(self.kills),
            "themes": self.themes,
            "first": self.kills[0].case.id if self.kills else None,
            "killers": self.killers(),
            "largest_share": dict(sorted(self.largest.items())),
            "smallest_kill": min(self.shares, default=None),
        }


def can_run(case: Case) -> bool:
    """Whether the kernels can run a case of the corpus.

    They know few other operators, and calls whose scores do not fit into the memory of the
    reference would take too long on some 400 mutants.
    """
    return not case.is_graph and effort(case) <= MAX_AT_ONCE * case.call.head_size


def known_mutants() -> list[Mutant]:
    """All mutants, as the runner lists them."""
    return [Mutant(**fault) for fault in known_faults()]


def record_killers(scores: Sequence[MutantScore]) -> None:
    """Write the killers of ``scores``."""
    killers = {score.mutant.name: score.killers()[:RECORDED] for score in scores}
    KILLERS.write_text(json.dumps(killers, indent=1) + "\n", encoding="utf-8")


def stale(
    killers: Mapping[str, Sequence[str]], cases: Collection[str], names: Collection[str]
) -> str:
    """Why the recorded killers do not fit the corpus and the mutants; empty if they do.

    Single killers may be missing, because cases are renamed; each mutant needs at least one.
    """
    for name in sorted(set(names) - set(killers)):
        return f"the mutant {name} is new"
    for name in sorted(set(killers) - set(names)):
        return f"the mutant {name} is gone"
    for name, ids in killers.items():
        if not set(ids) & set(cases):
            return f"the killers of {name} no longer exist"
    return ""


@dataclass
class Power:
    """A run of cases on mutants.

    ``only`` has the ids of the cases on which each mutant is run; None: all cases. ``quick``: a
    mutant is run until cases of three themes have killed it, and on no further cases of a theme
    that has killed it. ``correct`` is the score of the correct kernel; ``troubles`` lists
    infrastructure failures.
    """

    mutants: Sequence[Mutant]
    cases: Sequence[Case]
    jobs: int = 1
    only: Mapping[str, Sequence[str]] | None = None
    quick: bool = False
    correct: MutantScore = field(init=False)
    scores: list[MutantScore] = field(init=False)
    troubles: list[str] = field(default_factory=list)
    _excluded: set[str] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        what = "It has no fault."
        self.correct = MutantScore(Mutant(CORRECT, CORRECT, what))
        self.scores = [MutantScore(mutant) for mutant in self.mutants]

    def run(self, watch: ProgressWatch = lambda what, done, total: None) -> None:
        """Run the mutants. ``watch`` is called after every run.

        First the correct kernel is run on every case, and finds the mutants that could differ from
        it there (``mutants/weak_mutation.py``). Then each mutant is run on these cases.

        Raises :class:`conformance.harness.runner.RunnerFailed`.
        """
        command = Command(CORRECT, (sys.executable, str(RUNNER), "--by-folder"))
        target = Target(TargetEntry("mutants", str(RUNNER), "cpu", ""), (), command)
        with contextlib.ExitStack() as stack:
            sessions = [stack.enter_context(Session(command)) for _ in range(self.jobs)]
            answer = sessions[0].start()
            assert isinstance(answer, DescribedAnswer)
            ready = DescribedTarget(target, answer, None, None)
            role = CORRECT if self.only is not None else PROBE
            first = ((case, self.correct, role) for case in self.cases)
            touched: dict[str, set[str]] = {case.id: set() for case in self.cases}
            for done, (case, score, assessed) in enumerate(self._assessed(sessions, ready, first)):
                watch("the correct kernel", done + 1, len(self.cases))
                self._count(case, score, assessed.record)
                if role == PROBE:
                    for outcome in assessed.outcomes:
                        touched[case.id] |= _touched(outcome)
            pairs = list(self._pairs(touched))
            tasks = ((case, score, score.mutant.name) for case, score in pairs)
            for done, (case, score, assessed) in enumerate(self._assessed(sessions, ready, tasks)):
                watch("mutants", done + 1, len(pairs))
                self._count(case, score, assessed.record)
        order = {case.id: number for number, case in enumerate(self.cases)}
        for score in (self.correct, *self.scores):
            score.kills.sort(key=lambda kill: order[kill.case.id])

    def _assessed(
        self,
        sessions: Sequence[Session],
        ready: DescribedTarget,
        tasks: Iterable[tuple[Case, MutantScore, str]],
    ) -> Iterator[tuple[Case, MutantScore, Assessed]]:
        """Each case and mutant of ``tasks`` with its assessment, in order.

        There is a thread for each session. The runner takes the name of the mutant, the role, from
        the path of the bundle.
        """
        idle: SimpleQueue[Session] = SimpleQueue()
        for session in sessions:
            idle.put(session)

        def assessed(made: PreparedCase, score: MutantScore, role: str) -> Assessed:
            limit = made.case.time_limit_seconds
            seconds = limit if score is self.correct else min(limit, SECONDS)

            def run(job: Job) -> Outcome:
                name, folder = f"{role} on {job.case}", f"{role}/{job.folder}"
                return session.run(replace(job, case=name, folder=folder, seconds=seconds))

            session = idle.get()
            try:
                return Assessment(made, ready, run).result(())
            finally:
                idle.put(session)

        running: deque[tuple[Case, MutantScore, Future[Assessed]]] = deque()
        with ThreadPoolExecutor(len(sessions)) as threads:
            for case, score, role in tasks:
                if not self._wanted(case, score):
                    continue
                made = prepared_case(case)
                running.append((case, score, threads.submit(assessed, made, score, role)))
                if len(running) > len(sessions):
                    first, of, future = running.popleft()
                    yield first, of, future.result()
            for first, of, future in running:
                yield first, of, future.result()

    def _pairs(self, touched: Mapping[str, Collection[str]]) -> Iterator[tuple[Case, MutantScore]]:
        for case in self.cases:
            if case.id in self._excluded:
                continue
            names = touched[case.id]
            for score in self.scores:
                name = score.mutant.name.partition("@")[0]
                if name in names or (self.only is not None and case.id in self.only.get(name, ())):
                    yield case, score

    def _count(self, case: Case, score: MutantScore, record: CaseResult) -> None:
        """Add a case's record to its mutant's score."""
        if isinstance(record, InfrastructureRecord):
            self.troubles.append(f"{score.mutant.name} on {case.id}: {record.message}")
            if score is self.correct:
                self._excluded.add(case.id)
        else:
            score.tried += 1
            self._note(score, case, record)

    def _note(self, score: MutantScore, case: Case, record: ResultRecord) -> None:
        if record.share is not None:
            before = score.largest.get(case.call.dtype, 0.0)
            score.largest[case.call.dtype] = max(before, record.share)
        if kills(score.mutant, case, record):
            score.kills.append(Kill(case, record.verdict, record.share, record.reason))
        if record.verdict in ("crash", "timeout"):
            score.ends[case.theme] += 1

    def _wanted(self, case: Case, score: MutantScore) -> bool:
        """Whether the mutant must still be run on the case."""
        ended = sum(ends >= ENOUGH_ENDS for ends in score.ends.values())
        if ended >= ENOUGH_ENDS or score.ends[case.theme] >= ENOUGH_ENDS:
            return False
        themes = {kill.case.theme for kill in score.kills} if self.quick else ()
        return len(themes) < THEMES and case.theme not in themes

    def write_json(self, file: Path) -> None:
        """Write all records, first that of the correct kernel; an infinite share is `Infinity`."""
        records = [score.record() for score in (self.correct, *self.scores)]
        file.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")

    def faults(self) -> list[str]:
        """A sentence for each failure of the correct kernel, and for each surviving mutant."""
        sentences = [
            f"{CORRECT} fails {kill.case.id}: {kill.reason}" for kill in self.correct.kills
        ]
        sentences += [
            f"{score.mutant.name} survives: {score.mutant.what}"
            for score in self.scores
            if not score.kills
        ]
        return sentences

    def of_one_theme(self) -> list[str]:
        """A sentence for each mutant that only one theme detects, without a reason."""
        return [
            f"{score.mutant.name} is detected by only one theme: {score.themes[0]}"
            for score in self.scores
            if score.of_one_theme()
        ]


def _touched(outcome: Outcome) -> set[str]:
    """The mutants that could differ in this call, which the probe writes to standard error."""
    if not isinstance(outcome, Ran | Rejected):
        return set()
    return set(json.loads(outcome.stderr.strip().splitlines()[-1]))


def kills(mutant: Mutant, case: Case, record: ResultRecord) -> bool:
    """Whether the result of a case shows the fault of a mutant.

    `accepted` does even if the values are correct, because the correct kernel rejects the call. So
    does `unsupported`, which is not always red, unless the call is only requested.
    """
    if mutant.kind == "message" and record.verdict == "pass":
        return record.vague
    if mutant.kind == "hazard" and record.verdict == "pass":
        return record.hazard is not None
    return shows(record.verdict, case)


def shows(verdict: Verdict, case: Case) -> bool:
    """Whether a verdict shows a fault, if the correct kernel passes the case."""
    basis = case.contract.basis
    return TABLE[verdict].red_under("specified" if basis == "established" else basis)


def share(number: float) -> str:
    """A share of the error budget, rounded for reading."""
    if number == float("inf"):
        return "∞"
    return f"{number:.2g}" if number < 1000 else f"{number:.0e}".replace("e+0", "e")


def table(scores: Sequence[MutantScore]) -> Iterator[str]:
    """A line for each area, and for each mutant: its fault, and the cases that detect it."""
    heads = ("mutant", "kills", "themes", "margin", "first killer", "what is wrong")
    rows = [heads, *map(_row, scores)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    yield next(lines)
    for area, members in groupby(scores, key=lambda score: score.mutant.area):
        of_area = list(members)
        yield f"\n{area}: {_summary(of_area)}"
        yield from islice(lines, len(of_area))


def _summary(scores: Sequence[MutantScore]) -> str:
    """The number of killed mutants of an area, and the mutant with the smallest errors."""
    killed = sum(bool(score.kills) for score in scores)
    alone = sum(len(score.themes) == 1 for score in scores)
    least = min(scores, key=lambda one: (max(one.shares, default=float("inf")), len(one.themes)))
    error = share(max(least.shares)) if least.shares else "not in numbers"
    by_one = f", {alone} by one theme" if alone else ""
    return f"{killed} of {len(scores)} killed{by_one}; least visible: {least.mutant.name} ({error})"


def _row(score: MutantScore) -> tuple[str, ...]:
    return (
        score.mutant.name,
        f"{len(score.kills)}{'+' if score.given_up else ''}",
        str(len(score.themes)),
        _margin(score),
        score.kills[0].case.id if score.kills else "survives",
        score.mutant.what,
    )


def _margin(score: MutantScore) -> str:
    """The smallest and the largest error of its killers, as shares of the budget."""
    if not score.shares:
        return "–"
    return f"{share(min(score.shares))} … {share(max(score.shares))}"


def correct_line(power: Power) -> str:
    """A sentence about the correct kernel."""
    largest = ", ".join(
        f"{dtype} {share(number)}" for dtype, number in sorted(power.correct.largest.items())
    )
    failed = len(power.correct.kills)
    verdict = f"fails {failed} of" if failed else "passes all"
    return (
        f"The correct kernel {verdict} {power.correct.tried} cases;"
        f" its largest shares of the error budget: {largest}."
    )


def closing(power: Power) -> str:
    """A sentence about all mutants."""
    killed = sum(bool(score.kills) for score in power.scores)
    pairs = sum(score.tried for score in power.scores)
    return f"{killed} of {len(power.scores)} mutants killed, {pairs} runs."


def problems(power: Power, whole: bool) -> Iterator[str]:
    """A sentence for each problem. Single themes count only if the ``whole`` corpus was run."""
    yield from power.troubles[:MOST]
    if len(power.troubles) > MOST:
        yield f"{len(power.troubles) - MOST} more runs have no result for any mutant."
    yield from power.faults()
    if whole:
        yield from power.of_one_theme()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run cases on mutants, and print which faults they detect; returns the exit status.

    0: every mutant is killed; if the whole corpus was run, by cases of two themes. 1: a mutant is
    not, or the correct kernel fails. 2: bad input. 3: infrastructure failure.
    """
    options = _arguments(arguments)
    if options.record and INSTALLED:
        raise BadInput("--record writes to mutants/, so it needs a checkout.")
    known = {mutant.name: mutant for mutant in known_mutants()}
    names = list(dict.fromkeys(options.names or known))
    for name in names:
        if name.partition("@")[0] not in known:
            raise BadInput(f"There is no mutant '{name}'.")
    corpus, cases = selected_cases(options.paths, options.expression)
    whole = corpus.whole and len(cases) == len(corpus.loaded) and not options.reduced
    if options.drawn:
        drawing, whole = Drawing(Donors.of(cases), options.seed), False
        cases = [drawing.call(number).case for number in range(options.drawn)]
    cases = [case for case in cases if can_run(case) or (options.paths and case.is_graph)]
    if options.record and (options.names or not whole):
        raise BadInput("--record requires the whole corpus and all mutants.")
    only = json.loads(KILLERS.read_text(encoding="utf-8")) if options.reduced else None
    if only is not None:
        why = stale(only, {case.id for case in corpus.loaded}, known)
        if why:
            raise BadInput(f"{KILLERS}: {why}; run {COMMAND} --record.")
        killers = {case for name in names for case in only[name.partition("@")[0]]}
        cases = [case for case in cases if case.id in killers]
    chosen = [replace(known[name.partition("@")[0]], name=name) for name in names]
    made = Power(chosen, cases, options.jobs or usual_jobs(()), only, options.quick)
    made.run(_tell_progress)
    print(*table(made.scores), sep="\n")
    sentences = list(problems(made, whole))
    print(*sentences, "", correct_line(made), closing(made), sep="\n")
    if options.json is not None:
        made.write_json(options.json)
    if options.record:
        record_killers(made.scores)
    return 1 if sentences else 0


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=COMMAND,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("paths", nargs="*", metavar="PATH", help="as in gqa run; default: the whole corpus")
    add("-k", dest="expression", default="", metavar="EXPR", help="only these cases")
    add(
        "--mutant",
        dest="names",
        action="append",
        default=[],
        metavar="NAME[@PREDICATE]",
        help="only this one, or at fault in some calls only: 'window_one_longer@batch > 1'; repeat",
    )
    add("-j", "--jobs", type=int, choices=range(1, 65), metavar="N", help="processes")
    add("--json", type=Path, metavar="FILE", help="write all numbers")
    add("--reduced", action="store_true", help="run each mutant on its recorded killers only")
    add("--quick", action="store_true", help="stop a mutant once three themes detect it")
    add("--drawn", type=int, metavar="N", help="so many drawn calls, made of the cases")
    add("--seed", type=int, default=0, metavar="N", help="of the drawn calls")
    add("--record", action="store_true", help="record the killers, for --reduced and the tests")
    return parser.parse_args(arguments)


def _tell_progress(what: str, done: int, total: int) -> None:
    """Print a line for every tenth of the work."""
    if done == total or done * 10 // total != (done - 1) * 10 // total:
        print(f"{what}: {done}/{total}", file=sys.stderr)


if __name__ == "__main__":
    run_command(main)
