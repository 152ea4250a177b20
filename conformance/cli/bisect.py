"""``gqa history CASE_ID --good R --bad R``: finds the release that changed a result."""

from __future__ import annotations

import functools
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import click

from conformance.base.target_names import at_release, is_by_path, split_release
from conformance.base.text import clean
from conformance.case.case import Case
from conformance.case.corpus import Corpus, find
from conformance.cli.common import BadArgument, Status, say
from conformance.cli.one_result import NoResult, run_case, the_one
from conformance.cli.options import TargetOptions, with_releases
from conformance.results.bisect import ReleaseChange, Tried, first_change
from conformance.run.recording import argument_for
from conformance.targets.catalogue import OptionValues, TargetEntry, entry_of
from conformance.targets.published import published
from conformance.targets.registry import Target, target_for, targets_for
from conformance.targets.releases import releases

#: The exit statuses of a shell for a command that cannot be run, or is not found.
_NOT_STARTED: Final = (126, 127)


@dataclass(frozen=True)
class Search:
    """The ends of a bisection of releases, or the command that builds a commit to try."""

    good: str | None = None
    bad: str | None = None
    command: str | None = None


def bisect(case_id: str, targets: TargetOptions, search: Search) -> Status:
    """Find the release that changed the result of a case, or try it once after a command.

    A binary search from ``good`` (None: the oldest release that can be tested) to ``bad`` (None:
    the newest), in any order.
    """
    corpus = find([case_id])
    case, programs = the_one(corpus.named, case_id), targets.programs
    good, bad, command = search.good, search.bad, search.command
    ep = targets.eps[0] if targets.eps else "cpu"
    if command is not None:
        if good or bad:
            raise BadArgument("--command excludes --good and --bad; git bisect start takes them.")
        return _one_commit(corpus, case, command, target_for(ep, programs))
    name, pinned = split_release(ep)
    entry = None if is_by_path(ep) else entry_of(name)
    if pinned is not None and entry is not None:
        raise BadArgument(f"Leave out '@{pinned}', and use --good and --bad instead.")
    if entry is None or entry.package is None:
        raise BadArgument(
            f"--ep {ep} names no target with releases; name one such as cpu, or give --command to "
            "bisect commits of a build of your own."
        )

    @functools.cache
    def try_(release: str) -> Tried:
        return _tried(corpus, case, entry, release, programs)

    releases = _between(entry, good, bad)
    change = first_change(releases, try_)
    options = target_for(entry.name, programs).arguments[2:]
    every_change = shlex.join(["gqa", "history", argument_for(case), "--ep", entry.name, *options])
    if change is None:
        click.echo(f"{releases[0]} and {releases[-1]} agree. Each series between: {every_change}")
        return Status.UNEXPECTED
    _print(change, case, entry.name, options)
    last = try_(releases[-1]).result
    if last and change.after.result and last.verdict != change.after.result.verdict:
        click.echo(f"  {last.target} is {last.verdict}, so it changed again later: {every_change}")
    return Status.AS_EXPECTED


def _between(entry: TargetEntry, good: str | None, bad: str | None) -> list[str]:
    """The releases from the older end to the newer one. Raises `BadArgument`."""
    package = entry.package
    assert package is not None
    known = releases("all", package, published)
    places = []
    for release, default in ((good, known[0]), (bad, known[-1])):
        end = releases(release, package, published)[-1] if release else default
        if end not in known:
            raise BadArgument(
                f"{end} is not one of the releases of {package.name} that can be tested: "
                f"{', '.join(known)}."
            )
        places.append(known.index(end))
    chosen = known[min(places) : max(places) + 1]
    if len(chosen) < 2:
        raise BadArgument("--good and --bad name one release; name two.")
    return chosen


def _tried(
    corpus: Corpus, case: Case, entry: TargetEntry, release: str, programs: OptionValues
) -> Tried:
    """Run the case in a release, and print a line with its verdict."""
    targets = targets_for([at_release(entry.name, release)], programs)
    if len(targets) > 1:
        raise BadArgument("Give each option of a target once.")
    (target,) = with_releases(targets)
    try:
        one = run_case(corpus, case, target)
    except NoResult as error:
        click.echo(f"{target.label:<24} cannot be tried: {clean(str(error), 300)}")
        return Tried(release, None, str(error))
    click.echo(f"{target.label:<24} {one.result.verdict}")
    return Tried(release, one.result)


def _print(change: ReleaseChange, case: Case, ep: str, options: Sequence[str]) -> None:
    """Print the results before and after a change, and the command that runs both with the
    ``options`` of the target."""
    before, after = change.before, change.after
    assert before.result is not None
    assert after.result is not None
    what = "fault" if before.result.verdict == after.result.verdict else "verdict"
    click.echo(f"\nThe {what} changed in {after.release}:")
    for each in (before.result, after.result):
        click.echo(f"  {each.target}: {each.verdict}")
        click.echo(f"    {clean(each.reason, 500)}")
        if each.message and each.message != each.reason:
            click.echo(f"    {clean(each.message, 500)}")
    for untried in change.between:
        why = clean(untried.why, 300)
        click.echo(f"  {at_release(ep, untried.release)} could not be tried: {why}")
    if change.between:
        click.echo("  So the change may be in one of those instead.")
    both = (word for each in (before, after) for word in ("--ep", at_release(ep, each.release)))
    command = shlex.join(("gqa", "run", argument_for(case), *both, *options))
    click.echo(f"  reproduce  {command}")


def _one_commit(corpus: Corpus, case: Case, command: str, target: Target) -> Status:
    """Build with ``command`` and run the case once; the exit status for ``git bisect run``."""
    done = subprocess.run(command, shell=True, stdin=subprocess.DEVNULL)
    if done.returncode in _NOT_STARTED:
        raise BadArgument(f"--command cannot be started: the shell ended with {done.returncode}.")
    if done.returncode:
        say(f"This commit cannot be tried: --command ended with status {done.returncode}.")
        return Status.INFRASTRUCTURE
    one = run_case(corpus, case, target)
    click.echo(f"{one.target.name}: {one.result.verdict}")
    click.echo(f"  {clean(one.result.reason, 500)}")
    return Status.AS_EXPECTED if one.result.verdict == "pass" else Status.UNEXPECTED
