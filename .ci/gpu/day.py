"""``.ci/gpu-day``: everything that a GPU machine is wanted for, in one command and a given time.

It unpacks the parts of ``.ci/gpu-pack`` if there are any, runs the smoke theme on the target, then
the whole corpus on the target and on its kernel variants, the most informative themes first; then
it measures the time of a call, and runs the boundary themes under compute-sanitizer. What fails or
hangs is left out and named; all else goes on. OUT has whatever there is so far, every few seconds.
Standard library only: the suite runs as commands, with the packages of the parts.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gathered import Found, Gathered, records
from split_archive import PartsError, check_parts, read_manifest, unpack_parts
from summary import Summary, plural, tell
from tasks import Ended, Work, run_all, run_one
from themes import TIMED_THEMES, in_order, theme_of

ROOT: Final = Path(__file__).resolve().parents[2]

#: What the end takes: ending what still runs, the last results and the summary.
END_SECONDS: Final = 20.0
#: Part of the time for the corpus that the target itself may take; its variants share the rest.
OWN_SHARE: Final = 0.6
#: The targets that benchmarks/overhead.py measures.
TIMED_TARGETS: Final = ("cpu", "cuda")
#: The one that runs under compute-sanitizer.
SANITIZED_TARGET: Final = "cuda"
#: Part of all time that is kept for measuring, and the most that it takes.
TIMING_SHARE, TIMING_SECONDS = 0.12, 90.0
#: The smoke theme's part at most.
SMOKE_SHARE: Final = 0.25
#: The most that nvidia-smi may take; with a broken driver it may hang.
TOOL_SECONDS: Final = 20.0
#: With less time left, nothing is begun.
LEAST_SECONDS: Final = 1.0
#: Seconds between two writings of OUT; longer where a writing takes long.
PAUSE_SECONDS: Final = 10.0
#: The same before the first results.
FIRST_PAUSE_SECONDS: Final = 1.0
#: Cases of one run; they are arguments, and the length of a command is limited.
MOST_CASES: Final = 3000
#: How often cases that a run left are tried again.
MOST_TRIES: Final = 3
#: Exit status for bad arguments, as gqa's.
BAD_INPUT: Final = 2
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

TIME_WAS_OVER: Final = "time ran out"


class CannotRun(Exception):
    """Nothing can be run; the message says why, in one sentence."""


class BadInput(Exception):
    """The arguments are wrong; the message says how, in one sentence."""


@dataclass
class Task:
    """Some cases on one target, in one run. ``tries``: how often it was begun."""

    target: str
    ids: list[str]
    tries: int = 1
    results: Path | None = None


@dataclass
class Phase:
    """Runs of the suite with one results file, ``until`` a moment, ``extra`` being options."""

    gathered: Gathered
    until: float
    extra: tuple[str, ...] = ()
    again: list[Task] = field(default_factory=list)
    #: (target, why) of cases that have no result.
    left: list[tuple[str, str, list[str]]] = field(default_factory=list)
    #: Number of runs of each target at the moment.
    running: Counter[str] = field(default_factory=Counter)


class Day:
    """What one call of the command does, in its order."""

    def __init__(self, options: argparse.Namespace, work: Path) -> None:
        self.out: Path = options.out
        self.work = work
        self.options = options
        self.workers: int = options.workers or max(1, (os.cpu_count() or 1) // 2)
        self.begun = time.monotonic()
        self.until = self.begun + options.minutes * 60 - min(END_SECONDS, options.minutes * 20)
        self.summary = Summary(self.out, options.ep, self.until)
        self._runs = 0

    def run(self) -> None:
        """Do everything. Raises `CannotRun` where nothing can be run, and `BadInput`."""
        if self.options.parts is not None:
            self._unpack(self.options.parts)
        plan = self._plan()
        targets, whole, boundary = plan["targets"], plan["whole"], plan["boundary"]
        ids = whole["ids"]
        self.summary.open()
        if (tool := shutil.which("nvidia-smi")) is not None:
            until = min(self.until, time.monotonic() + TOOL_SECONDS)
            self.summary.log("nvidia-smi", run_one([tool], until))
        smoke = [id for id in ids if theme_of(id) == "smoke"] or ids[:1]
        rest = [id for id in ids if id not in set(smoke)]
        seconds = self.until - time.monotonic()
        timed = self.options.ep in TIMED_TARGETS and not self.options.no_timing
        reserve = min(TIMING_SECONDS, TIMING_SHARE * seconds) if timed else 0.0
        gathered = Gathered(
            self.out / "results.jsonl.xz",
            self.options.expression or "whole corpus",
            len(ids),
            len(ids) * len(targets),
            whole["corpus"],
        )
        phase = Phase(gathered, self.until - reserve)
        self.summary.plan(gathered.path.name, targets)
        with self._writing(phase):
            limit = time.monotonic() + SMOKE_SHARE * seconds
            self.summary.say(f"A first run of {plural(len(smoke), 'case')} on {targets[0]}.")
            self._run(phase, [(targets[0], [smoke])], limit)
            self._stop_if_unavailable()
            dealt = self._dealt(rest)
            others = [(target, [smoke, *dealt]) for target in targets[1:]]
            each = f"All {plural(len(ids), 'case')} on each of {plural(len(targets), 'target')}"
            self.summary.say(f"{each}, {plural(self.workers, 'run')} at a time.")
            self._run(phase, [(targets[0], dealt), *others])
            if timed:
                self._time()
            phase.until = self.until
            self._run(phase, [])
        if self.options.ep == SANITIZED_TARGET:
            self._sanitize(boundary)

    # ── What is needed ───────────────────────────────────────────────────────────────────────────

    def _unpack(self, folder: Path) -> None:
        since = time.monotonic()
        self.summary.say(f"Unpacking {folder}.")
        try:
            manifest = read_manifest(folder)
            here = f"{sys.version_info.major}.{sys.version_info.minor}", os.uname().machine
            packed = manifest["python"], manifest["machine"]
            if here != packed:
                raise CannotRun(
                    f"{folder} is for Python {packed[0]} on {packed[1]}, and this is Python "
                    f"{here[0]} on {here[1]}; start .ci/gpu-day with PYTHON=python{packed[0]}."
                )
            site = self.work / "site"
            unpack_parts(check_parts(folder, manifest), site)
        except PartsError as error:
            raise CannotRun(str(error)) from None
        _put_first("PYTHONPATH", [str(site)])
        # Of the pack and of the machine's own wheels; onnxruntime itself searches beside its own.
        libraries = [str(path) for at in [str(site), *sys.path] for path in _libraries(at)]
        _put_first("LD_LIBRARY_PATH", libraries)
        self.summary.step("unpacked the parts", time.monotonic() - since)

    def _plan(self) -> dict[str, Any]:
        """What plan.py prints."""
        options = self.options
        words = [f"-k{options.expression}"] if options.expression else []
        self.summary.say("Reading the cases.")
        ended = run_one(_plan(*words, *self._device(), "--", options.ep), self.until)
        last = ended.said.strip().rpartition("\n")[2]
        if ended.stopped or time.monotonic() >= self.until:
            raise BadInput("Time ran out before the cases were read; give more --minutes.")
        if ended.status == BAD_INPUT:
            raise BadInput(last)
        if ended.status:
            raise CannotRun(
                f"The suite does not start in {sys.executable}: {last}; install it "
                "(pip install -e .), or give --parts."
            )
        found: dict[str, Any] = json.loads(last)
        return found

    def _device(self) -> list[str]:
        """The option for gqa, if it was given."""
        return [] if self.options.device is None else [f"--device={self.options.device}"]

    def _stop_if_unavailable(self) -> None:
        """Raise `CannotRun` if the target cannot be used here."""
        lines = [line for file in sorted(self.work.glob("*.jsonl")) for line in records(file)]
        headers = [record for _, record in lines if record["kind"] == "header"]
        for target in (target for header in headers for target in header["targets"]):
            if target["unavailable"]:
                fix = f" Fix: {target['fix']}" if target["fix"] else ""
                why = f"{target['unavailable'].rstrip('.')}.{fix}"
                raise CannotRun(f"{self.options.ep} cannot be used here: {why}")

    # ── Runs of the suite ────────────────────────────────────────────────────────────────────────

    def _run(
        self, phase: Phase, plan: list[tuple[str, list[list[str]]]], until: float | None = None
    ) -> None:
        """Run the cases of each target of ``plan``, dealt to several runs.

        A target may take its share of the time that is left when it begins, or has until
        ``until``. Cases that are left are run when all others have begun, or in the next `_run`.
        """
        waiting = [(target, [ids for ids in dealt if ids]) for target, dealt in plan]
        limits: dict[str, float] = {}

        def draw() -> Work[Task] | None:
            while waiting:
                target, dealt = waiting[0]
                now = time.monotonic()
                if target not in limits:
                    own = OWN_SHARE if target == self.options.ep else 1 / len(waiting)
                    share = own if len(waiting) > 1 else 1
                    limits[target] = until or now + share * (phase.until - now)
                if not dealt:
                    waiting.pop(0)
                elif now + LEAST_SECONDS < limits[target]:
                    return self._work(phase, Task(target, dealt.pop(0)), limits[target])
                else:
                    phase.again.append(Task(target, dealt.pop(0)))
            if phase.again and until is None and time.monotonic() + LEAST_SECONDS < phase.until:
                return self._work(phase, phase.again.pop(0), phase.until)
            return None

        run_all(draw, self.workers, lambda task, ended: self._ended(phase, task, ended))

    def _dealt(self, ids: list[str]) -> list[list[str]]:
        """The cases for runs side by side, so that all of them are at the same themes."""
        size = self.workers * MOST_CASES
        blocks = [ids[start : start + size] for start in range(0, len(ids), size)]
        return [block[worker :: self.workers] for block in blocks for worker in range(self.workers)]

    def _work(self, phase: Phase, task: Task, until: float) -> Work[Task]:
        self._runs += 1
        task.results = self.work / f"{self._runs}.jsonl"
        phase.gathered.add(task.results)
        command = _gqa(
            *("run", "--ep", task.target, "--results", str(task.results)),
            *(*self._device(), *phase.extra, *task.ids),
        )
        phase.running[task.target] += 1
        return Work(task, command, until)

    def _ended(self, phase: Phase, task: Task, ended: Ended) -> None:
        """Note how a run ended, and have the cases that it left tried again."""
        assert task.results is not None
        phase.running[task.target] -= 1
        done = {
            record["case"]
            for _, record in records(task.results)
            if record["kind"] in ("result", "infrastructure") and record["case"]
        }
        left = [id for id in task.ids if id not in done]
        self.summary.log(f"{task.target}, {len(task.ids)} cases from {task.ids[0]}", ended)
        if not left:
            return
        # One that has ended by itself without a result would do so again.
        begun = done or ended.stopped or ended.status < 0
        if begun and task.tries < MOST_TRIES:
            # The one that it may have ended with comes last.
            again = [*left[1:], left[0]]
            phase.again.append(Task(task.target, again, task.tries + 1))
            return
        last = ended.said.strip().rpartition("\n")[2]
        why = TIME_WAS_OVER if ended.stopped else f"a run ended with status {ended.status}: {last}"
        phase.left.append((task.target, why, left))

    # ── What else is wanted ──────────────────────────────────────────────────────────────────────

    def _time(self) -> None:
        """Write OUT/timing.md: the time of a call in the suite and in a bare loop."""
        until = min(self.until, time.monotonic() + TIMING_SECONDS)
        script = str(ROOT / "benchmarks" / "overhead.py")
        files = [str(ROOT / "cases" / f"{theme}.yaml") for theme in TIMED_THEMES]
        ep = ["--ep", self.options.ep, *self._device()]
        command = [sys.executable, script, *ep, "--markdown", *files]
        self.summary.say("Measuring the time of a call.")
        ended = run_one(command, until)
        self.summary.log("timing", ended)
        if ended.status or ended.stopped:
            last = ended.said.strip().rpartition("\n")[2]
            why = TIME_WAS_OVER if ended.stopped else last.rstrip(".")
            self.summary.left_out(f"timing: {why}.")
            return
        self.summary.step("measured the time of a call", ended.seconds)
        with suppress(OSError):
            (self.out / "timing.md").write_text(ended.said, encoding="utf-8")

    def _sanitize(self, boundary: dict[str, Any]) -> None:
        """Run the boundary themes under compute-sanitizer, as far as the time goes."""
        ids = boundary["ids"]
        if self.until - time.monotonic() < self.options.sanitize_seconds:
            self.summary.left_out(f"compute-sanitizer: {TIME_WAS_OVER}.")
            return
        path = self.out / "sanitizer.jsonl.xz"
        gathered = Gathered(path, "boundary themes", len(ids), len(ids), boundary["corpus"])
        phase = Phase(gathered, self.until, ("--compute-sanitizer", "auto"))
        since = time.monotonic()
        self.summary.say(f"{plural(len(ids), 'case')} under compute-sanitizer.")
        with self._writing(phase):
            self._run(phase, [(self.options.ep, self._dealt(ids))])
        self.summary.step("ran compute-sanitizer", time.monotonic() - since)

    # ── Writing ──────────────────────────────────────────────────────────────────────────────────

    def _writing(self, phase: Phase) -> _Writing:
        return _Writing(phase, self.summary)


class _Writing:
    """Writes the results of a phase and the summary every few seconds, and at the end."""

    def __init__(self, phase: Phase, summary: Summary) -> None:
        self._phase = phase
        self._summary = summary
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._repeat, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()
        found = self._write(footer=True)
        left: dict[tuple[str, str], list[str]] = {}
        stopped = error[0] is KeyboardInterrupt
        again = [] if stopped else self._phase.again
        over = [(task.target, TIME_WAS_OVER, task.ids) for task in again]
        for target, why, ids in (*self._phase.left, *over):
            left.setdefault((target, why.rstrip(".")), []).extend(ids)
        for (target, why), ids in left.items():
            number = plural(len(ids), "case")
            self._summary.left_out(f"{target}: {number} not run, from {in_order(ids)[0]}: {why}.")
        if stopped:
            known = (found.tried() if found else 0) + sum(len(ids) for ids in left.values())
            self._summary.stopped(str(error[1]), self._phase.gathered.planned - known)
        name = self._phase.gathered.path.name
        self._summary.so_far(name, found)
        for record in found.targets.values() if found is not None else ():
            if record["unavailable"] and error[0] is not CannotRun:
                self._summary.left_out(f"{name}: {record['name']}: {record['unavailable']}")

    def _repeat(self) -> None:
        due = told = time.monotonic()
        found: Found | None = None
        while not self._over.wait(FIRST_PAUSE_SECONDS):
            since = time.monotonic()
            if since >= due:
                found = self._write()
                self._summary.so_far(self._phase.gathered.path.name, found)
                if found is not None and found.verdicts:
                    now = time.monotonic()
                    due = now + max(PAUSE_SECONDS, 10 * (now - since))
            if since >= told + PAUSE_SECONDS:
                told = since
                self._summary.say(self._progress(found))

    def _progress(self, found: Found | None) -> str:
        """What runs, and how far it is."""
        running = dict(self._phase.running)  # the other thread changes it
        runs = [f"{target} ({number})" for target, number in running.items() if number]
        found = found or Found()
        return (
            f"{found.tried():,} of {self._phase.gathered.planned:,} results, "
            f"{found.unexpected().total():,} unexpected, "
            f"{plural(found.infrastructure.total(), 'infrastructure failure')}; "
            f"running: {', '.join(runs) or 'timing'}"
        )

    def _write(self, footer: bool = False) -> Found | None:
        try:
            return self._phase.gathered.write(footer)
        except (OSError, ValueError, KeyError) as error:
            self._summary.trouble(f"{self._phase.gathered.path}: {error}.")
            return None


def _gqa(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "conformance", *arguments]


def _plan(*arguments: str) -> list[str]:
    return [sys.executable, str(Path(__file__).with_name("plan.py")), *arguments]


def _libraries(folder: str) -> list[Path]:
    """The folders of NVIDIA's libraries, as their wheels install them into ``folder``."""
    return sorted(path for path in Path(folder, "nvidia").glob("*/lib") if path.is_dir())


def _put_first(variable: str, folders: Sequence[str]) -> None:
    """Put ``folders`` in front of those that an environment variable lists."""
    old = [folder for folder in os.environ.get(variable, "").split(os.pathsep) if folder]
    if both := [*folders, *old]:
        os.environ[variable] = os.pathsep.join(both)


def _interrupted(number: int, _: object) -> None:
    for other in _SIGNALS:
        signal.signal(other, signal.SIG_IGN)  # it ends within seconds, and a second one is in vain
    name = signal.Signals(number).name
    raise KeyboardInterrupt("Ctrl-C" if number == signal.SIGINT else name)


def _check_empty(out: Path) -> None:
    """Raise `BadInput` unless the folder is empty, or not there: nothing is ever overwritten."""
    try:
        if out.exists() and any(out.iterdir()):
            raise BadInput(f"{out} is not empty; name a folder that is, or none yet.")
    except OSError as error:
        raise BadInput(f"Cannot use the folder {out}: {error.strerror}.") from None


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status.

    0: everything that was planned was done; 1: something was left out; 2: bad arguments; 3: nothing
    can be run.
    """
    options = _parser().parse_args(arguments)
    for number in _SIGNALS:
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # as with nohup
            signal.signal(number, _interrupted)
    _put_first("PYTHONPATH", [str(ROOT)])
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # many processes share the cores
    try:
        _check_empty(options.out)
        options.out = options.out.absolute()
        with tempfile.TemporaryDirectory(prefix="gqa-gpu-day-", ignore_cleanup_errors=True) as name:
            day = Day(options, Path(name))
            try:
                day.run()
            except KeyboardInterrupt as stopped:
                day.summary.stopped(str(stopped))
            except CannotRun as error:
                day.summary.nothing(str(error))
            return day.summary.end(time.monotonic() - day.begun)
    except BadInput as error:
        tell(str(error))
        return BAD_INPUT
    except KeyboardInterrupt as stopped:
        tell(f"Stopped by {stopped}.")
        return 1
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        tell(f"Cannot continue: {where}{error.strerror or error}.")
        return 3


def _positive(text: str) -> float:
    with suppress(ValueError):
        if 0 < (number := float(text)) < math.inf:
            return number
    raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0.")


def _count(text: str) -> int:
    if text.isdecimal() and int(text):
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0.")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=".ci/gpu-day", description="Run all cases on a GPU, on each kernel variant."
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="output folder")
    parser.add_argument(
        "--parts", type=Path, metavar="DIR", help="the folder that .ci/gpu-pack wrote"
    )
    parser.add_argument(
        "--minutes", type=_positive, default=9, metavar="N", help="time limit; default: 9"
    )
    parser.add_argument("--ep", default="cuda", metavar="TARGET", help="what to run; default: cuda")
    parser.add_argument("--device", metavar="N", help="as in gqa run; default: 0")
    parser.add_argument("-k", dest="expression", default="", metavar="EXPR", help="as in gqa run")
    parser.add_argument(
        "--workers",
        type=_count,
        metavar="N",
        help="number of runs at a time; default: half the cores",
    )
    parser.add_argument("--no-timing", action="store_true", help="do not measure the time of calls")
    parser.add_argument(
        "--sanitize-seconds",
        type=_positive,
        default=60,
        metavar="N",
        help="run compute-sanitizer only if this much time is left; default: 60",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
