"""Tries the workarounds of the findings on every recorded release.

``python -m conformance.maintain.workarounds`` looks the calls of ``docs/findings/findings.yaml`` up
in the recorded results, and prints for each target what becomes of them before and after. The exit
status is 1 if a workaround does not hold where the file says that it does, or makes a call worse in
other releases than the file says.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Final

from conformance.base.findings import Workaround, finding_facts
from conformance.base.paths import data_path
from conformance.base.target_names import split_release
from conformance.base.versions import release_key
from conformance.maintain import run_command
from conformance.results.packed import unpacking
from conformance.results.records import Header, ResultRecord
from conformance.results.verdicts import ranks_as
from conformance.targets.releases import is_in_range

#: What became of a call, the worst last.
STATES: Final = ("right", "refused", "fallback", "silently wrong", "crash")
_rank: Final = STATES.index
#: The states of verdicts, for calls that were not rejected. What must be rejected and ran with the
#: right values ranks as unsupported.
_STATE: Final = dict.fromkeys(("pass", "unsupported"), "right") | {
    "timeout": "crash",
    **dict.fromkeys(("accepted", "wrong"), "silently wrong"),
}
#: Targets whose results are added to those of another one.
_SAME: Final = {"cpu-threads": "cpu", "tract-wheel": "tract"}
_RESULT: Final = b'{"kind":"result","case":"'

#: The states of calls by id, by version, the oldest first.
ReleaseTable = Mapping[str, Mapping[str, str]]


def recorded() -> dict[str, ReleaseTable]:
    """By target, the states of the calls that workarounds name, in every recorded release.

    Raises `OSError` without the recorded files, which only a checkout has.
    """
    every = [each for facts in finding_facts().values() for each in facts.workarounds]
    wanted = {case.encode() for each in every for pair in each.calls.items() for case in pair}
    found: dict[str, dict[str, dict[str, str]]] = defaultdict(lambda: defaultdict(dict))
    folder = data_path("reports") / "recorded"
    for path in [*sorted(folder.glob("history/*.xz")), folder / "workarounds.jsonl.xz"]:
        with unpacking(path) as lines:
            targets = {one.name: one for one in Header.model_validate_json(next(lines)).targets}
            for line in lines:
                case = line.removeprefix(_RESULT).partition(b'"')[0]
                if case in wanted and line.startswith(_RESULT):
                    record = ResultRecord.model_validate_json(line)
                    target, state = targets[record.target], state_of(record)
                    if target.describe and state:
                        base, _ = split_release(target.ep)
                        states = found[_SAME.get(base, base)][target.describe.version or ""]
                        states[record.case] = max(state, states.get(record.case, state), key=_rank)
    return {
        base: {version: releases[version] for version in sorted(releases, key=release_key)}
        for base, releases in found.items()
    }


def state_of(record: ResultRecord) -> str:
    """What became of a call; "" if it was not tried."""
    verdict = ranks_as(record)
    if verdict == "skip":
        return ""
    return "refused" if record.outcome == "rejected" else _STATE.get(verdict, verdict)


def _outcomes(
    workaround: Workaround, releases: ReleaseTable
) -> Iterator[tuple[str, str, str, bool]]:
    """Each version with the worst state before and after, and whether any call is worse after."""
    for version, states in releases.items():
        calls = workaround.calls.items()
        pairs = [(states[a], states[b]) for a, b in calls if a in states and b in states]
        if pairs:
            before, after = (max(each, key=_rank) for each in zip(*pairs, strict=True))
            yield version, before, after, any(_rank(b) > _rank(a) for a, b in pairs)


def outcomes(
    workaround: Workaround, releases: ReleaseTable
) -> Iterator[tuple[str, str, str, bool]]:
    """The same for consecutive releases: ``1.27.0–1.30.0``."""
    for outcome, run in groupby(_outcomes(workaround, releases), key=lambda each: each[1:]):
        versions = [version for version, *_ in run]
        yield "–".join(dict.fromkeys((versions[0], versions[-1]))), *outcome


def worse_on(workaround: Workaround, results: Mapping[str, ReleaseTable]) -> list[str]:
    """Where the workaround makes a call worse: ``cpu 1.27.0–1.30.0 (crash)``."""
    return [
        f"{target} {which} ({after})"
        for target, releases in results.items()
        for which, _, after, worse in outcomes(workaround, releases)
        if worse
    ]


def broken_on(workaround: Workaround, results: Mapping[str, ReleaseTable]) -> list[str]:
    """The releases for which the workaround is given, and in which a call is not right after it.

    A target without any release to try is in the list by its name.
    """
    found = []
    for target, versions in workaround.holds.items():
        tried = [*_outcomes(workaround, results.get(target, {}))]
        within = [each for each in tried if is_in_range(each[0], versions)]
        found += [f"{target} {version}" for version, _, after, _ in within if after != "right"]
        found += [target] if workaround.calls and not within else []
    return found


def main() -> int:
    """Print all workarounds; the exit status is 1 if the file of findings says otherwise."""
    results, status = recorded(), 0
    for link, facts in finding_facts().items():
        for each in facts.workarounds:
            print(f"{link}: {each.advice}", *filter(None, [each.tried]), sep="\n  ")
            for target, releases in results.items():
                told = [f"{which} {a} → {b}" for which, a, b, _ in outcomes(each, releases)]
                print(*[f"  {target}: {'; '.join(told)}\n"][: len(told)], end="")
            print("  cuda: not tried")
            worse, broken = worse_on(each, results), broken_on(each, results)
            if broken or (each.calls and worse != [*each.worse]):
                print(f"  The file says otherwise. Not right on: {broken}; worse on: {worse}")
                status = 1
    return status


if __name__ == "__main__":
    run_command(main, "Print all workarounds, and what became of each on the recorded releases.")
