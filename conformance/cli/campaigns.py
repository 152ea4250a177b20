"""Campaigns of ``gqa fuzz`` in a terminal: what they found, and how ``gqa merge`` joins them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click

from conformance.base.files import write_files
from conformance.base.text import exact_line, printable
from conformance.base.words import plural
from conformance.cli.common import BadArgument, Status, reading, say
from conformance.fuzz.join import join
from conformance.fuzz.state import CampaignState
from conformance.results.results_error import ResultsError, cause_of
from conformance.results.verdicts import verdict_word


def counts(state: CampaignState) -> str:
    """A line: the calls, their verdicts on all targets together, and the new faults."""
    total: Counter[str] = Counter()
    for verdicts in state.verdicts.values():
        total.update(verdicts)
    new = sum(not fault.known for fault in state.faults)
    calls = f"{state.calls:,} call{'s' * (state.calls != 1)}"
    on = f" on {len(state.verdicts)} targets" if len(state.verdicts) > 1 else ""
    return f"{calls}{on}: {_verdicts(total)}; {plural(new, 'new fault')}"


def summary(state: CampaignState) -> Iterator[str]:
    """A line for each of several targets, each known result and each fault, the largest first."""
    if len(state.verdicts) > 1:
        for target, verdicts in state.verdicts.items():
            yield exact_line(f"{target}: {_verdicts(verdicts)}")
    for target, places in state.known.items():
        on = f" on {target}" if len(state.known) > 1 else ""
        for place, calls in Counter(places).most_common():
            yield f"{calls:8,}  {exact_line(f'known: {place}{on}', 400)}"
    for target, verdicts in state.unstable.items():
        for verdict, calls in verdicts.items():
            told = f"{verdict_word(verdict)} on {target}, but not when tried again"
            yield f"{calls:8,}  {exact_line(told, 400)}"
    for fault in sorted(state.faults, key=lambda fault: -fault.calls):
        verdict, *rest = fault.signature
        known = f"known: {fault.known}" if fault.known else f"new: {fault.name}"
        what = "; ".join(filter(None, rest))
        line = f"{verdict_word(verdict)}: {what[:100]} ({known})"
        yield f"{fault.calls:8,}  {exact_line(line, 400)}"


def _verdicts(verdicts: Mapping[str, int]) -> str:
    return ", ".join(f"{n:,} {verdict_word(verdict)}" for verdict, n in sorted(verdicts.items()))


def merge_campaigns(folders: Sequence[Path], output: Path, *, incomplete: bool) -> int:
    """Join the shards of a campaign into the folder ``output``, and print what it has found.

    Returns the exit status. Raises `BadArgument` for folders that cannot be joined, and
    `ResultsError` for what cannot be written.
    """
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise BadArgument(f"--output {output} is there already; name a new folder.")
    with reading():
        joined = join(folders, incomplete=incomplete)
    try:
        write_files(output, joined.files)
    except (OSError, ValueError) as error:
        raise ResultsError(f"Cannot write the campaign to {output}: {cause_of(error)}.") from None
    state = joined.state
    for line in (f"Campaign: {output}, {exact_line(counts(state), 600)}", *summary(state)):
        click.echo(printable(line))
    if len(state.done) > 1 and not joined.problems:
        few, many = min(state.done.values()), max(state.done.values())
        click.echo(f"Its shards have done {few:,} to {many:,} calls, not the same number.")
    for problem in joined.problems:
        say(problem)
    return Status.INFRASTRUCTURE if joined.problems else Status.AS_EXPECTED
