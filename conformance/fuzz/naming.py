"""Names each fault once: many failing calls of a campaign, and the few faults behind them.

Calls show the same fault if their results have the same signature and what the smallest call of the
fault needs is there, and is enough. Refusals with the same message are one fault, and so are
failures beside the same illegal case.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import Field

from conformance.case.case import Case
from conformance.diagnosis.smallest import Smallest
from conformance.results.causes import quoted, symptom
from conformance.results.records import ResultRecord
from conformance.results.wrong_outputs import only_presents

#: The operands of a node, with their types, in messages of ONNX Runtime.
_OPERANDS: Final = re.compile(r'\((?:"\w*"(?:: tensor\(\w+\))?,? ?)+\)')
#: In the signature of wrong results whose outputs are right.
ONLY_PRESENTS: Final = "only in presents"
#: Parts of a smallest call that say more about what was drawn than about its fault: its lengths and
#: input values.
_DRAWN: Final = frozenset({"sequence_length", "past", "loop", "inputs", "seed"})


@dataclass
class NamedFault:
    """A fault of a target, and how many drawn calls have shown it.

    ``signature`` is what all its results share. ``needs`` has the parts, but for lengths and input
    values, without which the smallest call does not fail: features with their values, and others
    with None. ``number`` is that of the first call that showed it, ``known`` the place of an
    expectation with the same fault; empty if it is new. ``like`` are the names of known faults that
    return the same values.
    """

    target: str
    signature: Annotated[tuple[str, ...], Field(min_length=1)]
    needs: Mapping[str, str | None]
    number: int
    calls: int = 1
    known: str = ""
    like: tuple[str, ...] = ()

    def may_be_in(self, case: Case, signature: tuple[str, ...]) -> bool:
        """Whether a call of the target that fails with this signature has what the fault needs."""
        features = {name: value for name, value in self.needs.items() if value is not None}
        same = signature == self.signature
        return same and all(case.features.get(name) == features[name] for name in features)

    def covers(self, later: NamedFault) -> bool:
        """Whether the smallest call of a fault that was found later shows this one.

        Then the later one needs the same, or more features, or is like the same known faults. What
        needs certain lengths, sizes or values only says nothing about what needs features.
        """
        if (self.target, self.signature[0]) != (later.target, later.signature[0]):
            return False
        if self.like != () and self.like == later.like:
            return True
        of_features = bool(self.needs) and None not in self.needs.values()
        if self.signature != later.signature:  # what makes outputs wrong, makes presents wrong, too
            return of_features and self.needs == later.needs and self._is_of_outputs(later)
        return self.needs == later.needs or (
            of_features and self.needs.items() <= later.needs.items()
        )

    def _is_of_outputs(self, later: NamedFault) -> bool:
        """Whether the other fault has the same kinds, but only in presents."""
        of_outputs, kinds = self.signature[1:2] == ("",), self.signature[2:]
        return of_outputs and later.signature[1:] == (ONLY_PRESENTS, *kinds)

    @property
    def name(self) -> str:
        """Its name in files, the same on every machine: target, verdict, and what it needs."""
        needs = ["_".join(filter(None, each)) for each in sorted(self.needs.items())]
        key = "\n".join((self.target, *self.signature, *needs))
        words = "_".join((self.target.partition("@")[0], self.signature[0], *needs))
        digest = hashlib.sha256(key.encode()).hexdigest()[:6]
        return f"{re.sub(r'[^a-z0-9]+', '_', words.lower())[:60]}_{digest}"


def signature_of(case: Case, result: ResultRecord, beside: Case | None) -> tuple[str, ...]:
    """What results of one fault share: the verdict, and the kinds of faults or the symptom.

    Which outputs are wrong depends on those that are connected; only presents alone are told apart.

    ``beside``: the illegal case that the call is made of.
    """
    if beside is not None:
        return result.verdict, f"beside {beside.theme}/{beside.name}"
    if result.faults:
        kinds = {fault.kind for fault in result.faults}
        if len(kinds) > 1:
            kinds.discard("runs_differ")  # which memory that nobody wrote may do or not
        where = ONLY_PRESENTS if only_presents(result) else ""
        return result.verdict, where, ", ".join(sorted(kinds))
    message = symptom(result.model_copy(update={"expectation": None}))
    return result.verdict, quoted(_OPERANDS.sub("(…)", message))


def needs_of(made: Smallest) -> dict[str, str | None]:
    """What a smallest call needs to fail, as in `NamedFault`."""
    features = {**made.case.features, "head_size": None}
    return {name: features.get(name) for name in made.needs if name not in _DRAWN}
