"""``gqa show``: one case in full."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import click

from conformance.bundle.effects import why_insensitive
from conformance.bundle.prepare import prepare
from conformance.case.case import Case
from conformance.case.corpus import Corpus, is_shipped
from conformance.case.excluded import selected_cases
from conformance.cli.common import BadArgument, Status, say
from conformance.cli.console import make_console
from conformance.cli.one_result import run_case, taken, the_one
from conformance.cli.options import FILE, gathered
from conformance.operator.call import GraphCall
from conformance.report.repro.one_result import read_as
from conformance.report.shown_query import Element, QueryPlace, values_of
from conformance.run.recording import argument_for
from conformance.targets.catalogue import OptionValues
from conformance.targets.registry import eps_of, target_for


class _ElementType(click.ParamType[Element]):
    """An element of an output, as reports print it: ``present_key[0, 1, 3, 16]``."""

    name = "element"

    def convert(self, value: Any, *_: Any) -> Element:
        match = re.fullmatch(r"\s*(\w+)\s*\[([\d\s,]{1,200})\]\s*", value)
        numbers = match[2].split(",") if match else []
        if not match or not all(number.strip().isdecimal() for number in numbers):
            self.fail(f"{value!r} is not an element such as output[0,3,128].")
        return Element(match[1], tuple(map(int, numbers)))


_NUMBER = click.IntRange(min=0)


@click.command()
@click.argument("case_id")
@click.option("--values", is_flag=True, help="The oracle's values of one query, step by step.")
@click.option("--step", type=_NUMBER, metavar="N", help="Call of a loop.")
@click.option("--batch", type=_NUMBER, metavar="N", help="Sequence of the batch.")
@click.option("--head", type=_NUMBER, metavar="N", help="Query head.")
@click.option("--token", type=_NUMBER, metavar="N", help="Query token of this call.")
@click.option(
    "--at",
    "element",
    type=_ElementType(),
    metavar="ELEMENT",
    help="The query of an element, as a report names it: 'present_key[0,1,3,16]'.",
)
@click.option(
    "--results",
    type=FILE,
    help="Beside a target's result from this file; the default is its worst wrong element.",
)
@click.option(
    "--ep",
    metavar="TARGET",
    help="Run this target, or choose one of --results.",
)
@click.option("--all", "everything", is_flag=True, help="Leave no key and no element out.")
@gathered(place=QueryPlace)
def show(
    case_id: str,
    values: bool,
    place: QueryPlace,
    results: Path | None,
    ep: str | None,
    everything: bool,
) -> int:
    """Show one test case: its call, what must come out, its values.

    With --values, or any other option, show how the oracle computes one query: positions, masks,
    scores, probabilities, output and the row that is stored; with --ep or --results beside what a
    target returned. The query is that of the worst wrong element, else the last token of batch 0 in
    head 0. For a build of your own, gqa export writes the same into values.txt.
    """
    corpus, cases = selected_cases([case_id], "")
    case = the_one(cases, case_id)
    named = ep or next(iter(eps_of(corpus.targets, OptionValues())), None)
    try:
        if values or everything or results or ep or place != QueryPlace():
            return _show_values(corpus, case, place, results, named, everything)
        return _show_call(case, named or "cpu")
    except Exception as error:
        raise case.unprepared(error) from error


def _show_values(
    corpus: Corpus,
    case: Case,
    place: QueryPlace,
    results: Path | None,
    named: str | None,
    everything: bool,
) -> int:
    if isinstance(case.call, GraphCall):
        given = {"--ep": named, "--results": results}
        options = (str(word) for pair in given.items() if pair[1] for word in pair)
        command = shlex.join(["gqa", "export", argument_for(case), "DIR", *options])
        raise BadArgument(
            "--values is for cases of a single node, and this one is a graph."
            f" {command} writes every tensor of it in float64."
        )
    prepared = prepare(case.call, readings=case.contract.readings)
    if prepared.unjudged is not None:
        click.echo(
            f"{case.id} has no values. The call has no defined meaning: {prepared.unjudged}."
        )
        return Status.AS_EXPECTED
    one = None
    if results is not None:
        one = taken(case, named, results)
    elif named:
        one = run_case(corpus, case, target_for(named))
    from conformance.cli.value_tables import draw_values

    shown = values_of(read_as(prepared, one), place, one)
    draw_values(make_console(), case, shown, one, everything)
    return Status.AS_EXPECTED


def _show_call(case: Case, ep: str) -> int:
    from conformance.cli.drawing import draw

    draw(make_console(), case, ep)
    problem = why_insensitive(case)
    if problem is None:
        return Status.AS_EXPECTED
    say(f"\n{problem}")
    return Status.INFRASTRUCTURE if is_shipped(case) else Status.AS_EXPECTED
