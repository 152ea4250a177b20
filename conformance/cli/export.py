"""``gqa export``: one result as files that a developer of the runtime can use without the suite."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Final

import click
import numpy as np
from rich.console import Console

from conformance.base.files import write_files
from conformance.base.text import clean
from conformance.bundle.prepare import prepare
from conformance.bundle.script import values_in_graph
from conformance.case.case import Case
from conformance.case.corpus import find
from conformance.cli.common import BadArgument
from conformance.cli.one_result import run_case, taken, the_one
from conformance.cli.options import FILE, program_options
from conformance.cli.value_tables import draw_values
from conformance.operator.call import GraphCall
from conformance.report.repro.issue import issue
from conformance.report.repro.one_result import OneResult, arrays_of, read_as
from conformance.report.repro.reproduction import ReproductionProgram, program_of
from conformance.report.shown_query import QueryPlace, values_of
from conformance.results.results_error import ResultsError
from conformance.results.shareable import shareable
from conformance.results.verdicts import verdict_word
from conformance.targets.catalogue import OptionValues
from conformance.targets.registry import Target, target_for

#: The largest size of the arrays of a result.
MOST_BYTES: Final = 64 << 20


@click.command()
@click.argument("case_id")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--ep",
    metavar="TARGET",
    help="Default: cpu, or the only target of --results.",
)
@click.option("--results", type=FILE, help="Take the result from this file, and run nothing.")
@program_options
def export(
    case_id: str, folder: Path, ep: str | None, results: Path | None, programs: OptionValues
) -> int:
    """Write one result as a bug report, with a program that shows it.

    DIR gets a text, a stand-alone program, and the model with its tensors. Beside them are the
    values from which the oracle computes the result: values.txt, as `gqa show --values` prints
    them, and arrays of all queries for NumPy.

    DIR is created; if it exists, it must be empty.

    \b
    Exit status: 0 written   2 bad input   3 infrastructure
    """
    corpus = find([case_id])
    case = the_one(corpus.named, case_id)
    ep = ep or next(iter(corpus.targets), None)
    _check_empty(folder)
    target: Target | None = None
    if results is None:
        target = target_for(ep or "cpu", programs)
        ran = run_case(corpus, case, target)
        one = OneResult(
            shareable(ran.case), shareable(ran.result), shareable(ran.target), ran.outputs
        )
    else:
        one = taken(case, ep, results)
    program = program_of(one.case, one.result, one.target)
    path = folder / program.filename
    try:
        (folder / "bundle").mkdir(parents=True)
        write_files(folder / "bundle", prepare(case.call).files)
        if program.missing is None:
            path.write_text(program.text, encoding="utf-8")
        text = issue(one.case, one.result, one.target, program)
        (folder / "issue.md").write_text(text, encoding="utf-8")
        about_values = _write_values(case, one, folder)
    except OSError as error:
        raise ResultsError(f"Cannot write to {folder}: {error.strerror}.") from None
    except Exception as error:
        raise case.unprepared(error) from error
    click.echo(
        f"{verdict_word(one.result.verdict)} on {one.result.target}: {clean(one.result.reason)}"
    )
    click.echo(f"Text:    {folder / 'issue.md'}")
    click.echo(f"Bundle:  {folder / 'bundle'} (model.onnx, and tensors as in ONNX's own tests)")
    click.echo(f"Values:  {about_values}")
    none = program.missing and f"there is none. {program.missing}"
    click.echo(f"Program: {none or how_to_run(path, program, target)}")
    return 0


def _write_values(case: Case, one: OneResult, folder: Path) -> str:
    """Write the oracle's values: a text on the worst element's query, and arrays of all queries.

    Returns a sentence that names the files.
    """
    bundle = read_as(prepare(case.call, readings=case.contract.readings), one)
    if bundle.unjudged is not None:
        return clean(f"there are none. The call has no defined meaning: {bundle.unjudged}.")
    arrays = folder / "values"
    if isinstance(case.call, GraphCall):
        arrays.mkdir()
        tensors = values_in_graph(case.call)
        np.savez_compressed(arrays / "step_0.npz", **tensors)  # type: ignore[arg-type]
        return f"every tensor of the graph in float64, for NumPy: {arrays}"
    text = folder / "values.txt"
    with text.open("w", encoding="utf-8") as file:
        console = Console(file=file, width=100, color_system=None)
        draw_values(console, case, values_of(bundle, QueryPlace(), one), one)
    size = 0
    for step in (step for step, expected in enumerate(bundle.expected) if expected):
        named = arrays_of(bundle, step, one)
        size += sum(array.nbytes for array in (named or {}).values())
        if named is None or size > MOST_BYTES:
            there = f"{text}, and up to step {step - 1} {arrays}" if step else str(text)
            return f"{there}; those of all queries would take more than {MOST_BYTES >> 20} MiB"
        arrays.mkdir(exist_ok=True)
        np.savez_compressed(arrays / f"step_{step}.npz", **named)  # type: ignore[arg-type]
    return f"{text}, and those of all queries for NumPy: {arrays}"


def _check_empty(folder: Path) -> None:
    try:
        if folder.exists() and any(folder.iterdir()):
            raise BadArgument(f"{folder} is not empty; name a folder that is, or none yet.")
    except OSError as error:
        raise BadArgument(f"Cannot use the folder {folder}: {error.strerror}.") from None


def how_to_run(file: Path, program: ReproductionProgram, target: Target | None) -> str:
    """The command that runs the program, written to ``file``, with what is installed here.

    Without a ``target``, and so without the installation that gave the result: where to read how.
    """
    if target is None:
        return f"{file}, whose first lines say how to run it"
    path = shlex.quote(os.path.abspath(file))
    python = shlex.quote(sys.executable)
    started = shlex.quote(str(target.program.path)) if target.program else ""
    if program.template == "tract.py":
        return f"TRACT={started} {python} {path}"
    if program.template == "onnxruntime_web.mjs":
        beside = os.path.dirname(sys.executable)  # where pip installs it
        node = shlex.quote(shutil.which("node") or shutil.which("node", path=beside) or "node")
        return f"cd {started} && PYTHON={python} {node} {path}"
    if program.template == "exec.py":
        return f"{python} {path} {shlex.join(target.command.argv)}"
    return f"{shlex.quote(target.command.argv[0])} {path}"
