"""The errors of a model's layers on their real input values, as one table."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from conformance.base.words import plural
from conformance.model.answer_table import table_of
from conformance.model.answers import AnswerPart, ModelAnswer
from conformance.model.captured import CapturedSubject
from conformance.model.groups import layers_of
from conformance.model.headline import series_of
from conformance.model.similar_defect import Similar
from conformance.report.model_table import WORDS, ModelTable
from conformance.results.records import OutputErrorRecord, ResultRecord
from conformance.run.target import DescribedTarget

#: What the numbers are.
_NOTE: Final = (
    "Every layer gets the values of the run on the CPU, so it shows its own error only. The"
    " numbers are the largest error as a share of the error budget, above 1 is wrong, and in"
    " brackets the largest absolute and relative error."
)


def error_table(
    subject: CapturedSubject,
    answers: Mapping[str, Sequence[ModelAnswer]],
    targets: Iterable[DescribedTarget],
    similar: Callable[[ResultRecord], Similar | None] = lambda record: None,
) -> ModelTable:
    """The table of ``answers`` with the errors of prompt and decode steps in each cell."""
    known = [target for target in targets if target.name in answers]
    table = table_of(subject, answers, known, similar, lambda one: ",\n".join(_lines(one)))
    model = subject.model
    by = f", made by {model.producer}" if model.producer else ""
    nodes = plural(len(subject.groups), "attention node")
    return replace(
        table,
        heading=f"{model.path}{by}: {nodes} {subject.told}",
        notes=(*table.notes, _NOTE),
        sentences=tuple(
            (verdict, " ".join(filter(None, (sentence, _first_wrong(answers[run[-1].name])))))
            for (verdict, sentence), run in zip(table.sentences, series_of(known), strict=True)
        ),
    )


def _lines(one: ModelAnswer) -> Iterator[str]:
    """A line for the prompt, and one for all decode steps."""
    for phase in ("prompt", "decode"):
        found = [
            (part, record)
            for part in sorted(one.parts, key=lambda part: list(WORDS).index(part.kind))
            for stage, record in part.results
            if stage.phase == phase
        ]
        if not found:
            continue
        worst, figures = found[0][0], _figures(one, [record for _, record in found])
        these = sum(part is worst for part, _ in found)
        of = f" in {these} of {len(found)} steps" if these < len(found) else ""
        said = "" if worst.kind == "right" else f" {WORDS[worst.kind]}{of}"
        yield f"{phase}{said}{':' if said and figures else ''} {figures}".strip()


def _figures(one: ModelAnswer, records: Sequence[ResultRecord]) -> str:
    errors = [error for record in records for error in _read(one, record)]
    if not errors:
        return ""
    share, absolute, relative = (
        max(_number(getattr(error, name)) for error in errors)
        for name in ("share", "absolute", "relative")
    )
    return f"{share:.2g} ({absolute:.1e}, {relative:.1e})"


def _read(one: ModelAnswer, record: ResultRecord) -> Iterator[OutputErrorRecord]:
    """The errors of those outputs that something in the model reads."""
    for error in record.errors:
        if error.output == "output" or one.group.form.reads_presents:
            yield error


def _number(value: float | None) -> float:
    return math.inf if value is None or math.isnan(value) else value


def _first_wrong(answers: Sequence[ModelAnswer]) -> str:
    """The first layer where a target is wrong, in a sentence; "" if it never is."""
    for one in answers:
        for part in one.bad:
            if part.kind == "wrong":
                return _first(one, part)
    return ""


def _first(one: ModelAnswer, part: AnswerPart) -> str:
    stage, record = part.results[0]
    worst = max(_read(one, record), key=lambda error: _number(error.share), default=None)
    how = ""
    if worst is not None:
        how = f": {_number(worst.share):.2g} times the error budget"
        if worst.absolute is not None:
            how += f", the largest error is {_number(worst.absolute):.2g}"
    return f"The first layer that goes wrong is {layers_of([one.group])}, {stage.words}{how}."
