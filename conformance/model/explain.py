"""One node of a model in words: its call, the nearest cases, and how targets treat it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from conformance.base.explain import did_you_mean
from conformance.base.signature import ATTRIBUTE_BY_NAME
from conformance.base.words import listed, plural
from conformance.case.call import GraphCall
from conformance.case.case import Case
from conformance.case.features import features_of
from conformance.case.nearest import nearest
from conformance.case.wording import words
from conformance.model.groups import Group
from conformance.model.known import FeatureAnswer, KnownTarget, features_on
from conformance.model.nodes import AttentionNode
from conformance.model.reading import ModelError
from conformance.model.shapes import ValueType
from conformance.model.subject import Subject
from conformance.report.model_table import WORDS, Kind

_KINDS: dict[str, Kind] = {
    "pass": "right",
    "unsupported": "refused",
    "wrong": "wrong",
    "accepted": "wrong",
    "crash": "crash",
    "timeout": "timeout",
    "fallback": "fallback",
}


def node_called(subject: Subject, text: str) -> tuple[AttentionNode, Group]:
    """The node that ``text`` names: its name, a unique part of its name, or its layer's number.

    Raises :class:`ModelError`.
    """
    nodes = [(node, group) for group in subject.groups if not group.graph for node in group.nodes]
    ways = (
        [each for each in nodes if each[0].name == text],
        [each for each in nodes if str(each[0].layer) == text],
        [each for each in nodes if text in each[0].name],
    )
    for found in ways:
        if len(found) == 1:
            return found[0]
        if found:
            several = listed([node.name for node, _ in found[:4]])
            raise ModelError(f"'{text}' is the name of {len(found)} nodes: {several}.")
    names = [node.name for node, _ in nodes]
    layers = [str(node.layer) for node, _ in nodes]
    near = did_you_mean(text, names) or f"; its layers are {layers[0]} to {layers[-1]}."
    raise ModelError(f"{subject.model.path} has no attention node '{text}'{near}")


def explained(
    node: AttentionNode,
    group: Group,
    cases: Sequence[Case],
    corpus: Sequence[Case],
    targets: Sequence[KnownTarget],
) -> Iterator[str]:
    """The lines about a node; ``cases`` are those of its group."""
    yield f"{node.name}"
    others = len(group.nodes) - 1
    same = (
        f"which makes the same call as {plural(others, 'other node')}" if others else "on its own"
    )
    yield f"  layer      {node.layer}, {same}"
    yield f"  attention  {group.what}"
    # What has its default, such as no softcap, changes nothing.
    given = [
        f"{name}={value}"
        for name, value in node.attributes.items()
        if name not in ATTRIBUTE_BY_NAME or value != (ATTRIBUTE_BY_NAME[name].default or 0)
    ]
    yield f"  attributes {', '.join(given)}"
    for side, names in (("inputs", node.inputs), ("outputs", node.outputs)):
        width = max(map(len, names), default=0)
        for number, (name, value) in enumerate(names.items()):
            label = side if number == 0 else ""
            yield f"  {label:<10} {name:<{width}}  {_type(node.type(name))}  {value}"
    corpus = [case for case in corpus if not isinstance(case.call, GraphCall)]
    told = {words(features_of(case.call, case.steps)): case.axes["stage"] for case in cases}
    yield "\nIts calls, in the words of the corpus:"
    for text, stage in told.items():
        yield f"  {stage:<22} {text}"
    yield "\nThe nearest cases of the corpus:"
    for case in _typical(cases):
        for near in nearest(case.call, case.steps, corpus, 2):
            differences = [
                f"{name} {_given(theirs)}, not {_given(ours)}"
                for name, (ours, theirs) in {**near.features, **near.sizes}.items()
            ]
            yield f"  {case.axes['stage']:<22} {near.case.id}"
            if differences:
                yield f"  {'':<22} but {'; '.join(differences[:6])}"
    for target in targets:
        yield f"\nWhat {target.name} is known to do with these features in the corpus:"
        reasons: dict[str, list[str]] = {}
        for answer in features_on(_typical(cases), corpus, target):
            name = f"{answer.feature} {answer.value}"
            yield f"  {name:<28} {_counts(answer)}"
            if answer.why:
                reasons.setdefault(answer.why, []).append(name)
        for why, concerned in reasons.items():
            yield f"  {listed(concerned)}: {why}"


def _typical(cases: Sequence[Case]) -> list[Case]:
    """The prompt with the most tokens, and the single-token call with the most tokens."""
    alone = [case for case in cases if case.call.batch_size == 1]
    prompts = [case for case in alone if re.fullmatch(r"prompt_\d+", case.axes["stage"])]
    others = [case for case in alone if re.fullmatch(r"decode_on_\d+", case.axes["stage"])]
    return [*prompts[-1:], *others[-1:]]


def _type(known: ValueType) -> str:
    if known.dims is None:
        return f"{known.dtype or '?'}[?]"
    # Shape inference names unknown dims unk__0 and so on.
    dims = ("?" if dim is None or str(dim).startswith("unk__") else str(dim) for dim in known.dims)
    return f"{known.dtype or '?'}[{', '.join(dims)}]"


def _given(value: object) -> object:
    return "none" if value is None else value


def _counts(answer: FeatureAnswer) -> str:
    """``right in 700 cases, silently wrong in 19 cases``."""
    kinds: dict[Kind, int] = {}
    for verdict, number in answer.counts.items():
        kinds[_KINDS[verdict]] = kinds.get(_KINDS[verdict], 0) + number
    if not kinds:
        return "no case"
    told = [f"{WORDS[kind]} in {plural(kinds[kind], 'case')}" for kind in WORDS if kind in kinds]
    return ", ".join(told)
