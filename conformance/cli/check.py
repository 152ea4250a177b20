"""``gqa check``: whether targets compute the attention of a user's model correctly."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from rich.markup import escape
from rich.table import Table

from conformance.base.files import writing
from conformance.base.printable import printable
from conformance.case.case import Case
from conformance.case.corpus import find
from conformance.case.load import load_file
from conformance.cli import completion
from conformance.cli.capture import Asked, capture_options
from conformance.cli.common import (
    ALL_AS_EXPECTED,
    UNEXPECTED,
    BadArgument,
    check_separate,
    check_writable,
    say,
    write_text,
)
from conformance.cli.console import SafeConsole
from conformance.cli.listing import failures
from conformance.cli.options import program_options
from conformance.cli.report import write_html
from conformance.cli.run import execute
from conformance.cli.terminal import RunSummary, Terminal, make_console
from conformance.judge.expectations import (
    Expectation,
    check_stale,
    load_expectations,
    load_pinned,
)
from conformance.model.answers import Answer, answer
from conformance.model.captured import CapturedSubject, captured_subject
from conformance.model.configuration import configuration_beside
from conformance.model.cut import cuts_of, possible_stages
from conformance.model.entries import CaseFiles, case_files_of, theme_of
from conformance.model.error_table import error_table
from conformance.model.explain import explained, node_called
from conformance.model.groups import disagreements, groups_of, layers_of
from conformance.model.known import KnownTarget, Similar, similar_defect
from conformance.model.layers import only_layers
from conformance.model.nodes import nodes_of
from conformance.model.reading import read_model
from conformance.model.stages import Lengths, graph_stages, stages_of
from conformance.model.table import Subject, table_of
from conformance.report.model_table import ModelCause, ModelCell, ModelTable
from conformance.results.errors import ResultsError, cause_of
from conformance.results.place import Place
from conformance.results.reader import read
from conformance.results.records import ResultRecord
from conformance.results.verdicts import TABLE
from conformance.run.engine import TargetRun
from conformance.run.prepare import prepare
from conformance.run.records import selection_of
from conformance.run.target import DescribedTarget, TargetPlan, target_plans
from conformance.targets.catalogue import Programs, target_names
from conformance.targets.registry import Target, targets_for

if TYPE_CHECKING:
    pass


class Numbers(click.ParamType[tuple[int, ...]]):
    """Positive numbers with commas between them: ``1,17,600``."""

    name = "N,…"

    def __init__(self, most: int) -> None:
        self.most = most

    def convert(self, value: object, param: object, ctx: object) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        parts = str(value).split(",")
        if not all(part.strip().isdecimal() and 0 < int(part) <= self.most for part in parts):
            self.fail(f"'{value}' is not a list of numbers from 1 to {self.most}, as in 1,17,600")
        return tuple(dict.fromkeys(map(int, parts)))


_OUTPUT: Final = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "--ep",
    "eps",
    multiple=True,
    metavar="TARGET",
    help=f"{', '.join(target_names())}; repeat. Default: cpu.",
    shell_complete=completion.targets,
)
@click.option("--batch", type=Numbers(64), default=(), help="Batch sizes, as in 1,2.")
@click.option(
    "--lengths",
    type=Numbers(8192),
    default=(),
    help="Tokens of prompts, and in the cache after each call, as in 1,17,600.",
)
@click.option("--head-size", type=click.IntRange(1, 4096), help="Where the graph does not say it.")
@click.option(
    "--dtype",
    type=click.Choice(["float32", "float16", "bfloat16"]),
    help="Where the graph does not say it.",
)
@click.option(
    "--expect",
    "pins",
    multiple=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="Known results, in a file like expectations/webgpu.yaml; repeat for other targets.",
)
@click.option("-j", "--jobs", default=1, type=click.IntRange(1, 64), help="Runner processes.")
@click.option("--html", type=_OUTPUT, help="HTML report.")
@click.option("--results", type=_OUTPUT, help="Results file.")
@click.option("--save-cases", type=_OUTPUT, help="Write the cases as a case file.")
@click.option(
    "--explain",
    metavar="NODE",
    help="Explain one node instead: its name, a part of it, or the number of its layer.",
)
@capture_options
@program_options
def check(
    model: Path,
    eps: Sequence[str],
    batch: tuple[int, ...],
    lengths: tuple[int, ...],
    head_size: int | None,
    dtype: str | None,
    pins: Sequence[Path],
    jobs: int,
    html: Path | None,
    results: Path | None,
    save_cases: Path | None,
    explain: str | None,
    asked: Asked,
    programs: Programs,
) -> int:
    """Check whether targets compute the attention of a model correctly.

    MODEL is an .onnx file or the folder with it. Its weights are not read and need not be there,
    except with --prompt-ids and --capture, which run it on ONNX Runtime's CPU provider.
    Each GroupQueryAttention node becomes cases: prompts, prompts in parts, single tokens, batches.

    \b
    Exit status: 0 every target runs every layer right, or as --expect says
                 1 one does not   2 bad input   3 infrastructure failure
    """
    outputs = [("--html", html), ("--results", results), ("--save-cases", save_cases)]
    given = [(option, path) for option, path in outputs if path is not None]
    wanted = asked.wanted(programs)
    if wanted is not None and (batch or lengths or explain):
        raise BadArgument("--prompt-ids and --capture exclude --batch, --lengths and --explain.")
    check_separate([model, *pins, *asked.files], given)
    for option, path in given:
        check_writable(path, {"--html": "the report", "--results": "results"}.get(option, "cases"))
    if save_cases is not None and save_cases.suffix not in (".yaml", ".yml"):
        raise BadArgument("--save-cases needs a file that ends in .yaml.")
    only = asked.layers if wanted is None else ()
    subject = subject_of(model, Lengths(batch, lengths), head_size, dtype, only)
    eps = eps or ("cpu",)
    targets = targets_for(eps, asked.programs_for(eps, programs))
    pinned = load_pinned(pins)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gqa-")))
        file = save_cases or folder / f"{theme_of(subject.model.path)}.yaml"
        if wanted is not None:
            beside = configuration_beside(subject.model.path).overridden(head_size, dtype)
            subject = captured_subject(subject, beside, wanted, file.with_suffix(".values"))
        write_cases(file, subject.files)
        cases = load_file(file)
        check_stale(pinned, cases, whole=True)
        if explain is not None:
            return _explain(subject, explain, cases, targets)
        plans = [
            TargetPlan(
                plan.target,
                plan.cases,
                (*(e for e in pinned if plan.target.ep == e.target), *plan.expectations),
            )
            for plan in target_plans(cases, targets, whole_corpus=False)
        ]
        prepare(cases)
        terminal = CheckTerminal(subject, cases, pinned)
        place = stack.enter_context(Place(results or folder / "results.jsonl"))
        selection = selection_of(plans, str(model), only_failed=False)
        summary = execute(plans, jobs, place, selection, terminal)
        if html is not None and summary.kept:
            write_html([read(place.path)], html, model=terminal.table)
            terminal.line(f"Report:  {html}")
        if results is not None:
            place.settle()
            terminal.line(f"Results: {place.path}")
        if save_cases is not None:
            terminal.line(f"Cases:   {save_cases}")
    return terminal.status(summary)


def subject_of(
    path: Path,
    lengths: Lengths,
    head_size: int | None = None,
    dtype: str | None = None,
    layers: tuple[int, ...] = (),
) -> Subject:
    """The model at ``path``. Raises :class:`conformance.model.reading.ModelError`."""
    model = read_model(path)
    found = nodes_of(model)
    if found.warning:
        say(f"{model.path}: shapes are those that the graph declares: {found.warning}")
    beside = configuration_beside(model.path).overridden(head_size, dtype)
    groups, unclear = groups_of(found.nodes, beside)
    faults = {**found.faults, **unclear}
    if not groups:
        lines = "".join(f"\n  {name}: {why}" for name, why in faults.items())
        raise BadArgument(f"{model.path}: no node can be checked.{lines}")
    groups = only_layers(groups, layers)
    notes = [*disagreements(groups, beside)]
    stages = {group.name: stages_of(group.form, lengths) for group in groups}
    every = [*groups]
    for cut in cuts_of(model, groups):
        wanted = graph_stages(stages_of(cut.form, lengths), cut.form)
        stages[cut.name], why = possible_stages(cut, wanted)
        if why:
            notes.append(f"The graph of {layers_of([cut])} was not checked with {why}")
        if stages[cut.name]:
            every.append(cut)
    return Subject(model, every, stages, faults, notes, case_files_of(model, every, stages))


def _explain(subject: Subject, name: str, cases: Sequence[Case], targets: Sequence[Target]) -> int:
    """Print what there is to know of a node."""
    node, group = node_called(subject, name)
    known = []
    for plan in target_plans([], targets, whole_corpus=False):
        with TargetRun(plan) as run:
            known.append(known_target(run.ready))
    own = [case for case in cases if case.name == group.name]
    for line in explained(node, group, own, find(()).loaded, known):
        click.echo(printable(line))
    return ALL_AS_EXPECTED


def known_target(ready: DescribedTarget) -> KnownTarget:
    """What is known of a target as it is here."""
    described = ready.described
    return KnownTarget(
        ready.name,
        described.version if described else "",
        described.adapter if described else None,
        load_expectations(ready.target.expectations),
    )


def write_cases(file: Path, files: CaseFiles) -> None:
    """Write a case file and the graphs beside it. Raises `ResultsError`."""
    for name, content in files.graphs.items():
        place = file.parent / name
        try:
            place.parent.mkdir(exist_ok=True)
            with writing(place) as graph:
                graph.write(content)
        except OSError as error:
            raise ResultsError(f"Cannot write a graph to {place}: {cause_of(error)}.") from None
    write_text(file, "cases", files.text)


class CheckTerminal(Terminal):
    """The output of ``gqa check``: a table of layer groups and targets, and what is not right."""

    def __init__(
        self, subject: Subject, cases: Sequence[Case], pinned: Sequence[Expectation]
    ) -> None:
        super().__init__(make_console(), SafeConsole(stderr=True))
        self.subject = subject
        self.cases = {case.id: case for case in cases}
        self.readies: dict[str, DescribedTarget] = {}
        self.pins = {(e.file.name, e.line) for e in pinned}
        self.answers: dict[str, list[Answer]] = {}
        self.broken: list[ResultRecord] = []
        self.table: ModelTable | None = None

    def target(self, ready: DescribedTarget) -> None:
        """One line on a target."""
        super().target(ready)
        self.readies[ready.name] = ready

    def _similar(self, record: ResultRecord) -> Similar | None:
        """A known defect of the corpus like that of a result."""
        known = known_target(self.readies[record.target])
        return similar_defect(self.cases[record.case], record, known, find(()).loaded)

    def summary(self, summary: RunSummary) -> None:
        """Print the answers."""
        self.answers = self._answers(summary)
        if isinstance(self.subject, CapturedSubject):
            self.table = error_table(self.subject, self.answers, self._similar)
        else:
            self.table = table_of(self.subject, self.answers, self._similar)
        self.broken = [
            record for _, record in summary.results if record.unexpected and self._is_pin(record)
        ]
        self._print(self.table)
        for text in failures(summary.troubles, every=False):
            self.line(text)
        for record in self.broken:
            self.line(f"\n{record.case} on {record.target}: {record.reason}")
        writing = [str(summary.writing)] if summary.writing else []
        for text in (*summary.untried.values(), *writing):
            self.line("\n" + text)

    def status(self, summary: RunSummary) -> int:
        """The exit status of ``gqa check``."""
        status = summary.status()
        if status not in (ALL_AS_EXPECTED, UNEXPECTED):
            return status
        every = [one for answers in self.answers.values() for one in answers]
        red = any(one.bad and not one.pinned for one in every)
        unstable = any(record.unexpected for record in summary.instability)
        others = red or unstable or self.broken or self.subject.faults
        return UNEXPECTED if others else ALL_AS_EXPECTED

    def _answers(self, summary: RunSummary) -> dict[str, list[Answer]]:
        """The answers for each target's name, by group."""
        records: dict[tuple[str, str, str], ResultRecord] = {}
        targets: dict[str, None] = {}
        for case, record in summary.results:
            records[record.target, case.name, case.axes["stage"]] = record
            targets.setdefault(record.target)
        return {
            target: [
                answer(
                    group,
                    target,
                    (
                        (stage, records.get((target, group.name, stage.label)))
                        for stage in self.subject.stages[group.name]
                    ),
                    lambda record: record.known is not None and self._is_pin(record),
                )
                for group in self.subject.groups
            ]
            for target in targets
        }

    def _is_pin(self, record: ResultRecord) -> bool:
        known = record.expectation
        return known is not None and (Path(known.file).name, known.line) in self.pins

    def _print(self, table: ModelTable) -> None:
        self.line(f"\n{table.heading}")
        for note in table.notes:
            self.line(f"Note: {note}")
        for _, sentence in table.sentences:
            self.line(sentence)
        grid = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
        grid.add_column("layers", overflow="fold", min_width=8)
        grid.add_column("attention", overflow="fold", min_width=24)
        for target in table.targets:
            grid.add_column(escape(target), overflow="fold", min_width=20)
        for row in table.rows:
            cells = [_cell(each) for each in row.cells]
            grid.add_row(escape(row.layers), escape(row.what), *cells)
        self.out.print()
        self.out.print(grid)
        for cause in table.causes:
            self._print_cause(cause)
        for fault in table.faults:
            self.line(f"\n{fault}")

    def _print_cause(self, cause: ModelCause) -> None:
        self.line(f"\n{cause.target}, {cause.what}: {cause.said}")
        for label, text in (
            ("for example", cause.example),
            ("case", cause.case),
            ("similar to" if cause.similar else "known", cause.similar or cause.why),
            ("which is" if cause.similar else "", cause.why if cause.similar else ""),
            ("see", cause.link),
            ("workaround", cause.workaround),
        ):
            if text:
                self.line(f"  {label:<12} {text}")


def _cell(cell: ModelCell) -> str:
    row = TABLE[cell.verdict]
    return f"[{row.style}]{row.sign} {escape(cell.sentence)}[/]"
