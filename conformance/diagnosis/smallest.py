"""The smallest call that still fails.

As property-testing libraries shrink what they have found, a failing case is made simpler in one
part after the other, as long as its fault stays: fewer sequences, heads and tokens, features at
their plain values, drawn values of seed 0. Of the result, no single part can be made simpler
(`conformance.diagnosis.simpler`). That does not say that other failures have these parts, too.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from conformance.base.words import listed
from conformance.base.yaml_source import InputError, yaml_text
from conformance.bundle.effects import NO_EFFECT, THRESHOLDS, effects, part_of
from conformance.case.case import Case, Description, EffectName
from conformance.case.case_file import FORMAT
from conformance.case.contract import contract_of_calls
from conformance.case.load import load_file
from conformance.case.selection import compile_expression
from conformance.diagnosis.shared import BESIDE
from conformance.diagnosis.simpler import additions, needs, simplifications, without
from conformance.harness.folders import temporary_folder
from conformance.operator.call import CALL_FIELDS, CallError
from conformance.operator.part import FieldChanges
from conformance.run.assessment import prepared_case

#: A case, and why it is one.
CaseEntry = tuple[Case, str]

#: The time limit of a call that is tried: it is as small as the failing one, or smaller.
TRY_SECONDS: Final = 5.0
#: The calls that are tried have numbers, since their ids must differ.
_NUMBERS: Final = count(1)


@dataclass(frozen=True)
class Smallest:
    """The smallest case found, and the number of ``runs`` of the search.

    ``needs`` has a phrase for each part that could not be made simpler. ``complete``: nothing was
    left to try.
    """

    case: Case
    runs: int
    needs: Mapping[str, str]
    complete: bool

    @property
    def sentence(self) -> str:
        """The features that it needs: `This smallest call has two key/value heads and a softcap.`

        Empty if it is a plain call.
        """
        return f"This smallest call has {listed([*self.needs.values()])}." if self.needs else ""

    def beside(self, failing: Sequence[Case], shared: Sequence[str]) -> list[str]:
        """How it differs from the ``failing`` calls, which share one of several expressions."""
        told = []
        if shared and not any(compile_expression(text)((), self.case) for text in shared):
            texts = " or ".join(f"`{text}`" for text in shared)
            told.append(f"It lacks what the failures share: {texts}.")
        for part, phrase in self.needs.items():
            value = self.case.features.get(part) if part != "heads" else None
            without = [case for case in failing if value and case.features[part] != value]
            if without:
                told.append(f"Not shared by {len(without)} of {len(failing)} failures: {phrase}.")
        return told


def smallest(
    case: Case,
    still_fails: Callable[[Case], bool],
    most_runs: int = 60,
    *,
    provider: str | None = None,
    until: float = math.inf,
    beside: Case | None = None,
) -> Smallest:
    """Make ``case`` simpler while ``still_fails``, which is called at most ``most_runs`` times.

    The calls that are tried are `Variations` of it. ``until`` is a time of `time.monotonic`. A
    graph stays as it is. ``beside``: the illegal case that ``case`` has been made of.
    """
    with temporary_folder() as folder:
        variations = Variations(case, provider, folder, beside)
        return _Search(variations, still_fails, most_runs, until).result()


def neighbours(case: Case, like: Sequence[Case], provider: str | None) -> Iterator[Case]:
    """Calls that differ from ``case`` in one part, with the values that it has in ``like``."""
    with temporary_folder() as folder:
        variations = Variations(case, provider, folder)
        seen = {_key(case)}
        for changes in () if variations.unknown else additions(case, like):
            changed = variations.changed(case, changes)
            if _key(changed) not in seen:
                seen.add(_key(changed))
                if (made := variations.loaded(changed)) is not None:
                    yield made


def calls_alone(case: Case, provider: str | None) -> Iterator[Case]:
    """The call without those before it on the session, and each of these alone."""
    with temporary_folder() as folder:
        variations = Variations(case, provider, folder)
        for changes in simplifications(case)["earlier_calls"]:
            alone = variations.changed(case, changes)
            if changes.get("earlier_calls") == () and (made := variations.loaded(alone)):
                yield made


def reduced_to(case: Case, kept: Collection[str], provider: str | None) -> Case:
    """The call without all parts but those that are ``kept``, its lengths, batch and input values.

    A part without which the call would be impossible, or have another contract, stays.
    """
    with temporary_folder() as folder:
        variations = Variations(case, provider, folder)
        each = [*without(kept)] if not variations.unknown else []
        together = {name: value for changes in each for name, value in changes.items()}
        left = case
        for changes in (together, *each):
            changed = variations.changed(left, changes)
            if _key(changed) != _key(left):
                left = variations.loaded(changed) or left
        return left


def case_text(entries: Sequence[CaseEntry]) -> str:
    """A case file with these cases; their titles follow from their features."""
    data = {
        "format": FORMAT,
        "question": entries[0][0].question,
        "cases": [_entry(case, why) for case, why in entries],
    }
    return yaml_text(data)


def _entry(case: Case, why: str) -> dict[str, Any]:
    contract = case.written_contract
    entry = {
        "name": case.name,
        "why": why,
        **fields_of(case),
        "insensitive_to": case.insensitive_to,
        "contract": contract and contract.model_dump(exclude_defaults=True),
    }
    if case.time_limit_seconds != Description().time_limit_seconds:
        entry["time_limit_seconds"] = case.time_limit_seconds
    return {name: value for name, value in entry.items() if value not in (None, "", ())}


def fields_of(case: Case) -> dict[str, Any]:
    """The fields of the call that differ from their defaults, and the relation if there is one."""
    relation = {"relation": case.relation} if case.relation else {}
    return {**case.written_call.as_written(), **relation}


class Variations:
    """Calls like ``first``, with other fields, that it would be right or wrong to fail like it.

    Each is a valid case file, demands the same of ``provider`` (the target's execution provider) or
    more, and has values, or none for the same reason. With all fields of ``beside``, an illegal
    case, they are as illegal as that.
    """

    def __init__(
        self, first: Case, provider: str | None, folder: Path, beside: Case | None = None
    ) -> None:
        self.first = first
        self.provider = provider
        self.file = folder / f"{BESIDE}.yaml"
        self._own = prepared_case(first).own
        derived, demands = self._derived(first), first.contract.on(provider).demands
        written = first.written_contract
        #: Whether the contract follows from the features, so that it is known of other calls.
        self.explained = written is None or (
            derived == demands and not written.readings and not first.is_undecided
        )
        #: What the features of other calls may demand: what is wrong in a call that may be
        #: rejected is wrong in one that must be computed.
        self.demands = (
            {derived, "computes"} if self.explained and derived == "either" else {derived}
        )
        #: The fields that make all calls illegal.
        self.illegal = _fields(beside) if beside else frozenset[str]()
        #: Whether nothing is known of other calls: one might be right to be accepted.
        may_be_right = demands == "rejects" and self._own.unjudged is None
        self.unknown = first.is_graph or (may_be_right and not self.explained and not beside)

    def changed(self, case: Case, changes: FieldChanges) -> Case:
        """The case with other fields, which may contradict each other."""
        fields = {name: value for name, value in changes.items() if name in CALL_FIELDS}
        return replace(
            case,
            name="smallest",
            axes={},
            written_title=None,
            written_call=replace(case.written_call, **fields),
            written_contract=None if self.explained else self.first.written_contract,
            relation=changes.get("relation", case.relation),
            insensitive_to=(),
        )

    def loaded(self, changed: Case) -> Case | None:
        """The case as a file would give it; None if it cannot replace the first one."""
        if not self.illegal <= _fields(changed):
            return None
        try:
            named = replace(changed, name=f"call_{next(_NUMBERS)}")
            self.file.write_text(case_text([(named, "")]), encoding="utf-8")
            (case,) = load_file(self.file)
            case = replace(case, time_limit_seconds=min(TRY_SECONDS, case.time_limit_seconds))
            if not self.illegal and self._derived(case) not in self.demands:
                return None
            made = prepared_case(case)
            is_alike = made.own.is_unjudged_like(self._own)
            if case.relation:
                made.variant.inputs  # noqa: B018  # a variant may need more tokens
        except (InputError, CallError, ValidationError):
            return None
        return case if is_alike else None

    def _derived(self, case: Case) -> str | None:
        """The demand on the provider that follows from the features of a case."""
        contract = None if case.is_graph else contract_of_calls(case.features_of_calls)
        return contract.on(self.provider).demands if contract else None


@dataclass
class _Search:
    """A search for a smaller call.

    ``tried`` maps the fields of each call to whether it fails; None: the call cannot replace the
    first one.
    """

    variations: Variations
    still_fails: Callable[[Case], bool]
    most_runs: int
    until: float
    tried: dict[str, bool | None] = field(default_factory=dict)
    runs: int = 0

    def result(self) -> Smallest:
        """Try one part after the other until nothing can be made simpler."""
        best = first = self.variations.first
        before = best if self.variations.unknown else None
        while best is not before and not self._is_over():
            before = best
            for part in simplifications(best):
                best = self._simpler_in(part, best)
        left = {
            part: [self.tried.get(_key(each), True) for each in self._candidates(best, part)]
            for part in simplifications(best)
        }
        needed = [part for part, fails in left.items() if False in fails and True not in fails]
        complete = not any(True in fails for fails in left.values())
        if best is not first:
            limit, without = first.time_limit_seconds, _without_effect(best)
            best = replace(best, name="smallest", time_limit_seconds=limit, insensitive_to=without)
        return Smallest(best, self.runs, needs(best, needed), complete)

    def _is_over(self) -> bool:
        return self.runs >= self.most_runs or time.monotonic() >= self.until

    def _simpler_in(self, part: str, case: Case) -> Case:
        """The case with one part as simple as possible."""
        simpler = next(filter(None, map(self._tried, self._candidates(case, part))), None)
        return case if simpler is None else self._simpler_in(part, simpler)

    def _candidates(self, case: Case, part: str) -> Iterator[Case]:
        """The cases in which one part is simpler; some may be impossible."""
        changed = (self.variations.changed(case, each) for each in simplifications(case)[part])
        return (each for each in changed if _key(each) != _key(case))

    def _tried(self, changed: Case) -> Case | None:
        """The case as a file would give it, if it is new and still fails."""
        key = _key(changed)
        if key in self.tried or self._is_over():
            return None
        self.tried[key] = None
        candidate = self.variations.loaded(changed)
        if candidate is None:
            return None
        self.runs += 1
        self.tried[key] = fails = self.still_fails(candidate)
        return candidate if fails else None


def _without_effect(case: Case) -> tuple[EffectName, ...]:
    """The parts of a call that do not change the output; all parts if the call is rejected."""
    found = {name: effect for name, effect in effects(case.call).items() if name in THRESHOLDS}
    parts: dict[Any, float] = {}
    for name, effect in found.items():
        parts[part_of(name)] = max(effect, parts.get(part_of(name), 0.0))
    return tuple(part for part, largest in parts.items() if largest < NO_EFFECT)


def _fields(case: Case) -> frozenset[str]:
    return frozenset(map(repr, fields_of(case).items()))  # as text, NaN equals itself


def _key(case: Case) -> str:
    return repr(sorted(fields_of(case).items()))
