"""The pins of a model itself, which has no case.

A pin is a line of an expectations file. That of the model itself names a group of layers, and a
use that fails: ``model/global[model=batches]``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from conformance.base.versions import ordered_version
from conformance.expectations.known import TODO
from conformance.expectations.match import Expectation
from conformance.model.answers import Answer
from conformance.model.groups import Group
from conformance.model.known import KnownTarget
from conformance.report.model_table import DRAWN, Kind
from conformance.targets.releases import is_in_range

#: The use of a pin for a model that was not judged.
NOT_RUN: Final = "not run"
_MARK: Final = "[model="
Answers = Mapping[str, Sequence[Answer]]


def is_of_model(line: Expectation) -> bool:
    """Whether a line pins the model itself, not a case."""
    return any(_MARK in pattern for pattern in line.known.cases)


class ModelPins:
    """The lines that pin the model itself; ``theme`` is the theme of its cases."""

    def __init__(self, lines: Sequence[Expectation], theme: str) -> None:
        self._lines = [line for line in lines if is_of_model(line)]
        self._theme = theme

    def line(self, target: KnownTarget, group: Group, use: str, kind: Kind) -> Expectation | None:
        """The line that pins the answer of a group of layers on a target in a use."""
        for line in self._lines:
            is_pinned = _id(self._theme, group, use) in line.known.cases
            if is_pinned and line.known.verdict == _verdict(kind) and _is_for(line, target):
                return line
        return None

    def better(
        self, targets: Mapping[str, KnownTarget], answers: Answers
    ) -> Iterator[tuple[Expectation, str]]:
        """The lines whose answer is right now, with the target's name."""
        for name, target in targets.items():
            held = [self.line(target, *each[:3]) for each in failures_of_model(answers[name])]
            for line in self._lines:
                if _is_for(line, target) and line not in held:
                    yield line, name

    def text(
        self, before: str, answers: Answers, targets: Sequence[KnownTarget]
    ) -> tuple[str, int]:
        """The text of an expectations file with lines that pin the model itself, and their number.

        ``before`` is the text without them; ``targets`` have one base name.
        """
        lines = [_line_of(text) for text in before.splitlines()]
        pinned = 0
        ordered = [(at, one) for one in targets if (at := ordered_version(one.version))]
        for at, target in sorted(ordered, key=lambda each: each[0]):
            failed = {
                (_id(self._theme, group, use), _verdict(kind)): why
                for group, use, kind, why in failures_of_model(answers[target.name])
            }
            pinned += len(failed)
            on = {"adapters": [target.adapter]} if target.adapter else {}
            for line in lines:
                if isinstance(line, str) or line.get("adapters") != on.get("adapters"):
                    continue
                if not is_in_range(target.version, line["versions"]):
                    continue
                if failed.pop((line["cases"], line["verdict"]), None) is None:
                    line["versions"] += f",<{at.public}"
            for (case, verdict), why in failed.items():
                what = {"cases": case, "versions": f">={at.public}", "verdict": verdict}
                lines.append({**what, "link": TODO, "why": f"Pinned as it was: {why}", **on})
        written = [text for line in lines if (text := _text_of(line)) is not None]
        if any(isinstance(line, dict) for line in lines):
            written = [each.replace("expectations: []", "expectations:") for each in written]
        return "\n".join([*written, ""]), pinned


def failures_of_model(answers: Sequence[Answer]) -> Iterator[tuple[Group, str, Kind, str]]:
    """The failures of the model itself: layers, use, kind of failure, and a sentence."""
    for one in answers:
        for part in one.bad:
            if not part.results:
                yield one.group, part.use, part.kind, f"{part.sentence} {part.message}".rstrip()
        if one.unseen and one.group.graph is None:
            yield one.group, NOT_RUN, "untried", f"not run: {one.unseen}"


def _is_for(line: Expectation, target: KnownTarget) -> bool:
    return line.target == target.base and line.known.holds_for(target.version, target.adapter)


def _line_of(text: str) -> str | dict[str, Any]:
    """A line of a file: the fields of one that pins the model itself, the text of any other."""
    start, _, rest = text.partition("- {")
    if not start.strip() and _MARK in rest:
        with suppress(ValueError):  # it may be written in another way
            return dict(json.loads("{" + rest))
    return text


def _text_of(line: str | Mapping[str, Any]) -> str | None:
    """The text of a line; None for one that ends with the release with which it starts."""
    if isinstance(line, str):
        return line
    first, _, end = line["versions"].partition(",<")
    return None if first == f">={end}" else f"  - {json.dumps(line, ensure_ascii=False)}"


def _id(theme: str, group: Group, use: str) -> str:
    return f"{theme}/{group.name}{_MARK}{use}]"


def _verdict(kind: Kind) -> str:
    return "unsupported" if kind == "untried" else DRAWN[kind]
