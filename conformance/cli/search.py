"""``gqa search``: the cases whose calls are as an expression says, or why there are none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import click
from rich.text import Text

from conformance.base.text import one_line, printable_json
from conformance.base.words import plural
from conformance.case.case import Case
from conformance.case.corpus import NothingMeant, find, names_of
from conformance.case.excluded import Subject, counts, hints
from conformance.case.selection import JOINING, Expression, SelectionError, compile_expression
from conformance.cli import completion
from conformance.cli.common import ALL_AS_EXPECTED, say
from conformance.cli.options import PATHS
from conformance.cli.terminal import make_console
from conformance.run.records import case_record

#: Up to this many cases are listed; of more, their themes.
_FEW: Final = 24


@click.command()
@click.argument("expression", metavar="EXPR", shell_complete=completion.words)
@PATHS
@click.option("--all", "everything", is_flag=True, help="List all cases that were found.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, as gqa list.")
def search(expression: str, paths: Sequence[str], everything: bool, as_json: bool) -> int:
    """Find cases by what their calls are: "softcap and window and head_size>=256".

    \b
    EXPR has words and comparisons, joined by and, or, not and parentheses:
      softcap, ragged, borrowed, int8 …  features, tags, and words of ids
      dtype=float16, cache=static        fields, attributes, features, inputs and outputs
      head_size>=256, sequence_length=1..16
    """
    selects = compile_expression(expression, "")
    if selects.whole is None:
        raise SelectionError("The expression is empty; name what to search for: softcap.")
    try:
        cases = find(paths).named
    except NothingMeant as error:
        hint = " Put the whole expression in quotes." if not JOINING.isdisjoint(paths) else ""
        raise NothingMeant(f"{error}{hint}") from None
    subjects: list[Subject] = [(names_of(case, None), case) for case in cases]
    found = [case for names, case in subjects if selects(names, case)]
    if not found:
        raise SelectionError("\n".join(_why_none(selects, subjects)))
    if as_json:
        for case in found:
            click.echo(printable_json(case_record(case).model_dump_json()))
        return ALL_AS_EXPECTED
    all_listed = everything or len(found) <= _FEW
    more = "" if all_listed else "; --all lists them, and a PATH narrows it"
    counted = Text(f"\n{len(found)} of {plural(len(cases), 'case')}{more}.")
    console = make_console()
    for line in (*(_by_entry(found) if all_listed else _by_theme(found)), counted):
        console.print(line, soft_wrap=True)
    for hint in hints(selects, subjects):
        say(hint)
    return ALL_AS_EXPECTED


def _by_entry(found: Iterable[Case]) -> Iterator[Text]:
    """The ids below the title and the contract of their entry."""
    entries: dict[tuple[str, str, str], list[Case]] = {}
    for case in found:
        entry = (case.theme, case.title, case.contract.terms)
        entries.setdefault(entry, []).append(case)
    for (_, title, terms), cases in entries.items():
        yield Text.assemble((title, "bold"), f"  {terms}")
        yield from (Text(f"  {case.id}") for case in cases)


def _by_theme(found: Iterable[Case]) -> Iterator[Text]:
    """How many cases of which theme, and its question; the theme with the most first."""
    questions = {case.theme: case.question for case in found}
    numbers = Counter(case.theme for case in found).most_common()
    width = max(map(len, questions))
    for theme, number in numbers:
        yield Text.assemble(f"{number:5}  ", (f"{theme:{width}}", "bold"), f"  {questions[theme]}")


def _why_none(expression: Expression, subjects: Sequence[Subject]) -> Iterator[str]:
    """The parts of the expression with their counts, and what unknown words may mean."""
    told = one_line(expression.text, 80)
    yield f"'{told}' selects none of {plural(len(subjects), 'case')}."
    parts = counts(expression, subjects)
    if parts:
        yield "  cases  without it  part" if parts[0].without is not None else "  cases  part"
    for part in parts:
        without = "" if part.without is None else f"  {part.without:>10}"
        yield f"  {part.alone:>5}{without}  {part.text}"
    yield from hints(expression, subjects)
