"""``gqa check``: whether targets compute the attention of a user's model correctly."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click

from conformance.base.words import listed
from conformance.case.load import load_file
from conformance.cli import options
from conformance.cli.check_json import refusal
from conformance.cli.check_options import NameList, NumberList, TokenIds, meaning_of
from conformance.cli.check_pins import is_of_model
from conformance.cli.check_run import CheckRun
from conformance.cli.check_terminal import print_answers
from conformance.cli.common import (
    BadArgument,
    Status,
    check_separate,
    check_writable,
    write_cases,
    write_file,
)
from conformance.cli.options import OutputOptions, TargetOptions, gathered
from conformance.cli.run import Work, execute, write_outputs
from conformance.cli.terminal import RunSummary, Terminal
from conformance.expectations.match import check_stale
from conformance.expectations.read import load_pinned
from conformance.graph.reading import ModelError, ReadModel
from conformance.harness.folders import temporary_folder
from conformance.harness.session import Session
from conformance.model.calls.entries import theme_of
from conformance.model.calls.feeds import MEANINGS
from conformance.model.calls.stages import Lengths
from conformance.model.calls.subject import NoCalls, subject_of
from conformance.model.calls.ways import WAYS
from conformance.model.config.configuration import configuration_beside
from conformance.model.run.inspection import inspected
from conformance.model.run.on_target import program_of, prompts_of, refusal_of
from conformance.results.place import OutputFile
from conformance.run.engine import PlanRun
from conformance.run.recording import selection_of
from conformance.run.target import target_plans
from conformance.targets.catalogue import OptionValues
from conformance.targets.registry import Target, targets_for


@dataclass(frozen=True)
class ModelOptions:
    """A model, and which of its calls are checked with which values."""

    path: Path
    batch: tuple[int, ...]
    lengths: tuple[int, ...]
    head_size: int | None
    dtype: str | None
    layers: tuple[int, ...]
    ways: tuple[str, ...]
    meanings: tuple[str, ...]
    weights: bool
    prompt: tuple[int, ...]


@dataclass(frozen=True)
class Pins:
    """The known results of a model: files and folders to read, and where to write them."""

    places: Sequence[Path]
    write_to: Path | None

    def files(self) -> Iterator[Path]:
        """The files of expectations, those in folders included."""
        for place in self.places:
            files = sorted(place.glob("*.yaml")) if place.is_dir() else [place]
            if not files:
                raise BadArgument(f"--expect: there is no .yaml file in {place}.")
            yield from files

    def check_writable(self, names: Sequence[str]) -> None:
        """Raise unless the pins of all these targets can be written."""
        if (place := self.write_to) is None:
            return
        is_file = place.suffix in (".yaml", ".yml")
        if is_file and len(names) > 1:
            raise BadArgument(
                f"--write-expect: {place} can have the results of one target only; name a folder,"
                f" for {listed(names)}."
            )
        if is_file or not place.is_dir():
            check_writable(place, "expectations")


@click.command()
@click.argument("path", metavar="MODEL", type=click.Path(path_type=Path))
@options.EPS
@click.option("--batch", type=NumberList(1, 64), default=(), help="Batch sizes, as in 1,2.")
@click.option(
    "--lengths",
    type=NumberList(1, 1 << 20),
    default=(),
    help="Tokens of prompts, and in the cache after each call, as in 1,600,4k.",
)
@click.option("--head-size", type=click.IntRange(1, 4096), help="Where the graph does not say it.")
@click.option(
    "--dtype",
    type=click.Choice(["float32", "float16", "bfloat16"]),
    help="Where the graph does not say it.",
)
@click.option(
    "--expect",
    "places",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Known results: a file like expectations/webgpu.yaml, or a folder with such; repeat.",
)
@click.option(
    "--write-expect",
    "write_to",
    metavar="PATH",
    type=click.Path(path_type=Path),
    help="Pin what is not right today, for --expect: in FILE.yaml, or a file for each target in a"
    " folder.",
)
@options.JOBS
@options.HTML
@click.option("--json", type=options.FILE, help="The answers, for programs.")
@options.RESULTS
@click.option("--save-cases", type=options.FILE, help="Write the cases as a case file.")
@click.option(
    "--ways",
    type=NameList(WAYS),
    default=(),
    help=f"Ways of calling: {', '.join(WAYS)}; default: those that the model allows.",
)
@click.option(
    "--input",
    "meanings",
    metavar="NAME=…",
    multiple=True,
    help=f"What an input is: {', '.join(MEANINGS)}, or an .npy file; repeat.",
)
@click.option("--weights", is_flag=True, help="Run the model with its own weights.")
@click.option(
    "--prompt-ids",
    "prompt",
    type=TokenIds(),
    default=(),
    help="Call the model with the token ids in this file.",
)
@click.option(
    "--only-layer", "layers", type=NumberList(0, 9999), default=(), help="Layers, as in 0-3,7."
)
@options.program_options
@gathered(model=ModelOptions, targets=TargetOptions, pins=Pins, outputs=OutputOptions)
def check(model: ModelOptions, targets: TargetOptions, pins: Pins, outputs: OutputOptions) -> int:
    """Check whether runtimes run your model right.

    MODEL is an .onnx file or the folder with it. Its weights need not be there. It is called as
    programs call it, and its results are compared with those of plain attention. Each
    GroupQueryAttention node is called alone, too, with prompts, parts of prompts and batches.

    \b
    Exit status: 0 every target runs it right in one chat, and in other ways of calling
                   that files beside it ask for, or as --expect says
                 1 one does not, or this was not judged   2 bad input
                 3 infrastructure failure, or a target is not available
    """
    files = [*pins.files()]
    check_separate([model.path, *files], outputs.named)
    outputs.check_writable(json="the answers")
    named = targets_for(targets.eps or ("cpu",), targets.programs)
    meanings = dict(map(meaning_of, model.meanings))
    try:
        lengths = Lengths(model.batch, model.lengths)
        subject = subject_of(model.path, lengths, model.head_size, model.dtype, model.layers)
    except ModelError as error:
        refusals = _refusals(error.model, named) if isinstance(error, NoCalls) else []
        message = "\n".join([str(error), *refusals])
        if outputs.json is not None:
            write_file(outputs.json, "the answers", refusal(model.path, message))
        raise ModelError(message) from None
    pins.check_writable([*dict.fromkeys(target.base or target.ep for target in named)])
    pinned = load_pinned(files)
    save_cases = outputs.save_cases
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        file = save_cases or folder / f"{theme_of(subject.model.path)}.yaml"
        beside = configuration_beside(subject.model.path).overridden(model.head_size, model.dtype)
        write_cases(subject, file)
        cases = load_file(file)
        # A line for `pass` is of a call that is rejected as it must be, which helps no model.
        of_cases = [line for line in pinned if not is_of_model(line)]
        check_stale([e for e in of_cases if e.known.verdict != "pass"], cases, whole=True)
        plans = [
            # A program makes these calls, whether or not they can show a fault.
            replace(plan, pinned=tuple(of_cases), measured=False)
            for plan in target_plans(cases, named)
        ]
        program = program_of(
            subject.model,
            subject.of_operator,
            beside,
            [WAYS[name] for name in model.ways],
            meanings,
            model.prompt,
            weights=model.weights,
            files=subject.files,
        )
        prompts = None
        if program.program is not None:
            number = program.program.vocabulary
            if number is not None and any(token >= number for token in model.prompt):
                largest = max(model.prompt)
                raise BadArgument(f"--prompt-ids: {largest} is no token of the model's {number}.")
            (reference,) = targets_for(("cpu",), OptionValues())
            session = stack.enter_context(Session(reference.command))
            prompts = prompts_of(program.program, session)
            notes = [] if subject.files else inspected(program.program, prompts)
            subject = replace(
                subject,
                notes=[*subject.notes, *notes],
                contradicts=subject.contradicts or bool(notes),
            )
        checked, terminal, summary = (
            CheckRun(subject, cases, pinned, program, prompts, len(named)),
            Terminal(),
            RunSummary(),
        )
        place = stack.enter_context(OutputFile(outputs.results or folder / "results.jsonl"))
        work = Work(plans, plans, selection_of(plans, str(model.path)))
        execute(work, targets.jobs, place, terminal, summary, described=checked.run_model)
        table = checked.conclude(summary)
        print_answers(terminal, summary, table)
        write_outputs(place, outputs, summary, terminal, table)
        if save_cases is not None:
            terminal.line(f"Cases:   {save_cases}")
        elif table.causes:
            terminal.line("To run or export a case, keep them with --save-cases FILE.yaml.")
        status = checked.status(summary)
        judged = summary.kept and status in (Status.AS_EXPECTED, Status.UNEXPECTED)
        lines: Iterable[str] = ()
        if pins.write_to is not None and judged:
            lines = checked.write_pins(pins.write_to, place.path)
            status = Status.UNEXPECTED if subject.faults else Status.AS_EXPECTED
        elif pins.places:
            lines = checked.unpinned(pins.places[0])
        for line in lines:
            terminal.line(line)
        if outputs.json is not None:
            write_file(outputs.json, "the answers", checked.json(table, status))
    return status


def _refusals(model: ReadModel, targets: Sequence[Target]) -> Iterator[str]:
    """A sentence for each target that does not load the model."""
    for plan in target_plans([], targets):
        with PlanRun(plan) as run:
            if refusal := refusal_of(model, run.ready):
                yield f"{run.ready.name} does not load the model: {refusal}"
