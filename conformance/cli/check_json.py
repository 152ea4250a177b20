"""The answers for a model as JSON, for programs; the schema is ``reports/check.schema.json``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from conformance.cli.common import Status
from conformance.model.answer.answers import AnswerPart, ModelAnswer
from conformance.model.calls.groups import whole_of
from conformance.model.calls.subject import Subject
from conformance.report.model_table import ModelTable
from conformance.run.target import DescribedTarget

FORMAT: Final = "gqa-check/2"


def document(
    subject: Subject,
    table: ModelTable,
    answers: Mapping[str, Sequence[ModelAnswer]],
    targets: Iterable[DescribedTarget],
    status: int,
    tried: Mapping[str, Any],
) -> str:
    """The answers of ``gqa check``, with its exit ``status`` and what was ``tried``."""
    rows = [
        {
            "whole": group.is_whole,
            "layers": group.layers,
            "nodes": [node.name for node in group.nodes],
            "attention": group.what,
            "left_out": group.left_out,
            "answers": {name: _answer(those[number]) for name, those in answers.items()},
        }
        for number, group in enumerate([whole_of(subject.groups), *subject.groups])
    ]
    model = subject.model
    about = {"producer": model.producer, "notes": table.notes, "not_checked": subject.faults}
    return _json(
        exit_status=status,
        **tried,
        model={"path": str(model.path), **about},
        targets=[
            {
                "name": target.name,
                "base": target.base,
                "version": target.version,
                "adapter": target.adapter,
                "software_adapter": target.on_software,
            }
            for target in targets
        ],
        headlines=[sentence for _, sentence in table.sentences],
        rows=rows,
        causes=[asdict(cause) for cause in table.causes],
    )


def refusal(model: Path, message: str) -> str:
    """The document for a model without a node that can be checked; ``message`` says why."""
    return _json(
        exit_status=Status.BAD_INPUT,
        complete=False,
        most_tokens=0,
        model={"path": str(model), "producer": "", "notes": [], "not_checked": {"": message}},
        targets=[],
        headlines=[message],
        rows=[],
        causes=[],
    )


def _json(**fields: Any) -> str:
    return json.dumps({"format": FORMAT, **fields}, ensure_ascii=False, indent=1) + "\n"


def _answer(answer: ModelAnswer) -> dict[str, Any]:
    return {
        "answer": answer.kind,
        "unseen": answer.unseen,
        "pinned": answer.pinned,
        "uses": {use: [_part(part) for part in answer.of(use).parts] for use in answer.uses},
    }


def _part(part: AnswerPart) -> dict[str, Any]:
    return {
        "answer": part.kind,
        "where": part.where,
        "fault": part.cause.fault,
        "cause": part.cause.sentence,
        "message": part.message,
        "pinned": part.pinned,
        "cases": [record.case for _, record in part.results],
    }
