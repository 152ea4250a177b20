"""``gqa history CASE_ID --good R --bad R``: the release or commit in which a result changed."""

from __future__ import annotations

import functools
import shlex
import subprocess
from typing import Final

import click

from conformance.base.text import clean
from conformance.case.case import Case
from conformance.case.corpus import Corpus, find
from conformance.cli.common import (
    ALL_AS_EXPECTED,
    INFRASTRUCTURE,
    UNEXPECTED,
    BadArgument,
    say,
)
from conformance.cli.one_result import NoResult, run_case, the_one
from conformance.cli.options import with_releases
from conformance.results.bisect import Change, Tried, all_changes, first_change
from conformance.run.records import argument_for
from conformance.targets.catalogue import Programs, TargetEntry, entry_of, is_by_path
from conformance.targets.published import published
from conformance.targets.registry import Target, target_for, targets_for
from conformance.targets.releases import releases

#: With these a shell says that a command cannot be run, or is not found.
_NOT_STARTED: Final = (126, 127)


def bisect(
    case_id: str,
    ep: str,
    good: str | None,
    bad: str | None,
    command: str | None,
    programs: Programs,
) -> int:
    """Find the release in which the result of a case changed, or try it once after ``command``.

    It tries half of the releases that are left each time, from ``good`` (None: the oldest that can
    be tested) to ``bad`` (None: the newest), in any order. Where both ends agree, it tries the last
    release of each series between them. Returns the exit status.
    """
    corpus = find([case_id])
    case = the_one(corpus.named, case_id)
    if command is not None:
        if good or bad:
            raise BadArgument("--command excludes --good and --bad; git bisect start takes them.")
        return _one_commit(corpus, case, command, target_for(ep, programs))
    entry = None if is_by_path(ep) else entry_of(ep)
    if "@" in ep and entry is not None:
        raise BadArgument(f"Leave out '@{ep.partition('@')[2]}', and use --good and --bad instead.")
    if entry is None or entry.package is None:
        raise BadArgument(
            f"--ep {ep} names no target with releases; name one such as cpu, or give --command to "
            "bisect commits of a build of your own."
        )

    @functools.cache
    def try_(release: str) -> Tried:
        return _tried(corpus, case, entry, release, programs)

    chosen = _between(entry, good, bad)
    change = first_change(chosen, try_)
    if change is not None:
        _tell(change, case, entry.name)
        _tell_more(change, try_(chosen[-1]), case, entry.name)
        return ALL_AS_EXPECTED
    click.echo(f"{chosen[0]} and {chosen[-1]} agree.")
    ends = f"{chosen[0]}..{chosen[-1]}"
    found = False
    for change in all_changes(releases(ends, entry.package, published), try_):
        _tell(change, case, entry.name)
        found = True
    if not found:
        click.echo("So do the releases between them that were tried: nothing changed.")
    return ALL_AS_EXPECTED if found else UNEXPECTED


def _between(entry: TargetEntry, good: str | None, bad: str | None) -> list[str]:
    """The releases from one end to the other, whichever is older."""
    package = entry.package
    assert package is not None
    known = releases("all", package, published)
    places = []
    for word, usual in ((good, known[0]), (bad, known[-1])):
        end = releases(word, package, published)[-1] if word else usual
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
    corpus: Corpus, case: Case, entry: TargetEntry, release: str, programs: Programs
) -> Tried:
    """The case in a release, with a line that says how it went."""
    targets = targets_for([f"{entry.name}@{release}"], programs)
    if len(targets) > 1:
        raise BadArgument("Give each option of a target once.")
    (target,) = with_releases(targets)
    try:
        found = run_case(corpus, case, target)
    except NoResult as error:
        click.echo(f"{target.label:<24} cannot be tried: {clean(str(error), 300)}")
        return Tried(release, None, str(error))
    click.echo(f"{target.label:<24} {found.result.verdict}")
    return Tried(release, found.result)


def _tell(change: Change, case: Case, ep: str) -> None:
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
        click.echo(f"  {ep}@{untried.release} could not be tried: {why}")
    if change.between:
        click.echo("  So the change may be in one of those instead.")
    both = (word for each in (before, after) for word in ("--ep", f"{ep}@{each.release}"))
    click.echo(f"  reproduce  {shlex.join(('gqa', 'run', argument_for(case), *both))}")


def _tell_more(change: Change, last: Tried, case: Case, ep: str) -> None:
    """Say where another change is, if the newest release is not as the one of this change."""
    if last.result is None or change.after.result is None:
        return
    if last.result.verdict != change.after.result.verdict:
        again = ("gqa", "history", argument_for(case), "--ep", ep, "--good", change.after.release)
        click.echo(f"  {last.result.target} is {last.result.verdict}, so it changed again later:")
        click.echo(f"  find that  {shlex.join((*again, '--bad', last.release))}")


def _one_commit(corpus: Corpus, case: Case, command: str, target: Target) -> int:
    """Build with ``command`` and try the case: what ``git bisect run`` wants to know."""
    done = subprocess.run(command, shell=True, stdin=subprocess.DEVNULL)
    if done.returncode in _NOT_STARTED:
        raise BadArgument(f"--command cannot be started: the shell ended with {done.returncode}.")
    if done.returncode:
        say(f"This commit cannot be tried: --command ended with status {done.returncode}.")
        return INFRASTRUCTURE
    found = run_case(corpus, case, target)
    click.echo(f"{found.target.name}: {found.result.verdict}")
    click.echo(f"  {clean(found.result.reason, 500)}")
    return ALL_AS_EXPECTED if found.result.verdict == "pass" else UNEXPECTED
