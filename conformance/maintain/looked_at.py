"""docs/inputs.md: how many cases look at each input, by what it is replaced by.

``python -m conformance.maintain.generate docs/inputs.md`` writes the file. It needs every
effect of every case, which takes minutes if they are not in the cache. docs/coverage.md has its
counts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from conformance.base.paths import data_path
from conformance.base.signature import INPUTS
from conformance.bundle.replacements import REPLACEMENTS
from conformance.bundle.sensitivity import REPLACED, effects, enough
from conformance.case.case import Case

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
    table = _table(connected, looking, applied, seen)
    return "\n".join((*_head(len(judged)), *table, ""))


def _head(judged: int) -> Iterator[str]:
    yield "# What the cases look at"
    yield ""
    yield "Written by `python -m conformance.maintain.generate docs/inputs.md`. A slow test keeps"
    yield "it current."
    yield ""
    yield f"{judged} cases must or may compute. A case *looks at* an input if its result moves by"
    yield "enough error budgets when the input is replaced by something that a faulty kernel could"
    yield "use in its place ([how that is measured](sensitivity.md)). For each input: in how"
    yield "many cases it is connected and not empty, or a part of packed QKV, and how many look at"
    yield "it. For each replacement: to how many cases it applies, because the input is another"
    yield "one, in how many the result moves, and by how many budgets it must. A required effect"
    yield "must be there unless the case lists it in `insensitive_to`."
    yield ""


def _table(
    connected: Counter[str], looking: Counter[str], applied: Counter[str], seen: Counter[str]
) -> Iterator[str]:
    yield "| input | connected | looked at | replaced by | applies | moves | budgets |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for parameter in INPUTS:
        name = parameter.name
        first = f"`{name}` | {connected[name]} | {looking[name]}"
        for one in REPLACEMENTS:
            if one.of == name:
                budgets = f"{one.enough:g}{', required' if one.part else ''}"
                counts = f"{applied[one.key]} | {seen[one.key]}"
                yield f"| {first} | {one.words} | {counts} | {budgets} |"
                first = " |  | "
