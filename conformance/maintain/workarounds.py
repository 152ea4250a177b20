"""Tries the workarounds of the findings on every recorded release.

``python -m conformance.maintain.workarounds`` looks the calls of ``docs/findings/findings.yaml`` up
in the recorded results. For each target it prints what the calls are before and after. The exit
status is 1 if a workaround does not hold where the file says that it does, or if it makes a call
worse in other releases than the file says. ``docs/workarounds.md`` is the table of all.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Final

from conformance.base.findings import PREFIX, Workaround, finding_facts
from conformance.base.paths import data_path
from conformance.base.versions import release_key
from conformance.base.words import listed
from conformance.results.packed import unpacking
from conformance.results.records import Header, ResultRecord
from conformance.results.verdicts import ranks_as
from conformance.targets.releases import is_in_range

#: What became of a call, the worst last.
STATES: Final = ("right", "refused", "fallback", "wrong", "crash")
_STATE: Final = {"unsupported": "refused", "timeout": "crash", "pass": "right"}
#: Targets with the results of another one, to which theirs are added.
_SAME: Final = {"cpu-threads": "cpu", "tract-wheel": "tract"}
_HEAD: Final = """\
# Workarounds

The advice of the [findings](findings/README.md). It was tried by a call before and after it, on
each [recorded release](../reports/recorded/README.md) of cpu, tract, wasm and webgpu (on lavapipe),
and on webgpu-jsep if the call is not one of the corpus. cuda was not tried.
`python -m conformance.maintain.workarounds` says what became of each call.

Written by `python -m conformance.maintain.generate` from [findings.yaml](findings/findings.yaml).

| finding | advice | right after it on | worse after it on |
| --- | --- | --- | --- |
"""
_RESULT: Final = b'{"kind":"result","case":"'

#: The state of a call, by target, version and case.
Results = Mapping[str, Mapping[str, Mapping[str, str]]]


def recorded() -> Results:
    """The states of all calls that workarounds name, in every recorded release, the oldest first.

    Raises `OSError` without the recorded files, which only a checkout has.
    """
    every = [each for facts in finding_facts().values() for each in facts.workarounds]
    wanted = {case.encode() for each in every for pair in each.calls.items() for case in pair}
    found: dict[str, dict[str, dict[str, str]]] = {}
    folder = data_path("reports") / "recorded"
    for path in [*sorted(folder.glob("history/*.xz")), folder / "workarounds.jsonl.xz"]:
        with unpacking(path) as lines:
            header = Header.model_validate_json(next(lines))
            described = {target.name: target for target in header.targets}
            for line in lines:
                case = line.removeprefix(_RESULT).partition(b'"')[0]
                if not line.startswith(_RESULT) or case not in wanted:
                    continue
                record = ResultRecord.model_validate_json(line)
                target, state = described[record.target], state_of(record)
                if target.describe and state:
                    base = target.ep.partition("@")[0]
                    releases = found.setdefault(_SAME.get(base, base), {})
                    states = releases.setdefault(target.describe.version or "", {})
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


_rank: Final = STATES.index


def outcomes(
    workaround: Workaround, releases: Mapping[str, Mapping[str, str]]
) -> dict[str, tuple[str, str, bool]]:
    """By version: the worst state before and after, and whether any call is worse after."""
    found = {}
    for version, states in releases.items():
        pairs = [
            (states[before], states[after])
            for before, after in workaround.calls.items()
            if before in states and after in states
        ]
        if pairs:
            worst = (max(states, key=_rank) for states in zip(*pairs, strict=True))
            worse = any(_rank(after) > _rank(before) for before, after in pairs)
            found[version] = (*worst, worse)
    return found


def _runs(found: Mapping[str, tuple[str, str, bool]]) -> Iterator[tuple[str, str, str, bool]]:
    """Consecutive releases with one outcome: their range, and the outcome."""
    for (before, after, worse), members in groupby(found.items(), key=lambda item: item[1]):
        versions = [version for version, _ in members]
        yield "–".join(dict.fromkeys((versions[0], versions[-1]))), before, after, worse


def worse_on(workaround: Workaround, results: Results) -> Iterator[str]:
    """The releases in which the workaround makes a call worse: ``cpu 1.27.0–1.30.0 (crash)``."""
    for target, releases in results.items():
        after = {
            version: ("", state if worse else "", worse)
            for version, (_, state, worse) in outcomes(workaround, releases).items()
        }
        for which, _, state, worse in _runs(after):
            if worse:
                yield f"{target} {which} ({'silently wrong' if state == 'wrong' else state})"


def broken_on(workaround: Workaround, results: Results) -> list[str]:
    """The releases for which the workaround is given, and in which a call is not right after it.

    A target without any release to try is in the list by its name.
    """
    found = []
    for target, versions in workaround.holds.items():
        tried = outcomes(workaround, results.get(target, {}))
        within = {version: tried[version] for version in tried if is_in_range(version, versions)}
        found += [f"{target} {each}" for each, outcome in within.items() if outcome[1] != "right"]
        found += [] if within or not workaround.calls else [target]
    return found


def page() -> str:
    """The content of ``docs/workarounds.md``."""
    lines = []
    for link, facts in finding_facts().items():
        name = link.removeprefix(PREFIX).removesuffix(".md")
        for each in facts.workarounds:
            holds = listed([f"{target} {within}".strip() for target, within in each.holds.items()])
            row = f"[{name}](findings/{name}.md)", each.advice, holds, listed(each.worse)
            lines.append(f"| {' | '.join(row)} |\n")
    return f"{_HEAD}{''.join(lines)}"


def main() -> int:
    """Print all workarounds; the exit status is 1 if the file of findings says otherwise."""
    results, status = recorded(), 0
    for link, facts in finding_facts().items():
        for each in facts.workarounds:
            print(f"{link}: {each.advice}")
            for target, releases in results.items():
                told = [
                    f"{which} {before} → {after}"
                    for which, before, after, _ in _runs(outcomes(each, releases))
                ]
                if told:
                    print(f"  {target}: {'; '.join(told)}")
            print(f"  {each.tried}\n  cuda: not tried" if each.tried else "  cuda: not tried")
            worse, broken = [*worse_on(each, results)], broken_on(each, results)
            if worse != [*each.worse] and each.calls:
                print(f"  The file does not say: worse: {worse}")
                status = 1
            if broken:
                print(f"  It does not hold on {listed(broken)}")
                status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
