"""A compact form of results, to keep those of many releases.

Every command can read it: it keeps the verdict, the outcome, the runtime's message and all faults.
The header lists what was left out.
"""

from __future__ import annotations

import json
from typing import Any, Final

from conformance.results.records import ResultRecord

#: The list of omissions in the header.
LEFT_OUT: Final = (
    "times",
    "growth of memory",
    "standard error, of results that are expected",
    "figures, kernels, placement and reproduction of results that pass",
)

_OF_A_PASS: Final = ("errors", "share", "relation", "bits", "placement", "kernels")

_DEFAULTS: Final = {
    name: field.default
    for name, field in ResultRecord.model_fields.items()
    if not field.is_required() and field.default_factory is None and name != "kind"
}


def compacted(line: bytes) -> bytes:
    """The line of a result without the details in `LEFT_OUT` and without fields that have their
    defaults."""
    kept: dict[str, Any] = json.loads(line)
    drop = ["ms", "grown_mb"]
    if not kept["unexpected"]:
        drop.append("stderr")
    if kept["verdict"] == "pass":
        drop += _OF_A_PASS
        kept["reproduce"] = ""
        if kept["outcome"] == "ran":
            sentence, figures, _ = kept["reason"].partition(";")
            kept["reason"] = f"{sentence}." if figures else sentence
    for name in drop:
        kept.pop(name, None)
    for name, default in _DEFAULTS.items():
        if name in kept and (kept[name] == default or kept[name] == []):
            del kept[name]
    if not kept.get("wrong_outputs") and kept["verdict"] != "wrong":
        kept.pop("wrong_outputs", None)
    return json.dumps(kept, ensure_ascii=False, separators=(",", ":")).encode()
