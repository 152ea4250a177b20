"""``gqa run --resume``: goes on with a run that was cut off."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from conformance.case.case import Case
from conformance.cli.common import BadArgument, reading
from conformance.results.reader import Run, read
from conformance.results.records import Header, InstabilityRecord, ResultRecord
from conformance.results.same import headers_differ, targets_differ
from conformance.results.shareable import shareable
from conformance.run.target import Plan

#: The option's name.
OPTION: Final = "--resume"


def earlier_run(path: Path) -> Earlier | None:
    """The run in ``path``; None if there is no file, or if it is empty.

    Raises `BadArgument` for a file to which a run cannot add results.
    """
    if path.suffix == ".xz":
        raise BadArgument(f"{path} is packed, and no run can go on in it; unpack it first.")
    try:
        if not path.stat().st_size:
            return None
    except FileNotFoundError:
        return None
    except OSError:
        pass  # reading it says why
    with reading():
        run = read(path)
    if run.header.left_out:
        raise BadArgument(f"{path} is compact; a run goes on in what a run has written.")
    return Earlier(run)


@dataclass(frozen=True)
class Earlier:
    """The part of a run that was recorded before it was cut off.

    It has no infrastructure failures: those cases run again.
    """

    run: Run

    def missing(self, plans: Sequence[Plan]) -> list[Plan]:
        """The plans with the cases that have no result yet.

        Raises `BadArgument` if the file has results that the plans do not ask for.
        """
        names = [target.name for target in self.run.header.targets]
        if len(names) != len(plans):
            raise self._refused(
                f"it has {len(names)} targets ({', '.join(names)}), "
                f"and these arguments name {len(plans)}"
            )
        there: dict[str, set[str]] = {name: set() for name in names}
        for result in self.run.results:
            there.setdefault(result.target, set()).add(result.case)
        for name, plan in zip(names, plans, strict=True):
            others = there[name] - {case.id for case in plan.cases}
            if others:
                raise self._refused(f"it has {min(others)}, which these arguments do not select")
        return [
            replace(plan, cases=tuple(c for c in plan.cases if c.id not in there[name]))
            for name, plan in zip(names, plans, strict=True)
        ]

    def check(self, now: Header) -> None:
        """Raise `BadArgument` if the header ``now`` is that of another run."""
        difference = next(_differences(self.run.header, shareable(now)), None)  # without folders
        if difference is not None:
            raise self._refused(difference)

    def of(self, cases: Sequence[Case]) -> Iterator[tuple[Case, ResultRecord]]:
        """The recorded results, each with its case, which is one of ``cases``."""
        by_id = {case.id: case for case in cases}
        return ((by_id[result.case], result) for result in self.run.results)

    def instability(self) -> Iterator[InstabilityRecord]:
        """The unstable results of cases that have a result and do not run again."""
        there = {(result.case, result.target) for result in self.run.results}
        return (one for one in self.run.instability if (one.case, one.target) in there)

    def _refused(self, why: str) -> BadArgument:
        return BadArgument(
            f"{OPTION} {self.run.path} cannot go on: {why}. Repeat the command of that run."
        )


def _differences(was: Header, now: Header) -> Iterator[str]:
    """The differences between the headers of two runs that make them different runs."""
    if difference := headers_differ(was, now):
        yield difference
    if was.shard != now.shard:
        yield f"the shard is {_shard(now)}, not {_shard(was)}"
    before, after = was.selection, now.selection
    if (before.cases, before.results) != (after.cases, after.results):
        yield (
            f"it is to have {before.results} results of {before.cases} cases, and these "
            f"arguments select {after.results} of {after.cases}"
        )
    for old, new in zip(was.targets, now.targets, strict=True):
        if old.name != new.name:
            yield f"the target is {new.name}, not {old.name}"
        if difference := targets_differ(old, new):
            yield f"{new.name} is another target: {difference}"


def _shard(header: Header) -> str:
    return f"{header.shard.number}/{header.shard.of}" if header.shard else "none"
