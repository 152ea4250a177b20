"""Makes docs/inputs.md: the number of cases whose result depends on each input.

An input is replaced by other values, and the result must change. ``python -m
conformance.maintain.generate docs/inputs.md`` writes the file, which takes minutes if the effects
are not in the cache. docs/coverage.md has numbers of it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from conformance.base.paths import data_path
from conformance.base.signature import INPUTS
from conformance.bundle.replacements import REPLACEMENTS
from conformance.bundle.sensitivity import REPLACED, effects, enough
from conformance.case.case import Case
from conformance.maintain.coverage import rendered

#: The row of an input: its name, and the numbers of cases that connect it and that depend on it.
_ROW: Final = re.compile(r"^\| `(\w+)` \| \d+ \| (\d+) \|", re.MULTILINE)


def recorded() -> Mapping[str, int]:
    """The number of cases that depend on each input, read from docs/inputs.md."""
    page = (data_path("docs") / "inputs.md").read_text(encoding="utf-8")
    return {name: int(count) for name, count in _ROW.findall(page)}


def text(cases: Sequence[Case]) -> str:
    """The page."""
    applied: Counter[str] = Counter()
    looking: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    connected: Counter[str] = Counter()
    judged = [case for case in cases if case.counts_for_coverage]
    for case in judged:
        tensors = (tensor for tensor in case.steps[-1].inputs if tensor.connected)
        connected.update(tensor.name for tensor in tensors if 0 not in (tensor.shape or ()))
        connected.update(("key", "value") if case.call.key_value == "packed" else ())
        moved = effects(case.call, every=True)
        applied.update(moved.keys())
        large = [name for name, effect in moved.items() if effect >= enough(name)]
        seen.update(large)
        looking.update({REPLACED[name].of for name in large if name in REPLACED})
    return rendered(
        "inputs.md.j2",
        judged=len(judged),
        inputs=[(name, connected[name], looking[name]) for name in (one.name for one in INPUTS)],
        replacements=[(one, applied[one.key], seen[one.key]) for one in REPLACEMENTS],
    )
