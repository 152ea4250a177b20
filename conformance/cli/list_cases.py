"""``gqa list``: the cases of a selection, or those that an expression selects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import click
from rich.text import Text

from conformance.base.text import one_line, printable_json
from conformance.base.words import plural
from conformance.case.case import Case
from conformance.case.corpus import find, names_cases, names_of
from conformance.case.excluded import NamedCase, counts, hints, selected_cases
from conformance.case.selection import JOINING, Expression, SelectionError, compile_expression
from conformance.cli.common import BadArgument, Status, say
from conformance.cli.console import make_console
from conformance.cli.options import EXPRESSION
from conformance.results.verdicts import verdict_word

#: The largest number of cases that are listed; of more, the themes are.
_FEW: Final = 24


@click.command("list")
@click.argument("named", nargs=-1, metavar="[PATH|EXPRESSION]...")
@EXPRESSION
@click.option("--all", "everything", is_flag=True, help="List all cases that EXPRESSION finds.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@click.option(
    "--message",
    metavar="TEXT",
    help="What an error message means, and which recorded releases give it; pasted, in quotes.",
)
def list_cases(
    named: Sequence[str], expression: str, everything: bool, as_json: bool, message: str | None
) -> int:
    """List test cases: all, or those of a kind, "softcap and window".

    PATH is as in gqa run; what is neither a file, a folder, a theme nor a case id is an EXPRESSION,
    in quotes. Its cases stand below the title and the contract of their entry; of more than 24,
    each theme has a line. With PATH alone and with -k, each id is a line. A word that is a theme,
    too, such as softcap, means the theme; -k softcap finds all calls with it.

    \b
    EXPRESSION has words and comparisons, joined by and, or, not and parentheses:
      softcap, ragged, borrowed, int8 …  features, tags, and words of ids
      dtype=float16, cache=static        fields, attributes, features, inputs and outputs
      head_size>=256, sequence_length=1..16
    """
    if message is not None:
        if named or expression or everything or as_json:
            raise BadArgument("--message goes with no other argument or option.")
        console = make_console()
        for line in _about_message(message):
            console.print(line, soft_wrap=True)
        return Status.AS_EXPECTED
    paths = [argument for argument in named if names_cases(argument)]
    expressions = [argument for argument in named if argument not in paths]
    if len(expressions) > 1 or not JOINING.isdisjoint(named):
        raise BadArgument("Put the whole expression in quotes: 'softcap and window'.")
    if expressions and expression:
        raise BadArgument("Give one expression, with -k or without it.")
    if expressions:
        cases, lines = _search(expressions[0], paths, everything)
    else:
        cases = selected_cases(paths, expression)[1]
        lines = [Text(case.id) for case in cases]
    if as_json:
        from conformance.results.descriptions import case_record  # imports NumPy

        for case in cases:
            click.echo(printable_json(case_record(case).model_dump_json()))
        return Status.AS_EXPECTED
    console = make_console()
    for line in lines:
        console.print(line, soft_wrap=True)
    return Status.AS_EXPECTED


#: The most causes of a message that are shown.
_CAUSES: Final = 5


def _about_message(text: str) -> Iterator[Text]:
    """What a message means, and the causes for which recorded releases gave it.

    Raises `BadArgument` if neither is known.
    """
    from conformance.report.message_page import meanings_of, recorded_results
    from conformance.results.causes import causes, quoted

    meanings = meanings_of(text)
    groups = causes(recorded_results(text), lambda result: result, lambda result: "")
    if not meanings and not groups:
        raise BadArgument(
            "Neither docs/messages.md nor a recorded result has this message. Paste it without the "
            "lines around it. If it names an attribute or input that the runtime does not know, the"
            " release is older than the model: docs/messages.md says since when each exists."
        )
    for heading, _, about in meanings:
        yield Text.assemble(
            (heading, "bold"), " (docs/messages.md)\n", about.replace("`", ""), "\n"
        )
    for group in groups[:_CAUSES]:
        first, number = group.example, plural(len({one.case for one in group.members}), "call")
        yield Text(f"{number}: {verdict_word(first.verdict)}, for example {first.case}", "bold")
        why = f"{first.known.why} {first.known.link}" if first.known else first.reason
        where = ", ".join(sorted({one.target for one in group.members}))
        for line in (why, f"given by {where}", quoted(one_line(first.message or "", 2000))):
            yield Text(f"  {one_line(line)}")
    if left := len(groups[_CAUSES:]):
        yield Text(f"and {plural(left, 'other cause')} with fewer calls")
    if not groups:
        yield Text("No recorded result has exactly this message.")


def _search(text: str, paths: Sequence[str], everything: bool) -> tuple[list[Case], list[Text]]:
    """The cases that an expression selects, and the lines to print about them.

    Raises `SelectionError`, whose message has the number of cases for each part.
    """
    selects = compile_expression(text, "")
    if selects.whole is None:
        raise SelectionError("The expression is empty; name what to search for: softcap.")
    subjects: list[NamedCase] = [(names_of(case, None), case) for case in find(paths).named]
    cases = [case for names, case in subjects if selects(names, case)]
    if not cases:
        raise SelectionError("\n".join(_why_none(selects, subjects)))
    for hint in hints(selects, subjects):
        say(hint)
    all_listed = everything or len(cases) <= _FEW
    more = "" if all_listed else "; --all lists them, and a PATH narrows it"
    counted = Text(f"\n{len(cases)} of {plural(len(subjects), 'case')}{more}.")
    return cases, [*(_by_entry(cases) if all_listed else _by_theme(cases)), counted]


def _by_entry(cases: Iterable[Case]) -> Iterator[Text]:
    """The title and the contract of each entry, and below them the ids of its cases."""
    entries: dict[tuple[str, str, str], list[Case]] = {}
    for case in cases:
        entry = (case.theme, case.title, case.contract.terms)
        entries.setdefault(entry, []).append(case)
    for (_, title, terms), members in entries.items():
        yield Text.assemble((title, "bold"), f"  {terms}")
        yield from (Text(f"  {case.id}") for case in members)


def _by_theme(cases: Iterable[Case]) -> Iterator[Text]:
    """A line for each theme: number of cases, name and question; the largest first."""
    questions = {case.theme: case.question for case in cases}
    numbers = Counter(case.theme for case in cases).most_common()
    width = max(map(len, questions))
    for theme, number in numbers:
        yield Text.assemble(f"{number:5}  ", (f"{theme:{width}}", "bold"), f"  {questions[theme]}")


def _why_none(expression: Expression, subjects: Sequence[NamedCase]) -> Iterator[str]:
    """The lines of an error: counts of each part of the expression, and hints at unknown words."""
    text = one_line(expression.text, 80)
    yield f"'{text}' selects none of {plural(len(subjects), 'case')}."
    parts = counts(expression, subjects)
    if parts:
        yield "  cases  without it  part" if parts[0].without is not None else "  cases  part"
    for part in parts:
        without = "" if part.without is None else f"  {part.without:>10}"
        yield f"  {part.alone:>5}{without}  {part.text}"
    yield from hints(expression, subjects)
