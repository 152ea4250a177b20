"""``gqa check``: whether targets compute the attention of a user's model correctly."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from rich.markup import escape
from rich.table import Table

from conformance.base.words import plural
from conformance.case.load import load_file
from conformance.cli import completion
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
from conformance.judge.expectations import Expectation, check_stale, load_pinned
from conformance.model.answers import (
    SIGNS,
    WORDS,
    Answer,
    Kind,
    answer,
    short,
    verdict_on_model,
    workaround,
)
from conformance.model.configuration import configuration_beside
from conformance.model.entries import case_file_of, theme_of
from conformance.model.groups import Group, groups_of, layers_of, ranges
from conformance.model.nodes import nodes_of
from conformance.model.reading import ReadModel, read_model
from conformance.model.stages import Lengths, Stage, stages_of
from conformance.results.place import Place
from conformance.results.reader import read
from conformance.results.records import ResultRecord
from conformance.run.prepare import prepare
from conformance.run.records import selection_of
from conformance.run.target import TargetPlan, target_plans
from conformance.targets.catalogue import Programs, target_names
from conformance.targets.registry import targets_for

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
    programs: Programs,
) -> int:
    """Check whether targets compute the attention of a model correctly.

    MODEL is an .onnx file or the folder with it. Its weights are not read and need not be there.
    Each GroupQueryAttention node becomes cases: prompts, prompts in parts, single tokens, batches.

    \b
    Exit status: 0 every target runs every layer right, or as --expect says
                 1 one does not   2 bad input   3 infrastructure failure
    """
    outputs = [("--html", html), ("--results", results), ("--save-cases", save_cases)]
    given = [(option, path) for option, path in outputs if path is not None]
    check_separate([model, *pins], given)
    for option, path in given:
        check_writable(path, {"--html": "the report", "--results": "results"}.get(option, "cases"))
    if save_cases is not None and save_cases.suffix not in (".yaml", ".yml"):
        raise BadArgument("--save-cases needs a file that ends in .yaml.")
    subject = subject_of(model, Lengths(batch, lengths), head_size, dtype)
    targets = targets_for(eps or ("cpu",), programs)
    pinned = load_pinned(pins)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gqa-")))
        file = save_cases or folder / f"{theme_of(subject.model.path)}.yaml"
        write_text(file, "cases", subject.text)
        cases = load_file(file)
        check_stale(pinned, cases, whole=True)
        plans = [
            TargetPlan(
                plan.target,
                plan.cases,
                (*(e for e in pinned if plan.target.ep == e.target), *plan.expectations),
            )
            for plan in target_plans(cases, targets, whole_corpus=False)
        ]
        prepare(cases)
        terminal = CheckTerminal(subject, pinned)
        place = stack.enter_context(Place(results or folder / "results.jsonl"))
        asked = selection_of(plans, str(model), only_failed=False)
        summary = execute(plans, jobs, place, asked, terminal)
        if html is not None and summary.kept:
            write_html([read(place.path)], html)
            terminal.line(f"Report:  {html}")
        if results is not None:
            place.settle()
            terminal.line(f"Results: {place.path}")
        if save_cases is not None:
            terminal.line(f"Cases:   {save_cases}")
    return terminal.status(summary)


@dataclass(frozen=True)
class Subject:
    """A model with its groups of nodes, and the case file of their stages.

    ``faults`` maps the names of nodes without cases to the reason.
    """

    model: ReadModel
    groups: Sequence[Group]
    stages: Mapping[str, Sequence[Stage]]
    faults: Mapping[str, str]
    text: str


def subject_of(
    path: Path, lengths: Lengths, head_size: int | None = None, dtype: str | None = None
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
    stages = {group.name: stages_of(group.form, lengths) for group in groups}
    return Subject(model, groups, stages, faults, case_file_of(model, groups, stages))


class CheckTerminal(Terminal):
    """The output of ``gqa check``: a table of layer groups and targets, and what is not right."""

    def __init__(self, subject: Subject, pinned: Sequence[Expectation]) -> None:
        super().__init__(make_console(), SafeConsole(stderr=True))
        self.subject = subject
        self.pins = {(e.file.name, e.line) for e in pinned}
        self.answers: dict[str, list[Answer]] = {}
        self.broken: list[ResultRecord] = []

    def summary(self, summary: RunSummary) -> None:
        """Print the answers."""
        self.answers = self._answers(summary)
        self.broken = [
            record for _, record in summary.results if record.unexpected and self._is_pin(record)
        ]
        subject, model = self.subject, self.subject.model
        nodes = [node for group in subject.groups for node in group.nodes]
        by = f", made by {model.producer}" if model.producer else ""
        count = plural(len(nodes), "attention node")
        kinds = plural(len(subject.groups), "group")
        self.line(f"\n{model.path}{by}: {count} in {kinds} of the same call")
        for answers in self.answers.values():
            if answers:
                self.line(verdict_on_model(answers, len(subject.faults)))
        self._print_table()
        self._print_details()
        for name, why in subject.faults.items():
            self.line(f"\n{name} was not checked: {why}")
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
        if any(record.unexpected for record in summary.instability):
            return UNEXPECTED
        every = [one for answers in self.answers.values() for one in answers]
        red = any(one.bad and not one.pinned for one in every)
        return UNEXPECTED if red or self.broken or self.subject.faults else ALL_AS_EXPECTED

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

    def _print_table(self) -> None:
        """A row for each group and a column for each target."""
        table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
        table.add_column("layers", overflow="fold", min_width=8)
        table.add_column("attention", overflow="fold", min_width=24)
        for target in self.answers:
            table.add_column(escape(target), overflow="fold", min_width=20)
        for number, group in enumerate(self.subject.groups):
            cells = []
            for answers in self.answers.values():
                one = answers[number]
                sign, style = SIGNS[one.kind]
                pinned = " (expected)" if one.pinned else ""
                cells.append(f"[{style}]{sign} {escape(one.sentence)}{pinned}[/]")
            table.add_row(escape(ranges(group.layers)), escape(group.what), *cells)
        self.out.print()
        self.out.print(table)

    def _print_details(self) -> None:
        """Each cause of what is not right, with an example, the known defect and the way round."""
        for target, answers in self.answers.items():
            causes: dict[tuple[Kind, str], list[tuple[Answer, Stage, ResultRecord]]] = {}
            for one in answers:
                for part in one.bad:
                    for cause, results in part.causes.items():
                        found = causes.setdefault((part.kind, cause), [])
                        found += ((one, stage, record) for stage, record in results)
            for (kind, _), members in causes.items():
                self._print_cause(target, WORDS[kind], members)

    def _print_cause(
        self, target: str, words: str, members: Sequence[tuple[Answer, Stage, ResultRecord]]
    ) -> None:
        one, stage, record = members[0]
        layers = layers_of(each.group for each, _, _ in members)
        said = short(record.message) if record.message else record.reason
        calls = plural(len(members), "call")
        self.line(f"\n{target}, {words} in {layers} ({calls}): {said}")
        self.line(
            f"  for example  {one.group.title[:1].lower()}{one.group.title[1:]}, {stage.words}"
        )
        self.line(f"  case         {record.case}")
        if record.known is not None:
            self.line(f"  known as     {record.known.link}")
            if around := workaround(record.known.link):
                self.line(f"  workaround   {around}")
