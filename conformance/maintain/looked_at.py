"""docs/inputs.md: how many cases look at each input, by what it is replaced by.

``python -m conformance.maintain.generate docs/inputs.md`` writes the file. It needs the bundle of
every case, which takes a minute if they are not in the cache.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from conformance.base.signature import INPUTS
from conformance.bundle.cache import bundle_for
from conformance.bundle.replacements import REPLACEMENTS
from conformance.bundle.sensitivity import enough
from conformance.case.case import Case
from conformance.case.features import counted


def text(cases: Sequence[Case]) -> str:
    """The page."""
    applied: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    connected: Counter[str] = Counter()
    judged = [case for case in cases if counted(case)]
    for case in judged:
        tensors = (tensor for tensor in case.steps[-1].inputs if tensor.connected)
        connected.update(tensor.name for tensor in tensors if 0 not in (tensor.shape or ()))
        found = bundle_for(case.call, readings=case.contract.readings).sensitivity
        applied.update(found.keys())
        seen.update(name for name, effect in found.items() if effect >= enough(name))
    return "\n".join((*_head(len(judged)), *_table(connected, applied, seen), ""))


def _head(judged: int) -> Iterator[str]:
    yield "# What the cases look at"
    yield ""
    yield "Written by `python -m conformance.maintain.generate docs/inputs.md`. A slow test keeps"
    yield "it current."
    yield ""
    yield f"{judged} cases must or may compute. For each input: in how many it is connected and not"
    yield "empty. For each thing that a faulty kernel can use in its place: to how many cases"
    yield "it applies, because the input is another one, and how many of them *look at* the"
    yield "input, because their result moves by enough error budgets ([how that is"
    yield "measured](cases.md#sensitivity)). A required effect must be there unless the case"
    yield "lists it in `insensitive_to`."
    yield ""


def _table(connected: Counter[str], applied: Counter[str], seen: Counter[str]) -> Iterator[str]:
    yield "| input | connected | replaced by | applies | looked at | budgets |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for parameter in INPUTS:
        first = f"`{parameter.name}` | {connected[parameter.name]}"
        for one in REPLACEMENTS:
            if one.of == parameter.name:
                budgets = f"{one.enough:g}{', required' if one.part else ''}"
                counts = f"{applied[one.key]} | {seen[one.key]}"
                yield f"| {first} | {one.words} | {counts} | {budgets} |"
                first = " | "
