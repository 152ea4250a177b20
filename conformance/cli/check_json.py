"""The answers for a model as JSON, for programs; the schema is ``reports/check.schema.json``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from conformance.cli.common import Status
from conformance.model.answers import Answer, Part
from conformance.model.known import KnownTarget
from conformance.model.subject import Subject
from conformance.report.model_table import ModelTable

FORMAT: Final = "gqa-check/1"


def document(
    subject: Subject,
    table: ModelTable,
    answers: Mapping[str, Sequence[Answer]],
    targets: Iterable[KnownTarget],
    status: int,
) -> str:
    """What ``gqa check`` answers, with its exit ``status``."""
    made = {
        "format": FORMAT,
        "exit_status": status,
        "model": {
            "path": str(subject.model.path),
            "producer": subject.model.producer,
            "notes": table.notes,
            "not_checked": subject.faults,
        },
        "targets": [
            {
                "name": target.name,
                "base": target.base,
                "version": target.version,
                "adapter": target.adapter,
                "software_adapter": target.is_software,
            }
            for target in targets
        ],
        "headlines": [sentence for _, sentence in table.sentences],
        "rows": [
            {
                "layers": group.layers,
                "nodes": [node.name for node in group.nodes],
                "attention": group.what,
                "one_graph": group.graph is not None,
                "left_out": group.left_out,
                "answers": {name: _answer(those[number]) for name, those in answers.items()},
            }
            for number, group in enumerate(subject.groups)
        ],
        "causes": [asdict(cause) for cause in table.causes],
    }
    return json.dumps(made, ensure_ascii=False, indent=1) + "\n"


def refusal(model: Path, message: str) -> str:
    """The document for a model of which no node can be checked, with the ``message`` that says
    why."""
    made = {
        "format": FORMAT,
        "exit_status": Status.BAD_INPUT,
        "model": {"path": str(model), "producer": "", "notes": [], "not_checked": {"": message}},
        "targets": [],
        "headlines": [message],
        "rows": [],
        "causes": [],
    }
    return json.dumps(made, ensure_ascii=False, indent=1) + "\n"


def _answer(one: Answer) -> dict[str, Any]:
    return {
        "answer": one.kind,
        "unseen": one.unseen,
        "pinned": one.pinned,
        "uses": {use: [_part(part) for part in one.of(use).parts] for use in one.uses},
    }


def _part(part: Part) -> dict[str, Any]:
    return {
        "answer": part.kind,
        "where": part.where,
        "message": part.message,
        "pinned": part.pinned,
        "cases": [record.case for _, record in part.results],
    }
