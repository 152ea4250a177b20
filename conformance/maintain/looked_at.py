"""docs/inputs.md: how many cases look at each input, by what it is replaced by.

``python -m conformance.maintain.generate docs/inputs.md`` writes the file. It needs every
effect of every case, which takes minutes if they are not in the cache. docs/coverage.md has its
counts.
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

#: The first row of an input: its name, in how many cases it is connected, and how many look at it.
_ROW: Final = re.compile(r"^\| `(\w+)` \| \d+ \| (\d+) \|", re.MULTILINE)


def recorded() -> Mapping[str, int]:
    """The number of cases that look at each input, as docs/inputs.md has it."""
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
        found = effects(case.call, every=True)
        applied.update(found.keys())
        large = [name for name, effect in found.items() if effect >= enough(name)]
        seen.update(large)
        looking.update({REPLACED[name].of for name in large if name in REPLACED})
    return rendered(
        "inputs.md.j2",
        judged=len(judged),
        inputs=[(name, connected[name], looking[name]) for name in (one.name for one in INPUTS)],
        replacements=[(one, applied[one.key], seen[one.key]) for one in REPLACEMENTS],
    )
