"""``gqa export``: one result as files that a developer of the runtime can use without the suite."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from conformance.bundle.cache import write_bundle
from conformance.case.case import Case
from conformance.case.corpus import Corpus, find
from conformance.cli.common import BadArgument
from conformance.cli.completion import case_names, targets
from conformance.cli.options import program_options
from conformance.harness.process import RunnerFailed
from conformance.report.repro.standalone import filename, issue, script, why_not
from conformance.report.text import clean
from conformance.results.errors import ResultsError
from conformance.results.join import join, outline
from conformance.results.reader import read
from conformance.results.records import CaseRecord, InfrastructureRecord, ResultRecord, TargetRecord
from conformance.run.engine import TargetRun
from conformance.run.records import argument_for, case_record
from conformance.run.target import target_plans
from conformance.targets.catalogue import Programs, entry_of
from conformance.targets.registry import Target, target_for


class NotExported(Exception):
    """There is no result, for a reason outside the runtime; the message gives it."""


@click.command()
@click.argument("case_id", shell_complete=case_names)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--ep",
    metavar="TARGET",
    help="Default: cpu, or the only target of --results.",
    shell_complete=targets,
)
@click.option(
    "--results",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Take the result from this file, and run nothing.",
)
@program_options
def export(
    case_id: str, folder: Path, ep: str | None, results: Path | None, programs: Programs
) -> int:
    """Write one result into DIR as a bug report: text, a stand-alone program, model and tensors.

    DIR is created; if it exists, it must be empty.

    \b
    Exit status: 0 written   2 bad input   3 infrastructure
    """
    corpus = find([case_id])
    case = _one(corpus.named, case_id)
    _check_empty(folder)
    target: Target | None = None
    if results is None:
        target = target_for(ep or "cpu", programs)
        record, result, described = case_record(case), *_run(corpus, case, target)
    else:
        record, result, described = _taken(case, ep, results)
        # A results file can be of another version, with a target that this one does not know.
        if entry_of(described.ep):
            target = target_for(described.ep, programs)
    try:
        (folder / "bundle").mkdir(parents=True)
        write_bundle(case.call, folder / "bundle")
        program = folder / filename(described)
        written = script(record, result, described)
        program.write_text(written, encoding="utf-8")
        text = issue(record, result, described, written)
        (folder / "issue.md").write_text(text, encoding="utf-8")
    except OSError as error:
        raise NotExported(f"Cannot write to {folder}: {error.strerror}.") from None
    click.echo(f"{result.verdict} on {result.target}: {clean(result.reason)}")
    click.echo(f"Text:    {folder / 'issue.md'}")
    click.echo(f"Bundle:  {folder / 'bundle'} (model.onnx, and tensors as in ONNX's own tests)")
    refusal = why_not(record, result, described)
    if refusal is None and target is not None:
        click.echo(f"Program: {_how_to_run(program, target)}")
    else:
        click.echo(f"Program: there is none. {refusal}")
    return 0


def _one(named: Sequence[Case], typed: str) -> Case:
    if len(named) == 1:
        return named[0]
    most = 10
    listed = "\n".join(f"  {argument_for(case)}" for case in named[:most])
    more = f"\n  and {len(named) - most} more" if len(named) > most else ""
    raise BadArgument(f"'{typed}' means {len(named)} cases; which one?\n{listed}{more}")


def _check_empty(folder: Path) -> None:
    try:
        if folder.exists() and any(folder.iterdir()):
            raise BadArgument(f"{folder} is not empty; name a folder that is, or none yet.")
    except OSError as error:
        raise BadArgument(f"Cannot use the folder {folder}: {error.strerror}.") from None


def _run(corpus: Corpus, case: Case, target: Target) -> tuple[ResultRecord, TargetRecord]:
    """Run the case once. Raises :class:`NotExported` where there is no result."""
    (plan,) = target_plans(
        corpus.loaded,
        [target],
        selected=lambda each, _: each.id == case.id,
        whole_corpus=corpus.whole,
    )
    with TargetRun(plan) as run:
        try:
            record = run.run_one(case)
        except RunnerFailed as error:
            record = run.trouble(error)
        described = run.ready.record()
    if isinstance(record, InfrastructureRecord):
        raise NotExported(_with_fix(f"{described.name}: {record.message}", record.fix))
    if record.verdict == "skip":
        raise NotExported(_with_fix(f"{described.name}: {record.reason}", described.fix))
    return record, described


def _with_fix(sentence: str, fix: str | None) -> str:
    return f"{sentence}\n  fix: {fix}" if fix else sentence


def _taken(case: Case, ep: str | None, file: Path) -> tuple[CaseRecord, ResultRecord, TargetRecord]:
    """The case, its result and its target from a results file. Raises :class:`BadArgument`."""
    try:
        run = read(file)
    except ResultsError as error:
        raise BadArgument(str(error)) from None
    if case.id not in run.cases:
        raise BadArgument(f"{file} does not describe {case.id}.")
    targets = {target.name: target for target in run.header.targets}
    found = {
        result.target: result
        for result in join([run]).results.values()
        if result.case == case.id
        and result.target in targets
        and (ep is None or ep in (result.target, targets[result.target].ep))
    }
    if not found:
        where = f" on {ep}" if ep else ""
        raise BadArgument(f"{file} has no result of {case.id}{where}.")
    if len(found) > 1:
        known = ", ".join(clean(name, 200) for name in found)
        raise BadArgument(f"{file} has results of {case.id} on {known}; name one with --ep.")
    ((name, result),) = found.items()
    there, here = run.cases[case.id], case_record(case)
    if outline(there) != outline(here):
        raise BadArgument(f"{case.id} is another call in {file} than it is now; run it anew.")
    has_recipes = any(tensor.recipe is not None for tensor in there.call.inputs)
    return (there if has_recipes else here), result, targets[name]


def _how_to_run(program: Path, target: Target) -> str:
    """The command that runs the program on this machine."""
    path = shlex.quote(str(program))
    if program.suffix == ".sh":
        binary = f"TRACT={shlex.quote(str(target.program.path))} " if target.program else ""
        return f"{binary}sh {path}"
    if program.suffix == ".mjs":
        where = target.program.path if target.program else Path("FOLDER_WITH_node_modules")
        return f"cd {shlex.quote(str(where))} && node {shlex.quote(os.path.abspath(program))}"
    interpreter = target.command.argv[0]
    python = "python3" if interpreter == sys.executable else interpreter
    return f"{shlex.quote(python)} {path}"
