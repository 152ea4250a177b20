"""How a target runs the whole model, in one sentence over all its releases."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Final

from conformance.base.versions import ordered_version
from conformance.base.words import listed, plural
from conformance.model.answer.answers import AnswerPart, ModelAnswer, at_fault, why_untried
from conformance.model.calls.groups import Group, layers_of
from conformance.report.history import since_words
from conformance.report.model_table import (
    IN_MODEL,
    LOADING,
    NO_GPU,
    USES,
    WORDS,
    Use,
    kind_in_words,
)
from conformance.results.timeline import spans
from conformance.run.target import DescribedTarget

_IN: Final[Mapping[Use, str]] = {
    "one chat": "in one chat",
    "chunked prompts": "with chunked prompts",
    "batches": "in batches",
}
_RIGHT: Final = "right in every layer"


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


def columns_of(
    answers: Mapping[str, Sequence[ModelAnswer]],
    series: Sequence[DescribedTarget],
    together: bool = True,
) -> list[ReleaseColumn]:
    """The columns of one target's releases; with ``together`` False, one for each release."""
    return [
        ReleaseColumn(tuple(run), tuple(answers[run[-1].name]))
        for _, run in _runs(
            series, lambda target: _told(answers[target.name]) if together else target.name
        )
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


def headline(columns: Sequence[ReleaseColumn], faults: int) -> str:
    """Whether a target, in the releases of ``columns``, runs the whole model right.

    ``faults`` is the number of nodes that were not checked.
    """
    releases = [(target, column.answers) for column in columns for target in column.targets]
    every = [target for target, _ in releases]
    uses: dict[tuple[str, ...], list[str]] = {}
    for use in USES:
        texts = [_in_use(answers, use, where=len(columns) == 1) for _, answers in releases]
        if any(texts):
            key = tuple(text or "not tried" for text in texts)
            uses.setdefault(key, []).append(_IN[use])
    changes = any(len({*texts}) > 1 for texts in uses)
    label = _name(every[0]) if changes else label_of(every)
    if every[-1].on_software:
        label += " (software adapter; a GPU may differ)"
    told = [_over_time(every, texts) for texts in uses]
    if len(uses) > 1:
        told = [f"{listed(words)} {text}" for words, text in zip(uses.values(), told, strict=True)]
    if faults:
        told = [text.replace(_RIGHT, "right in every other layer") for text in told]
        told.append(f"{plural(faults, 'node')} not checked")
    if not uses:
        return f"{label} was not tried: there are no results."
    single = [one for one in columns[-1].answers if one.group.graph is None]
    right = told[0].startswith(_RIGHT) and len(told) == 1
    unseen = next((one.unseen for one in single if one.unseen), "")
    if unseen:
        if not any(one.right or one.bad for one in single) and f"not tried: {unseen}" in told[0]:
            return f"{label}: not tried: {unseen}."
        calls = f"calls of its nodes alone are {told[0]}" if right else "; ".join(told)
        return f"{label}: the model itself was not judged ({unseen}); {calls}."
    if right:
        part = ", as far as it was tried" if any(one.group.left_out for one in single) else ""
        since = told[0].removeprefix(_RIGHT)
        return f"{label} runs the attention of every layer right{since}{part}."
    return f"{label}: {'; '.join(told)}."


def _over_time(targets: Sequence[DescribedTarget], texts: Sequence[str]) -> str:
    """The outcome of the releases, the newest first: ``right in every layer since 1.24.4 (…)``."""
    states = ((target.version, text) for target, text in zip(targets, texts, strict=True))
    *earlier, now = spans(states, targets[0].base)
    if not earlier:
        return now.state
    since = since_words(now.first, now.last, now.untried)
    first = f"{now.state} {since}" if now.state == _RIGHT or now.untried else f"{since} {now.state}"
    before = (f"{_range(each.first, each.last)}: {each.state}" for each in reversed(earlier))
    return f"{first} ({'; '.join(before)})"


def _in_use(answers: Iterable[ModelAnswer], use: Use, where: bool) -> str:
    """The outcome of all layers in one use, with its calls if ``where``; "" without such a call."""
    single = [one for one in answers if one.group.graph is None]
    missing = [one.group for one in single if not one.parts]
    alone = [one.of(use) for one in single]
    graphs = [one.of(use) for one in answers if one.group.graph is not None]
    if not any(one.parts for one in alone):
        return ""
    told = [*_failures(alone, where)]
    named = {
        (part.kind, layer)
        for one in alone
        for part in one.bad
        for layer in _at_fault(one, part).layers
    }
    # A graph of several layers is mentioned only if it fails where none of its layers does alone.
    more = [
        replace(one, parts=(part,))
        for one in graphs
        for part in one.bad
        if not any((part.kind, layer) in named for layer in _at_fault(one, part).layers)
    ]
    as_one = [f"{text} as one graph" for text in _failures(more, where)]
    told = [*(told or ["right in each layer alone"]), *as_one] if as_one else told
    untried = [part for one in (*alone, *graphs) for part in one.untried]
    if not untried and not missing:
        return ", ".join(told) or _RIGHT
    why = why_untried(untried[0].results[0][1]) if untried else "there are no results"
    nothing = [*missing, *(one.group for one in alone if one.parts and one.kind == "untried")]
    calls = plural(sum(len(part.results) for part in untried), "call")
    if len(nothing) == len(alone):
        return f"not tried: {why}"
    left = f"{layers_of(nothing) if nothing else calls} not tried ({why})"
    if not told and not nothing:
        return f"{_RIGHT}, as far as it was tried: {left}"
    return ", ".join([*told, left])


def _failures(answers: Sequence[ModelAnswer], where: bool) -> Iterator[str]:
    """``silently wrong from 513 tokens on in layers 0–3``, a part for each kind of failure."""
    for kind in WORDS:
        found = [(one, part) for one in answers for part in one.bad if part.kind == kind]
        if found:
            wheres = {part.where for _, part in found}
            told = min(wheres) if len(wheres) == 1 and (where or wheres == {LOADING}) else ""
            of_graph = all(part.kind == "wrong" and not part.results for _, part in found)
            text = f"{WORDS[kind]} {'' if of_graph else told}".rstrip()
            at = "in"
            if told in (LOADING, IN_MODEL):
                text, at = kind_in_words(kind, told), "at"
            layers = f" {at} {layers_of(_at_fault(*each) for each in found)}"
            why = f": {told}" if of_graph and told else ""
            untried = f" ({NO_GPU})" if kind == "software" else ""
            yield f"{text}{'' if wheres == {LOADING} else layers}{why}{untried}"


def _at_fault(one: ModelAnswer, part: AnswerPart) -> Group:
    return part.only or at_fault(one.group, [record for _, record in part.results])
