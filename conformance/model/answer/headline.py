"""Whether the graph is right, and how each target runs it, in one sentence over its releases."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Final

from conformance.base.versions import ordered_version
from conformance.base.words import listed, plural
from conformance.model.answer.answers import CHAT, WAY_OF, AnswerPart, ModelAnswer, why_untried
from conformance.model.calls.groups import layers_of, layers_with
from conformance.report.history import since_words
from conformance.report.model_table import LOADING, LOADING_PART, NO_GPU, USES, WORDS
from conformance.results.timeline import spans
from conformance.results.verdicts import Drawn
from conformance.run.target import DescribedTarget

_RIGHT: Final = "runs the model right"
#: The answers of each target, by its name, the model itself first.
Answers = Mapping[str, Sequence[ModelAnswer]]


@dataclass(frozen=True)
class ReleaseColumn:
    """One target, or consecutive releases of it, the oldest first, with the same ``answers``."""

    targets: tuple[DescribedTarget, ...]
    answers: tuple[ModelAnswer, ...]


def label_of(targets: Sequence[DescribedTarget]) -> str:
    """The name of consecutive releases of a target: ``cpu 1.27.0–1.32.0``."""
    if len(targets) == 1:
        return targets[0].name
    return f"{_name(targets[0])} {_range(targets[0].version, targets[-1].version)}"


def _name(target: DescribedTarget) -> str:
    return f"{target.base} on {target.adapter}" if target.adapter else target.base


def _range(first: str, last: str) -> str:
    return "–".join(dict.fromkeys((first, last)))


def series_of(targets: Iterable[DescribedTarget]) -> list[list[DescribedTarget]]:
    """The releases of each target, the oldest first.

    A build is a series by itself if it has no release, or the release of another target.
    """
    found: dict[tuple[object, ...], dict[object, DescribedTarget]] = {}
    for target in targets:
        version = ordered_version(target.version)
        key: tuple[object, ...] = target.base, target.adapter
        if version is None or version in found.get(key, {}):
            key = (target.name,)
        found.setdefault(key, {})[version] = target
    return [
        [releases[version] for version in sorted(releases, key=lambda each: (each is None, each))]
        for releases in found.values()
    ]


def in_words(targets: Iterable[str], series: Sequence[Sequence[DescribedTarget]]) -> str:
    """Some of the targets of all ``series`` in words: ``cpu 1.20.1–1.23.2 and tract@0.23.9``."""
    wanted = set(targets)
    return listed(
        [
            label_of(run)
            for each in series
            for there, run in _runs(each, lambda target: target.name in wanted)
            if there
        ]
    )


def columns_of(answers: Answers, series: Sequence[DescribedTarget]) -> list[ReleaseColumn]:
    """The columns of one target's releases."""
    return [
        ReleaseColumn(tuple(run), tuple(answers[run[-1].name]))
        for _, run in _runs(series, lambda target: _told(answers[target.name]))
    ]


def _told(answers: Iterable[ModelAnswer]) -> tuple[object, ...]:
    """The part of the answers that must be equal for two releases to be one column."""
    return tuple(
        (
            one.unseen,
            *((each.use, each.sentence, len(each.results), each.pinned) for each in one.parts),
        )
        for one in answers
    )


def _runs(
    targets: Sequence[DescribedTarget], key: Callable[[DescribedTarget], Any]
) -> list[tuple[Any, list[DescribedTarget]]]:
    return [(found, list(run)) for found, run in groupby(targets, key)]


def blamed(answers: Answers) -> dict[str, list[ModelAnswer]]:
    """The answers, with a fault for each wrong result of the model itself.

    A graph that one target runs right is right. If nothing tells whose fault a result is, it is the
    graph's unless calls of single nodes are wrong on the target, too.
    """
    right = {
        part.use for those in answers.values() for part in those[0].parts if part.kind == "right"
    }
    made: dict[str, list[ModelAnswer]] = {}
    for name, (whole, *groups) in answers.items():
        bad = [part for one in groups for part in one.bad]
        parts = []
        for part in whole.parts:
            cause, kind = part.cause, part.kind
            kinds = {each.kind for each in bad if each.use == part.use or part.use not in USES}
            if part.kind == "wrong" and part.use in right:
                sentence = "" if cause.fault == "graph" else cause.sentence
                cause = replace(cause, fault="target", sentence=sentence)
            elif part.kind == "wrong" and not cause.fault:
                of_target = not kinds.isdisjoint(("wrong", "software"))
                cause = replace(cause, fault="target" if of_target else "graph")
            if kind == "wrong" and cause.fault == "target" and {"software"} == kinds - {"refused"}:
                kind = "software"
            parts.append(replace(part, cause=cause, kind=kind))
        made[name] = [replace(whole, parts=tuple(parts)), *groups]
    return made


def of_graph(answers: Answers, required: Collection[str]) -> Iterator[tuple[Drawn, str]]:
    """Sentences on the graph: in which ways of calling it is right, and in which not, and why."""
    right, wrong = [], {}
    for use, way in WAY_OF.items():
        parts = [p for those in answers.values() for p in those[0].parts if p.use == use]
        if good := [part for part in parts if part.kind == "right"]:
            partly = ", as far as it was compared" if all(part.where for part in good) else ""
            right.append(way.words + partly)
        elif faulty := next((part for part in parts if part.of_graph), None):
            wrong[use] = faulty
    needed = {use: part for use, part in wrong.items() if use in required}
    if needed:
        told = "; ".join(dict.fromkeys(_why(use, part) for use, part in needed.items()))
        yield "wrong", f"The graph is wrong {told}."
        return
    if right:
        known = "" if right[0].startswith(WAY_OF[CHAT].words) else "As far as these targets show, "
        yield "pass", f"{known or 'T'}{'t' if known else ''}he graph is right {listed(right)}."
    causes: dict[str, list[str]] = {}
    for use, part in wrong.items():
        causes.setdefault(part.cause.sentence, []).append(WAY_OF[use].words)
    for cause, words in causes.items():
        why = f": {cause}" if cause else ""
        yield "skip", f"The graph is wrong if you call it {listed(words)}{why}."
    if WAY_OF["batches"].words in right and "left-padded batches" in wrong:
        yield "skip", "Batches must be padded at the right."


def _why(use: str, part: AnswerPart) -> str:
    """``in one chat, for one token on a past of 8 (the largest error is …): seqlens_k is 5 …``."""
    told = f"{WAY_OF[use].words}, {part.where} ({part.told})"
    layers = f" ({layers_with(part.cause.nodes)})" if part.cause.nodes else ""
    return f"{told}: {part.cause.sentence}{layers}" if part.cause.sentence else told


def headline(columns: Sequence[ReleaseColumn], required: Collection[str], faults: int) -> str:
    """Whether a target, in the releases of ``columns``, runs the whole model right.

    ``required`` are the uses that it must run, and ``faults`` is the number of nodes that were not
    checked.
    """
    releases = [(target, column.answers) for column in columns for target in column.targets]
    every = [target for target, _ in releases]
    texts = [_state(answers, required, where=len(columns) == 1) for _, answers in releases]
    label = _name(every[0]) if len({*texts}) > 1 else label_of(every)
    software = " (software adapter; a GPU may differ)" if every[-1].on_software else ""
    told = _over_time(every, texts)
    text = f"{label}{software}{'' if told.startswith(_RIGHT) else ':'} {told}"
    if faults:
        text += f"; {plural(faults, 'node')} not checked"
    partly = any(one.group.left_out for one in columns[-1].answers)
    if told.startswith(_RIGHT) and partly and not faults:
        text += ", as far as it was tried"
    others = [*_others(columns[-1].answers, required)]
    more = f" Wrong if you do that: {'; '.join(others)}." if others else ""
    return f"{text}.{more}"


def _over_time(targets: Sequence[DescribedTarget], texts: Sequence[str]) -> str:
    """The outcome of the releases, the newest first: ``runs the model right since 1.24.4 (…)``."""
    states = ((target.version, text) for target, text in zip(targets, texts, strict=True))
    *earlier, now = spans(states, targets[0].base)
    if not earlier:
        return now.state
    since = since_words(now.first, now.last, now.untried)
    first = f"{now.state} {since}" if now.state == _RIGHT or now.untried else f"{since} {now.state}"
    before = (f"{_range(each.first, each.last)}: {each.state}" for each in reversed(earlier))
    return f"{first} ({'; '.join(before)})"


def _state(answers: Sequence[ModelAnswer], required: Collection[str], where: bool) -> str:
    """What a release does in the uses that are required."""
    whole, *groups = answers
    if whole.bad and whole.bad[0].where in (LOADING, LOADING_PART):
        alone = " without its weights" if whole.bad[0].where == LOADING_PART else ""
        return f"refuses to load the model{alone}"
    told = []
    for use, way in WAY_OF.items():
        if use in required:
            text = ", ".join(_in_use(whole, groups, use, where))
            told += [f"{way.words} {text}"] if text else []
    if whole.unseen:
        calls = "; ".join(told) or (
            "calls of its nodes alone are right" if any(one.right for one in groups) else ""
        )
        reason = f"the model itself was not judged ({whole.unseen.rstrip('.')})"
        return "; ".join(filter(None, (reason, calls)))
    chat = [part for part in whole.parts if part.use in required and part.kind == "right"]
    if told or chat:
        return "; ".join(told) or _RIGHT
    untried = next((part.where for part in whole.untried if part.use in required), "no results")
    return f"not tried: {untried}"


def _in_use(
    whole: ModelAnswer, groups: Sequence[ModelAnswer], use: str, where: bool
) -> Iterator[str]:
    """What is not right in one use: of the model itself, and of calls of single nodes."""
    alone = [*_failures([one.of(use) for one in groups], where)]
    for part in whole.of(use).bad:
        if part.of_graph:
            yield "silently wrong, as the graph is"
        elif not alone:
            yield part.sentence if where else WORDS[part.kind]
    yield from alone
    untried = [part for one in groups for part in one.of(use).untried]
    if not alone and untried and not any(one.of(use).right for one in groups):
        yield f"not tried: {why_untried(untried[0].results[0][1])}"


def _others(answers: Sequence[ModelAnswer], required: Collection[str]) -> Iterator[str]:
    """What is not right in uses that nothing asks for, apart from what is wrong in the graph."""
    whole, *groups = answers
    if whole.bad and whole.bad[0].where in (LOADING, LOADING_PART):
        return
    for use, way in WAY_OF.items():
        if use not in required:
            text = [t for t in _in_use(whole, groups, use, where=True) if "as the graph" not in t]
            text = [t for t in text if not t.startswith("not tried")]
            if text:
                yield f"{way.words} {', '.join(text)}"


def _failures(answers: Sequence[ModelAnswer], where: bool) -> Iterator[str]:
    """``silently wrong from 513 tokens on in layers 0–3``, a part for each kind of failure."""
    for kind in WORDS:
        found = [(one, part) for one in answers for part in one.bad if part.kind == kind]
        if found:
            wheres = {part.where for _, part in found}
            told = min(wheres) if len(wheres) == 1 and where else ""
            untried = f" ({NO_GPU})" if kind == "software" else ""
            layers = layers_of(one.group for one, _ in found)
            yield f"{f'{WORDS[kind]} {told}'.rstrip()} in {layers}{untried}"
