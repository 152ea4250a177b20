"""Two recorded models, one right and one silently wrong; a program that prints them as a file."""

from __future__ import annotations

import json
from typing import Any

from conformance.maintain.models import row
from conformance.report.model_table import USES


def two_models() -> dict[str, Any]:
    """The values of a file."""
    chat = USES[0]
    answer = {"uses": {chat: {"answer": "right"}}, "releases": ["1.20", "1.21"]}
    wrong = {"uses": {chat: {"answer": "wrong", "where": "from 9 tokens on"}}, "releases": ["1.20"]}
    cause = {"where": "webgpu@1.20+lavapipe", "verdict": "wrong", "what": "wrong in layer 0",
             "said": "4 is 5", "example": "a prompt", "why": "It ignores the window.",
             "link": "docs/findings/x.md", "workaround": "Use another."}  # fmt: skip
    return {
        "format": "gqa-models/1", "recorded": "2026-11-27", "suite": "1",
        "runtimes": {"cpu": ["1.20", "1.21"], "webgpu+lavapipe": ["1.20"]},
        "software": ["webgpu+lavapipe"],
        "rows": [
            row("llama3_genai_cpu") | {"runtimes": {"cpu": {"answers": [answer], "causes": []}}},
            row("gemma4_e2b_mobius_cpu") | {"exporter": "mobius 9.9"}
            | {"runtimes": {"webgpu+lavapipe": {"answers": [wrong], "causes": [cause],
                                                "rewritten": {"1.20": "right"}}}},
        ],
    }  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(two_models()))
