"""Joins results files into one: shards of a run, and runs on several targets.

The joined file has each case, followed by its results on all targets; in this order it compresses
best. The memory needed does not depend on the number of results.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from conformance.results.compact import LEFT_OUT, compacted
from conformance.results.reader import Run, abbreviated, contradictions, take
from conformance.results.records import Footer, Header, Record, Selection, ShardRecord, TargetRecord
from conformance.results.results_error import ResultsError
from conformance.results.same import headers_differ, targets_differ
from conformance.results.store import Store
from conformance.results.verdicts import Verdict, without_zeros


@dataclass(frozen=True)
class Merged:
    """Numbers about a joined file. ``problems`` say what it lacks, a sentence each."""

    cases: int
    results: int
    targets: Sequence[str]
    problems: Sequence[str]


def merge(
    paths: Sequence[Path], out: IO[bytes], *, compact: bool = False, incomplete: bool = False
) -> Merged:
    """Join the results files, and write the result to ``out``; ``compact``: without `LEFT_OUT`.

    Raises `ResultsError` for files that cannot be joined: they are of different suites, describe a
    target or a case differently, or have several results of a case on a target. They may be of
    different corpora: a theme is added to results of older ones. Raises it, too, if shards are
    missing or files are incomplete, unless ``incomplete`` permits that; the joined file is then
    incomplete. Raises :class:`OSError` if ``out`` or the database cannot be written.
    """
    store = Store()
    parts: list[Run] = []
    targets: dict[str, TargetRecord] = {}
    for path in paths:
        parts.append(take(path, store))
        for refusal in _refusals(parts, targets):
            raise ResultsError(refusal)
    for refusal in _uneven(parts):
        raise ResultsError(refusal)
    problems = list(_problems(parts, targets))
    if problems and not incomplete:
        raise ResultsError(
            " ".join(problems) + " gqa run --resume completes a file that was cut off;"
            " --incomplete joins what is there."
        )
    header = _header(parts, targets, len(store.cases), compact=compact, complete=not problems)
    footer = _footer(parts, targets, complete=not problems)
    out.write(_line(header))
    others: defaultdict[str | None, list[Record]] = defaultdict(list)
    for part in parts:
        for failure in part.infrastructure:
            others[failure.case].append(failure)
        for unstable in part.instability:
            others[unstable.case].append(unstable)
    for id, described, lines in store.by_case([*targets]):
        out.write(described + b"\n")
        out.writelines((compacted(line) if compact else line) + b"\n" for line in lines)
        out.writelines(map(_line, others.pop(id, ())))
    out.writelines(_line(record) for those in others.values() for record in those)
    out.write(_line(footer))
    results = sum(sum(counts.values()) for counts in footer.counts.values())
    return Merged(len(store.cases), results, [*targets], problems)


# Files that cannot be joined


def _refusals(parts: Sequence[Run], targets: dict[str, TargetRecord]) -> Iterator[str]:
    """Why the last file cannot be joined with the others; adds its targets to ``targets``."""
    *before, part = parts
    path, header = part.path, part.header
    if before and (differs := headers_differ(before[0].header, header, ("suite",))):
        yield f"{path} is of another run than {before[0].path}: {differs}."
    for other in before:
        same_run = _run_of(header) == _run_of(other.header)
        if header.shard and same_run and header.shard == other.header.shard:
            yield f"One shard is there twice: {_called(other)} and {_called(part)}."
    for target in header.targets:
        known = targets.setdefault(target.name, target)
        if differs := targets_differ(known, target):
            yield (
                f"{path}: {target.name} is another target than in the files before: "
                f"{differs}. Give one of them a --name."
            )
        targets[target.name] = _on_both(known, target)
    after = f", after {abbreviated([str(other.path) for other in before])}" if before else ""
    for contradiction in contradictions(part):
        yield f"{path}{after}: {contradiction}"


def _uneven(parts: Iterable[Run]) -> Iterator[str]:
    """Why the shards cannot be joined: their run was divided in different ways."""
    for those in _divided(parts).values():
        shard = those[0].header.shard
        planned = sum(part.header.selection.results for part in those)
        if shard and len(those) == shard.of and planned != shard.results:
            yield (
                f"The shards of {', '.join(_names(those[0].header))} have "
                f"{planned} of {shard.results} results: they are not parts of one run."
            )


def _problems(parts: Sequence[Run], targets: Iterable[str]) -> Iterator[str]:
    """A sentence for each incomplete file, and for each target with missing shards."""
    for part in parts:
        if part.footer is None or not part.footer.complete:
            why = "it was stopped before its end" if part.footer else "it was cut off"
            yield f"{_called(part)} is incomplete: {why}."
    for name in targets:
        for those in _divided(parts).values():
            shard = those[0].header.shard
            if shard is None or name not in _names(those[0].header):
                continue
            there = {part.header.shard.number for part in those if part.header.shard}
            missing = [f"{n}/{shard.of}" for n in range(1, shard.of + 1) if n not in there]
            if missing:
                what = "shard" if len(missing) == 1 else "shards"
                yield f"{name}: {what} {abbreviated(missing, 8)} missing."


# What is written


def _header(
    parts: Sequence[Run],
    targets: Mapping[str, TargetRecord],
    cases: int,
    *,
    compact: bool,
    complete: bool,
) -> Header:
    headers = [part.header for part in parts]
    left_out = [text for header in headers for text in header.left_out]
    whole: list[Selection | ShardRecord] = [
        part.header.selection for part in parts if part.header.shard is None
    ]
    whole += [shard for those in _divided(parts).values() if (shard := those[0].header.shard)]
    return Header(
        suite=headers[0].suite,
        corpus=_joined_corpus({header.corpus for header in headers}),
        selection=Selection(
            text="; ".join(dict.fromkeys(header.selection.text for header in headers)),
            cases=cases if complete else max(cases, *(each.cases for each in whole)),
            results=sum(each.results for each in whole),
            only_failed=any(header.selection.only_failed for header in headers),
        ),
        targets=tuple(targets.values()),
        machine=_joined([header.machine for header in headers]),
        start=min(header.start for header in headers),
        left_out=tuple(dict.fromkeys([*left_out, *(LEFT_OUT if compact else ())])),
    )


def _joined_corpus(digests: Set[str]) -> str:
    """The digest of a corpus; of several corpora, that of their digests."""
    joined = hashlib.sha256("\n".join(sorted(digests)).encode()).hexdigest()
    return min(digests) if len(digests) == 1 else joined[: len(min(digests))]


def _footer(parts: Sequence[Run], targets: Iterable[str], *, complete: bool) -> Footer:
    counts: dict[str, Counter[Verdict]] = {name: Counter() for name in targets}
    for part in parts:
        for name, those in part.counts.items():
            counts[name] += those
    footers = [part.footer for part in parts if part.footer is not None]
    ends = [footer.end for footer in footers] or [part.header.start for part in parts]
    return Footer(
        complete=complete,
        counts=without_zeros(counts),
        infrastructure=sum(len(part.infrastructure) for part in parts),
        unexpected=sum(part.store.unexpected(str(part.path)) for part in parts),
        instability=sum(len(part.instability) for part in parts),
        not_run=sum(part.not_run for part in parts),
        end=max(ends),
        seconds=round(sum(footer.seconds for footer in footers), 3),
    )


# Shards and machines


def _called(part: Run) -> str:
    shard = part.header.shard
    return f"{part.path} (shard {shard.number}/{shard.of})" if shard else str(part.path)


def _names(header: Header) -> tuple[str, ...]:
    return tuple(target.name for target in header.targets)


def _divided(parts: Iterable[Run]) -> dict[object, list[Run]]:
    """The shards, grouped by run."""
    runs: dict[object, list[Run]] = {}
    for part in parts:
        if part.header.shard:
            runs.setdefault(_run_of(part.header), []).append(part)
    return runs


def _run_of(header: Header) -> object:
    """A key that all shards of one run share; None for a file that is no shard."""
    shard = header.shard
    if shard is None:
        return None
    divided = shard.of, shard.cases, shard.results
    return *divided, header.corpus, header.selection.text, _names(header)


def _on_both(one: TargetRecord, other: TargetRecord) -> TargetRecord:
    """The description of a target that ran twice: with both machines, and all that it can do."""
    if one == other or one.describe is None or other.describe is None:
        return one
    devices = [each.device or "" for each in (one.describe, other.describe)]
    described = one.describe.model_copy(
        update={
            "device": _both(devices) or None,
            "features": tuple(dict.fromkeys((*one.describe.features, *other.describe.features))),
            "versions": _joined([one.describe.versions, other.describe.versions]),
        }
    )
    return one.model_copy(update={"describe": described})


def _joined(facts: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Facts about several machines by name; values that differ are separated by a bar."""
    names = dict.fromkeys(name for each in facts for name in each)
    return {name: _both([each.get(name, "") for each in facts]) for name in names}


def _both(texts: Iterable[str]) -> str:
    return " | ".join(dict.fromkeys(part for text in texts for part in text.split(" | ") if part))


def _line(record: Record) -> bytes:
    return record.model_dump_json().encode() + b"\n"
