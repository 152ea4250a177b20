"""The time of a case through the harness, beside that in a bare loop over the same bundles.

The bare loop is a program of its own: it prints a line when it is ready, reads a line with a bundle
and its files for each case, and answers with a line: "ran", or "refused".
"""

from __future__ import annotations

import json
import math
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from conformance.base.files import write_files
from conformance.bundle.prepare import prepare
from conformance.case.corpus import names_of
from conformance.case.load import load
from conformance.case.selection import compile_expression
from conformance.harness.jobs import Job
from conformance.harness.outcomes import Ran, Rejected
from conformance.harness.protocol import UnavailableAnswer
from conformance.harness.session import Session
from conformance.run.assessment import job_for
from conformance.run.target import DescribedTarget
from conformance.targets.registry import Target


class Bare:
    """The bare loop, which gets one bundle at a time."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            text=True,
        )
        self.said()

    def said(self) -> str:
        """The next line."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if line.strip() not in ("ready", "ran", "refused"):
            command = shlex.join(map(str, self.process.args))  # type: ignore[arg-type]
            sys.exit(f"The bare loop {f'said {line!r}' if line else 'ended'}: {command}")
        return line.strip()

    def run(self, job: Job, folder: str) -> str:
        """The outcome of the call, whose files are in ``folder``."""
        assert self.process.stdin is not None
        request = {"bundle": folder, "files": job.steps[0].files}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self.said()


@contextmanager
def files_of(job: Job) -> Iterator[str]:
    """A folder with the files of a call."""
    with tempfile.TemporaryDirectory() as folder:
        write_files(folder, job.files)
        yield folder


def jobs_of(paths: Sequence[Path], expression: str, ready: DescribedTarget) -> list[Job]:
    """The single calls that the target can run."""
    selects = compile_expression(expression)
    cases = [case for case in load(paths) if selects(names_of(case, ready.target.ep), case)]
    possible = [case for case in cases if ready.cannot_take(case) is None]
    jobs = (job_for(case, prepare(case.call), only_inputs=True) for case in possible)
    return [job for job in jobs if len(job.steps) == 1 and not job.steps[0].share]


def measure(
    session: Session, bare: Bare, jobs: Sequence[Job], repeat: int
) -> tuple[list[tuple[float, float]], int]:
    """Seconds of each case, alone and through the harness, and the number of them that ran.

    Cases that end the process would end the bare loop as well, and are left out; so are those that
    run in one of the two and are rejected in the other.
    """
    outcomes = [(job, session.run(job)) for job in jobs]  # to warm up, as below
    kept, ran = [], 0
    for job, outcome in outcomes:
        if isinstance(outcome, Ran | Rejected):
            with files_of(job) as folder:
                runs = bare.run(job, folder) == "ran"
            if runs == isinstance(outcome, Ran):
                kept.append(job)
                ran += runs
    best = {job.case: (math.inf, math.inf) for job in kept}
    for _ in range(repeat):
        for job in kept:
            with files_of(job) as folder:
                start = time.perf_counter()
                bare.run(job, folder)
                middle = time.perf_counter()
                session.run(job)
                end = time.perf_counter()
            floor, whole = best[job.case]
            best[job.case] = (min(floor, middle - start), min(whole, end - middle))
    bare.process.kill()
    return list(best.values()), ran


def print_times(
    target: Target,
    begin: Callable[[], Bare],
    paths: Sequence[Path],
    expression: str,
    repeat: int,
    *,
    markdown: bool,
) -> None:
    """Measure the cases of ``paths`` that ``expression`` selects, and print a table of the means.

    ``begin`` starts the bare loop. Exits with one sentence where the target cannot be used.
    """
    with Session(target.command) as session:
        answer = session.start()
        if isinstance(answer, UnavailableAnswer):
            sys.exit(f"{answer.reason} {answer.fix or ''}")
        ready = DescribedTarget(target, answer, None, None)
        jobs = jobs_of(paths, expression, ready)
        best, ran = measure(session, begin(), jobs, repeat)
    if not best:
        sys.exit("No call is left to measure.")
    left_out = f", {len(jobs) - len(best)} left out" if len(jobs) > len(best) else ""
    print(
        f"{ready.name}, {len(best)} calls, of which {ran} ran{left_out}, {os.cpu_count()} cores\n"
    )
    if markdown:
        print("| program | ms per case | ratio to the floor |\n| --- | ---: | ---: |")
    floor, whole = (1e3 * statistics.fmean(times) for times in zip(*best, strict=True))
    for what, ms in (("a bare loop", floor), ("runner and harness", whole)):
        cells = (what, f"{ms:.2f}", f"{ms / floor:.2f}")
        print(f"| {' | '.join(cells)} |" if markdown else "{:24} {:>8} {:>6}".format(*cells))
