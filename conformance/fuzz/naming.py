"""Names each fault once: many failing calls of a campaign, and the few faults behind them.

Calls show the same fault if their results have the same signature and the call has what the
smallest call of the fault needs. Refusals with the same message are one fault, and so are failures
beside the same illegal case.
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
from conformance.operator.features import BY_NAME
from conformance.results.causes import quoted, symptom
from conformance.results.records import ResultRecord
from conformance.results.wrong_outputs import only_presents

#: The operands of a node, with their types, in messages of ONNX Runtime.
_OPERANDS: Final = re.compile(r'\((?:"\w*"(?:: tensor\(\w+\))?,? ?)+\)')
#: Features that say more about the sizes that were drawn than about a fault.
_SIZES: Final = frozenset({"phase", "head_size"})


@dataclass
class NamedFault:
    """A fault of a target, and how many drawn calls have shown it.

    ``signature`` is what all its results share. ``needs`` has the features, with their values,
    without which the smallest call does not fail. ``number`` is that of the first call that showed
    it, ``known`` the place of an expectation with the same fault; empty if it is new. ``like`` are
    the names of known faults that return the same values.
    """

    target: str
    signature: Annotated[tuple[str, ...], Field(min_length=1)]
    needs: Mapping[str, str | None]
    number: int
    calls: int = 1
    known: str = ""
    like: tuple[str, ...] = ()

    def explains(self, case: Case, signature: tuple[str, ...]) -> bool:
        """Whether a call of the target that fails with this signature shows this fault."""
        same = signature == self.signature
        return same and all(case.features[name] == value for name, value in self.needs.items())

    def covers(self, later: NamedFault) -> bool:
        """Whether the calls of a fault that was found later show this one.

        Then that has all that this one needs, or is like the same known faults.
        """
        if (self.target, self.signature[0]) != (later.target, later.signature[0]):
            return False
        needed = self.signature == later.signature and self.needs.items() <= later.needs.items()
        return needed or (self.like != () and self.like == later.like)

    @property
    def name(self) -> str:
        """Its name in files, the same on every machine: target, verdict, and what it needs."""
        needs = [f"{name}_{value}" for name, value in sorted(self.needs.items())]
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
        where = "only in presents" if only_presents(result) else ""
        return result.verdict, where, ", ".join(sorted(kinds))
    message = symptom(result.model_copy(update={"expectation": None}))
    return result.verdict, quoted(_OPERANDS.sub("(…)", message))


def needs_of(made: Smallest) -> dict[str, str | None]:
    """The features, with their values, that a smallest call needs to fail."""
    return {
        name: made.case.features[name]
        for name in made.needs
        if name in BY_NAME and name not in _SIZES
    }
