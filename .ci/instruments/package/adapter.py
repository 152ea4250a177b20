"""All that the instruments know of the package's inside: rewrite these functions with the package.

Everything else that they know is the command line, results files and the folders of a checkout.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from conformance.base.paths import data_path
from conformance.bundle.prepare import (
    Answers,
    Prepared,
    answers_to,
    digest_of,
    prepare,
    tensor_file,
)
from conformance.bundle.script import script_of
from conformance.case.case import Case
from conformance.case.load import load, load_file
from conformance.maintain.power import can_run, scores
from conformance.run.records import case_record


def shipped_cases() -> list[Case]:
    """The corpus, in the order of its files."""
    return list(load([data_path("cases")]))


def effort(case: Case) -> int:
    """What a case takes, roughly: the number of its attention scores."""
    return scores(case)


def is_for_the_kernel(case: Case) -> bool:
    """Whether the NumPy kernel of ``mutants/`` can run the case."""
    return can_run(case)


def faulty_on(file: Path, name: str) -> str:
    """A part of the path of a case's folder, which a miniature looks for."""
    return next(digest_of(case.call) for case in load_file(file) if case.name == name)


def prepared(case: Case) -> dict[str, Any]:
    """All that is made of a case before it runs, its variant included.

    Bytes and arrays are values, or are in dicts and lists; what is no bytes and no array is JSON.
    """
    own = prepare(case.call, None, case.contract.readings, case.steps)
    made = _of_script(own, answers_to(own.script))
    made["readings"] = {}
    for reading in case.contract.readings:
        answers = answers_to(script_of(case.call, reading))
        if answers.unjudged is None:
            made["readings"][reading] = _expected(answers)
    if case.relation:
        variant = prepare(case.call, case.relation)
        answers = answers_to(variant.script)
        made["variant"] = _of_script(variant, answers)
        made["variant"]["arithmetic"] = [
            {name: of.arithmetic for name, of in step.items()} for step in answers.steps
        ]
    record = case_record(case).model_dump(mode="json")
    for field in ("title", "why", "contract"):
        made[field] = record.pop(field)
    return {**made, "record": record}


def _of_script(prepared: Prepared, answers: Answers) -> dict[str, Any]:
    files = dict(prepared.inputs)
    return {
        "model": files.pop("model.onnx"),
        "inputs": files,
        "wiring": [step.model_dump(mode="json") for step in prepared.steps],
        **_expected(answers),
        "unjudged": answers.unjudged,
        "rounded": [
            {name: tensor_file(step[name].rounded, name) for name in prepared.script.outputs}
            for step in answers.steps
            if answers.unjudged is None
        ],
    }


def _expected(answers: Answers) -> dict[str, Any]:
    """For each step and output: values, which of them are defined, and their budgets."""
    steps = [] if answers.unjudged is not None else answers.steps

    def each(made: Any) -> list[Mapping[str, Any]]:
        return [{name: made(of) for name, of in step.items()} for step in steps]

    return {
        "expected": each(lambda of: of.value.astype(np.float64)),
        "dtypes": each(lambda of: str(np.dtype(of.reference.dtype))),
        "defined": each(lambda of: of.reference.defined),
        "budgets": each(lambda of: np.where(of.reference.defined, of.units, np.nan)),
        "watched": each(lambda of: of.watched),
    }


def embedded(html: str) -> Iterator[tuple[str, str]]:
    """The ids and the texts (base64 of gzip of JSON) of the data in a page."""
    mark = '<script type="text/plain" id="'
    for part in html.split(mark)[1:]:
        name, _, rest = part.partition('">')
        yield name, rest.partition("</script>")[0]


#: The fields of the page's cases and results that are indexes of its pool.
POOLED = (
    *("file", "why", "tags", "links", "contract", "relation", "call", "inputs", "outputs"),
    *("message", "reason", "symptom", "stderr", "expectation", "placement", "errors", "history"),
)
