"""Joins the shards of a campaign into one campaign, whatever their order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from conformance.base.files import read_plain
from conformance.base.text import safe_name
from conformance.fuzz.naming import NamedFault
from conformance.fuzz.state import FILE, MOST_BYTES, STATE, CampaignState, read_state
from conformance.results.reader import abbreviated
from conformance.results.results_error import ResultsError, cause_of
from conformance.run.shard import Shard


@dataclass(frozen=True)
class Joined:
    """A joined campaign, with the content of the files of its folder.

    ``problems`` say what it lacks, a sentence each.
    """

    state: CampaignState
    files: Mapping[str, bytes]
    problems: Sequence[str]


#: The folder of a campaign, and its state.
_InFolder = tuple[Path, CampaignState]


def join(folders: Sequence[Path], *, incomplete: bool = False) -> Joined:
    """Join campaigns that are shards of one, each in its folder.

    Raises `ResultsError` for folders that cannot be joined: they are of different campaigns, or a
    shard is there twice. Raises it, too, for what is missing, unless ``incomplete`` permits that.
    """
    parts: list[_InFolder] = []
    for folder in folders:
        state = read_state(folder)
        if state is None:
            raise ResultsError(f"{folder} has no {FILE}: it is no folder of gqa fuzz.")
        parts.append((folder, state))
        for refusal in _refusals(*parts):
            raise ResultsError(refusal)
    parts.sort(key=lambda part: min(shard.number for shard in part[1].done))
    states = [state for _, state in parts]
    targets = sorted({name for state in states for name in state.verdicts})
    done = {shard: calls for state in states for shard, calls in state.done.items()}
    faults = _faults(parts)
    files: dict[str, bytes] = {}
    problems = [*_missing(done)]
    for fault, folder in faults:
        if not fault.known:
            mine = _files(folder, fault.name)
            files |= mine
            if f"{fault.name}.yaml" not in mine:
                problems.append(f"{folder} has no {fault.name}.yaml.")
    if problems and not incomplete:
        raise ResultsError(" ".join([*problems, "--incomplete joins what is there."]))
    state = CampaignState(
        states[0].settings,
        _joined_shards(done),
        {name: _sum(each.verdicts.get(name, {}) for each in states) for name in targets},
        {name: _sum(each.known.get(name, {}) for each in states) for name in targets},
        {name: _sum(each.unstable.get(name, {}) for each in states) for name in targets},
        _sum(each.features for each in states),
        _sum(each.computed for each in states),
        faults=[fault for fault, _ in faults],
    )
    state.avoided = state.refused
    return Joined(state, {**files, FILE: STATE.dump_json(state, indent=1)}, problems)


# Folders that cannot be joined


def _refusals(first: _InFolder, *others: _InFolder) -> Iterator[str]:
    """Why the last folder cannot be joined with those before it."""
    *before, (folder, last) = first, *others
    different = f"{folder} is of another campaign than {first[0]}: "
    wanted = {**dict.fromkeys(last.settings), **first[1].settings}
    if (setting := last.difference(wanted)) is not None:
        yield f"{different}it has {setting}."
    mine = sorted(last.verdicts)  # none of a shard without calls
    theirs = next(filter(None, (sorted(state.verdicts) for _, state in before)), mine)
    if mine and mine != theirs:
        yield safe_name(f"{different}its targets are {', '.join(mine)}, not {', '.join(theirs)}.")
    divided = next(iter(first[1].done)).of
    for shard in last.done:
        if shard.of != divided:
            yield f"{different}it has the shard {shard}, and not one of {divided}."
        for other, state in before:
            if shard in state.done:
                yield f"Shard {shard} is there twice: in {other} and in {folder}."


def _missing(done: Mapping[Shard, int]) -> Iterator[str]:
    of = next(iter(done)).of
    missing = [str(shard) for n in range(of) if (shard := Shard(n + 1, of)) not in done]
    if missing:
        what = "Shard" if len(missing) == 1 else "Shards"
        yield f"{what} {abbreviated(missing, 8)} missing."


# What is joined


def _joined_shards(done: Mapping[Shard, int]) -> dict[Shard, int]:
    """The calls of each shard; of the undivided campaign if they are its first calls."""
    of, calls = next(iter(done)).of, sum(done.values())
    first = {Shard(n + 1, of): len(range(n, calls, of)) for n in range(of)}
    if done == first:
        return {Shard(1, 1): calls}
    return {shard: done[shard] for shard in sorted(done, key=lambda shard: shard.number)}


def _sum(counts: Iterator[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return dict(sorted(total.items()))


def _faults(parts: Sequence[_InFolder]) -> list[tuple[NamedFault, Path]]:
    """The faults, each with the folder that has its first call, in the order of these calls."""
    found = [(fault, folder) for folder, state in parts for fault in state.faults]
    faults: list[tuple[NamedFault, Path]] = []
    for fault, folder in sorted(found, key=lambda one: (one[0].number, one[0].name)):
        known = next((one for one, _ in faults if one.covers(fault)), None)
        if known is None:
            faults.append((fault, folder))
        else:
            known.calls += fault.calls
    return faults


def _files(folder: Path, name: str) -> dict[str, bytes]:
    """The case file of a fault, and its program; a link is neither."""
    files = {}
    for file in sorted(folder.glob(f"{name}.*")):
        if file.is_symlink():
            continue
        try:
            files[file.name] = read_plain(file, MOST_BYTES, follow_links=False)
        except OSError as error:
            raise ResultsError(f"{file} cannot be read: {cause_of(error)}.") from None
    return files
