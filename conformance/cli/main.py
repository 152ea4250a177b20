"""The command ``gqa``."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from conformance import __version__
from conformance.base.paths import INSTALLED, cache_root
from conformance.base.yaml_source import InputError
from conformance.bundle.cache import BundleError, bundle_for, cache_size, clear_cache
from conformance.bundle.sensitivity import unfit
from conformance.case.case import Case
from conformance.case.corpus import Corpus, NothingMeant, find, names_of, split_target
from conformance.case.selection import SelectionError, compile_expression
from conformance.cli.common import (
    ALL_AS_EXPECTED,
    BAD_INPUT,
    INFRASTRUCTURE,
    INTERRUPTED,
    UNEXPECTED,
    BadArgument,
    check_writable,
    say,
)
from conformance.cli.export import NotExported, export
from conformance.cli.report import diff, report, write_html
from conformance.harness.pool import RunnerFailed
from conformance.results.records import (
    VERDICTS,
    Header,
    Infrastructure,
    ResultRecord,
    ResultsError,
    Verdict,
    Writer,
    read,
)
from conformance.run.engine import (
    Plan,
    Ready,
    Record,
    TargetRun,
    argument_for,
    case_record,
    header,
    plans,
)
from conformance.targets.registry import (
    ADAPTERS,
    KNOWN,
    Programs,
    TargetError,
    built_in,
    targets_for,
)
from conformance.targets.setup.cargo import Progress as CargoProgress
from conformance.targets.setup.lavapipe import set_up_lavapipe
from conformance.targets.setup.onnxruntime_web import (
    how_to_use_onnxruntime_web,
    set_up_onnxruntime_web,
)
from conformance.targets.setup.tract import NoRelease, SetupError, how_to_use_tract, set_up_tract
from conformance.targets.tools import ONNXRUNTIME_WEB_VERSION, TRACT_VERSION

#: So few results are all told in full, expected or not.
_FEW: Final = 3

#: Where no terminal shows a live line, how far a build is, is told so often, in seconds.
_BUILD_TOLD_EVERY: Final = 60.0

#: So many causes of what is known are told; of more, how many there are.
_FEW_CAUSES: Final = 8

#: Each verdict's colour and sign in the terminal.
STYLES: Final[dict[Verdict, tuple[str, str]]] = {
    "crash": ("bold magenta", "☠"),
    "timeout": ("bold magenta", "⧗"),
    "wrong": ("bold red", "✗"),
    "accepted": ("red", "!"),
    "fallback": ("yellow", "↷"),
    "unsupported": ("yellow", "○"),
    "pass": ("green", "✓"),
    "skip": ("dim", "–"),
}

_PATHS = click.argument("paths", nargs=-1, metavar="[PATH]...")
_EXPRESSION = click.option(
    "-k", "expression", default="", metavar="EXPR", help="Only cases that match, as in pytest."
)
_PROGRAMS: Final = (
    click.option(
        "--ort-python",
        metavar="PYTHON",
        help="The interpreter whose onnxruntime is meant; this one's by default.",
    ),
    click.option(
        "--tract",
        metavar="PATH",
        help="The tract binary; by default $GQA_TRACT, then what gqa setup built, then PATH.",
    ),
    click.option(
        "--tract-python",
        metavar="PYTHON",
        help="The interpreter whose package tract is meant; this one's by default.",
    ),
    click.option(
        "--onnxruntime-web",
        metavar="FOLDER|VERSION",
        help="Where its node_modules lies, or a release that gqa setup installed; "
        "by default $GQA_ONNXRUNTIME_WEB, then the release that gqa setup installs.",
    ),
    click.option(
        "--adapter",
        metavar="WORD|PATH",
        help=f"What webgpu computes on: {', '.join(ADAPTERS)}, or a Vulkan driver's .json file; "
        "by default the system's own, else SwiftShader.",
    ),
)


def _programs(command: Callable[..., int]) -> Callable[..., int]:
    """Gives ``command`` the options that name programs, as its argument ``programs``."""

    @functools.wraps(command)
    def wrapped(**options: Any) -> int:
        named = {field.name: options.pop(field.name) for field in fields(Programs)}
        return command(programs=Programs(**named), **options)

    for option in reversed(_PROGRAMS):
        wrapped = option(wrapped)
    return wrapped


def main() -> NoReturn:
    """The entry point: runs the command and exits with its status, never with a traceback."""
    # Ctrl-C, a CI's SIGTERM, a terminal that goes and a closed pipe end a run in the same orderly
    # way. What is ignored stays so: nohup.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)
    # A terminal that knows no ✓ gets a question mark.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        status = gqa.main(prog_name="gqa", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        status = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        say("Interrupted.")
        status = INTERRUPTED
    except InputError as error:
        for problem in error.problems:
            say(str(problem))
        status = BAD_INPUT
    except (BadArgument, NothingMeant, SelectionError, TargetError, NoRelease) as error:
        say(str(error))
        status = BAD_INPUT
    except (ResultsError, BundleError, NotExported, SetupError) as error:
        say(str(error))
        status = INFRASTRUCTURE
    except SystemExit:
        # click and rich make this of a closed pipe, with a status that would read as UNEXPECTED.
        status = INTERRUPTED
    except OSError as error:
        # Standard output on a full disk. What is still in its buffer must go somewhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        say(f"Cannot go on: {error.strerror or error}.")
        status = INFRASTRUCTURE
    raise SystemExit(status)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="gqa-conformance", message="%(prog)s %(version)s")
def gqa() -> None:
    """Conformance of com.microsoft.GroupQueryAttention: which runtime gets which call right."""


gqa.add_command(report)
gqa.add_command(diff)


@gqa.command()
@_PATHS
@click.option("--ep", "eps", multiple=True, metavar="TARGET", help=f"{', '.join(KNOWN)}; repeat.")
@_EXPRESSION
@click.option("-j", "--jobs", default=1, type=click.IntRange(1, 64), help="Runner processes.")
@click.option("--results", type=click.Path(path_type=Path, dir_okay=False), help="Results file.")
@click.option("--html", type=click.Path(path_type=Path, dir_okay=False), help="HTML report.")
@click.option("--known", is_flag=True, help="Tell every cause of what is known to go wrong.")
@_programs
def run(
    paths: Sequence[str],
    eps: Sequence[str],
    expression: str,
    jobs: int,
    results: Path | None,
    html: Path | None,
    known: bool,
    programs: Programs,
) -> int:
    """Run cases on targets, judge them, and say what is unexpected.

    PATH is a case file or folder, FILE.yaml::name[…] or a case id; default: the shipped corpus.

    \b
    Exit status: 0 all as expected   1 something unexpected
                 2 bad input         3 infrastructure
    """
    meant = [split_target(path) for path in paths]
    corpus = find([path for path, _ in meant])
    eps = eps or [ep for _, ep in meant if ep is not None]
    targets = targets_for(eps or ("cpu",), programs)
    matches = compile_expression(expression)
    named = {case.id for case in corpus.named}
    planned = plans(
        corpus.loaded,
        targets,
        selected=lambda case, target: case.id in named and matches(names_of(case, target.ep)),
        whole_corpus=corpus.whole,
    )
    if not any(plan.cases for plan in planned):
        raise SelectionError(f"-k '{expression}' selects none of {len(named)} cases.")
    for path, what in ((results, "results"), (html, "the report")):
        if path is not None:
            check_writable(path, what)
    selection = " ".join([*paths, *(["-k", expression] if expression else [])]) or "whole corpus"
    with contextlib.ExitStack() as stack:
        kept = results
        if kept is None and html is not None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="gqa-"))
            kept = Path(folder) / "results.jsonl"
        show = Show(_console(), Console(stderr=True), known)
        carried = _carry_out(planned, jobs, kept, selection, show)
        if results is not None and carried.kept:
            show.line(f"Results: {results}")
        if html is not None and kept is not None and carried.kept:
            write_html([read(kept)], html)
            show.line(f"Report:  {html}")
    return carried.status()


def _console() -> Console:
    """Standard output; where nobody sees its width, lines are as long as they need to be."""
    return Console() if sys.stdout.isatty() else Console(width=1000)


class Carried:
    """What came of a run so far.

    ``untried`` has a sentence for each target on which nothing was tried; ``kept`` says that the
    results file was begun, and ``writing`` why it is not whole.
    """

    def __init__(self) -> None:
        self.results: list[tuple[Case, ResultRecord]] = []
        self.troubles: list[Infrastructure] = []
        self.untried: list[str] = []
        self.begun = False
        self.writing: ResultsError | None = None
        self.interrupted = False

    @property
    def kept(self) -> bool:
        """Whether there is a results file that can be read."""
        return self.begun and self.writing is None

    def status(self) -> int:
        """The exit status of ``gqa run``."""
        if self.interrupted:
            return INTERRUPTED
        if self.troubles or self.untried or self.writing:
            return INFRASTRUCTURE
        return UNEXPECTED if any(r.unexpected for _, r in self.results) else ALL_AS_EXPECTED


def _carry_out(
    planned: Sequence[Plan], jobs: int, results: Path | None, selection: str, show: Show
) -> Carried:
    """Runs every plan, writes the results file as it goes, and tells the terminal."""
    carried = Carried()
    with contextlib.ExitStack() as stack:
        runs = [stack.enter_context(TargetRun(plan, jobs)) for plan in planned]
        try:
            readies = [run.ready for run in runs]
            for ready in readies:
                show.target(ready)
            keep = _Keeper(carried)
            if results is not None:
                keep.begin(stack, results, header(planned, readies, selection))
            with show.progress(sum(len(plan.cases) for plan in planned)) as advance:
                for run in runs:
                    _run_one_target(run, keep, carried, advance)
            keep.finish()
        except KeyboardInterrupt:
            carried.interrupted = True
    show.summary(carried)
    return carried


def _run_one_target(
    run: TargetRun, keep: _Keeper, carried: Carried, advance: Callable[[Case, Record], None]
) -> None:
    tried = 0
    skipped = ""
    try:
        for case, record in run.run():
            keep.case(case)
            if isinstance(record, Infrastructure):
                keep.trouble(record)
            else:
                keep.result(case, record)
            if isinstance(record, ResultRecord) and record.outcome == "unavailable":
                skipped = skipped or record.reason
            else:
                tried += 1
            advance(case, record)
    except (RunnerFailed, BundleError) as error:
        keep.trouble(run.trouble(error))
        for case in run.plan.cases:
            keep.case(case)
        return
    if skipped and not tried:
        ready = run.ready
        mend = f"\n  mend it with: {ready.fix}" if ready.fix else ""
        carried.untried.append(
            f"{ready.name}: nothing was tried; every case was skipped: {skipped}{mend}"
        )


class _Keeper:
    """Writes to the results file, if there is one, and goes on when that fails."""

    def __init__(self, carried: Carried) -> None:
        self._writer: Writer | None = None
        self._carried = carried
        self._seen: set[str] = set()

    def begin(self, stack: contextlib.ExitStack, path: Path, first: Header) -> None:
        try:
            self._writer = stack.enter_context(Writer(path, first))
            self._carried.begun = True
        except ResultsError as error:
            self._carried.writing = error

    def case(self, case: Case) -> None:
        if case.id not in self._seen:
            self._seen.add(case.id)
            self._try(lambda writer: writer.case(case_record(case)))

    def result(self, case: Case, record: ResultRecord) -> None:
        self._carried.results.append((case, record))
        self._try(lambda writer: writer.result(record))

    def trouble(self, record: Infrastructure) -> None:
        self._carried.troubles.append(record)
        self._try(lambda writer: writer.infrastructure(record))

    def finish(self) -> None:
        self._try(lambda writer: writer.finish(complete=True))

    def _try(self, write: Callable[[Writer], None]) -> None:
        if self._writer is None or self._carried.writing is not None:
            return
        try:
            with _undisturbed():
                write(self._writer)
        except ResultsError as error:
            self._carried.writing = error


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Keeps an interrupt waiting, so that no line is written and then not counted."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Show:
    """The terminal: what stands on it while a run goes and when it is over."""

    def __init__(self, out: Console, err: Console, all_causes: bool = False) -> None:
        self.out = out
        self.err = err
        self.all_causes = all_causes

    def line(self, text: str) -> None:
        """Text that may hold anything, however long."""
        from conformance.report.text import clean

        self.out.print(clean(text), markup=False, highlight=False, soft_wrap=True)

    def target(self, ready: Ready) -> None:
        """One line on what a target is; the summary has the reason where it is not there."""
        if ready.described is not None:
            about = f"{ready.described.runtime} {ready.described.version}"
            self.line(f"{ready.name}: {about} on {ready.described.device}")
        else:
            self.line(f"{ready.name}: {'did not start' if ready.broken else 'is not available'}")

    @contextlib.contextmanager
    def progress(self, total: int) -> Iterator[Callable[[Case, Record], None]]:
        """A live bar on a terminal; elsewhere a plain line for every tenth of the work."""
        counts: Counter[str] = Counter()

        def summary() -> str:
            words = (*VERDICTS, "infrastructure")
            return ", ".join(f"{counts[word]} {word}" for word in words if counts[word])

        def count(record: Record) -> None:
            counts[record.verdict if isinstance(record, ResultRecord) else "infrastructure"] += 1

        if not self.err.is_terminal:
            done = 0

            def line(case: Case, record: Record) -> None:
                nonlocal done
                done += 1
                count(record)
                if done == total or done * 10 // total != (done - 1) * 10 // total:
                    text = f"{done}/{total}  {summary()}"
                    self.err.print(text, markup=False, highlight=False, soft_wrap=True)

            yield line
            return
        columns = (
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.description}", markup=False),
        )
        with Progress(*columns, console=self.err, transient=True, refresh_per_second=8) as bar:
            task = bar.add_task("starting", total=total)

            def step(case: Case, record: Record) -> None:
                count(record)
                bar.update(task, advance=1, description=summary())

            yield step

    @contextlib.contextmanager
    def bars(self) -> Iterator[Callable[[str, int, int], None]]:
        """A live bar for each thing that is told of, on a terminal; nothing elsewhere."""
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True),
        )
        with Progress(*columns, console=self.err, transient=True, refresh_per_second=4) as bar:
            tasks: dict[str, TaskID] = {}

            def watch(what: str, done: int, total: int) -> None:
                if what not in tasks:
                    tasks[what] = bar.add_task(what, total=total)
                bar.update(tasks[what], completed=done)

            yield watch

    @contextlib.contextmanager
    def build(self) -> Iterator[Callable[[str, float], None]]:
        """A live line of what is being done and for how many seconds, on a terminal.

        Elsewhere a plain line each minute.
        """
        if not self.err.is_terminal:
            told = 0.0

            def line(doing: str, since: float) -> None:
                nonlocal told
                if since - told >= _BUILD_TOLD_EVERY:
                    told = since
                    minutes, seconds = divmod(int(since), 60)
                    text = f"{doing}, {minutes}:{seconds:02}"
                    self.err.print(text, markup=False, highlight=False, soft_wrap=True)

            yield line
            return
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self.err, transient=True, refresh_per_second=4) as bar:
            tasks: list[TaskID] = []

            def step(doing: str, since: float) -> None:
                if not tasks:
                    tasks.append(bar.add_task("", total=None))
                bar.update(tasks[0], description=doing)

            yield step

    def summary(self, carried: Carried) -> None:
        """Verdicts by theme, then what is unexpected, then what did not work.

        Where the results are few, as after the command that repeats a case, all of them are told.
        """
        from conformance.report.terminal import tell, tell_trouble

        if carried.results:
            self.out.print(_table(carried.results))
        few = len(carried.results) <= _FEW
        for case, result in carried.results:
            if result.unexpected or (few and result.outcome != "unavailable"):
                self.line("\n" + "\n".join(tell(case_record(case), result)))
        results = [result for _, result in carried.results]
        self._tell_known(results, few)
        self._tell_skipped(results)
        for trouble in carried.troubles:
            self.line("\n" + tell_trouble(trouble))
        for text in (*carried.untried, *([str(carried.writing)] if carried.writing else [])):
            self.line("\n" + text)
        self.out.print(_closing(carried), highlight=False, soft_wrap=True)

    def _tell_known(self, results: Sequence[ResultRecord], told: bool) -> None:
        """The causes of what is known, worst first, each with its link and one case.

        All of them where ``--known`` asks for it; else where they are few and not ``told`` yet.
        """
        causes: dict[tuple[str, Verdict, str, str], list[str]] = {}
        for result in results:
            known = result.known
            if known is not None:
                key = (result.target, result.verdict, known.why, known.link)
                causes.setdefault(key, []).append(result.case)
        if not causes or (told and not self.all_causes):
            return
        if len(causes) > _FEW_CAUSES and not self.all_causes:
            self.line(f"\n{len(causes)} causes of what is known: --known tells them.")
            return
        self.line("\nKnown:")
        ordered = sorted(causes.items(), key=lambda item: VERDICTS.index(item[0][1]))
        for (target, verdict, why, link), cases in ordered:
            self.line(
                f"  {len(cases)} {verdict} on {target}: {why}\n      {link}\n      {cases[0]}"
            )

    def _tell_skipped(self, results: Sequence[ResultRecord]) -> None:
        """Why cases were not tried on targets on which others were, most of them first."""
        tried = {result.target for result in results if result.verdict != "skip"}
        reasons = Counter(
            (result.target, result.reason)
            for result in results
            if result.verdict == "skip" and result.target in tried
        )
        if not reasons:
            return
        self.line("\nSkipped:")
        for (target, reason), cases in reasons.most_common(_FEW_CAUSES):
            self.line(f"  {cases} on {target}: {reason}")
        if len(reasons) > _FEW_CAUSES:
            self.line(f"  and for {_number(len(reasons) - _FEW_CAUSES, 'other reason')}")


def _how_far(at: CargoProgress) -> str:
    from conformance.report.text import clean

    crates = f"{_number(at.crates, 'crate')} begun, " if at.crates else ""
    return f"{crates}{clean(at.doing or 'starting cargo')}"


def _closing(carried: Carried) -> str:
    results = [result for _, result in carried.results]
    unexpected = sum(result.unexpected for result in results)
    known = [r for r in results if r.known]
    refused = sum(result.verdict == "unsupported" for result in known)
    parts = [_number(len(results), "result"), f"{unexpected} unexpected"]
    if defects := len(known) - refused:
        parts.append(_number(defects, "known defect"))
    if refused:
        parts.append(_number(refused, "known refusal"))
    if vague := sum(result.vague for result in results):
        parts.append(_number(vague, "vague refusal"))
    if carried.troubles:
        parts.append(_number(len(carried.troubles), "infrastructure problem"))
    if carried.interrupted:
        parts.append("interrupted")
    style = "red" if carried.status() else "green"
    return f"\n[{style}]{escape(', '.join(parts))}[/]"


def _number(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _table(results: Sequence[tuple[Case, ResultRecord]]) -> Table:
    targets = list(dict.fromkeys(result.target for _, result in results))
    present = [v for v in VERDICTS if any(result.verdict == v for _, result in results)]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("theme", no_wrap=True)
    if len(targets) > 1:
        table.add_column("target", overflow="fold")
    for verdict in present:
        style, sign = STYLES[verdict]
        table.add_column(f"{sign} {verdict}", justify="right", header_style=style, no_wrap=True)
    table.add_column("unexpected", justify="right", no_wrap=True)
    counts: dict[tuple[str, str], Counter[str]] = {}
    for case, result in results:
        count = counts.setdefault((case.theme, result.target), Counter())
        count[result.verdict] += 1
        count["unexpected"] += result.unexpected
    total: Counter[str] = Counter()
    for (theme, target), count in sorted(counts.items()):
        total += count
        table.add_row(*_row(theme, target, count, present, several=len(targets) > 1))
    table.add_section()
    table.add_row(*_row("all", "", total, present, several=len(targets) > 1))
    return table


def _row(
    theme: str, target: str, count: Counter[str], present: Sequence[Verdict], *, several: bool
) -> list[str]:
    cells = [escape(theme), *([escape(target)] if several else [])]
    for verdict in present:
        number = count[verdict]
        cells.append(f"[{STYLES[verdict][0]}]{number}[/]" if number else "[dim]·[/]")
    unexpected = count["unexpected"]
    return [*cells, f"[bold red]{unexpected}[/]" if unexpected else "[dim]·[/]"]


def _selected(paths: Sequence[str], expression: str) -> tuple[Corpus, list[Case]]:
    """The cases that the arguments and ``-k`` mean, without a target."""
    corpus = find(paths)
    matches = compile_expression(expression)
    chosen = [case for case in corpus.named if matches(names_of(case, ""))]
    if not chosen:
        raise SelectionError(f"-k '{expression}' selects none of {len(corpus.named)} cases.")
    return corpus, chosen


@gqa.command("list")
@_PATHS
@_EXPRESSION
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def list_cases(paths: Sequence[str], expression: str, as_json: bool) -> int:
    """List cases: their ids, or with --json all that is known of them."""
    for case in _selected(paths, expression)[1]:
        click.echo(case_record(case).model_dump_json() if as_json else case.id)
    return ALL_AS_EXPECTED


@gqa.command()
@click.argument("case_id")
def show(case_id: str) -> int:
    """Draw one case: the call, its contract, its links, and the ranges of its values."""
    from conformance.cli.drawing import draw

    _, cases = _selected([case_id], "")
    if len(cases) > 1:
        listed = "\n".join(f"  {argument_for(case)}" for case in cases)
        raise BadArgument(f"'{case_id}' means {len(cases)} cases; which one?\n{listed}")
    draw(_console(), cases[0])
    refusal = unfit(cases[0], bundle_for(cases[0].call).matters)
    if refusal is None:
        return ALL_AS_EXPECTED
    say(f"\n{refusal}")
    return INFRASTRUCTURE


gqa.command("export")(_programs(export))


@gqa.command()
@_programs
def doctor(programs: Programs) -> int:
    """Say of each target what it needs, what is there, and what mends what is not."""
    console = _console()
    available = 0
    for target in built_in(programs):
        with TargetRun(Plan(target, (), ())) as run:
            ready = run.ready
        if ready.described is not None:
            available += 1
            versions = ", ".join(f"{k} {v}" for k, v in ready.described.versions.items())
            lines = [f"[green]✓[/] [bold]{target.ep}[/]  {escape(ready.described.device)}"]
            if ready.described.adapter:
                lines.append(f"    adapter   {ready.described.adapter}")
            lines += [
                f"    dtypes    {', '.join(ready.described.dtypes)}",
                f"    versions  {escape(versions)}",
            ]
        else:
            lines = [f"[red]✗[/] [bold]{target.ep}[/]  {escape(ready.unavailable or '')}"]
            if ready.fix:
                lines.append(f"    mend it   {escape(ready.fix)}")
        if target.program is not None:
            found = f"{target.program.path}, by {target.program.found_by}"
            lines.append(f"    program   {escape(found)}")
        lines.append(f"    needs     {escape(target.needs)}")
        for line in lines:
            console.print(line, highlight=False, soft_wrap=True)
    held = cache_size()
    cache = f"cache     {cache_root()}: {held.bundles} bundles, {held.size / 1e6:.1f} MB"
    console.print(cache, highlight=False, soft_wrap=True)
    return ALL_AS_EXPECTED if available else INFRASTRUCTURE


class _ThingsToSetUp(click.Group):
    """Answers what it does not know with what it does."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            known = ", ".join(self.list_commands(ctx))
            raise BadArgument(f"gqa setup cannot set up '{args[0]}'; what it can: {known}.")
        return super().resolve_command(ctx, args)


@gqa.group(cls=_ThingsToSetUp)
def setup() -> None:
    """Get what a target needs: a program, in a folder of its own (GQA_TOOLS), or a driver."""


@setup.command("tract")
@click.option(
    "--version", default=TRACT_VERSION, metavar="X.Y.Z", help=f"Default: {TRACT_VERSION}."
)
def setup_tract(version: str) -> int:
    """Build the tract binary with cargo, unless it is there and works.

    \b
    Exit status: 0 it is there   2 bad input   3 it could not be built
    """
    show = Show(_console(), Console(stderr=True))
    with show.build() as step:
        ready = set_up_tract(version, say, lambda at: step(_how_far(at), at.seconds))
    show.line(f"tract {version} is {'built' if ready.new else 'there'}: {ready.path}")
    show.line(f"use it with: {how_to_use_tract(ready.path)}")
    return ALL_AS_EXPECTED


@setup.command("lavapipe")
@click.option("--dry-run", is_flag=True, help="Print the commands, and run none.")
def setup_lavapipe(dry_run: bool) -> int:
    """Install Mesa's software Vulkan driver with apt, as root, unless it is there.

    \b
    Exit status: 0 it is there   2 bad input   3 it could not be installed
    """
    done = set_up_lavapipe(say, dry_run)
    if done.there is None:
        for command in done.commands:
            click.echo(command)
        return ALL_AS_EXPECTED
    show = Show(_console(), Console(stderr=True))
    is_there = "installed" if done.new else "there"
    show.line(f"lavapipe of Mesa {done.there.version} is {is_there}: {done.there.driver}")
    show.line("use it with: gqa run --ep webgpu --adapter lavapipe")
    return ALL_AS_EXPECTED


@setup.command("webgpu")
@click.option(
    "--version",
    default=ONNXRUNTIME_WEB_VERSION,
    metavar="X.Y.Z",
    help=f"Default: {ONNXRUNTIME_WEB_VERSION}.",
)
def setup_webgpu(version: str) -> int:
    """Install onnxruntime-web with npm, unless it is there, and say what it computes on.

    \b
    Exit status: 0 it is there   2 bad input   3 it could not be installed, or does not start
    """
    show = Show(_console(), Console(stderr=True))
    with show.build() as step:
        ready = set_up_onnxruntime_web(version, say, lambda since: step("npm installs", since))
    word = "installed" if ready.new else "there"
    show.line(f"onnxruntime-web {version} is {word}: {ready.path}")
    for line in how_to_use_onnxruntime_web(version):
        show.line(line)
    return ALL_AS_EXPECTED


@gqa.command()
@click.option("--clear", is_flag=True, help="Remove every bundle, and built shaders.")
def cache(clear: bool) -> int:
    """Show where bundles, and shaders of WebGPU's, are kept, and how many bundles there are."""
    held = clear_cache() if clear else cache_size()
    done = "removed " if clear else ""
    click.echo(f"{cache_root()}: {done}{held.bundles} bundles, {held.size / 1e6:.1f} MB")
    return ALL_AS_EXPECTED


@gqa.command()
@_PATHS
@_EXPRESSION
@click.option("--mutant", "names", multiple=True, metavar="NAME", help="Only this one; repeat.")
@click.option("-j", "--jobs", default=1, type=click.IntRange(1, 64), help="Runner processes.")
@click.option("--json", "file", type=click.Path(path_type=Path, dir_okay=False), help="All of it.")
@click.option("--reduced", is_flag=True, help="Each mutant against its recorded killers only.")
@click.option("--quick", is_flag=True, help="Each mutant until cases of three themes show it.")
@click.option("--record", is_flag=True, help="Record the killers, and the table in docs/power.md.")
def power(
    paths: Sequence[str],
    expression: str,
    names: Sequence[str],
    jobs: int,
    file: Path | None,
    reduced: bool,
    quick: bool,
    record: bool,
) -> int:
    """Run cases against kernels with a known fault, and say which faults no case shows.

    \b
    Exit status: 0 each mutant is killed, by cases of two themes where the whole corpus is run
                 1 one is not, or the kernel without a fault fails
                 2 bad input         3 infrastructure
    """
    from conformance.cli import power_table as shown
    from conformance.maintain import power as mutants

    if record and INSTALLED:
        raise BadArgument("--record writes to docs/ and mutants/, so it needs a checkout.")
    if file is not None:
        check_writable(file, "the table")
    try:
        known = {mutant.name: mutant for mutant in mutants.known_mutants()}
        for name in names:
            if name not in known:
                raise BadArgument(f"There is no mutant '{name}'.")
        corpus, cases = _selected(paths, expression)
        whole = corpus.whole and len(cases) == len(corpus.loaded) and not reduced
        if record and (names or not whole):
            raise BadArgument("--record wants the whole corpus and all mutants.")
        only = mutants.recorded_killers() if reduced else None
        if only is not None:
            why = mutants.stale(only, {case.id for case in corpus.loaded}, known)
            if why:
                raise BadArgument(f"{mutants.KILLERS}: {why}; run gqa power --record.")
            killers = {case for name in names or known for case in only[name]}
            cases = [case for case in cases if case.id in killers]
        chosen = [known[name] for name in dict.fromkeys(names or known)]
        made = mutants.Power(chosen, cases, jobs, only, quick)
        show = Show(_console(), Console(stderr=True))
        with show.bars() as watch:
            made.run(watch)
    except (mutants.PowerError, RunnerFailed) as error:
        say(str(error))
        return INFRASTRUCTURE
    show.out.print(shown.table(made.scores))
    told = list(shown.told(made, whole))
    for sentence in (*told, "", shown.correct_line(made), shown.closing(made)):
        show.line(sentence)
    if file is not None:
        made.write_json(file)
    if record:
        mutants.record_killers(made.scores)
        shown.write_page(made)
    return UNEXPECTED if told else ALL_AS_EXPECTED
